"""From a client's bytes to packets: one tight loop over one buffer. Sans-io.

What :meth:`Decoder.feed` returns, in the order received:

* ``int``: a successful PUBACK of that packet identifier;
* ``tuple (first, topic, packet_id, rest)``: a PUBLISH. ``first`` is the fixed header's first byte, ``topic`` the topic
  with its two length bytes (not yet checked: sessions keep the topics they have seen), ``packet_id`` 0 at
  QoS 0, ``rest`` the MQTT 5 property block and the payload (an empty block is put in for a 3.1.1 client);
* :class:`PublishStart`, then ``bytes`` until :class:`PublishEnd`: a PUBLISH larger than ``large_from``, streamed;
* a packet of :mod:`pollux.wire.mqtt.packets`;
* :class:`ProtocolError`, always last: the stream is broken, nothing more is decoded.

Memory is bounded by ``max_packet`` (``large_from`` for PUBLISH when it is set); before CONNECT by ``MAX_CONNECT``.
"""

from __future__ import annotations

from msgspec import Struct

from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, Connect, Packet
from pollux.wire.mqtt.parse import parse_packet
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, malformed, violation

#: A CONNECT is at most this long: client id, user name, password, will topic and payload are 64 KiB each.
MAX_CONNECT = 384 * 1024
#: The part of a streamed PUBLISH that is kept in memory: topic and properties must fit.
MAX_PUBLISH_HEAD = 256 * 1024
#: A retained message is kept in memory anyway: up to this size it is not streamed.
MAX_RETAINED = 1024 * 1024

#: Pieces of a packet that are kept apart: the smaller they are, the more each costs beyond its bytes.
_MOST_PIECES = 256

# What only a server sends (section 2.1.2): a client that does so is broken.
_SERVER_ONLY = frozenset({p.CONNACK, p.SUBACK, p.UNSUBACK, p.PINGRESP})

PublishTuple = tuple[int, bytes, int, bytes]


class PublishStart(Struct):
    """The head of a streamed PUBLISH: ``properties`` is its MQTT 5 block, ``payload_size`` what follows in chunks."""

    first: int
    topic: bytes
    packet_id: int
    properties: bytes
    payload_size: int


class PublishEnd(Struct):
    """The streamed PUBLISH is complete."""


Event = int | PublishTuple | PublishStart | PublishEnd | bytes | Packet | ProtocolError


class Decoder:
    """Finds packets in a stream of bytes from a client, and yields the events that the module names."""

    __slots__ = ("_broken", "_kept", "_need", "_pieces", "_streaming", "large_from", "max_packet", "version")

    def __init__(self, max_packet: int, large_from: int = 0) -> None:
        """``max_packet`` bounds a packet's remaining length; PUBLISHes from ``large_from`` bytes stream (0: none)."""
        self.max_packet = max_packet
        self.large_from = large_from
        #: 0 until CONNECT was seen, then its protocol level.
        self.version = 0
        #: What is kept, in the pieces in which it came: a buffer that grows leaves holes of each of its sizes behind.
        self._pieces: list[bytes] = []
        self._kept = 0
        self._need = 0
        self._streaming = 0
        self._broken = False

    @property
    def buffered(self) -> int:
        """Bytes kept for a packet that is not complete."""
        return self._kept

    def close(self) -> None:
        """Drop what is held and all that still comes."""
        self._broken = True
        self._clear()

    def _clear(self) -> None:
        self._pieces = []
        self._kept = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return everything ``data`` completes."""
        events: list[Event] = []
        if self._broken:
            return events
        if self._pieces:
            self._pieces.append(data)
            self._kept += len(data)
            if self._kept < self._need:
                if len(self._pieces) > _MOST_PIECES:
                    self._pieces = [b"".join(self._pieces)]
                return events
            data = b"".join(self._pieces)
            self._clear()
        self._need = 0
        try:
            self._decode(data, events)
        except ProtocolError as error:
            self._broken = True
            self._clear()
            events.append(error)
        return events

    def _decode(self, data: bytes, events: list[Event]) -> None:  # noqa: C901  (one loop: calls would cost what it saves)
        append = events.append
        position = 0
        end = len(data)
        v5 = self.version == V5
        limit = min(self.large_from or self.max_packet, self.max_packet)
        if self._streaming:
            position = self._stream(data, 0, events)
        while end - position >= 2:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            # The consumer's path: a run of four-byte PUBACKs.
            if first == 0x40 and length == 2 and self.version:
                if end - body < 2:
                    self._need = 4
                    break
                packet_id = data[body] << 8 | data[body + 1]
                if not packet_id:
                    raise violation("a packet identifier is 0")
                append(packet_id)
                position = body + 2
                continue
            if length > 0x7F:
                length, body = self._length(data, position + 1)
                if not body:
                    self._need = end - position + 1
                    break
            stop = body + length
            if first & 0xF0 == 0x30 and self.version:
                # The producer's path.
                if length > limit and not (first & 1 and length <= MAX_RETAINED and length <= self.max_packet):
                    if length > self.max_packet or not self.large_from:
                        raise _too_large(length, self.max_packet)
                    moved = self._start_stream(data, position, body, stop, events)
                    if moved == position:
                        break
                    position = moved
                    continue
                if stop > end:
                    self._need = stop - position
                    break
                topic_end = body + 2
                if topic_end > stop:
                    raise malformed("PUBLISH is cut off")
                topic_end += data[body] << 8 | data[body + 1]
                qos = first & 6
                if qos:
                    rest = topic_end + 2
                    if rest > stop or qos == 6:
                        raise malformed("PUBLISH is cut off or asks for QoS 3")
                    packet_id = data[topic_end] << 8 | data[topic_end + 1]
                    if not packet_id:
                        raise violation("a packet identifier is 0")
                else:
                    rest = topic_end
                    packet_id = 0
                    if rest > stop or first & 8:
                        raise malformed("PUBLISH is cut off or a duplicate at QoS 0")
                if v5:
                    if rest == stop:
                        raise malformed("PUBLISH without a property length")
                    append((first, data[body:topic_end], packet_id, data[rest:stop]))
                else:
                    append((first, data[body:topic_end], packet_id, b"\0" + data[rest:stop]))
                position = stop
                continue
            self._check(first, length)
            if stop > end:
                self._need = stop - position
                break
            packet = parse_packet(first, data[body:stop], self.version)
            if isinstance(packet, Connect):
                self.version = packet.version
                v5 = packet.version == V5
            append(packet)
            position = stop
        if position < end:
            self._pieces = [data[position:]]
            self._kept = end - position
            if not self._need:
                self._need = 2

    def _length(self, data: bytes, position: int) -> tuple[int, int]:
        """Return the remaining length and the offset after it; offset 0 when it is not complete."""
        value = 0
        end = len(data)
        for index in range(4):
            if position >= end:
                return 0, 0
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if not byte:
                    raise malformed("the remaining length is longer than it needs to be")
                return value, position
        raise malformed("the remaining length is longer than four bytes")

    def _check(self, first: int, length: int) -> None:
        """Refuse a packet that may not come at all, or not so long, before its body is waited for."""
        kind = first >> 4
        if not self.version:
            if kind != p.CONNECT:
                raise violation("the first packet is not CONNECT")  # MQTT-3.1.0-1
            limit = min(self.max_packet, MAX_CONNECT)
        elif kind == p.CONNECT:
            raise violation("a second CONNECT")  # MQTT-3.1.0-2
        else:
            limit = self.max_packet
            if kind in _SERVER_ONLY:
                raise violation("a packet only a server may send")
            if self.large_from:
                limit = min(limit, max(self.large_from, MAX_CONNECT))
        if length > limit:
            raise _too_large(length, limit)

    def _start_stream(self, data: bytes, start: int, body: int, stop: int, events: list[Event]) -> int:
        """Start a large PUBLISH. Return the offset after its head, ``start`` when that is not complete."""
        end = min(len(data), stop)
        first = data[start]
        qos = first >> 1 & 3
        if qos == 3 or (not qos and first & 8):
            raise malformed("PUBLISH flags are wrong")
        need = body + 2
        if end >= need:
            topic_end = need + (data[body] << 8 | data[body + 1])
            position = topic_end + (2 if qos else 0)
            if position + (self.version == V5) > stop:
                raise malformed("PUBLISH is cut off")
            need = position
            block_end = position
            if self.version == V5:
                need = position + 1
                if end > position:
                    size, after = self._length_of_block(data, position, end)
                    if after:
                        block_end = need = after + size
                        if block_end > stop:
                            raise malformed("the properties reach beyond their packet")
                    else:
                        need = end + 1
            if need - start > MAX_PUBLISH_HEAD:
                raise _too_large(need - start, MAX_PUBLISH_HEAD)
            if end >= need:
                packet_id = 0
                if qos:
                    packet_id = data[topic_end] << 8 | data[topic_end + 1]
                    if not packet_id:
                        raise violation("a packet identifier is 0")
                block = data[position:block_end] if self.version == V5 else b"\0"
                self._streaming = stop - block_end
                events.append(PublishStart(first, data[body:topic_end], packet_id, block, stop - block_end))
                if not self._streaming:
                    events.append(PublishEnd())
                    return block_end
                return self._stream(data, block_end, events)
        self._need = need - start
        return start

    def _length_of_block(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """Return the property length at ``position``; offset 0 when it is not complete. Zero is a length here."""
        if data[position] == 0:
            return 0, position + 1
        return self._length(data[:end], position)

    def _stream(self, data: bytes, position: int, events: list[Event]) -> int:
        """Hand out payload of the large PUBLISH under way; the offset after it."""
        stop = min(len(data), position + self._streaming)
        if stop > position:
            events.append(data[position:stop])
            self._streaming -= stop - position
            if not self._streaming:
                events.append(PublishEnd())
        return stop


def _too_large(length: int, limit: int) -> ProtocolError:
    return ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"a packet of {length} bytes; at most {limit} are allowed")
