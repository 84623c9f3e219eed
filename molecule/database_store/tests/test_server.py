"""Asserts what the role made on the server, and what the brokers do there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://database_servers"]

RIGHTS = (
    "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls"
    " FROM pg_roles WHERE rolname = 'pollux'"
)
ENCRYPTED = "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'pollux'"


def asked(host: Host, statement: str, database: str = "pollux_twins") -> str:
    """The answer to the administrator, of the server that is written to."""
    port = host.check_output("pg_lsclusters --no-header | awk '$4 == \"online\" {print $3}'")
    command = f'psql -X -A -t -q -p {port} -d {database} -c "{statement}"'
    return str(host.check_output(f"runuser -u postgres -- {command}"))


def test_the_user_owns_its_schema_and_nothing_else(host: Host) -> None:
    assert asked(host, RIGHTS) == "f"
    assert asked(host, "SELECT DISTINCT schemaname FROM pg_tables WHERE tableowner = 'pollux'") == "pollux"
    assert asked(host, "SELECT has_database_privilege('pollux', 'pollux_twins', 'CREATE')") == "f"
    assert asked(host, "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'pollux_twins'") == "postgres"


def test_every_session_of_a_broker_is_encrypted(host: Host) -> None:
    assert asked(host, ENCRYPTED) == "t"


def test_the_tables_are_on_the_disk_that_is_filled(host: Host) -> None:
    where = "SELECT DISTINCT coalesce(tablespace, '-') FROM pg_tables WHERE tableowner = 'pollux'"
    assert asked(host, where) == "small"


def test_the_log_has_no_password_and_no_verifier(host: Host) -> None:
    log = host.check_output("cat /var/log/postgresql/*-main.log")
    assert "CREATE TABLE" in log, "statements are logged"
    assert "SCRAM-SHA-256" not in log
    assert "PASSWORD" not in log
