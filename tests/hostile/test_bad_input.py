"""Hostile clients against a real broker: each gets the protocol's own error and loses its connection, nobody else does.

Memory stays bounded and a witness's messages are confirmed meanwhile. Slow readers are in `test_slow_readers.py`; XML
bombs are for the configuration's loader: `tests/broker/config/test_loader.py`.
"""

from __future__ import annotations

import re
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness.broker import BrokerProcess
from harness.honest import Witness
from harness.loadclient.amqp import ATTACH, BEGIN, FALSE, NULL, SOURCE, TARGET, described, frame, string, uint
from harness.raw import (
    LOGINS,
    field,
    framed,
    packet,
    plain,
    read_to_end,
    resident,
    send_unless_closed,
    stomp,
    upgrade,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
#: What the broker may grow by while it is attacked.
GROWTH = 48 * MIB
CONNECTIONS = 150
LIMITS = f"""
<px:limits>
  <px:max-connections>{CONNECTIONS}</px:max-connections>
  <px:max-consumers-per-connection>64</px:max-consumers-per-connection>
  <px:max-sessions-per-connection>16</px:max-sessions-per-connection>
  <px:max-message-size>4194304</px:max-message-size>
  <px:handshake-timeout>1000</px:handshake-timeout>
</px:limits>
</configuration>
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with tight limits; it has to live to the end."""
    process = BrokerProcess(tmp_path_factory.mktemp("hostile"))
    text = process.configuration.read_text()
    process.configuration.write_text(text.replace("</configuration>", LIMITS))
    with process.lives_to_the_end():
        yield process


@pytest.fixture
def witness(broker: BrokerProcess) -> Iterator[Witness]:
    """Somebody else, who is served before, during and after; memory is compared around it."""
    with Witness(broker) as found:
        found.progress()
        before = resident(broker)
        yield found
        found.progress()
        assert resident(broker) - before < GROWTH


def attach(handle: int, name: bytes, *more: bytes) -> bytes:
    """A receiving link on channel 0."""
    source = described(SOURCE, string(f"flood.{handle}"))
    role = b"\x41"
    return frame(
        described(
            ATTACH, name, uint(handle), role, NULL, NULL, source, described(TARGET), NULL, FALSE, NULL, NULL, *more
        )
    )


def nested(depth: int) -> bytes:
    """Lists in lists."""
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + struct.pack(">II", len(value) + 4, 1) + value
    return value


def amqp_map(entries: int) -> bytes:
    """A map of so many symbols."""
    body = b"".join(b"\xa3\x08" + b"%08d" % number + b"\x43" for number in range(entries))
    return b"\xd1" + struct.pack(">II", len(body) + 4, 2 * entries) + body


def begin(channel: int) -> bytes:
    """A session."""
    body = described(BEGIN, NULL, uint(0), uint(1000), uint(1000))
    return struct.pack(">IBBH", len(body) + 8, 2, 0, channel) + body


def subscriptions(count: int) -> bytes:
    """STOMP subscriptions."""
    return b"".join(b"SUBSCRIBE\nid:%d\ndestination:flood.%d\n\n\0" % (number, number) for number in range(count))


GARBAGE = bytes((number * 7919 + 13) % 251 for number in range(65536))
USER_PROPERTIES = b"".join(b"\x26" + field(b"k%d" % number) + field(b"v") for number in range(3000))

#: (login, what is sent, what the broker's last words contain)
ATTACKS = {
    "amqp: a frame larger than allowed": (
        "amqp",
        struct.pack(">IBBH", 2 * MIB, 2, 0, 0),
        b"amqp:connection:framing-error",
    ),
    "amqp: a frame smaller than its header": (
        "amqp",
        struct.pack(">IBBH", 3, 2, 0, 0),
        b"amqp:connection:framing-error",
    ),
    "amqp: garbage after the handshake": ("amqp", b"\xff" + GARBAGE, b"amqp:connection:framing-error"),
    "amqp: deep nesting": ("amqp", attach(0, string("n"), NULL, NULL, nested(200)), b"amqp:decode-error"),
    "amqp: endless properties": ("amqp", attach(0, string("n"), NULL, NULL, amqp_map(10_000)), b"amqp:decode-error"),
    "amqp: invalid UTF-8": ("amqp", attach(0, b"\xa1\x02\xff\xfe"), b"amqp:decode-error"),
    "amqp: a flood of links": (
        "amqp",
        b"".join(attach(number, string(f"link-{number}")) for number in range(500)),
        b"amqp:resource-limit-exceeded",
    ),
    "amqp: a flood of sessions": ("amqp", b"".join(map(begin, range(1, 200))), b"amqp:connection:framing-error"),
    "stomp: a header without end": ("stomp", b"SEND\ndestination:" + b"a" * 3 * MIB, b"ERROR\n"),
    "stomp: headers without end": ("stomp", b"SEND\n" + b"name:value\n" * 300_000, b"ERROR\n"),
    "stomp: a body larger than allowed": (
        "stomp",
        b"SEND\ndestination:big\ncontent-length:99999999999\n\n" + bytes(MIB),
        b"ERROR\n",
    ),
    "stomp: a body without end": ("stomp", b"SEND\ndestination:big\n\n" + b"x" * 6 * MIB, b"ERROR\n"),
    "stomp: invalid UTF-8": ("stomp", b"SEND\ndestination:\xff\xfe\n\nx\0", b"ERROR\n"),
    "stomp: garbage after the handshake": ("stomp", b"\xff" + GARBAGE, b"ERROR\n"),
    "stomp: a flood of subscriptions": ("stomp", subscriptions(500), b"ERROR\n"),
    "mqtt: a packet larger than allowed": ("mqtt", b"\x82\xff\xff\xff\x7f", rb"\xe0.\x95"),
    "mqtt: a length without end": ("mqtt", b"\x30\xff\xff\xff\xff\xff", rb"\xe0.\x81"),
    "mqtt: invalid UTF-8": ("mqtt", packet(0x30, field(b"\xff\xfe") + b"\0x"), rb"\xe0.\x81"),
    "mqtt: endless properties": (
        "mqtt",
        packet(0x82, b"\0\1" + b"\xf4\xfd\x01" + USER_PROPERTIES + field(b"t") + b"\0"),
        rb"\xe0.\x81",
    ),
    "mqtt: garbage after the handshake": ("mqtt", b"\xff" + GARBAGE, rb"\xe0.\x81"),
    "mqtt: a second CONNECT": ("mqtt", packet(0x10, field(b"MQTT") + b"\5\2\0\0\0" + field(b"x")), rb"\xe0.\x82"),
    "HTTP": ("plain", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", b""),
    "websocket: an endless request": ("plain", b"GET / HTTP/1.1\r\n" + b"name: value\r\n" * 300_000, b""),
    "websocket: garbage for frames": ("plain", upgrade() + b"\xff" + GARBAGE, rb"\x88.\x03\xea"),
    "websocket: garbage within frames": ("plain", upgrade() + framed(b"\xff" + GARBAGE), b" 101 "),
    "websocket: pings without end": ("plain", upgrade() + (b"\x89\xfd\0\0\0\0" + bytes(125)) * 60_000, b""),
    "websocket: empty frames without end": ("plain", upgrade() + b"\x02\x80\0\0\0\0" * 600_000, b""),
    "TLS garbage": ("plain", b"\x16\x03\x01\xff\xff" + GARBAGE, b""),
    "garbage": ("plain", b"\xff" + GARBAGE, b""),
    "amqp: garbage instead of SASL": ("plain", b"AMQP\3\1\0\0" + b"\xff" + GARBAGE, b""),
    "mqtt: an endless CONNECT": ("plain", b"\x10\xff\xff\xff\x7f" + bytes(MIB), b""),
    "stomp: an endless CONNECT": ("plain", b"CONNECT\n" + b"name:value\n" * 300_000, b"ERROR\n"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_bad_input_ends_that_connection_alone(broker: BrokerProcess, witness: Witness, name: str) -> None:
    login, data, expected = ATTACKS[name]
    with LOGINS[login](broker) as opened:
        send_unless_closed(opened, data)
        witness.progress()
        last_words = read_to_end(opened)
    assert re.search(expected, last_words, re.DOTALL), last_words[-500:]


@pytest.mark.parametrize("first", [b"", b"AMQP", b"\x10", b"CONNECT\n", b"AMQP\3\1\0\0"])
def test_half_open_handshakes_end_by_themselves(broker: BrokerProcess, witness: Witness, first: bytes) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(plain(broker)) for _ in range(60)]
        for one in opened:
            one.sendall(first)
        witness.progress()
        for one in opened:
            read_to_end(one)


def test_a_dribbled_handshake_gets_no_more_time(broker: BrokerProcess, witness: Witness) -> None:
    """Bytes that come one by one do not put the end off: the broker closes long before the last of them."""
    with plain(broker) as opened:
        opened.settimeout(0.2)
        sent = 0
        for byte in b"CONNECT\n" + b"name:value\n" * 100:
            try:
                opened.sendall(bytes((byte,)))
                sent += 1
                if not opened.recv(4096):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert sent < 60
    witness.progress()


def test_a_flood_of_connections_leaves_the_others_alone(broker: BrokerProcess, witness: Witness) -> None:
    with ExitStack() as stack:
        for _ in range(2 * CONNECTIONS):
            stack.enter_context(plain(broker))
        witness.progress()
        last = stack.enter_context(plain(broker))
        read_to_end(last)
        witness.progress()
    # As soon as the flood is over there is room again.
    for _ in range(200):
        try:
            with stomp(broker):
                return
        except (AssertionError, ConnectionError):
            witness.progress()
    pytest.fail("nobody can connect any more")
