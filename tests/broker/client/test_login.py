"""Log-ins of the client to real brokers: TLS, client certificates, SCRAM, and what it refuses to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from harness.broker import PASSWORD, USER, BrokerProcess
from harness.tls import make_certificates
from pollux.client import ConnectionLostError, LoginError, UrlError, connect
from pollux.client.calls import HandshakeError
from pollux.client.scram import Scram
from pollux.client.traffic import publisher, subscriber
from pollux.client.traffic_base import body_of
from pollux.client.url import Options, Wire, parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.client import Connection
    from pollux.client.stream import Stream

TIMEOUT = 20.0
CERTIFICATE_USERS = "<px:certificate-users-file>certificates.properties</px:certificate-users-file>"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of one authority, and below `other` those of another for another host."""
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    make_certificates(directory / "other", host="elsewhere.test", address="192.0.2.1")
    return directory


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[BrokerProcess]:
    """One broker with an acceptor for each way to log in."""
    tls = f"?sslEnabled=true;keyStorePath={certificates}/broker.pem"
    found = BrokerProcess(
        tmp_path_factory.mktemp("broker"),
        acceptors={
            "all": "",
            "scram": "?saslMechanisms=SCRAM-SHA-256",
            "tls": tls,
            "elsewhere": f"?sslEnabled=true;keyStorePath={certificates}/other/broker.pem",
            "mutual": f"{tls};needClientAuth=true;trustStorePath={certificates}/ca.pem",
        },
        px_security=CERTIFICATE_USERS,
    )
    (found.etc / "certificates.properties").write_text(f"{USER} = CN=client\n")
    found.start()
    try:
        yield found
    finally:
        found.close()


def url(broker: BrokerProcess, acceptor: str, **parameters: object) -> str:
    """The URL of an acceptor, with TLS for all but the first two."""
    scheme = "tcp" if acceptor in ("all", "scram") else "tcps"
    words = "&".join(f"{name}={value}" for name, value in parameters.items())
    return f"{scheme}://127.0.0.1:{broker.ports[acceptor]}?{words}"


async def use(connection: Connection, queue: str) -> str:
    """Send and receive a message over it; how it was logged in."""
    session = await connection.session()
    await (await session.producer(queue)).send(b"x")
    delivery = await (await session.consumer(queue)).receive(TIMEOUT)
    assert delivery is not None
    delivery.accept()
    return connection.stream.mechanism if connection.stream is not None else ""


async def test_tls_with_an_authority_of_our_own(broker: BrokerProcess, certificates: Path) -> None:
    target = url(broker, "tls", trustStorePath=certificates / "ca.pem")
    async with await connect(target, user=USER, password=PASSWORD) as connection:
        assert await use(connection, "tls") == "PLAIN"


async def test_a_broker_of_an_unknown_authority_is_refused(broker: BrokerProcess, certificates: Path) -> None:
    for parameters in ({}, {"trustStorePath": certificates / "other/ca.pem"}):
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            await connect(url(broker, "tls", **parameters), user=USER, password=PASSWORD)


async def test_the_host_name_is_checked(broker: BrokerProcess, certificates: Path) -> None:
    other = certificates / "other/ca.pem"
    with pytest.raises(ConnectionLostError, match=r"127\.0\.0\.1"):
        await connect(url(broker, "elsewhere", trustStorePath=other), user=USER, password=PASSWORD)
    unchecked = url(broker, "elsewhere", trustStorePath=other, verifyHost="false")
    async with await connect(unchecked, user=USER, password=PASSWORD) as connection:
        await use(connection, "unchecked")
    trusting = url(broker, "elsewhere", trustAll="true")
    async with await connect(trusting, user=USER, password=PASSWORD) as connection:
        await use(connection, "trusting")


async def test_a_client_certificate_is_the_login(broker: BrokerProcess, certificates: Path) -> None:
    own = {"trustStorePath": certificates / "ca.pem", "keyStorePath": certificates / "client.pem"}
    async with await connect(url(broker, "mutual", **own)) as connection:
        assert await use(connection, "mutual") == "EXTERNAL"
        (seen,) = broker.api("/api/v1/connections")["items"]
        assert seen["user"] == USER
    without = {"trustStorePath": certificates / "ca.pem"}
    with pytest.raises((ConnectionLostError, LoginError)):
        await connect(url(broker, "mutual", **without), user=USER, password=PASSWORD)
    stranger = {**own, "keyStorePath": certificates / "other/client.pem"}
    with pytest.raises((ConnectionLostError, LoginError)):
        await connect(url(broker, "mutual", **stranger))


@pytest.mark.parametrize("wire", list(Wire))
async def test_traffic_over_tls(broker: BrokerProcess, certificates: Path, wire: Wire) -> None:
    target = parse_url(url(broker, "tls", trustStorePath=certificates / "ca.pem", user=USER, password=quote(PASSWORD)))
    confirmed: asyncio.Queue[str] = asyncio.Queue()
    received: asyncio.Queue[str] = asyncio.Queue()

    def on_confirmed(name: str, _stream: Stream) -> None:
        confirmed.put_nowait(name)

    def on_message(name: str, _again: bool, _stream: Stream) -> None:
        received.put_nowait(name)

    reader = subscriber(wire, target, f"tls.{wire}", on_message)
    writer = publisher(wire, target, f"tls.{wire}", on_confirmed)
    try:
        await reader.start()
        await writer.start()
        await writer.send("one", body_of("one", 100))
        async with asyncio.timeout(TIMEOUT):
            assert (await confirmed.get(), await received.get()) == ("one", "one")
    finally:
        await writer.close()
        await reader.close()


async def test_files_that_cannot_be_used(broker: BrokerProcess, certificates: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("not a certificate")
    for name in ("missing.pem", "broken.pem"):
        target = url(broker, "tls", trustStorePath=tmp_path / name)
        with pytest.raises(UrlError, match=name):
            await connect(target, user=USER, password=PASSWORD)
        with pytest.raises(UrlError, match=name):
            publisher(Wire.STOMP, parse_url(target), "x", lambda *_: None)
    with pytest.raises(UrlError, match=r"client\.pem"):
        await connect(url(broker, "tls", keyStorePath=certificates / "client.pem", keyPath=certificates / "ca.pem"))


@pytest.mark.parametrize("acceptor", ["all", "scram"])
async def test_without_tls_the_password_does_not_cross_the_wire(broker: BrokerProcess, acceptor: str) -> None:
    async with await connect(url(broker, acceptor), user=USER, password=PASSWORD) as connection:
        assert await use(connection, f"scram.{acceptor}") == "SCRAM-SHA-256"
    with pytest.raises(LoginError, match="user name or password is wrong"):
        await connect(url(broker, acceptor), user=USER, password="wrong")
    with pytest.raises(LoginError, match="user name or password is wrong"):
        await connect(url(broker, acceptor), user="nobody", password=PASSWORD)
    with pytest.raises(LoginError, match="control character"):
        await connect(url(broker, acceptor), user=USER, password="a\tb")
    with pytest.raises(LoginError, match="without a user name is not offered, only"):
        await connect(url(broker, acceptor))


async def test_names_that_scram_has_to_escape(tmp_path: Path) -> None:
    users = {"a=b": ("p,=\u00a8 ss", "amq"), "\u00aa": ("\u2168", "amq")}
    with_users = BrokerProcess(tmp_path, acceptors={"all": "?saslMechanisms=SCRAM-SHA-256"}, users=users)
    with_users.start()
    try:
        for name, (password, _) in users.items():
            async with await connect(f"tcp://127.0.0.1:{with_users.port}", user=name, password=password) as connection:
                await use(connection, "escaped")
        # SASLprep: what looks the same is the same.
        async with await connect(f"tcp://127.0.0.1:{with_users.port}", user="a", password="IX"):
            pass
    finally:
        with_users.close()


# RFC 7677, section 3
_SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def scram() -> Scram:
    """The client of RFC 7677's example."""
    return Scram("user", "pencil", lambda: "rOprNGfwEbeRWgbNEkqO")


def test_the_example_of_the_rfc() -> None:
    login = scram()
    assert login.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert login.answer(_SERVER_FIRST) == _FINAL
    assert login.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert not login.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=")
    assert not scram().verify(b"v=")


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"", "invalid"),
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not belong"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not belong"),
        (_SERVER_FIRST.replace(b"i=4096", b"i=1"), "rounds"),
        (_SERVER_FIRST.replace(b"i=4096", b"i=99999999"), "rounds"),
        (_SERVER_FIRST.replace(b"i=4096", b"i=many"), "invalid"),
        (_SERVER_FIRST.replace(b"s=W22", b"s=%%%"), "invalid"),
    ],
)
def test_challenges_that_are_not_answered(challenge: bytes, words: str) -> None:
    with pytest.raises(HandshakeError, match=words):
        scram().answer(challenge)


def test_the_scheme_says_tls() -> None:
    assert parse_url("(tcps://a,TCPS://b)?trustAll=true").options.ssl_enabled
    assert parse_url("tcps://a?sslEnabled=true").options == Options(ssl_enabled=True)
    assert not parse_url("tcp://a?user=tcps://x").options.ssl_enabled
    for text, words in (
        ("(tcp://a,tcps://b)", "mixed"),
        ("tcps://a?sslEnabled=false", "contradicts"),
        ("ssl://a", "unknown scheme"),
    ):
        with pytest.raises(UrlError, match=words):
            parse_url(text)
