"""`pollux migrate`: what becomes of an instance of Artemis, file by file. The walk to a pair is in tests/e2e."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from typer.testing import CliRunner

from pollux.cli.app import app
from pollux.cli.output import CommandError
from pollux.config import load
from pollux.config.java_stores import JavaStoreError, read_jks, to_pem
from pollux.config.tls import server_tls
from pollux.config.users import load_users
from pollux.process.exits import EXIT_FAILED, EXIT_OK, EXIT_USAGE

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
#: Of server.jks and trust.jks, which keytool made.
STORE_PASSWORD = "securepass"
BROKER_XML = """<configuration xmlns="urn:activemq">
  <core xmlns="urn:activemq:core">
    <name>castor</name> <!-- a comment that stays -->
    {core}
    <acceptors>
      <acceptor name="amqp">tcp://127.0.0.1:5672?protocols=AMQP{parameters}</acceptor>
      {acceptors}
    </acceptors>
    <security-settings>
      <security-setting match="#"><permission type="send" roles="amq"/></security-setting>
    </security-settings>
  </core>
</configuration>
"""
MODULE = "org.apache.activemq.artemis.spi.core.security.jaas"


class Artemis:
    """An instance of Artemis, and what is made of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.etc = directory / "etc"
        self.etc.mkdir(parents=True)
        self.target = directory.with_name(f"{directory.name}-pollux")
        self.write()
        self.login(f'{MODULE}.PropertiesLoginModule required org.apache.activemq.jaas.properties.user="u.properties";')
        (self.etc / "u.properties").write_text("# users\nada = castor\n")
        (self.etc / "artemis-roles.properties").write_text("amq = ada, bob\n")

    def write(self, core: str = "", acceptors: str = "", parameters: str = "") -> None:
        text = BROKER_XML.format(core=core, acceptors=acceptors, parameters=parameters)
        (self.etc / "broker.xml").write_text(text)

    def login(self, modules: str, domain: str = "activemq") -> None:
        (self.etc / "login.config").write_text(f"/* who may */\n// nobody\n{domain} {{\n{modules}\n}};\n")

    def migrate(self, *options: str, code: int = EXIT_OK) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["migrate", str(self.directory), "--json", *options])
        assert done.exit_code == code, (done.output, done.exception)
        found: dict[str, Any] = json.loads(done.output)
        return found

    def refused(self, *options: str) -> str:
        done = CliRunner().invoke(app, ["migrate", str(self.directory), *options])
        assert isinstance(done.exception, CommandError)
        assert done.exception.code == EXIT_USAGE
        return str(done.exception)


@pytest.fixture
def artemis(tmp_path: Path) -> Artemis:
    return Artemis(tmp_path / "art")


def test_check_writes_nothing(artemis: Artemis, tmp_path: Path) -> None:
    found = artemis.migrate("--check")
    assert (found["starts"], found["instance"]) == (True, None)
    assert [path.name for path in tmp_path.iterdir()] == ["art"]


def test_users_roles_and_comments_are_the_same(artemis: Artemis) -> None:
    before = {path: path.read_bytes() for path in artemis.etc.iterdir()}
    found = artemis.migrate()
    assert found["starts"]
    assert found["decisions"] == []
    assert {path: path.read_bytes() for path in artemis.etc.iterdir()} == before
    etc = artemis.target / "etc"
    assert "<!-- a comment that stays -->" in (etc / "broker.xml").read_text()
    security = load(etc / "broker.xml", {}).security
    users = load_users(security.users_file, security.roles_file)
    assert users.verifiers["ada"].verify("castor")
    assert users.roles_of("ada") == users.roles_of("bob") == {"amq"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (etc / "broker.xml", security.users_file))


def test_a_hashed_password_is_a_decision_and_keeps_its_roles(artemis: Artemis) -> None:
    (artemis.etc / "u.properties").write_text("bob = ENC(1024:AB:CD)\n")
    found = artemis.migrate(code=EXIT_FAILED)
    assert found["starts"]
    assert found["decisions"] == ["user 'bob' needs a password, as Artemis kept only a hash of it: pollux user add bob"]
    assert "AB:CD" not in json.dumps(found)
    assert "bob" in (artemis.target / "etc" / "artemis-roles.properties").read_text()


def test_java_stores_become_pem_with_the_same_password(artemis: Artemis) -> None:
    for name in ("server.jks", "trust.jks"):
        shutil.copy(CORPUS / "jks" / name, artemis.etc)
    artemis.write(
        parameters=";sslEnabled=true;keyStorePath=${artemis.instance}/etc/server.jks;keyStoreType=JKS"
        f";keyStorePassword={STORE_PASSWORD};needClientAuth=true;trustStorePath=trust.jks"
        f";trustStorePassword={STORE_PASSWORD};trustStoreProvider=SUN"
    )
    found = artemis.migrate()
    assert len(found["generated"]) == 2
    assert STORE_PASSWORD not in json.dumps(found)
    etc = artemis.target / "etc"
    (acceptor,) = load(etc / "broker.xml", {}).acceptors
    assert [path.name for path in acceptor.settings.key_store_path] == ["server.pem"]
    assert server_tls(acceptor.settings).certificates[0].subject == "CN=localhost"
    assert (etc / "server.pem").stat().st_mode & 0o077 == 0
    with pytest.raises(TypeError):
        load_pem_private_key((etc / "server.pem").read_bytes(), None)


def test_what_is_included_and_revoked_is_taken_over(artemis: Artemis) -> None:
    shutil.copy(CORPUS / "jks" / "server.jks", artemis.etc)
    (artemis.etc / "revoked.crl").write_bytes(b"a list")
    (artemis.etc / "name.xml").write_text("<name>pollux</name>")
    include = '<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="name.xml"/>'
    parameters = f";sslEnabled=true;keyStorePath=server.jks;keyStorePassword={STORE_PASSWORD};crlPath=revoked.crl"
    artemis.write(parameters=parameters)
    text = (artemis.etc / "broker.xml").read_text()
    (artemis.etc / "broker.xml").write_text(text.replace("<name>castor</name>", include))
    found = artemis.migrate(code=EXIT_FAILED)  # the list is none, and nobody asks for certificates of clients
    assert found["differs"][0] == f"what {artemis.etc}/name.xml holds is in broker.xml itself"
    assert (artemis.target / "etc" / "revoked.crl").read_bytes() == b"a list"
    assert "<name>pollux</name>" in (artemis.target / "etc" / "broker.xml").read_text()
    assert ["crlPath" in each for each in found["decisions"]] == [True]


@pytest.mark.parametrize("password", ["other", ""])
def test_a_store_that_another_password_opens_is_a_decision(artemis: Artemis, password: str) -> None:
    shutil.copy(CORPUS / "jks" / "server.jks", artemis.etc)
    artemis.write(parameters=f";sslEnabled=true;keyStorePath=server.jks;keyStorePassword={password}")
    found = artemis.migrate(code=EXIT_FAILED)
    assert not found["starts"]
    assert "the password of the store is another one" in found["decisions"][0]


def test_jks_is_read_as_keytool_wrote_it() -> None:
    data = (CORPUS / "jks" / "server.jks").read_bytes()
    store = read_jks(data, STORE_PASSWORD)
    pem = to_pem(store, STORE_PASSWORD)
    key = load_pem_private_key(pem, STORE_PASSWORD.encode())
    assert key.public_key() == x509.load_pem_x509_certificate(pem).public_key()
    trusted = read_jks((CORPUS / "jks" / "trust.jks").read_bytes(), STORE_PASSWORD)
    assert x509.load_pem_x509_certificate(to_pem(trusted, "")).subject.rfc4514_string() == "CN=ca"
    for at in range(len(data)):  # each cut, and each damaged byte, is refused and nothing else
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            with pytest.raises(JavaStoreError):
                read_jks(damaged, STORE_PASSWORD)


def test_what_nobody_could_use_is_left_out_and_said(artemis: Artemis) -> None:
    artemis.write(
        "<broker-plugins>"
        '<broker-plugin class-name="org.apache.activemq.artemis.core.server.plugin.impl.LoggingActiveMQServerPlugin"/>'
        "</broker-plugins>",
        '<acceptor name="classic">tcp://127.0.0.1:61616?protocols=OPENWIRE,CORE</acceptor>'
        '<acceptor name="in-vm">vm://0</acceptor>',
    )
    found = artemis.migrate()
    assert found["starts"]
    left = [line for line in found["differs"] if "left out" in line]
    assert [line.split(" is ")[0] for line in left] == ["acceptor 'classic'", "acceptor 'in-vm'"]
    assert any("LoggingActiveMQServerPlugin' has no effect" in line for line in found["differs"])


def test_what_needs_a_decision_stays_in_the_file(artemis: Artemis) -> None:
    artemis.write('<broker-plugins><broker-plugin class-name="org.example.Audit"/></broker-plugins>')
    artemis.login("com.example.LdapLoginModule required url=ldap;")
    found = artemis.migrate(code=EXIT_FAILED)
    assert not found["starts"]
    assert "<broker-plugins>" in (artemis.target / "etc" / "broker.xml").read_text()
    ldap, plugin = found["decisions"]
    assert "LdapLoginModule is not provided" in ldap
    assert plugin.startswith(f"{artemis.target}/etc/broker.xml:5:")


def test_a_guest_is_the_anonymous_user(artemis: Artemis) -> None:
    artemis.login(
        f'{MODULE}.GuestLoginModule sufficient org.apache.activemq.jaas.guest.user="guest"'
        ' org.apache.activemq.jaas.guest.role="guests";'
    )
    artemis.migrate()
    security = load(artemis.target / "etc" / "broker.xml", {}).security
    assert (security.anonymous_user, security.anonymous_roles) == ("guest", ("guests",))


def test_bootstrap_says_which_domain_file_and_console(artemis: Artemis) -> None:
    (artemis.etc / "broker.xml").rename(artemis.etc / "other.xml")
    (artemis.etc / "bootstrap.xml").write_text(
        '<broker xmlns="http://activemq.apache.org/schema"><jaas-security domain="house"/>'
        '<server configuration="file:${artemis.instance.etc}/other.xml"/><web bind="https://0.0.0.0:8443"/></broker>'
    )
    found = artemis.migrate(code=EXIT_FAILED)
    assert ["domain 'house'" in found["decisions"][0], "had TLS" in found["decisions"][1]] == [True, True]
    management = load(artemis.target / "etc" / "broker.xml", {}).management
    assert (management.host, management.port) == ("127.0.0.1", 8443)


def test_directories_are_never_those_of_artemis(artemis: Artemis) -> None:
    artemis.write(
        "<journal-directory>/srv/shared/journal</journal-directory><paging-directory>data/paging</paging-directory>"
    )
    artemis.migrate()
    loaded = load(artemis.target / "etc" / "broker.xml", {})
    assert loaded.journal_directory == Path("/srv/shared/journal-pollux")
    assert loaded.paging_directory == artemis.target / "data/paging"


def test_what_is_there_is_not_overwritten(artemis: Artemis) -> None:
    artemis.migrate()
    assert "exists already" in artemis.refused()
    (artemis.etc / "broker.xml").write_text('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>')
    assert "a document type" in artemis.refused("--check")
    (artemis.etc / "broker.xml").unlink()
    assert "there is no such file" in artemis.refused("--check")


def test_what_goes_to_other_brokers_needs_pollux_there(artemis: Artemis) -> None:
    artemis.write(
        "<connectors><connector name='c'>tcp://there:61616</connector></connectors><bridges><bridge name='b'>"
        "<queue-name>q</queue-name><user>u</user><password>p</password><static-connectors><connector-ref>c"
        "</connector-ref></static-connectors></bridge></bridges><federations><federation name='f'/></federations>"
    )
    found = artemis.migrate("--check")
    said = [each for each in found["differs"] if "the other broker has to be Pollux" in each]
    assert [each.partition(":")[0] for each in said] == ["bridge 'b'", "federation 'f'"]
