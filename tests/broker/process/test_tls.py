"""TLS of acceptors: on the same port as plain connections, certificates of both sides, what cannot be used."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from msgspec.structs import replace

from pollux.config.acceptors import AcceptorSettings
from pollux.config.model import Limits
from pollux.process.tls import ServerTls, TlsError

from .echoing import AMQP, PATIENCE, bench, finish, until


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
