"""AMQP 1.0 by hand: transfer frames from a template whose ids are patched in, dispositions parsed just enough.

The client's session windows are wide open; the broker's are honoured. Messages are durable, settled by dispositions
(sender: unsettled, first), one link for each queue.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from harness.loadclient.connection import Connection, LoadError
from harness.loadclient.traffic import run_length

if TYPE_CHECKING:
    from harness.loadclient.target import Target
    from harness.loadclient.traffic import Goal, Window

MAX_FRAME = 1 << 20
WIDE_OPEN = 0x7FFFFFFF
#: Messages encoded into one buffer and sent in one call.
BATCH = 512

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
SOURCE, TARGET, ACCEPTED = 0x28, 0x29, 0x24

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
Value = None | bool | int | bytes | list["Value"]


def uint(value: int) -> bytes:
    """Encode an uint, always in its long form."""
    return b"\x70" + struct.pack(">I", value)


def string(value: str) -> bytes:
    """Encode a string."""
    raw = value.encode()
    return b"\xb1" + struct.pack(">I", len(raw)) + raw


def symbol(value: str) -> bytes:
    """Encode a symbol."""
    raw = value.encode()
    return b"\xa3" + bytes((len(raw),)) + raw


def binary(value: bytes) -> bytes:
    """Encode a binary."""
    return b"\xb0" + struct.pack(">I", len(value)) + value


def described(code: int, *fields: bytes) -> bytes:
    """Encode a described list of fields that are encoded already."""
    body = b"".join(fields)
    return b"\0\x53" + bytes((code,)) + b"\xd0" + struct.pack(">II", len(body) + 4, len(fields)) + body


def frame(body: bytes, *, sasl: bool = False) -> bytes:
    """Put a frame header before a performative (and payload), channel 0."""
    return struct.pack(">IBBH", len(body) + 8, 2, int(sasl), 0) + body


FIXED = {0x40: 0, 0x41: 0, 0x42: 0, 0x43: 0, 0x44: 0, 0x45: 0, 0x50: 1, 0x51: 1, 0x52: 1, 0x53: 1, 0x54: 1, 0x55: 1}
FIXED |= {0x56: 1, 0x60: 2, 0x61: 2, 0x70: 4, 0x71: 4, 0x72: 4, 0x73: 4, 0x74: 4, 0x80: 8, 0x81: 8, 0x82: 8, 0x83: 8}
FIXED |= {0x84: 8, 0x94: 16, 0x98: 16}


def decode(data: bytes, position: int) -> tuple[Value, int]:
    """Decode one value; return it and the position after it. Maps and arrays come back as their bytes."""
    code = data[position]
    position += 1
    if code == 0:
        descriptor, position = decode(data, position)
        value, position = decode(data, position)
        return [descriptor, value], position
    if code in FIXED:
        end = position + FIXED[code]
        if code in {0x40, 0x41, 0x42}:
            return {0x40: None, 0x41: True, 0x42: False}[code], end
        if code == 0x56:
            return data[position] == 1, end
        return int.from_bytes(data[position:end], "big"), end
    wide = code & 0x10
    size = int.from_bytes(data[position : position + (4 if wide else 1)], "big")
    position += 4 if wide else 1
    end = position + size
    if code in {0xC0, 0xD0}:
        return decode_list(data, position, wide=bool(wide)), end
    return data[position:end], end


def decode_list(data: bytes, position: int, *, wide: bool) -> list[Value]:
    """Decode the items of a list from its count on."""
    width = 4 if wide else 1
    count = int.from_bytes(data[position : position + width], "big")
    position += width
    items: list[Value] = []
    for _ in range(count):
        item, position = decode(data, position)
        items.append(item)
    return items


def number(fields: list[Value], index: int, default: int = 0) -> int:
    """Return an integer field, or the default where it is absent."""
    value = fields[index] if index < len(fields) else None
    return value if isinstance(value, int) else default


def frame_size(data: bytes, position: int) -> int:
    """Return the size of the frame at `position`, 0 when it is incomplete."""
    if len(data) - position < 8:
        return 0
    size: int = struct.unpack_from(">I", data, position)[0]
    return size if len(data) - position >= size else 0


class AmqpConnection(Connection):
    """An open connection with one begun session."""

    def __init__(self, target: Target, container: str) -> None:
        super().__init__(target.host, target.port)
        self.send(b"AMQP\x03\x01\0\0")
        self._expect_header(b"AMQP\x03\x01\0\0")
        self.next_performative(SASL_MECHANISMS)
        if target.user:
            response = f"\0{target.user}\0{target.password}".encode()
            self.send(frame(described(SASL_INIT, symbol("PLAIN"), binary(response)), sasl=True))
        else:
            self.send(frame(described(SASL_INIT, symbol("ANONYMOUS"), binary(b"load")), sasl=True))
        outcome = self.next_performative(SASL_OUTCOME)
        if number(outcome, 0, -1) != 0:
            raise LoadError(f"SASL refused: {outcome}")
        self.send(b"AMQP\0\x01\0\0")
        self._expect_header(b"AMQP\0\x01\0\0")
        hostname = string(target.virtual_host) if target.virtual_host else NULL
        self.send(frame(described(OPEN, string(container), hostname, uint(MAX_FRAME))))
        self.next_performative(OPEN)
        self.send(frame(described(BEGIN, NULL, uint(0), uint(WIDE_OPEN), uint(WIDE_OPEN))))
        begin = self.next_performative(BEGIN)
        #: The broker's transfers are numbered from here, and it takes so many of ours.
        self.next_incoming = number(begin, 1)
        self.remote_window = number(begin, 2)
        self.next_outgoing = 0

    def _expect_header(self, header: bytes) -> None:
        data = self.receive_exactly_until(lambda data: len(data) >= 8)
        if data[:8] != header:
            raise LoadError(f"expected the protocol header {header!r}, got {data[:8]!r}")
        self.rest = data[8:]

    def next_performative(self, wanted: int) -> list[Value]:
        """During the handshake: read on to the next frame of this kind; empty frames and flows are let through."""
        while True:
            data = self.receive_exactly_until(lambda data: frame_size(data, 0) > 0)
            size = frame_size(data, 0)
            self.rest = data[size:]
            if size == 8:
                continue
            code, fields = self.performative(data, 0)
            if code == wanted:
                return fields
            if code == FLOW and wanted == ATTACH:
                self.flow(fields)
                continue
            raise LoadError(f"expected performative {wanted:#x}, got {code:#x} {fields}")

    @staticmethod
    def performative(data: bytes, position: int) -> tuple[int, list[Value]]:
        """Decode the performative of the frame at `position`."""
        value, _ = decode(data, position + 4 * data[position + 4])
        if not isinstance(value, list) or not isinstance(value[0], int):
            raise LoadError(f"not a performative: {data[position : position + 40]!r}")
        return value[0], value[1] if isinstance(value[1], list) else []

    def attach(self, target: Target, address: str, *, handle: int, receiver: bool) -> None:
        """Attach one link."""
        capability = symbol(target.amqp_capability) if target.amqp_capability else NULL
        full = string(target.amqp_address.format(address))
        near = described(TARGET if receiver else SOURCE)
        if receiver:
            far = described(
                SOURCE, full, uint(target.amqp_durable), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, capability
            )
        else:
            far = described(TARGET, full, uint(target.amqp_durable), NULL, NULL, NULL, NULL, capability)
        source, destination = (far, near) if receiver else (near, far)
        last = () if receiver else (NULL, NULL, uint(0))
        self.send(
            frame(
                described(
                    *(ATTACH, string(f"load-{address}-{handle}"), uint(handle), TRUE if receiver else FALSE),
                    *(b"\x50\0", b"\x50\0", source, destination, *last),
                )
            )
        )
        answer = self.next_performative(ATTACH)
        if len(answer) > 6 and answer[5 if receiver else 6] is None:
            raise LoadError(f"the broker refused the link to {address}")

    def start(self) -> None:
        if self.rest:
            data, self.rest = self.rest, b""
            self.received(data)

    def flow(self, fields: list[Value]) -> None:
        """The broker told about its session window and a link's credit; consumers have no use for it."""

    def complain(self, code: int, fields: list[Value]) -> None:
        """Raise LoadError for a frame that ends something."""
        if code in {DETACH, END, CLOSE}:
            raise LoadError(f"the broker ended the link, session or connection ({code:#x}): {fields}")


class AmqpProducer(AmqpConnection):
    """Sends unsettled transfers within credit and window, counts accepted dispositions."""

    def __init__(self, target: Target, queues: list[str], body: bytes, window: Window, name: str) -> None:
        super().__init__(target, name)
        self.window = window
        self.links = len(queues)
        #: For each link: the sum of credit it was ever given, and how much of it is used.
        self.credit = [0] * self.links
        self.sent = [0] * self.links
        self.turn = 0
        self.unsettled: set[int] = set()
        for handle, queue in enumerate(queues):
            self.attach(target, queue, handle=handle, receiver=False)
        header = b"\0\x53\x70\xc0\x02\x01\x41"  # durable
        section = b"\xa0" + bytes((len(body),)) if len(body) < 256 else b"\xb0" + struct.pack(">I", len(body))
        fields = b"\x70HHHH\x70DDDD\xa0\x04TTTT\x43\x42"
        performative = b"\0\x53\x14\xc0" + bytes((len(fields) + 1, 5)) + fields
        template = frame(performative + header + b"\0\x53\x75" + section + body)
        self.size = len(template)
        self.handle_at, self.id_at, self.tag_at = (template.index(mark * 4) for mark in (b"H", b"D", b"T"))
        self.template = template

    def fill(self) -> None:
        """Send as much as the window, the credit and the session allow."""
        while True:
            link = self.turn
            room = min(self.remote_window, self.credit[link] - self.sent[link], BATCH if self.links == 1 else 8)
            if room <= 0:
                self.window.finish_if_over()
                return
            count = self.window.take(room)
            if not count:
                return
            buffer = bytearray(self.template * count)
            pack, size, identifier = struct.pack_into, self.size, self.next_outgoing
            for offset in range(0, size * count, size):
                pack(">I", buffer, offset + self.handle_at, link)
                pack(">I", buffer, offset + self.id_at, identifier)
                pack(">I", buffer, offset + self.tag_at, identifier)
                identifier += 1
            if self.links > 1:
                self.unsettled.update(range(self.next_outgoing, identifier))
            self.next_outgoing = identifier
            self.remote_window -= count
            self.sent[link] += count
            self.turn = (link + 1) % self.links
            self.send(memoryview(buffer))

    def received(self, data: bytes) -> None:
        position = confirmed = 0
        while size := frame_size(data, position):
            if size > 8:
                code, fields = self.performative(data, position)
                if code == DISPOSITION:
                    first = number(fields, 1)
                    state = fields[4] if len(fields) > 4 else None
                    if not isinstance(state, list) or state[0] != ACCEPTED:
                        raise LoadError(f"a message was not accepted: {fields}")
                    confirmed += self.settle(first, number(fields, 2, first))
                elif code == FLOW:
                    self.flow(fields)
                else:
                    self.complain(code, fields)
            position += size
        self.rest = data[position:]
        if confirmed:
            self.window.confirmed(confirmed)
        self.fill()

    def settle(self, first: int, last: int) -> int:
        """Return how many messages a disposition settles. With several links, ranges of brokers overlap."""
        if self.links == 1:
            return last - first + 1
        new = self.unsettled.intersection(range(first, last + 1))
        self.unsettled -= new
        return len(new)

    def flow(self, fields: list[Value]) -> None:
        """Take the session window and, if it is for a link, the credit."""
        self.remote_window = number(fields, 0) + number(fields, 1) - self.next_outgoing
        if len(fields) > 6 and fields[4] is not None:
            self.credit[number(fields, 4)] = number(fields, 5) + number(fields, 6)

    @property
    def done(self) -> bool:
        return self.window.finished


class AmqpConsumer(AmqpConnection):
    """Receives with credit, settles everything one read brought with one disposition."""

    def __init__(self, target: Target, queues: list[str], goal: Goal, name: str, credit: int) -> None:
        super().__init__(target, name)
        self.goal = goal
        self.credit_limit = credit
        for handle, queue in enumerate(queues):
            self.attach(target, queue, handle=handle, receiver=True)
        self.links = len(queues)
        #: Received on each link, and up to where credit was given.
        self.counts = [0] * self.links
        self.granted = [0] * self.links
        self.first_unsettled = -1
        self.last_delivery = -1
        self.grant()

    def grant(self) -> None:
        """Top up the credit of the links that used half of it."""
        flows = []
        for handle in range(self.links):
            if self.granted[handle] - self.counts[handle] <= self.credit_limit // 2:
                self.granted[handle] = self.counts[handle] + self.credit_limit
                flows.append(
                    frame(
                        described(
                            *(FLOW, uint(self.next_incoming & 0xFFFFFFFF), uint(WIDE_OPEN), uint(0), uint(WIDE_OPEN)),
                            *(uint(handle), uint(self.counts[handle]), uint(self.credit_limit)),
                        )
                    )
                )
        if flows:
            self.send(b"".join(flows))

    def received(self, data: bytes) -> None:
        position = 0
        while size := frame_size(data, position):
            if size > 8:
                if data[position + 8 : position + 11] == b"\0\x53\x14":
                    position += self.transfers(data, position, size)
                    continue
                code, fields = self.performative(data, position)
                if code == TRANSFER:
                    raise LoadError("this broker's descriptors are not the short ones this client counts by")
                self.complain(code, fields)
            position += size
        self.rest = data[position:]
        if self.first_unsettled >= 0:
            disposition = described(
                *(DISPOSITION, TRUE, uint(self.first_unsettled), uint(self.last_delivery), TRUE, b"\0\x53\x24\x45")
            )
            self.send(frame(disposition))
            self.first_unsettled = -1
            self.grant()

    def transfers(self, data: bytes, position: int, size: int) -> int:
        """Count the transfers of equal size and link that start at `position`; return their bytes."""
        _, fields = self.performative(data, position)
        handle = number(fields, 0)
        first = number(fields, 1)
        if fields[5:6] == [True]:
            raise LoadError("a message came in several frames; this client counts one for each")
        # The frame's length, the descriptor, and the handle (the first field, at most 5 bytes after the list's head).
        fixed = (0, 1, 2, 3, 10)
        count = 1
        if self.links == 1:
            count = max(1, run_length(data, position, size, tuple((at, data[position + at]) for at in fixed)))
        if self.first_unsettled < 0:
            self.first_unsettled = first
        self.last_delivery = first + count - 1
        self.next_incoming += count
        self.counts[handle] += count
        self.goal.received += count
        return size * count

    @property
    def done(self) -> bool:
        return self.goal.consumed
