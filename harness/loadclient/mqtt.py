"""MQTT 3.1.1, QoS 1: PUBLISH frames encoded for all 65,535 packet ids in advance, PUBACKs counted by stride."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from harness.loadclient.connection import Connection, LoadError
from harness.loadclient.traffic import run_length

if TYPE_CHECKING:
    from harness.loadclient.target import Target
    from harness.loadclient.traffic import Goal, Window

PUBACK_SIZE = 4
#: Packet ids 1 to this are used in turn; more than any window, so that none is in use twice.
PACKET_IDS = 16384


def text(value: str) -> bytes:
    """Encode a string with its length."""
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def packet(first: int, body: bytes) -> bytes:
    """Encode a packet: its first byte, the remaining length, the rest."""
    length = b""
    size = len(body)
    while True:
        size, seven = divmod(size, 128)
        length += bytes((seven | (0x80 if size else 0),))
        if not size:
            return bytes((first,)) + length + body


def frame_size(data: bytes, position: int) -> tuple[int, int]:
    """Return (whole size, header size) of the packet at `position`; (0, 0) when its length is incomplete."""
    length = shift = 0
    for index in range(position + 1, min(position + 5, len(data))):
        length |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            header = index + 1 - position
            return header + length, header
    return 0, 0


class MqttConnection(Connection):
    """A connected session."""

    def __init__(self, target: Target, client_id: str, *, clean: bool) -> None:
        super().__init__(target.host, target.port)
        flags = (0x02 if clean else 0) | (0xC0 if target.user else 0)
        body = text("MQTT") + bytes((4, flags)) + struct.pack(">H", 0) + text(client_id)
        if target.user:
            body += text(target.user) + text(target.password)
        self.send(packet(0x10, body))
        answer = self.receive_exactly_until(lambda data: len(data) >= 4)
        if answer[:1] != b"\x20" or answer[3] != 0:
            raise LoadError(f"CONNECT was refused: {answer[:4]!r}")
        self.rest = answer[4:]

    def subscribe(self, topic: str) -> None:
        """Subscribe with QoS 1 and wait for the SUBACK."""
        self.send(packet(0x82, struct.pack(">H", 1) + text(topic) + b"\x01"))
        answer = self.receive_exactly_until(lambda data: len(data) >= 5)
        if answer[:1] != b"\x90" or answer[4] != 1:
            raise LoadError(f"SUBSCRIBE was refused: {answer[:8]!r}")
        self.rest = answer[5:]


class MqttProducer(MqttConnection):
    """Publishes with QoS 1 and counts PUBACKs."""

    def __init__(self, target: Target, topics: list[str], body: bytes, window: Window, name: str) -> None:
        super().__init__(target, name, clean=True)
        self.window = window
        frames = [
            packet(0x32, text(topics[number % len(topics)]) + struct.pack(">H", number + 1) + body)
            for number in range(PACKET_IDS)
        ]
        self.size = len(frames[0])
        if any(len(frame) != self.size for frame in frames):
            raise LoadError("topics must be of one length")
        self.frames = memoryview(b"".join(frames))
        self.next = 0

    def start(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Send as much as the window allows."""
        while count := self.window.take(PACKET_IDS - self.next):
            self.send(self.frames[self.next * self.size : (self.next + count) * self.size])
            self.next = (self.next + count) % PACKET_IDS

    def received(self, data: bytes) -> None:
        count = len(data) // PUBACK_SIZE
        end = count * PUBACK_SIZE
        if data[0:end:4] != b"\x40" * count or data[1:end:4] != b"\x02" * count:
            raise LoadError(f"expected PUBACKs: {data[:40]!r}")
        self.rest = data[end:]
        self.window.confirmed(count)
        self.fill()

    @property
    def done(self) -> bool:
        return self.window.finished


class MqttConsumer(MqttConnection):
    """Subscribes with QoS 1 in a session that survives, and acknowledges what arrives."""

    def __init__(self, target: Target, topics: list[str], goal: Goal, name: str) -> None:
        super().__init__(target, name, clean=False)
        self.goal = goal
        for topic in topics:
            self.subscribe(topic)

    def start(self) -> None:
        if self.rest:
            data, self.rest = self.rest, b""
            self.received(data)

    def received(self, data: bytes) -> None:
        position = 0
        replies = []
        while True:
            size, header = frame_size(data, position)
            if not size or position + size > len(data):
                break
            first = data[position]
            if first & 0xF6 != 0x32:
                raise LoadError(f"expected PUBLISH with QoS 1: {data[position : position + 20]!r}")
            topic_size = data[position + header] << 8 | data[position + header + 1]
            identifier = header + 2 + topic_size
            checks = tuple((offset, data[position + offset]) for offset in range(header + 2))
            count = max(1, run_length(data, position, size, checks))
            end = position + count * size
            reply = bytearray(b"\x40\x02\0\0" * count)
            reply[2::4] = data[position + identifier : end : size]
            reply[3::4] = data[position + identifier + 1 : end : size]
            replies.append(reply)
            self.goal.received += count
            position = end
        self.rest = data[position:]
        if replies:
            self.send(b"".join(replies))

    @property
    def done(self) -> bool:
        return self.goal.consumed
