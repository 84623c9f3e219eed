"""The type codec and the message sections, with python-qpid-proton as the oracle."""

from __future__ import annotations

import math
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux.message import Encoding, Message
from pollux.wire.amqp.codec import (
    Array,
    DecodeError,
    Described,
    Int,
    Opaque,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_value,
    encode_value,
    renumber,
    skip_value,
)
from pollux.wire.amqp.content import decode_content, encode_content
from pollux.wire.amqp.guard import DESCRIPTORS
from pollux.wire.amqp.sections import encode_header, for_delivery, inspect, plain_header, walk
from pollux.wire.content import Content

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=300)
ASCII = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=300)
PRIMITIVES = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=300),
    st.uuids(),
    ASCII.map(Symbol),
)
KEYS = st.one_of(TEXT, INTEGERS, ASCII.map(Symbol), st.uuids())
DESCRIPTOR_VALUES = st.one_of(ASCII.map(Symbol), st.integers(0, 2**64 - 1).map(ULong))
#: Without described values directly in described values, which proton's pn_data loses siblings of.
VALUES = st.recursive(
    PRIMITIVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(KEYS, inner, max_size=6),
        st.builds(Described, DESCRIPTOR_VALUES, inner.filter(lambda value: not isinstance(value, Described))),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_round_trip(value: object) -> None:
    encoded = encode_value(value)
    assert decode_value(encoded) == (value, len(encoded))
    assert skip_value(encoded, 0) == len(encoded)


def to_proton(value: Any) -> Any:
    if isinstance(value, Symbol):
        return proton.symbol(value)
    if isinstance(value, list):
        return [to_proton(each) for each in value]
    if isinstance(value, dict):
        return {to_proton(key): to_proton(each) for key, each in value.items()}
    if isinstance(value, Described):
        descriptor: Any = value.descriptor
        return proton.Described(
            to_proton(descriptor) if isinstance(descriptor, Symbol) else proton.ulong(descriptor),
            to_proton(value.value),
        )
    return value


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_proton_writes_what_we_read(value: object) -> None:
    data = proton.Data()
    data.put_object(to_proton(value))
    encoded = bytes(data.encode())
    assert decode_value(encoded) == (value, len(encoded))


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_proton_reads_what_we_write(value: object) -> None:
    encoded = encode_value(value)
    data = proton.Data()
    assert data.decode(encoded) == len(encoded)
    data.rewind()
    data.next()
    assert from_proton(data.get_object()) == value


def from_proton(value: Any) -> Any:
    if isinstance(value, proton.Described):
        return Described(from_proton(value.descriptor), from_proton(value.value))
    if isinstance(value, proton.symbol):
        return Symbol(value)
    if isinstance(value, list):
        return [from_proton(each) for each in value]
    if isinstance(value, dict):
        return {from_proton(key): from_proton(each) for key, each in value.items()}
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (UByte(200), b"\x50\xc8"),
        (UShort(500), b"\x60\x01\xf4"),
        (UInt(0), b"\x43"),
        (UInt(200), b"\x52\xc8"),
        (UInt(300), b"\x70\x00\x00\x01\x2c"),
        (ULong(0), b"\x44"),
        (ULong(2**63), b"\x80\x80" + bytes(7)),
        (Int(-5), b"\x54\xfb"),
        (Int(1 << 20), b"\x71\x00\x10\x00\x00"),
        (Timestamp(1), b"\x83" + bytes(7) + b"\x01"),
        (Array([Symbol("a"), Symbol("bc")]), b"\xe0\x0d\x02\xb3\x00\x00\x00\x01a\x00\x00\x00\x02bc"),
        (Opaque(0x74, b"\x01\x02\x03\x04"), b"\x74\x01\x02\x03\x04"),
        (Described(0x24, []), b"\x00S\x24\x45"),
    ],
)
def test_widths(value: object, encoded: bytes) -> None:
    assert encode_value(value) == encoded
    assert decode_value(encoded)[0] == value


def test_other_encodings_are_read() -> None:
    assert decode_value(b"\x56\x01")[0] is True
    assert decode_value(b"\x56\x00")[0] is False
    assert decode_value(b"\x73\x00\x01\xf6\x00")[0] == "\U0001f600"
    value: Any = decode_value(b"\x72\x7f\xc0\x00\x00")[0]
    assert math.isnan(value)
    assert decode_value(b"\xe0\x02\x03\x41")[0] == [True, True, True]
    described = decode_value(b"\xe0\x07\x02\x00\x53\x05\x50\x01\x02")[0]
    assert described == [Described(5, 1), Described(5, 2)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x00\x53",
        b"\xa1\x05abc",
        b"\xa1\x02\xff\xfe",
        b"\xa3\x01\xff",
        b"\xc0\x00",
        b"\xc0\x02\x05\x40",
        b"\xc0\x03\x01\x40\x40",
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\xc1\x02\x01\x40",
        b"\xc1\x04\x02\x45\x40\x40",
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
        b"\xe0\x01\x00",
        b"\x73\x00\x11\x00\x00",
        b"\x10",
        b"\x00" * 100 + b"\x40",
        b"\xc0\x04\x01" * 40,
    ],
)
def test_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_value(data)


def test_nesting_is_bounded() -> None:
    value: object = None
    for _ in range(40):
        value = [value]
    with pytest.raises(DecodeError, match="nested"):
        decode_value(encode_value(value))


def test_symbolic_descriptors_are_renumbered() -> None:
    symbolic = Described(Symbol("amqp:transactional-state:list"), [b"t", Described(Symbol("amqp:accepted:list"), [])])
    data, end = renumber(encode_value(symbolic), 0, DESCRIPTORS)
    assert decode_value(data)[0] == Described(0x34, [b"t", Described(0x24, [])])
    assert end == len(encode_value(symbolic))
    other = encode_value(Described(Symbol("not:ours"), {"a": Symbol("b")}))
    assert renumber(other, 0, DESCRIPTORS) == (other, len(other))


# -- messages

BODIES = st.one_of(TEXT, st.binary(max_size=300), INTEGERS, st.none(), st.lists(INTEGERS, max_size=3))
PROPERTIES = st.dictionaries(
    TEXT.filter(bool), st.one_of(TEXT, st.booleans(), INTEGERS, st.floats(allow_nan=False)), max_size=4
)
MESSAGES: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    body=BODIES,
    id=st.one_of(st.none(), TEXT, st.integers(0, 2**64 - 1).map(proton.ulong), st.uuids()),
    correlation_id=st.one_of(st.none(), TEXT, st.uuids()),
    subject=st.one_of(st.none(), TEXT.filter(lambda text: "\0" not in text)),
    content_type=st.sampled_from([None, "text/plain", "application/json"]),
    priority=st.integers(0, 9),
    durable=st.booleans(),
    ttl=st.integers(0, 1000),
    group_id=st.sampled_from([None, "", "g"]),
    properties=PROPERTIES,
    creation_time=st.integers(0, 2**31),
)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, st.booleans())
def test_protons_messages(fields: dict[str, Any], inferred: bool) -> None:
    original = proton.Message(**fields)
    original.inferred = inferred
    data = bytes(original.encode())
    found = inspect(data)
    assert (found.durable, found.priority) == (fields["durable"], fields["priority"])
    assert (found.ttl or 0) == fields["ttl"] * 1000
    assert found.creation_time == fields["creation_time"] * 1000
    plain = plain_header(data)
    if plain is not None:
        assert plain == (found.durable, found.priority, found.ttl)
        assert not found.group
    content = decode_content(Message(Encoding.AMQP, "q", data))
    assert content.subject == fields["subject"]
    assert content.correlation_id == fields["correlation_id"]
    assert content.properties == fields["properties"]
    if isinstance(fields["body"], str):
        assert (content.body.decode(), content.text) == (fields["body"], True)
    if isinstance(fields["body"], bytes):
        assert (content.body, content.text) == (fields["body"], False)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, st.integers(0, 50), st.booleans(), st.dictionaries(ASCII.filter(bool), INTEGERS, max_size=3))
def test_delivered_form(fields: dict[str, Any], count: int, first: bool, added: dict[str, int]) -> None:
    original = proton.Message(**fields)
    original.annotations = {proton.symbol("x-opt-mine"): 1}
    original.instructions = {proton.symbol("hop"): 1}
    data = bytes(original.encode())
    annotations: Any = {f"x-opt-{key}": value for key, value in added.items()}
    head, rest = for_delivery(
        data, durable=True, priority=7, ttl=1234, first_acquirer=first, delivery_count=count, annotations=annotations
    )
    shown = proton.Message()
    shown.decode(head + data[rest:])
    assert (shown.durable, shown.priority, shown.ttl) == (True, 7, 1.234)
    assert (shown.first_acquirer, shown.delivery_count) == (first, count)
    assert shown.annotations == {"x-opt-mine": 1, **annotations}
    assert not shown.instructions
    assert shown.body == original.body
    assert shown.properties == original.properties
    assert shown.id == original.id


@settings(max_examples=200, deadline=None)
@given(
    TEXT,
    st.booleans(),
    st.dictionaries(
        TEXT, st.one_of(TEXT, INTEGERS, st.booleans(), st.floats(allow_nan=False), st.binary(), st.none()), max_size=4
    ),
    st.one_of(st.none(), TEXT, st.integers(0, 2**64 - 1), st.uuids(), st.binary(max_size=20)),
)
def test_foreign_content(body: str, text: bool, properties: Any, identifier: Any) -> None:
    content = Content(body.encode(), text=text, properties=properties, message_id=identifier, correlation_id=identifier)
    message = Message(Encoding.STOMP, "addr", b"", timestamp=5, expiration=9, group="g", group_sequence=2)
    data = encode_header(True, 4, None, True, 0) + encode_content(message, content)
    shown = proton.Message()
    shown.decode(data)
    assert shown.body == (body if text else body.encode())
    assert (shown.address, shown.group_id, shown.group_sequence) == ("addr", "g", 2)
    back = decode_content(Message(Encoding.AMQP, "addr", data))
    assert (back.body, back.text, back.properties) == (content.body, text, properties)
    assert back.message_id == identifier
    assert back.correlation_id == identifier


def test_symbolic_sections_are_read() -> None:
    data = (
        encode_value(Described(Symbol("amqp:header:list"), [True, UByte(6)]))
        + encode_value(Described(Symbol("amqp:application-properties:map"), {"_AMQ_DUPL_ID": "d"}))
        + encode_value(Described(Symbol("amqp:amqp-value:*"), "body"))
    )
    found = inspect(data)
    assert (found.durable, found.priority, found.duplicate_id) == (True, 6, b"d")
    content = decode_content(Message(Encoding.AMQP, "q", data))
    assert (content.body, content.text) == (b"body", True)
    assert plain_header(data) is None


def test_bodies_without_an_equivalent_become_json() -> None:
    for body, expected in (({"a": [1, b"x"]}, b'{"a": [1, "x"]}'), (5, b"5"), ([1, "two"], b'[1, "two"]')):
        content = decode_content(Message(Encoding.AMQP, "q", bytes(proton.Message(body=body).encode())))
        assert (content.body, content.text, content.content_type) == (expected, True, "application/json")


def test_several_data_sections_are_joined() -> None:
    data = b"\x00Su\xa0\x02ab\x00Su\xa0\x01c"
    assert decode_content(Message(Encoding.AMQP, "q", data)).body == b"abc"


def test_sections_out_of_order_are_refused() -> None:
    for data in (b"\x00SsE\x00SpE\x00Sw\x40", b"\x00SpE\x00SpE\x00Sw\x40", b"\x00S\x79\x40", b"\x40"):
        with pytest.raises(DecodeError):
            walk(data)


def test_a_header_is_decoded_once_for_all_its_messages() -> None:
    assert plain_header(b"\x00Sp\xc0\x04\x02A\x50\x07\x00Sw\x40") == (True, 7, None)
    assert plain_header(b"\x00Sp\xc0\x04\x02A\x50\x07\x00Sw\x40") == (True, 7, None)
