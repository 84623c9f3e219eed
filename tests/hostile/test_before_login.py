"""Strangers: connections that never log in, of every kind, hold a bounded number of bytes and nobody's place."""

from __future__ import annotations

import resource
import ssl
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from harness.honest import KINDS, everybody
from harness.raw import field, framed, packet, plain, resident, send_unless_closed, stomp, upgrade
from harness.tls import make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostile.conftest import Running

MIB = 1 << 20
BUDGET = 16 * MIB
#: What a broker grows by that serves honest clients meanwhile.
NOISE = 24 * MIB


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """As many connections as the tests here open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def mqtt_connect() -> bytes:
    """A CONNECT of 384 KiB, but for its end."""
    will = field(b"w" * 65_000)
    body = field(b"MQTT") + b"\5\xc6\0\0\0" + field(b"c" * 1000) + b"\0" + will + will + field(b"u" * 65_000)
    return packet(0x10, body + field(b"p" * 65_000) + bytes(100_000))[:-200_000]


def hello() -> bytes:
    """A ClientHello."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


#: What is sent on each connection, and on how many: far more than the budget, each but the last.
UNFINISHED = {
    "mqtt": (mqtt_connect(), 600),
    "stomp": (b"CONNECT\n" + b"".join(b"header-%04d:%s\n" % (n, b"x" * 1000) for n in range(60)), 1200),
    "amqp": (b"AMQP\3\1\0\0" + b"\0\0\2\0\2\1\0\0" + bytes(500), 2500),
    "websocket, a request": (b"GET / HTTP/1.1\r\nCookie: " + b"c" * 8100, 2500),
    "websocket, a frame": (upgrade() + framed(mqtt_connect(), size=1 << 40), 600),
    "tls": (hello(), 1000),
    "tls, endless": (b"\x16\3\1\x40\0\1\1\0\0\3\3" + bytes(0x3FFA) + b"\x16\3\1\x40\0" + bytes(0x4000), 1000),
    "nothing": (b"", 2500),
}


@pytest.mark.parametrize("kind", UNFINISHED)
def test_what_never_logs_in_holds_a_bounded_number_of_bytes(running: Running, tmp_path: Path, kind: str) -> None:
    """Breaks when 384 KiB before each log-in are bounded for each connection and not for all of them."""
    data, count = UNFINISHED[kind]
    make_certificates(tmp_path)
    tls = {"all": f"?sslEnabled=true;sslAllowPlain=true;keyStorePath={tmp_path / 'broker.pem'}"}
    with (
        running(f"<px:max-handshake-size>{BUDGET}</px:max-handshake-size>", acceptors=tls) as broker,
        ExitStack() as stack,
    ):
        honest = stack.enter_context(everybody(broker))
        before = resident(broker)
        for number in range(count):
            opened = stack.enter_context(plain(broker))
            send_unless_closed(opened, data)
            if number % (count // 4) == 0:
                honest.progress(3)
        # Strangers are still there, and somebody who knows the password gets in behind all of them.
        for client in KINDS:
            with client(broker) as newcomer:
                newcomer.progress()
        grown = resident(broker, "VmHWM") - before
        memory = broker.api("/api/v1/status")["memory"]
        print(f"{kind}: {count} x {len(data)} bytes: {grown / MIB:.1f} MiB more; {memory}")
        assert memory["beforeLogin"] <= memory["beforeLoginLimit"] == BUDGET
        assert grown < BUDGET + NOISE


def test_one_host_never_has_all_connections(running: Running) -> None:
    """Breaks when 10,300 connections of one address lock everybody else out: half of them, and others come in."""
    allowed = 200
    with running(f"<px:max-connections>{allowed}</px:max-connections>") as broker, ExitStack() as stack:
        honest = stack.enter_context(everybody(broker))
        # They log in, as what does not makes room for others: test_who_does_not_log_in_makes_room.
        taken = 0
        with suppress(AssertionError, ConnectionError):
            for _ in range(2 * allowed):
                stack.enter_context(stomp(broker, source="127.0.0.2"))
                taken += 1
        assert taken <= allowed // 2
        assert b"max-connections-per-host: as many as are left for other hosts" in broker.log.read_bytes()
        honest.progress()
        for client in KINDS:
            with client(broker) as newcomer:
                newcomer.progress()


def test_who_does_not_log_in_makes_room(running: Running) -> None:
    """Breaks when a flood of silent connections, from the same host too, keeps out who logs in at once."""
    allowed = 200
    with running(f"<px:max-connections>{allowed}</px:max-connections>") as broker, ExitStack() as stack:
        honest = stack.enter_context(everybody(broker))
        for _ in range(3 * allowed):
            stack.enter_context(plain(broker))
        assert broker.api("/api/v1/status")["connections"] <= allowed
        honest.progress()
        for client in KINDS:
            with client(broker) as newcomer:
                newcomer.progress()
