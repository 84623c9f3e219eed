"""The codec: round trips, any chunking, an independent implementation as oracle, bounds, and hostile bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mqtt5
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollux.wire.mqtt import decoder as decoding
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.decoder import Decoder, PublishEnd, PublishStart
from pollux.wire.mqtt.encode import encode, encode_acks
from pollux.wire.mqtt.packets import V5, V31, V311, Ack, Connect, Packet, Publish
from pollux.wire.mqtt.parse import parse_packet, parse_publish
from pollux.wire.mqtt.primitives import decode_variable, encode_variable
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode

from .mqtt_strategies import connects, from_client, from_server, properties, publishes, versions

LIMIT = 1 << 20


def whole(data: bytes, version: int) -> Packet:
    """Return the packet that ``data`` is, exactly one."""
    length, start = decode_variable(data, 1, len(data))
    assert start + length == len(data)
    return parse_packet(data[0], data[start:], version)


def plain(event: Any, version: int) -> Any:
    """The decoder's short forms as packets."""
    if isinstance(event, int):
        return Ack(p.PUBACK, event)
    if isinstance(event, tuple):
        first, topic, packet_id, rest = event
        identifier = packet_id.to_bytes(2, "big") if packet_id else b""
        return parse_publish(first, topic + identifier + rest, V5)
    return event


def connected(version: int, max_packet: int = LIMIT, large_from: int = 0) -> Decoder:
    decoder = Decoder(max_packet, large_from)
    assert isinstance(decoder.feed(encode(Connect("c", version), version))[0], Connect)
    return decoder


@given(st.integers(0, 268_435_455))
@example(127)
@example(128)
@example(16_383)
@example(16_384)
@example(2_097_151)
@example(2_097_152)
def test_variable_integers_round_trip(value: int) -> None:
    data = encode_variable(value)
    assert decode_variable(data, 0, len(data)) == (value, len(data))


@given(st.data(), versions)
def test_every_packet_round_trips(data: st.DataObject, version: int) -> None:
    packet = data.draw(from_client(version) | from_server(version) | connects(version))
    assert whole(encode(packet, version), version) == packet


@given(st.data(), versions)
def test_any_chunking_gives_the_same_packets(data: st.DataObject, version: int) -> None:
    packets = data.draw(st.lists(from_client(version), max_size=8))
    stream = encode(Connect("c", version), version) + b"".join(encode(packet, version) for packet in packets)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {0, len(stream)})
    decoder = Decoder(LIMIT)
    events = [event for start, end in pairwise(cuts) for event in decoder.feed(stream[start:end])]
    assert [plain(event, version) for event in events[1:]] == packets
    assert decoder.buffered == 0


@given(publishes(V5), st.integers(1, 40))
def test_a_large_publish_streams_whatever_the_chunks(packet: Publish, step: int) -> None:
    data = encode(packet, V5)
    decoder = connected(V5, large_from=1)
    packet.retain = False
    data = encode(packet, V5)
    events = [event for start in range(0, len(data), step) for event in decoder.feed(data[start : start + step])]
    head = events[0]
    assert isinstance(head, PublishStart)
    assert isinstance(events[-1], PublishEnd)
    payload = b"".join(events[1:-1])  # type: ignore[arg-type]
    assert (payload, head.payload_size) == (packet.payload, len(packet.payload))
    assert head.topic[2:].decode() == packet.topic
    assert head.packet_id == packet.packet_id
    assert p.decode_properties(head.properties, 0, len(head.properties), p.PUBLISH)[0] == packet.properties
    assert decoder.feed(encode_acks(p.PUBACK, [7])) == [7]


@given(st.lists(st.integers(1, 65_535), min_size=1))
def test_batched_acknowledgements_are_single_ones(packet_ids: list[int]) -> None:
    for kind in (p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP):
        expected = b"".join(encode(Ack(kind, packet_id), V311) for packet_id in packet_ids)
        assert encode_acks(kind, packet_ids) == expected
    assert connected(V5).feed(encode_acks(p.PUBACK, packet_ids)) == packet_ids


def optional(found: p.Properties, name: str, default: Any = None) -> Any:
    return found.get(p.PropertyId[name], default)


@given(publishes(V5))
def test_publish_is_what_another_implementation_writes_and_reads(packet: Publish) -> None:
    found = packet.properties
    theirs = mqtt5.PublishPacket(
        packet.topic,
        packet.payload,
        qos=mqtt5.QoS(packet.qos),
        retain=packet.retain,
        packet_id=packet.packet_id or None,
        duplicate=packet.dup,
        payload_format_indicator=optional(found, "PAYLOAD_FORMAT_INDICATOR", 0),
        message_expiry_interval=optional(found, "MESSAGE_EXPIRY_INTERVAL"),
        content_type=optional(found, "CONTENT_TYPE"),
        response_topic=optional(found, "RESPONSE_TOPIC"),
        correlation_data=optional(found, "CORRELATION_DATA"),
        subscription_ids=optional(found, "SUBSCRIPTION_IDENTIFIER"),
        topic_alias=optional(found, "TOPIC_ALIAS"),
        user_properties=optional(found, "USER_PROPERTY"),
    )
    if not found.get(p.PropertyId.PAYLOAD_FORMAT_INDICATOR, 1):
        del found[p.PropertyId.PAYLOAD_FORMAT_INDICATOR]  # they leave out the default
    ours = whole(bytes(theirs.write()), V5)
    assert ours == packet
    read, used = mqtt5.read(memoryview(encode(packet, V5)))
    assert used == len(encode(packet, V5))
    assert bytes(read.write()) == bytes(theirs.write())


@given(connects(V5))
def test_connect_is_what_another_implementation_reads(packet: Connect) -> None:
    read: Any = mqtt5.read(memoryview(encode(packet, V5)))[0]
    assert read.client_id == packet.client_id
    assert (read.username, read.password) == (packet.username, packet.password)
    assert read.clean_start == packet.clean_start
    assert read.keep_alive == packet.keep_alive
    assert read.receive_max == optional(packet.properties, "RECEIVE_MAXIMUM", 65_535)
    assert read.session_expiry_interval == optional(packet.properties, "SESSION_EXPIRY_INTERVAL", 0)
    assert (read.will is None) == (packet.will is None)
    if packet.will is not None:
        assert read.will.topic == packet.will.topic
        assert (read.will.payload or b"") == packet.will.payload
        assert (read.will.qos, read.will.retain) == (packet.will.qos, packet.will.retain)
        assert read.will.will_delay_interval == optional(packet.will.properties, "WILL_DELAY_INTERVAL", 0)
    assert whole(bytes(read.write()), V5).client_id == packet.client_id  # type: ignore[union-attr]


@given(from_server(V5))
def test_what_a_server_sends_can_be_read_by_another_implementation(packet: Any) -> None:
    data = encode(packet, V5)
    read: Any
    read, used = mqtt5.read(memoryview(data))
    assert used == len(data)
    again = whole(bytes(read.write()), V5)
    assert type(again) is type(packet)


MALFORMED = [
    ("remaining length of five bytes", "c0ffffffff01", ReasonCode.MALFORMED_PACKET),
    ("remaining length not in its shortest form", "c08000", ReasonCode.MALFORMED_PACKET),
    ("PINGREQ with flags", "c100", ReasonCode.MALFORMED_PACKET),
    ("PINGREQ with a body", "c00100", ReasonCode.MALFORMED_PACKET),
    ("SUBSCRIBE without its flag", "8006000100000161", ReasonCode.MALFORMED_PACKET),
    ("packet type 0", "0000", ReasonCode.MALFORMED_PACKET),
    ("QoS 3", "3606000161000100", ReasonCode.MALFORMED_PACKET),
    ("DUP at QoS 0", "380400016100", ReasonCode.MALFORMED_PACKET),
    ("packet id 0", "320600016100000078", ReasonCode.PROTOCOL_ERROR),
    ("PUBACK of packet id 0", "40020000", ReasonCode.PROTOCOL_ERROR),
    ("topic beyond the packet", "30040009610000", ReasonCode.MALFORMED_PACKET),
    ("PUBLISH without property length", "3003000161", ReasonCode.MALFORMED_PACKET),
    ("unknown PUBACK reason", "40030001ff", ReasonCode.MALFORMED_PACKET),
    ("SUBSCRIBE without filters", "8203000100", ReasonCode.PROTOCOL_ERROR),
    ("subscription without options", "820600010000016100"[:16], ReasonCode.MALFORMED_PACKET),
    ("reserved subscription options", "8207000100000161c0", ReasonCode.MALFORMED_PACKET),
    ("retain handling 3", "820700010000016130", ReasonCode.PROTOCOL_ERROR),
    ("subscription QoS 3", "820700010000016103", ReasonCode.MALFORMED_PACKET),
    ("subscription identifier 0", "82090001020b0000016100", ReasonCode.PROTOCOL_ERROR),
    ("UNSUBSCRIBE without filters", "a203000100", ReasonCode.PROTOCOL_ERROR),
    ("filter that is not UTF-8", "8207000100000180" + "00", ReasonCode.MALFORMED_PACKET),
    ("filter with a surrogate", "8209000100" + "0003eda080" + "00", ReasonCode.MALFORMED_PACKET),
    ("filter with U+0000", "82070001000001" + "0000", ReasonCode.MALFORMED_PACKET),
    ("property of another packet", "e004000221" + "0001", ReasonCode.MALFORMED_PACKET),
    ("unknown property", "e003000" + "17f", ReasonCode.MALFORMED_PACKET),
    ("property twice", "e00c000a110000000111" + "00000002", ReasonCode.PROTOCOL_ERROR),
    ("second CONNECT", "100d00044d5154540502000000000000", ReasonCode.PROTOCOL_ERROR),
    ("CONNACK from a client", "2003000000", ReasonCode.PROTOCOL_ERROR),
    ("PINGRESP from a client", "d000", ReasonCode.PROTOCOL_ERROR),
    ("unknown DISCONNECT reason", "e00133", ReasonCode.MALFORMED_PACKET),
    ("unknown AUTH reason", "f00133", ReasonCode.MALFORMED_PACKET),
]


@pytest.mark.parametrize(("what", "data", "reason"), MALFORMED, ids=[entry[0] for entry in MALFORMED])
def test_broken_packets_end_with_the_right_reason(what: str, data: str, reason: ReasonCode) -> None:
    decoder = connected(V5)
    events = decoder.feed(encode_acks(p.PUBACK, [5]) + bytes.fromhex(data) + encode_acks(p.PUBACK, [6]))
    assert events[0] == 5
    assert isinstance(events[-1], ProtocolError), (what, events)
    assert events[-1].reason is reason
    assert len(events) == 2
    assert decoder.feed(b"\xc0\x00") == []


CONNECTS = [
    ("other protocol", b"\0\x04HTTP\x05\x02\0\0\0\0\0", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, V5),
    ("3.1 under the new name", b"\0\x04MQTT\x03\x02\0\0\0\x01a", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, V311),
    ("3.1.1 under the old name", b"\0\x06MQIsdp\x04\x02\0\0\0\x01a", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, V311),
    ("password without user, 3.1", b"\0\x06MQIsdp\x03\x42\0\0\0\x01a\0\x01b", ReasonCode.MALFORMED_PACKET, V31),
    ("level 6", b"\0\x04MQTT\x06\x02\0\0\0\0\0", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, V5),
    ("reserved flag", b"\0\x04MQTT\x05\x03\0\0\0\0\0", ReasonCode.MALFORMED_PACKET, V5),
    ("will QoS without will", b"\0\x04MQTT\x05\x08\0\0\0\0\0", ReasonCode.MALFORMED_PACKET, V5),
    ("will QoS 3", b"\0\x04MQTT\x05\x1c\0\0\0\0\0\0\0\x01a\0\0", ReasonCode.MALFORMED_PACKET, V5),
    ("password without user, 3.1.1", b"\0\x04MQTT\x04\x42\0\0\0\x01a\0\x01b", ReasonCode.MALFORMED_PACKET, V311),
    ("data behind the end", b"\0\x04MQTT\x05\x02\0\0\0\0\0x", ReasonCode.MALFORMED_PACKET, V5),
    ("auth data without method", b"\0\x04MQTT\x05\x02\0\0\x04\x16\0\x01x\0\0", ReasonCode.PROTOCOL_ERROR, V5),
    ("receive maximum 0", b"\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\0", ReasonCode.PROTOCOL_ERROR, V5),
    ("request problem information 2", b"\0\x04MQTT\x05\x02\0\0\x02\x17\x02\0\0", ReasonCode.PROTOCOL_ERROR, V5),
]


@pytest.mark.parametrize(("what", "body", "reason", "version"), CONNECTS, ids=[entry[0] for entry in CONNECTS])
def test_broken_connects_say_how_to_answer(what: str, body: bytes, reason: ReasonCode, version: int) -> None:
    (error,) = Decoder(LIMIT).feed(b"\x10" + encode_variable(len(body)) + body)
    assert isinstance(error, ProtocolError), what
    assert (error.reason, error.version) == (reason, version)


def test_nothing_but_connect_comes_first() -> None:
    for data in (b"\x30\x04\0\x01a\0", b"\x40\x02\0\x01", b"\xc0\x00", b"\xe0\x00"):
        (error,) = Decoder(LIMIT).feed(data)
        assert isinstance(error, ProtocolError)
        assert error.reason is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [0x30, 0x32, 0x82, 0xA2, 0xE0, 0x41 - 1])
def test_a_packet_larger_than_allowed_is_refused_before_it_is_read(first: int) -> None:
    decoder = connected(V5, max_packet=1000)
    (error,) = decoder.feed(bytes((first,)) + encode_variable(1001))
    assert isinstance(error, ProtocolError)
    assert error.reason is ReasonCode.PACKET_TOO_LARGE


def test_a_connect_is_bounded_whatever_packets_may_have() -> None:
    (error,) = Decoder(1 << 28).feed(b"\x10" + encode_variable(decoding.MAX_CONNECT + 1))
    assert isinstance(error, ProtocolError)
    assert error.reason is ReasonCode.PACKET_TOO_LARGE


def test_properties_are_bounded_in_number() -> None:
    pairs = [("a", "b")] * (p.MAX_PROPERTIES + 1)
    packet = Publish("t", b"", properties={p.PropertyId.USER_PROPERTY: pairs})
    with pytest.raises(ProtocolError) as caught:
        whole(encode(packet, V5), V5)
    assert caught.value.reason is ReasonCode.PACKET_TOO_LARGE


def test_what_streams_is_not_kept() -> None:
    decoder = connected(V5, max_packet=1 << 28, large_from=1000)
    size = 10_000_000
    events = decoder.feed(b"\x30" + encode_variable(4 + size) + b"\0\x01t\0")
    assert isinstance(events[0], PublishStart)
    for _ in range(size // 10_000):
        (chunk,) = decoder.feed(bytes(10_000))[:1]
        assert isinstance(chunk, bytes)
        assert decoder.buffered == 0


def test_the_head_of_a_streamed_publish_is_bounded() -> None:
    decoder = connected(V5, max_packet=1 << 28, large_from=1000)
    properties_length = decoding.MAX_PUBLISH_HEAD + 10
    start = b"\x30" + encode_variable(properties_length + 100) + b"\0\x01t" + encode_variable(properties_length)
    (error,) = decoder.feed(start)
    assert isinstance(error, ProtocolError)
    assert error.reason is ReasonCode.PACKET_TOO_LARGE


def test_single_bytes_of_a_long_packet_do_not_cost_its_square() -> None:
    decoder = connected(V5)
    data = encode(Publish("t", bytes(50_000), 1, packet_id=1), V5)
    events = [event for byte in data for event in decoder.feed(bytes((byte,)))]
    assert len(events) == 1


@given(st.binary(max_size=300), versions, st.integers(0, 60))
def test_garbage_never_raises_and_stays_bounded(garbage: bytes, version: int, large_from: int) -> None:
    for decoder in (Decoder(200, large_from), connected(version, 200, large_from)):
        events = decoder.feed(garbage)
        assert decoder.buffered <= max(200, decoding.MAX_CONNECT) + 5
        assert all(not isinstance(event, ProtocolError) for event in events[:-1])


@given(st.data(), versions, st.integers(0, 10_000), st.integers(0, 255))
def test_a_flipped_byte_never_raises(data: st.DataObject, version: int, place: int, byte: int) -> None:
    packets = data.draw(st.lists(from_client(version), min_size=1, max_size=4))
    stream = bytearray(b"".join(encode(packet, version) for packet in packets))
    stream[place % len(stream)] = byte
    connected(version, large_from=50).feed(bytes(stream))


@given(properties(p.PUBLISH))
def test_properties_round_trip(found: p.Properties) -> None:
    data = p.encode_properties(found)
    assert p.decode_properties(data, 0, len(data), p.PUBLISH) == (found, len(data))
