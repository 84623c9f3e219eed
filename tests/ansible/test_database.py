"""A store in a database: which inventories are refused, and what the role makes on a server."""

from __future__ import annotations

import getpass
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml

from harness.bundle import ROOT
from harness.modules import load
from harness.postgresql import programs, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.postgresql import Server


topology = load("filter_plugins/topology.py")
module = load("roles/database_store/library/pollux_database.py")
OPTIONS = {
    role: yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"][
        "options"
    ]
    for role in topology.ROLES
}
PASSWORD = "database-canary-0815"
GIVEN: dict[str, Any] = {
    "inventory_dir": "/inventory",
    "broker_wheelhouse": "/wheels",
    "shared_store_type": "database",
    "database_store_hosts": ["db1.example.com", "[2001:db8::1]:5433"],
    "database_store_authorities": "/authorities.crt",
    "database_store_password": PASSWORD,
}


def model(*, missing: str = "", **more: Any) -> dict[str, Any]:
    """Two groups of one broker each; ``missing``: a file that is not there."""
    hosts = {name: {**GIVEN, "broker_group": f"Group-{name}", **more} for name in ("one", "two")}
    found: dict[str, Any] = topology.topology(
        hosts, {"brokers": list(hosts)}, OPTIONS, {}, lambda path: path != missing
    )
    return found


def test_each_group_has_a_database_of_its_own() -> None:
    found = model()
    assert found["problems"] == []
    assert found["databases"] == [
        {"name": f"pollux_group_{name}", "user": "pollux", "broker": name} for name in ("one", "two")
    ]
    assert found["brokers"]["two"]["database"]["url"] == (
        "jdbc:postgresql://db1.example.com,[2001:db8::1]:5433/pollux_group_two"
        "?sslmode=verify-full&sslrootcert=/opt/pollux/etc/tls/database.pem"
    )
    plain = model(database_store_sslmode="disable", database_store_plain_reason="one machine")
    assert plain["problems"] == []
    assert plain["brokers"]["one"]["database"]["url"].endswith("/pollux_group_one?sslmode=disable")
    assert model(database_store_password="")["secrets"]["names"] == [
        "cluster_password", "users_key", "database_password"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"database_store_hosts": []}, "database_store_hosts: is empty, so there is no database"),
        ({"database_store_hosts": ["postgres://db"]}, "'postgres://db' is not HOST or HOST:PORT"),
        ({"database_store_hosts": ["db:70000"]}, "'db:70000' is not HOST or HOST:PORT"),
        ({"database_store_sslmode": "disable"}, "or say why it is right here in database_store_plain_reason"),
        ({"database_store_authorities": ""}, "database_store_authorities: is not set, so no server can be verified"),
        ({"missing": "/authorities.crt"}, "there is no file /authorities.crt on the controller"),
        ({"missing": "/wheels/with-database"}, "make it with tools/wheelhouse.py --database"),
        ({"database_store_lock_expiration_ms": 5000}, "5000 ms is shorter than broker_lease_guard_ms"),
        ({"database_store_network_timeout_ms": 10}, "database_store_network_timeout_ms: leaves no time to connect"),
        ({"database_store_user": "postgres"}, "database_store_user: is the server's administrator"),
        ({"database_store_user": "Pollux"}, "'Pollux' is no name that needs no quotation marks"),
        ({"database_store_name": "a;b"}, "'a;b' is no name that needs no quotation marks"),
        ({"database_store_name": "pollux"}, "'pollux' is also that of one of the group 'Group-one'"),
        ({"database_store_password": "canary"}, "database_store_password: has fewer than 12 characters"),
        ({"shared_store_type": "local"}, "database_store_hosts: is set, but the store is not in a database"),
        ({"shared_store_source": "nfs:/x"}, "shared_store_type database mounts nothing"),
        ({"broker_core_settings": {"store": "x"}}, "'store' is derived by this bundle"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    problems = model(**given)["problems"]
    assert any(words in line for line in problems), problems
    assert not any(PASSWORD in line or "canary" in line for line in problems)


# -- what a broker installs


def test_an_installation_without_the_extra_is_whole_and_one_that_lacks_more_is_not(tmp_path: Path) -> None:
    """Each module is imported once when a release is installed; those of the extra may lack what it brings."""
    install = load("roles/broker/library/pollux_install.py")
    package = tmp_path / "thing"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "stored.py").write_text("import an_extra.part\n")
    about = tmp_path / "thing-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        'Metadata-Version: 2.1\nName: thing\nVersion: 1\nRequires-Dist: An_Extra; extra == "x"\n'
    )
    (about / "top_level.txt").write_text("thing\n")
    command = [sys.executable, "-c", install.IMPORT_ALL, "thing"]
    environment = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (package / "other.py").write_text("import missing_here\n")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "No module named 'missing_here'" in done.stderr


# -- what is made on a server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as one:
        one.sql(f'CREATE ROLE "{getpass.getuser()}" SUPERUSER LOGIN')
        # As an administrator might have it who wants to know all that happens.
        one.sql("ALTER SYSTEM SET log_statement = 'all'")
        one.sql("SELECT pg_reload_conf()")
        yield one


@pytest.fixture
def asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PATH", str(programs()), prepend=":")
    return module.Server(5432, str(server.directory))


def carry_out(asked: Any, **params: str) -> list[str]:
    """Do as the module does, and return its words."""
    todo = module.lacking(asked, params, b"0123456789abcdef")
    for _, database, statement in todo:
        asked.ask(module.quietly(statement), database)
    return [words for words, _, _ in todo]


def test_a_user_may_make_tables_in_its_schema_and_nothing_else(server: Server, asked: Any) -> None:
    params = {"name": "orders", "user": "broker", "password": PASSWORD}
    assert carry_out(asked, **params) == [
        "made the user broker",
        "set the password of broker",
        "made the database orders",
        "let broker and nobody else into orders",
        "made the schema broker in orders",
        "had broker find its schema in orders",
    ]
    assert carry_out(asked, **params) == [], "a second time there is nothing to do"
    assert carry_out(asked, **{**params, "password": "another-password-0815"}) == ["set the password of broker"]
    server.sql("ALTER ROLE broker CREATEDB")
    server.sql("GRANT CONNECT ON DATABASE orders TO PUBLIC")
    assert carry_out(asked, **params) == [
        "took rights from broker",
        "set the password of broker",
        "let broker and nobody else into orders",
    ]
    with psycopg.connect(
        host=str(server.directory), user="broker", dbname="orders", password=PASSWORD, autocommit=True
    ) as connection:
        connection.execute("CREATE TABLE messages (id int)")
        assert connection.execute("SELECT current_schema()").fetchone() == ("broker",)
        for statement in (
            "CREATE TABLE public.t (id int)",
            "CREATE SCHEMA s",
            "CREATE ROLE r",
            "SELECT * FROM pg_authid",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    server.sql("CREATE ROLE other LOGIN")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(host=str(server.directory), user="other", dbname="orders")


def test_the_password_is_the_one_that_the_server_then_asks_for_and_is_in_no_log(server: Server, asked: Any) -> None:
    carry_out(asked, name="logins", user="login", password=PASSWORD)
    kept = server.sql("SELECT rolpassword FROM pg_authid WHERE rolname = 'login'")
    assert module.fits(PASSWORD, kept)
    assert not module.fits("another-password-0815", kept)
    # The server itself makes the same of it.
    server.sql(f"ALTER ROLE login PASSWORD '{PASSWORD}-2'")
    assert module.fits(f"{PASSWORD}-2", server.sql("SELECT rolpassword FROM pg_authid WHERE rolname = 'login'"))
    carry_out(asked, name="logins", user="login", password="third-canary-0815")
    log = (server.directory / "log").read_text()
    assert "CREATE DATABASE" not in log
    assert "third-canary" not in log
    assert module.verifier_of("third-canary-0815", b"0123456789abcdef") not in log
    assert "SELECT pg_reload_conf" in log or "pg_authid" in log, "statements are logged there"


def test_what_the_server_says_is_said_without_a_verifier(asked: Any) -> None:
    with pytest.raises(module.DatabaseError) as caught:
        asked.ask(f"ALTER ROLE nobody_here PASSWORD '{module.verifier_of(PASSWORD, b'0' * 16)}';")
    assert 'role "nobody_here" does not exist' in str(caught.value)
    assert "SCRAM-SHA-256$" not in str(caught.value)
