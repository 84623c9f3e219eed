"""Connections between brokers: TLS that verifies both ends, and one line for each refusal that says what to do."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from msgspec.structs import replace

from broker.process.conftest import Authority
from broker.process.echoing import bench
from pollux.cluster.connector import ClusterConnector, UnreachableError, check_connectors, tell
from pollux.cluster.link import CoreHub
from pollux.cluster.link.core_link import CoreLink
from pollux.config.acceptors import AcceptorSettings, Connector, ConnectorSettings, Endpoint
from pollux.config.tls import TlsError
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

#: Nothing here takes this long.
PATIENCE = 30.0
KEY = ClusterKey("cluster", "twins")
STORE_PASSWORD = "never in a log"
EXPIRED = dt.timedelta(seconds=-60)


def hub(name: str) -> CoreHub:
    return CoreHub(KEY, name=name, node_id=b"", timeout=PATIENCE)


@asynccontextmanager
async def acceptor(settings: AcceptorSettings) -> AsyncIterator[int]:
    """A broker's acceptor; its port."""
    async with bench(settings, core=hub("pollux")) as server:
        yield server.listener.port


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """An authority that nobody trusts."""
    (tmp_path / "stranger").mkdir()
    return Authority.create(tmp_path / "stranger")


def serving(store: Path, **more: Any) -> AcceptorSettings:
    return AcceptorSettings(ssl_enabled=True, key_store_path=(store,), **more)


def trusting(authority: Authority, **more: Any) -> ConnectorSettings:
    return ConnectorSettings(ssl_enabled=True, trust_store_path=authority.path, **more)


def fields(caplog: pytest.LogCaptureFixture, message: str) -> dict[str, Any]:
    """The fields of the one line with this message."""
    (found,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == message]
    return dict(found)


async def refusal(settings: ConnectorSettings, port: int, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Connect in vain; the fields of the line that is logged about it."""
    endpoint = Endpoint("tcp", "127.0.0.1", port, settings)
    with pytest.raises(UnreachableError) as caught:
        await ClusterConnector(hub("castor")).connect(endpoint, PATIENCE)
    caplog.set_level(logging.INFO)
    tell(logging.getLogger("pollux.ha"), "cannot follow", f"127.0.0.1:{port}", caught.value)
    line = fields(caplog, "cannot follow")
    assert line["member"] == f"127.0.0.1:{port}"
    assert line["remedy"]
    assert "WARNING" in {record.levelname for record in caplog.records if record.getMessage() == "cannot follow"}
    return line


async def test_both_ends_verify_each_other(authority: Authority) -> None:
    """Key stores with a password too; the proof of the cluster password follows the handshake."""
    server = authority.issue("server", "pollux.test", password=STORE_PASSWORD)
    client = authority.issue("client", password=STORE_PASSWORD)
    settings = serving(
        server, key_store_password=STORE_PASSWORD, need_client_auth=True, trust_store_path=authority.path
    )
    connector = trusting(authority, key_store_path=(client,), key_store_password=STORE_PASSWORD)
    async with acceptor(settings) as port:
        link = await ClusterConnector(hub("castor")).connect(Endpoint("tcp", "127.0.0.1", port, connector), PATIENCE)
        assert link.conversation.peer is not None
        assert link.conversation.peer.name == "pollux"
        link.close("done")


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_is_gone_before_its_options_are_set(
    loops: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end was killed as it accepted: a reason to try again, not a failed duty with a traceback."""
    made = CoreLink.connection_made

    def gone(link: CoreLink, transport: asyncio.BaseTransport) -> None:
        made(link, transport)
        transport.abort()  # type: ignore[attr-defined]

    async def connect() -> None:
        async with acceptor(AcceptorSettings()) as port:
            with pytest.raises(UnreachableError, match="closed the connection without an answer"):
                await ClusterConnector(hub("castor")).connect(Endpoint("tcp", "127.0.0.1", port), PATIENCE)

    monkeypatch.setattr(CoreLink, "connection_made", gone)
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(connect())


async def test_an_unknown_authority(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with acceptor(serving(stranger.issue("server", "pollux.test"))) as port:
        line = await refusal(trusting(authority), port, caplog)
        assert "not in the trust store" in str(line["reason"])
        assert line["file"] == str(authority.path)
        assert "trustStorePath" in line["remedy"]
        await logged(caplog, "TLS handshake failed")
    other = fields(caplog, "TLS handshake failed")
    assert other["source"] == "127.0.0.1"
    assert other["remedy"]


async def logged(caplog: pytest.LogCaptureFixture, message: str) -> None:
    """Wait for a line of the other end."""
    async with asyncio.timeout(PATIENCE):
        while not any(record.getMessage() == message for record in caplog.records):  # noqa: ASYNC110  (a log)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("left", "words"), [(dt.timedelta(days=1), "authority"), (EXPIRED, "has expired")])
async def test_the_acceptors_line_when_the_client_says_why(
    authority: Authority, stranger: Authority, left: dt.timedelta, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An event loop may close before its alert is sent; a blocking socket sends it."""
    store = (stranger if left > EXPIRED else authority).issue("server", left=left)

    def shake(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as raw, pytest.raises(ssl.SSLError):
            authority.client_context().wrap_socket(raw, server_hostname="127.0.0.1")

    async with acceptor(serving(store)) as port:
        await asyncio.to_thread(shake, port)
        await logged(caplog, "TLS handshake failed")
    line = fields(caplog, "TLS handshake failed")
    assert line["file"] == str(store)
    assert words in line["reason"] + line["remedy"]


async def test_a_certificate_for_another_host(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    store = authority.issue("server", "pollux.test", address="192.0.2.1")
    async with acceptor(serving(store)) as port:
        line = await refusal(trusting(authority), port, caplog)
        assert "another host" in str(line["reason"])
        assert "127.0.0.1" in str(line["reason"])
        endpoint = Endpoint("tcp", "127.0.0.1", port, trusting(authority, verify_host=False))
        (await ClusterConnector(hub("castor")).connect(endpoint, PATIENCE)).close("done")
        endpoint = replace(endpoint, settings=trusting(authority, sni_host="pollux.test"))
        (await ClusterConnector(hub("castor")).connect(endpoint, PATIENCE)).close("done")


async def test_an_expired_certificate(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with acceptor(serving(authority.issue("server", left=EXPIRED))) as port:
        line = await refusal(trusting(authority), port, caplog)
        assert "expired" in str(line["reason"])
        assert "renew the certificate" in line["remedy"]


async def test_a_renewed_certificate_counts_at_the_next_connection(authority: Authority, stranger: Authority) -> None:
    """The trust store is read again when it was changed."""
    trusted = authority.directory / "trusted.pem"
    trusted.write_bytes(stranger.path.read_bytes())
    async with acceptor(serving(authority.issue("server"))) as port:
        connector = ConnectorSettings(ssl_enabled=True, trust_store_path=trusted)
        endpoint = Endpoint("tcp", "127.0.0.1", port, connector)
        cluster_connector = ClusterConnector(hub("castor"))
        with pytest.raises(UnreachableError, match="not in the trust store"):
            await cluster_connector.connect(endpoint, PATIENCE)
        assert cluster_connector.context(connector) is cluster_connector.context(connector), (
            "read once while nothing changes"
        )
        replacement = authority.directory / "trusted.new"
        replacement.write_bytes(authority.path.read_bytes())
        replacement.replace(trusted)
        (await cluster_connector.connect(endpoint, PATIENCE)).close("done")


async def test_a_plain_connector_at_an_acceptor_with_tls(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with acceptor(serving(authority.issue("server"))) as port:
        line = await refusal(ConnectorSettings(), port, caplog)
        assert "sslEnabled=true" in line["remedy"]
        await logged(caplog, "connection refused")
    other = fields(caplog, "connection refused")
    assert other["source"] == "127.0.0.1"
    assert "takes TLS only" in other["reason"]


async def test_a_connector_with_tls_at_a_plain_acceptor(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with acceptor(AcceptorSettings()) as port:
        line = await refusal(trusting(authority), port, caplog)
        assert "in the TLS handshake" in str(line["reason"])
        assert "its acceptor needs sslEnabled=true" in line["remedy"]
        await logged(caplog, "connection refused")
    assert "TLS is not configured" in fields(caplog, "connection refused")["reason"]


async def test_a_port_that_speaks_something_else(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        line = await refusal(trusting(authority), server.sockets[0].getsockname()[1], caplog)
    finally:
        server.close()
    assert "does not speak TLS" in str(line["reason"])


@pytest.mark.parametrize("shown", [False, True])
async def test_an_acceptor_that_does_not_know_our_certificate(
    authority: Authority, stranger: Authority, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In TLS 1.3 the connector's side of the handshake is done before it is refused."""
    settings = serving(authority.issue("server"), need_client_auth=True, trust_store_path=authority.path)
    own = stranger.issue("client") if shown else None
    async with acceptor(settings) as port:
        line = await refusal(trusting(authority, key_store_path=(own,) if own else ()), port, caplog)
        assert line["file"] == (str(own) if own else None)
        assert "needClientAuth" in line["remedy"]
        await logged(caplog, "TLS handshake failed")
    other = fields(caplog, "TLS handshake failed")
    assert ("not in the trust store" if shown else "no certificate") in other["reason"]
    assert other["file"] == str(authority.path)


async def test_a_store_that_cannot_be_used_names_its_file(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    missing = authority.directory / "nothing.pem"
    broken = ConnectorSettings(ssl_enabled=True, trust_store_path=missing)
    line = await refusal(broken, 9, caplog)
    assert str(missing) in str(line["reason"])
    sealed = authority.issue("client", password=STORE_PASSWORD)
    wrong = trusting(authority, key_store_path=(sealed,), key_store_password="also " + STORE_PASSWORD)
    connector = Connector("there", (Endpoint("tcp", "127.0.0.1", 9, wrong),))
    with pytest.raises(TlsError, match=f"connector 'there': key store {sealed}") as caught:
        check_connectors([connector])
    assert STORE_PASSWORD not in str(caught.value)
    assert STORE_PASSWORD not in repr(connector)


async def test_a_member_that_does_not_run_is_no_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = Endpoint("tcp", "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(UnreachableError, match="refused") as caught:
            await ClusterConnector(hub("castor")).connect(endpoint, PATIENCE)
    assert not caught.value.remedy


async def test_the_parameters_of_a_connector() -> None:
    """Its time, its local address and its socket's options are used."""
    settings = ConnectorSettings(
        connect_timeout=200,
        local_address="127.0.0.2",
        tcp_no_delay=False,
        tcp_send_buffer_size=65536,
        tcp_receive_buffer_size=65536,
    )
    async with acceptor(AcceptorSettings()) as port:
        endpoint = Endpoint("tcp", "127.0.0.1", port, replace(settings, connect_timeout=-1))
        link = await ClusterConnector(hub("castor")).connect(endpoint, PATIENCE)
        used = link.transport.get_extra_info("socket")
        assert used.getsockname()[0] == "127.0.0.2"
        assert used.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 65536, "the kernel doubles it"
        assert used.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * 65536
        link.close("done")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint("tcp", "127.0.0.1", silent.getsockname()[1], settings)
        with pytest.raises(UnreachableError, match=r"no answer within 0\.2 s"):
            await ClusterConnector(hub("castor")).connect(endpoint, PATIENCE)
