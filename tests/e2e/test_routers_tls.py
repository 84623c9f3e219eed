"""Connection routers of two real brokers decide by what only TLS says: the host name asked for, the certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from proton import SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container

from harness.broker import PASSWORD, USER
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until
from harness.tls import make_certificates
from pollux.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROUTER = (
    '<connection-router name="by-{0}"><key-type>{1}</key-type>{2}<policy name="FIRST_ELEMENT"/><pool>'
    "<check-period>50</check-period><cluster-connection>c</cluster-connection></pool></connection-router>"
)
#: Their filters say what the first broker serves; the other one serves the rest, and nobody that of the last router.
ROUTERS = {
    "host": ROUTER.format(
        "host",
        "SNI_HOST",
        "<key-filter>^[^.]+</key-filter><local-target-filter>NULL|here|unknown</local-target-filter>",
    ),
    "user": ROUTER.format("user", "USER_NAME", "<local-target-filter>ada</local-target-filter>"),
    "role": ROUTER.format("role", "ROLE_NAME", "<local-target-filter>drivers</local-target-filter>"),
    "closed": '<connection-router name="by-closed"><key-type>SNI_HOST</key-type>'
    "<local-target-filter>here.test</local-target-filter></connection-router>",
}
#: Names of hosts, and of clients whose certificates say so.
NAMES = ("here.test", "there.test", "driver", "rider")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, others=NAMES)
    return directory


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Nodes]:
    """Two brokers with a port for each router; whom they send on comes to one without."""
    stores = ",".join(str(certificates / f"{name}.pem") for name in ("broker", "here.test", "there.test"))
    tls = f"?sslEnabled=true;keyStorePath={stores};wantClientAuth=true;trustStorePath={certificates}/ca.pem"
    found = Nodes(
        tmp_path_factory.mktemp("routers"),
        2,
        core=f"<connection-routers>{''.join(ROUTERS.values())}</connection-routers>",
        acceptors={"all": tls, **{name: f"{tls};router=by-{name}" for name in ROUTERS}},
        px_security="<px:certificate-users-file>certificates.properties</px:certificate-users-file>",
    )
    for node in found.all:
        (node.etc / "certificates.properties").write_text("ada = CN=driver\neve = CN=rider\n")
        # They have no password: their certificate is all by which they come in.
        with (node.etc / "artemis-roles.properties").open("a") as roles:
            roles.write("drivers = ada\nriders = eve\n")
    with found:
        first = found.all[0]
        wait_until(lambda: all(router(first, name)["ready"] == 1 for name in ("host", "user", "role")), "all are ready")
        yield found


def router(node: ClusterNode, name: str) -> Any:
    """Return a router as the API shows it."""
    return node.api(f"/api/v1/cluster/routers/by-{name}")


class Caller(MessagingHandler):
    """Opens a connection with proton, and is told that it is served, or in the condition of a Close that it is not."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__()
        self._url, self._options = url, options
        self.served = False
        self.condition: Any = None

    def on_start(self, event: Any) -> None:
        """Called by proton when it runs."""
        event.container.connect(self._url, reconnect=False, **self._options)

    def on_connection_opened(self, event: Any) -> None:
        """Called by proton for the broker's Open."""
        self.served = "amqp:connection-establishment-failed" not in (event.connection.remote_properties or {})
        if self.served:
            event.connection.close()

    def on_connection_remote_close(self, event: Any) -> None:
        """Called by proton for the broker's Close; for one with connection:forced this is all that is called."""
        self.condition = event.connection.remote_condition
        event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        """Called by proton when TLS or the log-in failed."""
        self.condition = event.transport.condition


def told(nodes: Nodes, acceptor: str, certificates: Path, host: str = "", certificate: str = "") -> Any:
    """Come to the first broker; returns the condition with which it closes, None for a client that it serves."""
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(certificates / "ca.pem"))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
    options: dict[str, Any] = {"user": USER, "password": PASSWORD, "allowed_mechs": "PLAIN"}
    if certificate:
        file = str(certificates / f"{certificate}.pem")
        domain.set_credentials(file, file, "")
        options = {"allowed_mechs": "EXTERNAL"}
    if host:
        options["virtual_host"] = host
    caller = Caller(f"amqps://127.0.0.1:{nodes.all[0].ports[acceptor]}", ssl_domain=domain, **options)
    Container(caller).run()
    assert caller.served == (caller.condition is None)
    return caller.condition


def elsewhere(condition: Any, nodes: Nodes) -> bool:
    """Whether it is the redirection to the other broker's port without a router."""
    assert condition.name == "amqp:connection:redirect", condition
    info = condition.info
    return (info["network-host"], info["port"], info["scheme"]) == ("127.0.0.1", nodes.all[1].ports["all"], "amqps")


@pytest.mark.parametrize(
    ("host", "here"),
    [("here.test", True), ("there.test", False), ("HERE.test", True), ("unknown.test", True), ("other.test", False)],
)
def test_the_host_name_that_tls_asks_for_decides(nodes: Nodes, certificates: Path, host: str, here: bool) -> None:
    """Also where it chose the certificate that is shown, and where there is none for it."""
    before = router(nodes.all[0], "host")
    condition = told(nodes, "host", certificates, host)
    after = router(nodes.all[0], "host")
    assert (condition is None) if here else elsewhere(condition, nodes)
    counted = "local" if here else "redirected"
    assert after[counted] == before[counted] + 1


async def test_our_client_is_served_by_the_host_name_of_its_url(nodes: Nodes, certificates: Path) -> None:
    """An address in its place is none: the key is NULL."""
    for host, there in (("127.0.0.1", nodes.all[0].ports["host"]), ("localhost", nodes.all[1].ports["all"])):
        url = f"tcps://{host}:{nodes.all[0].ports['host']}?trustStorePath={certificates}/ca.pem"
        async with await connect(url, user=USER, password=PASSWORD) as connection:
            assert connection.endpoint is not None
            assert connection.endpoint.port == there


def test_a_host_name_that_is_served_nowhere_is_refused_in_words(nodes: Nodes, certificates: Path) -> None:
    before = router(nodes.all[0], "closed")["refused"]
    assert told(nodes, "closed", certificates, "here.test") is None
    for host in ("there.test", ""):
        condition = told(nodes, "closed", certificates, host)
        assert condition.name == "amqp:connection:forced"
        assert "connection router by-closed serves no client like this one here" in condition.description
    assert router(nodes.all[0], "closed")["refused"] == before + 2


@pytest.mark.parametrize("acceptor", ["user", "role"])
def test_the_user_of_a_certificate_decides_and_so_do_its_roles(nodes: Nodes, certificates: Path, acceptor: str) -> None:
    assert told(nodes, acceptor, certificates, certificate="driver") is None
    assert elsewhere(told(nodes, acceptor, certificates, certificate="rider"), nodes)


@pytest.mark.parametrize("acceptor", ["user", "role"])
async def test_our_client_shows_its_certificate_where_it_is_sent(
    nodes: Nodes, certificates: Path, acceptor: str
) -> None:
    for number, (certificate, user) in enumerate((("driver", "ada"), ("rider", "eve"))):
        url = (
            f"tcps://127.0.0.1:{nodes.all[0].ports[acceptor]}?trustStorePath={certificates}/ca.pem"
            f"&keyStorePath={certificates}/{certificate}.pem"
        )
        async with await connect(url) as connection:
            assert connection.endpoint is not None
            assert connection.endpoint.port == nodes.all[number].ports[acceptor if number == 0 else "all"]
            assert user in [one["user"] for one in nodes.all[number].api("/api/v1/connections")["items"]]
