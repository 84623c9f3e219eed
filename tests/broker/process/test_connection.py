"""Connections: telling the protocol, TLS on the same port, limits, deadlines, slow readers. Sessions here only echo."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from msgspec.structs import replace

from pollux.cluster.link import CoreHub, CoreSession
from pollux.config.acceptors import Acceptor, AcceptorSettings
from pollux.config.model import Configuration, Limits
from pollux.config.users import Users
from pollux.engine.security import Identity, Security
from pollux.process.acceptor import Listener, ListenError
from pollux.process.connections import SWEEP_INTERVAL, Connections
from pollux.process.tls import ServerTls, TlsError
from pollux.protocols.base import Session, Transport
from pollux.protocols.services import Services
from pollux.wire.sniff import Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

AMQP = b"AMQP\x00\x01\x00\x00"
#: Nothing here takes this long; a test that waits for it has failed. Seconds.
PATIENCE = 30


class Echo(Session):
    """Answers with what it got; logged in by the word LOGIN."""

    protocol = "AMQP"

    def __init__(self, transport: Transport, services: Services) -> None:
        self.transport = transport
        self.services = services
        self.user = None
        self.client_id = None
        self.events: list[str] = []

    def data_received(self, data: bytes) -> None:
        if b"LOGIN" in data:
            self.user = "ada"
            self.services.security.connection_opened(Identity("ada"), self.transport.peer)
        if b"FLOOD" in data:
            self.transport.write(bytes(4 * 1024 * 1024))
        if b"BYE" in data:
            self.transport.write(b"farewell")
            self.transport.close()
            return
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost")

    def shutdown(self, reason: str) -> None:
        self.events.append(reason)
        self.transport.write(b"shutdown")
        self.transport.close()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Bench:
    """A listener and what is needed around it."""

    def __init__(self, listener: Listener, connections: Connections) -> None:
        self.listener = listener
        self.connections = connections

    @property
    def sessions(self) -> list[Echo]:
        return [cast("Echo", connection.session) for connection in self.connections if connection.session]

    async def open(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port, **options)


@asynccontextmanager
async def bench(
    settings: AcceptorSettings = AcceptorSettings(),  # noqa: B008  (frozen)
    limits: Limits = Limits(),  # noqa: B008
    core: CoreHub | None = None,
    **overrides: Any,
) -> AsyncIterator[Bench]:
    configuration = Configuration(limits=limits, **overrides)
    loop = asyncio.get_running_loop()
    connections = Connections(loop, maximum=limits.max_connections, per_host=limits.max_connections_per_host)
    security = Security(configuration, Users(), on_login=connections.logged_in)
    services = Services(configuration, cast("Any", None), security, lambda: 0, lambda *_: [], settings)
    acceptor = Acceptor("test", "tcp", "127.0.0.1", 0, settings=settings)
    listener = Listener(
        acceptor,
        configuration,
        loop=loop,
        connections=connections,
        services=services,
        sessions={Protocol.AMQP: Echo, Protocol.CORE: partial(CoreSession, hub=core)},
        tls=ServerTls(settings, "acceptor 'test'") if settings.key_store_path else None,
    )
    connections.start()
    await listener.listen()
    try:
        yield Bench(listener, connections)
    finally:
        listener.stop_accepting()
        connections.stop()
        for connection in connections:
            connection.abort()
        await asyncio.wait_for(connections.empty.wait(), PATIENCE)
        security.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is so; the server under test is in this loop."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (there is no event for what the kernel delivers)
            await asyncio.sleep(0.001)


async def finish(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except (OSError, ssl.SSLError):
        return


@pytest.mark.parametrize(
    ("how", "who", "why"),
    [
        ("goes", "client", "without a farewell"),
        ("says so", "client", "DISCONNECT"),
        ("is refused", "broker", "it was closed"),
        ("is shut down", "broker", "administration"),
        ("says nothing known", "broker", "starts with"),
    ],
)
async def test_the_log_names_who_closed_and_why(caplog: pytest.LogCaptureFixture, how: str, who: str, why: str) -> None:
    caplog.set_level(logging.DEBUG, "pollux.connection")
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(b"nonsense" if how == "says nothing known" else AMQP)
        if how != "says nothing known":
            await asyncio.wait_for(reader.readexactly(8), PATIENCE)
            (connection,) = server.connections
            if how == "is shut down":
                connection.shutdown("administration")
            elif how == "goes":
                writer.close()
            else:
                if how == "says so":
                    server.sessions[0].ends("client", "DISCONNECT")
                    server.sessions[0].ends("broker", "what came later")
                writer.write(b"BYE")
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        await finish(writer)
    (line,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "connection closed"]
    assert line["closed_by"] == who
    assert why in line["reason"]


async def test_plain_in_any_slices() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        for byte in AMQP:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        assert len(server.connections) == 1
        await finish(writer)
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        assert server.listener.open_connections == 0


async def test_a_farewell_is_sent_before_the_end() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(AMQP + b"BYE")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"farewell"
        await finish(writer)


@pytest.mark.parametrize("first", [b"\x00\x01\x02", b"SSH-2.0-x\r\n", b"STOMP\n", b"\x10\x10\x00\x04MQTT"])
async def test_garbage_and_unspoken_protocols_are_closed(first: bytes) -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(first)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        assert server.connections.refused == 1
        await finish(writer)


async def test_http_gets_a_hint() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"management port" in answer
        await finish(writer)


async def test_protocols_parameter() -> None:
    async with bench(AcceptorSettings(protocols=("MQTT",))) as server:
        reader, writer = await server.open()
        writer.write(AMQP)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)


async def test_no_log_in_in_time() -> None:
    async with bench(limits=Limits(handshake_timeout=100)) as server:
        silent = await server.open()
        half = await server.open()
        half[1].write(b"AMQ")
        started = await server.open()
        started[1].write(AMQP)
        done = await server.open()
        done[1].write(AMQP + b"LOGIN")
        assert await done[0].readexactly(13) == AMQP + b"LOGIN"
        assert await started[0].readexactly(8) == AMQP
        for reader, writer in (silent, half, started):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), PATIENCE)
            await finish(writer)
        done[1].write(b"still here")
        assert await asyncio.wait_for(done[0].readexactly(10), PATIENCE) == b"still here"
        await finish(done[1])


@pytest.mark.parametrize(
    "asked",
    [{"connection_ttl_override": 100}, {"settings": AcceptorSettings(connection_ttl=100)}],
    ids=["of all acceptors", "of the acceptor"],
)
async def test_silence_beyond_the_connection_ttl(asked: dict[str, Any]) -> None:
    async with bench(**asked) as server:
        reader, writer = await server.open()
        writer.write(AMQP + b"LOGIN")
        await reader.readexactly(13)
        for connection in server.connections:
            connection.deadline = 0.0  # as if the log-in's time were over: the next sweep starts the ttl
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"shutdown"
        await finish(writer)


@pytest.mark.parametrize(("asked", "interval"), [(0.05, 0.05), (2.0, SWEEP_INTERVAL)])
async def test_the_check_interval_makes_sweeps_more_frequent_never_rarer(asked: float, interval: float) -> None:
    assert Connections(asyncio.get_running_loop(), maximum=1, interval=asked).interval == interval


async def test_socket_options_of_the_acceptor() -> None:
    """What the kernel says of the listening socket and of an accepted one."""
    settings = AcceptorSettings(backlog=77, tcp_receive_buffer_size=20_000, tcp_send_buffer_size=30_000)
    for no_delay in (True, False):
        async with bench(replace(settings, tcp_no_delay=no_delay)) as server:
            (listening,) = server.listener._servers[0].sockets
            # tcp_info of a listening socket (linux/tcp.h): tcpi_sacked is the longest its queue may be.
            information = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            assert int.from_bytes(information[28:32], sys.byteorder) == 77
            # The kernel books twice the size, for itself as well.
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 40_000
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000
            _, writer = await server.open()
            await until(lambda: len(server.connections) == 1)
            (connection,) = list(server.connections)
            accepted = connection._transport.get_extra_info("socket")
            assert bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is no_delay
            await finish(writer)


async def test_limits_of_connections() -> None:
    async with bench(AcceptorSettings(connections_allowed=1)) as server:
        first = await server.open()
        first[1].write(AMQP)
        await first[0].readexactly(8)
        second = await server.open()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(second[0].readexactly(1), PATIENCE)
        await finish(second[1])
        await finish(first[1])
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        third = await server.open()
        third[1].write(AMQP)
        assert await asyncio.wait_for(third[0].readexactly(8), PATIENCE) == AMQP
        await finish(third[1])


@pytest.mark.parametrize(
    "limits", [Limits(max_connections=1), Limits(max_connections_per_host=1)], ids=["in all", "per host"]
)
async def test_other_limits_of_connections(limits: Limits) -> None:
    async with bench(limits=limits) as server:
        first = await server.open()
        first[1].write(AMQP + b"LOGIN")
        await first[0].readexactly(13)
        second = await server.open()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(second[0].readexactly(1), PATIENCE)
        assert len(server.connections) == 1
        await finish(second[1])
        await finish(first[1])


async def test_who_has_not_logged_in_makes_room() -> None:
    async with bench(limits=Limits(max_connections=1)) as server:
        first = await server.open()
        first[1].write(AMQP)
        await first[0].readexactly(8)
        second = await server.open()
        second[1].write(AMQP)
        assert await asyncio.wait_for(second[0].readexactly(8), PATIENCE) == AMQP
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(first[0].readexactly(1), PATIENCE)
        assert server.connections.strangers.dropped == 1
        await finish(second[1])
        await finish(first[1])


async def test_a_reader_that_does_not_keep_up() -> None:
    # The kernel's own buffers may be as large as the answer: what does not fit into a small one is left to the broker.
    settings = AcceptorSettings(
        write_buffer_high_water_mark=100_000, write_buffer_low_water_mark=10_000, tcp_send_buffer_size=65536
    )
    async with bench(settings) as server:
        reader, writer = await server.open(limit=1000)
        writer.write(AMQP + b"LOGIN FLOOD")
        await until(lambda: bool(server.sessions) and "pause" in server.sessions[0].events)
        (connection,) = list(server.connections)
        sent = 0
        # It goes on sending without reading its answers: the broker stops reading it.
        while not connection.reading_paused:
            writer.write(bytes(65536))
            sent += 65536
            await asyncio.sleep(0)
            assert sent < 64 * 1024 * 1024
        remaining = 4 * 1024 * 1024 + 8
        while remaining > 0:
            remaining -= len(await asyncio.wait_for(reader.read(65536), PATIENCE))
        while connection.reading_paused:
            await asyncio.wait_for(reader.read(65536), PATIENCE)
        assert server.sessions[0].events[:2] == ["pause", "resume"]
        writer.transport.abort()


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    settings = AcceptorSettings(
        write_buffer_high_water_mark=1000, write_buffer_low_water_mark=100, tcp_send_buffer_size=4096
    )
    async with bench(settings, Limits(write_timeout=200)) as server:
        loop = asyncio.get_running_loop()
        client = socket.create_connection(("127.0.0.1", server.listener.port))
        client.setblocking(False)
        await loop.sock_sendall(client, AMQP + b"LOGIN FLOOD")
        await until(lambda: bool(server.sessions))
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        client.close()


async def test_tls_and_plain_on_one_port(authority: Any) -> None:
    store = authority.issue("server", "localhost")
    async with bench(AcceptorSettings(key_store_path=(store,), ssl_enabled=True, ssl_allow_plain=True)) as server:
        reader, writer = await server.open(ssl=authority.client_context(), server_hostname="localhost")
        writer.write(AMQP)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        writer.write(b"x" * 300_000)
        assert await asyncio.wait_for(reader.readexactly(300_000), PATIENCE) == b"x" * 300_000
        (connection,) = list(server.connections)
        assert connection.peer.tls
        assert connection.peer.sni == "localhost"
        assert connection.describe()["tls"] is True
        plain = await server.open()
        plain[1].write(AMQP)
        assert await asyncio.wait_for(plain[0].readexactly(8), PATIENCE) == AMQP
        await finish(plain[1])
        await finish(writer)
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)


async def test_tls_required(authority: Any) -> None:
    store = authority.issue("server", "localhost")
    async with bench(AcceptorSettings(key_store_path=(store,), ssl_enabled=True)) as server:
        reader, writer = await server.open()
        writer.write(AMQP)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)


async def test_tls_not_configured() -> None:
    async with bench() as server:
        with pytest.raises((OSError, ssl.SSLError)):
            await server.open(ssl=ssl.create_default_context(), server_hostname="localhost")
        assert server.connections.refused == 1


async def test_a_connection_that_is_cut_off_in_its_handshake_is_counted_out(authority: Any) -> None:
    """The end of the bench waits for all connections to be gone."""
    store = authority.issue("server", "localhost")
    async with bench(AcceptorSettings(key_store_path=(store,), ssl_enabled=True)) as server:
        _, writer = await server.open()
        writer.write(b"\x16\x03\x01\x02\x00\x01")
        await until(lambda: any(connection.bytes_in for connection in server.connections))
    await finish(writer)


async def test_a_failed_handshake_is_forgotten(authority: Any) -> None:
    store = authority.issue("server", "localhost")
    async with bench(
        AcceptorSettings(key_store_path=(store,), ssl_enabled=True, ssl_allow_plain=True), Limits(handshake_timeout=300)
    ) as server:
        garbage = await server.open()
        garbage[1].write(b"\x16\x03\x01" + b"garbage" * 100)
        stalled = await server.open()
        stalled[1].write(b"\x16\x03\x01\x02\x00\x01")
        await until(lambda: server.connections.accepted == 2)
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        assert server.listener.open_connections == 0
        await finish(garbage[1])
        await finish(stalled[1])


async def test_sni_chooses_the_certificate(authority: Any) -> None:
    stores = [authority.issue("first", "a.test"), authority.issue("second", "b.test"), authority.issue("w", "*.c.test")]
    async with bench(AcceptorSettings(key_store_path=tuple(stores), ssl_enabled=True)) as server:
        for asked, shown in (("a.test", "first"), ("b.test", "second"), ("x.c.test", "w")):
            reader, writer = await server.open(ssl=authority.client_context(), server_hostname=asked)
            subject = dict(part[0] for part in writer.get_extra_info("peercert")["subject"])
            assert subject["commonName"] == shown
            writer.write(AMQP)
            assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
            await finish(writer)


async def test_sni_host_is_a_pattern_that_must_match(authority: Any) -> None:
    store = authority.issue("server", "a.test", "b.test")
    async with bench(AcceptorSettings(key_store_path=(store,), ssl_enabled=True, sni_host=r"[a-c]\.test")) as server:
        _, writer = await server.open(ssl=authority.client_context(), server_hostname="B.test")
        await finish(writer)
        with pytest.raises(OSError):  # noqa: PT011  (the alert, or the reset that follows it)
            await server.open(ssl=authority.client_context(), server_hostname="other.test")
        # Who asks for no name is not refused.
        _, writer = await server.open(ssl=authority.client_context(), server_hostname="127.0.0.1")
        await finish(writer)


async def test_client_certificates_that_are_only_wanted(authority: Any) -> None:
    """With the authority in a PKCS12 store of its own password."""
    store = authority.issue("server", "localhost")
    trusted = authority.directory / "trusted.p12"
    trusted.write_bytes(
        pkcs12.serialize_key_and_certificates(
            None, None, None, [authority.certificate], BestAvailableEncryption(b"trust me")
        )
    )
    settings = AcceptorSettings(
        key_store_path=(store,),
        ssl_enabled=True,
        want_client_auth=True,
        trust_store_path=trusted,
        trust_store_password="trust me",
    )
    with pytest.raises(TlsError):
        ServerTls(replace(settings, trust_store_password="wrong"), "acceptor 'test'")
    async with bench(settings) as server:
        for certificate, subject in ((authority.issue("ada"), "CN=ada,O=Twins"), (None, None)):
            reader, writer = await server.open(ssl=authority.client_context(certificate), server_hostname="localhost")
            writer.write(AMQP)
            assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
            (connection,) = list(server.connections)
            assert connection.peer.certificate_subject == subject
            await finish(writer)
            await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)


async def test_tls_versions_and_ciphers_of_the_acceptor(authority: Any) -> None:
    settings = AcceptorSettings(
        key_store_path=(authority.issue("server", "localhost"),),
        ssl_enabled=True,
        enabled_protocols=("TLSv1.2",),
        enabled_cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",),
    )
    async with bench(settings) as server:
        _, writer = await server.open(ssl=authority.client_context(), server_hostname="localhost")
        shown = writer.get_extra_info("ssl_object")
        assert (shown.version(), shown.cipher()[0]) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
        await finish(writer)
        for change in ("version", "cipher"):
            context = authority.client_context()
            if change == "version":
                context.minimum_version = ssl.TLSVersion.TLSv1_3
            else:
                context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await server.open(ssl=context, server_hostname="localhost")


async def test_client_certificates(authority: Any) -> None:
    store = authority.issue("server", "localhost", password="secret")
    settings = AcceptorSettings(
        key_store_path=(store,),
        key_store_password="secret",
        ssl_enabled=True,
        need_client_auth=True,
        trust_store_path=authority.path,
    )
    async with bench(settings) as server:
        client = authority.client_context(authority.issue("ada"))
        reader, writer = await server.open(ssl=client, server_hostname="localhost")
        writer.write(AMQP)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        (connection,) = list(server.connections)
        assert connection.peer.certificate_subject == "CN=ada,O=Twins"
        await finish(writer)
        context = authority.client_context()
        reader, writer = await server.open(ssl=context, server_hostname="localhost")
        writer.write(AMQP)
        with pytest.raises((OSError, ssl.SSLError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)


async def _serial_of(context: ssl.SSLContext, authority: Any) -> str:
    """The certificate a listener shows that was given ``context`` at its start (as the management port's)."""
    listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=authority.client_context(), server_hostname="localhost"
        )
        serial: str = writer.get_extra_info("peercert")["serialNumber"]
        await finish(writer)
    return serial


async def test_a_renewed_certificate_is_used_by_new_connections(authority: Any) -> None:
    store = authority.issue("server", "localhost")
    async with bench(AcceptorSettings(key_store_path=(store,), ssl_enabled=True, ssl_allow_plain=True)) as server:
        old = await server.open(ssl=authority.client_context(), server_hostname="localhost")
        before = old[1].get_extra_info("peercert")["serialNumber"]
        authority.issue("server", "localhost")
        tls = server.listener.tls
        assert tls is not None
        first = tls.context
        tls.load()
        new = await server.open(ssl=authority.client_context(), server_hostname="localhost")
        assert new[1].get_extra_info("peercert")["serialNumber"] != before
        assert await _serial_of(first, authority) == new[1].get_extra_info("peercert")["serialNumber"]
        old[1].write(AMQP)
        assert await asyncio.wait_for(old[0].readexactly(8), PATIENCE) == AMQP
        store.write_text("broken")
        with pytest.raises(TlsError, match=r"acceptor 'test': key store .* is neither PEM nor"):
            tls.load()
        again = await server.open(ssl=authority.client_context(), server_hostname="localhost")
        for _, writer in (old, new, again):
            await finish(writer)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key_store_path": ()}, "TLS needs a key store"),
        ({"enabled_protocols": ("SSLv3",)}, "enabledProtocols SSLv3"),
        ({"enabled_cipher_suites": ("NONSENSE",)}, "cipher suites NONSENSE"),
        ({"need_client_auth": True}, "no trust store"),
        ({"sni_host": "("}, "not a regular expression"),
    ],
)
def test_tls_settings_that_cannot_be_used(authority: Any, change: dict[str, Any], text: str) -> None:
    settings = replace(AcceptorSettings(key_store_path=(authority.issue("server", "localhost"),)), **change)
    with pytest.raises(TlsError, match=text):
        ServerTls(settings, "acceptor 'test'")


def test_iana_names_of_ciphers(authority: Any) -> None:
    store = authority.issue("server", "localhost")
    suites = ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256")
    context = ServerTls(AcceptorSettings(key_store_path=(store,), enabled_cipher_suites=suites), "x").context
    names = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"}
    assert names == {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"}


async def test_a_taken_port_is_named() -> None:
    async with bench() as server:
        listener = server.listener
        acceptor = replace(listener.acceptor, port=listener.port)
        other = Listener(
            acceptor,
            Configuration(),
            loop=listener.loop,
            connections=server.connections,
            services=listener.services,
            sessions={},
            tls=None,
        )
        with pytest.raises(ListenError, match=r"acceptor 'test': cannot listen on 127\.0\.0\.1:\d+: .*another program"):
            await other.listen()


async def test_a_name_listens_on_every_address_it_has() -> None:
    async with bench() as server:
        acceptor = replace(server.listener.acceptor, host="localhost")
        listener = Listener(
            acceptor,
            Configuration(),
            loop=server.listener.loop,
            connections=server.connections,
            services=server.listener.services,
            sessions={Protocol.AMQP: Echo},
            tls=None,
        )
        await listener.listen()
        try:
            found = socket.getaddrinfo("localhost", listener.port, type=socket.SOCK_STREAM)
            for _, _, _, _, address in found:
                reader, writer = await asyncio.open_connection(str(address[0]), listener.port)
                writer.write(AMQP)
                assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
                await finish(writer)
        finally:
            listener.stop_accepting()
