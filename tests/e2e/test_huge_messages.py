"""Messages far larger than the broker may become: 1 GiB in and out over AMQP and STOMP, and as large as MQTT has them.

The broker's whole life is sampled: the most memory it ever had (VmHWM) stays below 256 MiB.
"""

from __future__ import annotations

import os
import struct
import time
from socket import MSG_WAITALL
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from harness import raw
from harness.broker import PASSWORD, USER, BrokerProcess
from harness.loadclient import amqp
from harness.loadclient.amqp import AmqpConnection
from harness.loadclient.target import Target

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

GIB = 1 << 30
MEMORY = 256 << 20
#: What an MQTT packet may have behind its first bytes (MQTT 5, 1.5.5).
MQTT_LIMIT = 268_435_455
PATIENCE = 200.0
PIECE = 60_000
#: The body repeats this, whose length has nothing in common with anybody's chunks.
BLOCK = os.urandom(1_000_003)


class Sum:
    """Length and checksum of a body."""

    def __init__(self) -> None:
        self.size = self.crc = 0

    def add(self, data: bytes | memoryview) -> None:
        """More of the body."""
        self.size += len(data)
        self.crc = crc32(data, self.crc)


def pieces(size: int, found: Sum) -> Iterator[memoryview]:
    """The body in pieces; summed up while they are taken."""
    twice = memoryview(BLOCK + BLOCK)
    position = 0
    while position < size:
        start = position % len(BLOCK)
        piece = twice[start : start + min(PIECE, size - position)]
        found.add(piece)
        yield piece
        position += len(piece)


# -- AMQP


def next_frame(connection: AmqpConnection) -> tuple[int, list[amqp.Value], bytes]:
    """Read one frame: performative, fields, payload. Empty ones are left out."""
    while True:
        data = connection.receive_exactly_until(lambda data: amqp.frame_size(data, 0) > 0)
        size = amqp.frame_size(data, 0)
        connection.rest = data[size:]
        if size > 8:
            value, end = amqp.decode(data, 4 * data[4])
            assert isinstance(value, list)
            code, fields = value
            assert isinstance(code, int)
            return code, fields if isinstance(fields, list) else [], data[end:size]


def amqp_open(broker: BrokerProcess, *, receiver: bool) -> AmqpConnection:
    target = Target("127.0.0.1", broker.port, USER, PASSWORD)
    connection = AmqpConnection(target, f"huge-{receiver}")
    connection.socket.settimeout(PATIENCE)
    connection.attach(target, "huge", handle=0, receiver=receiver)
    return connection


def amqp_send(broker: BrokerProcess, size: int) -> Sum:
    """One transfer of many frames, within the broker's session window; accepted in the end."""
    found = Sum()
    connection = amqp_open(broker, receiver=False)
    window = credit = sent = 0

    def read() -> int:
        nonlocal window, credit
        code, fields, _ = next_frame(connection)
        if code == amqp.FLOW:
            window = amqp.number(fields, 0) + amqp.number(fields, 1) - sent
            credit = max(credit, amqp.number(fields, 6))
        elif code == amqp.DISPOSITION:
            state = fields[4]
            assert isinstance(state, list)
            assert state[0] == amqp.ACCEPTED, fields
        else:
            raise AssertionError(f"ended: {code:#x} {fields}")
        return code

    head = b"\0\x53\x70\xc0\x02\x01\x41" + b"\0\x53\x75\xb0" + struct.pack(">I", size)
    body = pieces(size, found)
    while found.size < size:
        while not credit or window <= 0:
            read()
        piece = next(body)
        more = amqp.TRUE if found.size < size else amqp.FALSE
        tag = b"\xa0\x01x"
        fields = (amqp.uint(0), amqp.uint(0), tag, b"\x43", amqp.FALSE, more)
        connection.send(amqp.frame(amqp.described(amqp.TRANSFER, *fields) + head + bytes(piece)))
        head = b""
        sent += 1
        window -= 1
    while read() != amqp.DISPOSITION:
        pass
    connection.close()
    return found


def amqp_receive(broker: BrokerProcess, size: int) -> Sum:
    """Take one message and accept it."""
    found = Sum()
    connection = amqp_open(broker, receiver=True)
    wide = amqp.uint(amqp.WIDE_OPEN)
    flow = (amqp.uint(connection.next_incoming), wide, amqp.uint(0), wide, amqp.uint(0), amqp.uint(0), amqp.uint(1))
    connection.send(amqp.frame(amqp.described(amqp.FLOW, *flow)))
    head: bytes | None = b""
    number = -1
    mark = b"\0\x53\x75\xb0" + struct.pack(">I", size)
    while True:
        code, fields, payload = next_frame(connection)
        if code == amqp.FLOW:
            continue
        assert code == amqp.TRANSFER, (code, fields)
        if number < 0:
            number = amqp.number(fields, 1)
        if head is not None:
            head += payload
            at = head.find(mark)
            if at >= 0:
                found.add(head[at + len(mark) :])
                head = None
        else:
            found.add(payload)
        if fields[5:6] != [True]:
            break
    settled = (amqp.TRUE, amqp.uint(number), amqp.uint(number), amqp.TRUE, b"\0\x53\x24\x45")
    connection.send(amqp.frame(amqp.described(amqp.DISPOSITION, *settled)))
    connection.send(amqp.frame(amqp.described(amqp.CLOSE)))
    while next_frame(connection)[0] != amqp.CLOSE:
        pass
    connection.close()
    return found


# -- STOMP


def stomp_send(broker: BrokerProcess, size: int) -> Sum:
    """SEND with content-length, confirmed by a receipt."""
    found = Sum()
    with raw.stomp(broker) as opened:
        opened.settimeout(PATIENCE)
        opened.sendall(f"SEND\ndestination:huge\npersistent:true\ncontent-length:{size}\nreceipt:r\n\n".encode())
        for piece in pieces(size, found):
            opened.sendall(piece)
        opened.sendall(b"\0")
        assert raw.read_until(opened, b"\0").startswith(b"RECEIPT")
    return found


def stomp_receive(broker: BrokerProcess, size: int) -> Sum:
    """Take one message and acknowledge it."""
    found = Sum()
    with raw.stomp(broker) as opened:
        opened.settimeout(PATIENCE)
        opened.sendall(b"SUBSCRIBE\nid:1\ndestination:huge\nack:client\n\n\0")
        head, _, rest = raw.read_until(opened, b"\n\n").partition(b"\n\n")
        headers = dict(line.split(b":", 1) for line in head.lstrip(b"\n").split(b"\n")[1:])
        assert int(headers[b"content-length"]) == size
        found.add(rest[:size])
        read_body(opened, found, size)
        opened.sendall(b"ACK\nid:" + headers[b"ack"] + b"\nreceipt:a\n\n\0")
        assert b"RECEIPT" in raw.read_until(opened, b"receipt-id:a\n\n\0")
    return found


def read_body(opened: socket.socket, found: Sum, size: int) -> None:
    """Read on until so many bytes of a body are there, and none behind them."""
    while found.size < size:
        chunk = opened.recv(min(1 << 18, size - found.size))
        assert chunk, "the broker closed the connection"
        found.add(chunk)


# -- MQTT


def mqtt_both(broker: BrokerProcess, size: int) -> tuple[Sum, Sum]:
    """PUBLISH with QoS 1 to a subscriber of QoS 1."""
    sent, got = Sum(), Sum()
    topic = raw.field(b"huge/topic")
    with raw.mqtt(broker, "huge-subscriber") as subscriber, raw.mqtt(broker, "huge-publisher") as publisher:
        subscriber.settimeout(PATIENCE)
        publisher.settimeout(PATIENCE)
        subscriber.sendall(raw.packet(0x82, b"\0\1\0" + topic + b"\1"))
        answer = subscriber.recv(2, MSG_WAITALL)
        assert subscriber.recv(answer[1], MSG_WAITALL)[-1] == 1
        head = topic + b"\0\1\0"
        publisher.sendall(b"\x32" + raw.variable(len(head) + size) + head)
        for piece in pieces(size, sent):
            publisher.sendall(piece)
        answer = publisher.recv(4, MSG_WAITALL)
        assert answer[:1] == b"\x40", answer
        data = subscriber.recv(1 + 4 + len(topic) + 2 + 1, MSG_WAITALL)
        assert data[0] & 0xF0 == 0x30
        assert data.endswith(b"\0"), "no properties"
        read_body(subscriber, got, size)
        subscriber.sendall(b"\x40\x02" + data[-3:-1])
        subscriber.sendall(b"\xc0\0")
        assert subscriber.recv(2, MSG_WAITALL) == b"\xd0\0"
    return sent, got


def one_after_the_other(
    send: Callable[[BrokerProcess, int], Sum], receive: Callable[[BrokerProcess, int], Sum]
) -> Callable[[BrokerProcess, int], tuple[Sum, Sum]]:
    """Send, then receive."""
    return lambda broker, size: (send(broker, size), receive(broker, size))


WAYS = {
    "amqp": (one_after_the_other(amqp_send, amqp_receive), GIB),
    "stomp": (one_after_the_other(stomp_send, stomp_receive), GIB),
    "mqtt": (mqtt_both, MQTT_LIMIT - 2 - len("huge/topic") - 3),
}


@pytest.mark.timeout(3 * PATIENCE)
@pytest.mark.parametrize("protocol", WAYS)
def test_a_message_far_larger_than_memory(tmp_path: Path, protocol: str) -> None:
    way, size = WAYS[protocol]
    broker = BrokerProcess(tmp_path).start()
    try:
        sent, got = way(broker, size)
        assert (got.size, got.crc) == (size, sent.crc)
        assert raw.resident(broker, "VmHWM") < MEMORY
        # Acknowledged: its file is deleted.
        deadline = time.monotonic() + PATIENCE
        while list((tmp_path / "data" / "large-messages").glob("*.msg")):
            assert time.monotonic() < deadline, "the file is still there"
            time.sleep(0.05)
    finally:
        broker.close()
        for left in (tmp_path / "data" / "large-messages").glob("*.msg"):
            left.unlink()
    broker.check_log()
