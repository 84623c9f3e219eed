"""The sections of an encoded AMQP message (OASIS AMQP 1.0 part 3, 3.2), as positions in opaque bytes.

A message is stored as its producer sent it. :func:`inspect` finds what routing needs without
decoding the rest; :func:`walk` gives the extent of every section; :func:`for_delivery` makes the
bytes for a consumer, replacing no more than the sections the broker is responsible for.

This module must not know queues or links; times are passed in as milliseconds.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from pollux.wire.amqp.codec import (
    DecodeError,
    Symbol,
    decode_value,
    encode_compound,
    encode_described,
    encode_fields,
    encode_symbol,
    encode_uint,
    encode_value,
    skip_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

_NAMES = {
    b"amqp:header:list": HEADER,
    b"amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": PROPERTIES,
    b"amqp:application-properties:map": APPLICATION_PROPERTIES,
    b"amqp:data:binary": DATA,
    b"amqp:amqp-sequence:list": SEQUENCE,
    b"amqp:amqp-value:*": VALUE,
    b"amqp:footer:map": FOOTER,
}
#: Sections a hostile message may repeat; more data and sequence sections than this are refused on decoding.
MAX_BODY_SECTIONS = 100_000
_DEFAULT_PRIORITY = 4
_MAX_TTL = 0xFFFFFFFF
_u32 = Struct(">I").unpack_from


def read_descriptor(data: bytes, pos: int) -> tuple[int, int]:
    """Return the section number at ``pos`` and the position of its value. Raises DecodeError."""
    if data[pos : pos + 2] == b"\x00S":
        if pos + 2 >= len(data):
            raise DecodeError("the message ends inside a section descriptor")
        return data[pos + 2], pos + 3
    if pos >= len(data) or data[pos] != 0:
        raise DecodeError("a message section has no descriptor")
    descriptor, end = decode_value(data, pos + 1, 1)
    if isinstance(descriptor, Symbol):
        number = _NAMES.get(descriptor.encode())
        if number is not None:
            return number, end
    elif isinstance(descriptor, int) and not isinstance(descriptor, bool):
        return descriptor, end
    raise DecodeError(f"{descriptor!r} is not a message section")


class Sections:
    """Where each section of one message lies: ``(start, value start, end)`` or None.

    ``body`` is where the first body section (or, without one, the footer or the end) starts.
    ``complete`` is false when the bytes end inside a section (the head of a large message).
    """

    __slots__ = (
        "application_properties",
        "body",
        "complete",
        "delivery_annotations",
        "header",
        "message_annotations",
        "properties",
    )

    def __init__(self) -> None:
        self.header: tuple[int, int, int] | None = None
        self.delivery_annotations: tuple[int, int, int] | None = None
        self.message_annotations: tuple[int, int, int] | None = None
        self.properties: tuple[int, int, int] | None = None
        self.application_properties: tuple[int, int, int] | None = None
        self.body = 0
        self.complete = True


def walk(data: bytes, *, partial: bool = False) -> Sections:
    """Find the sections before the body. ``partial``: the bytes may end early (a large message's head)."""
    result = Sections()
    pos = 0
    last = HEADER - 1
    try:
        while pos < len(data):
            number, value = read_descriptor(data, pos)
            if number > APPLICATION_PROPERTIES or number <= last:
                _check_order(number, last)
                break
            last = number
            end = skip_value(data, value)
            where = (pos, value, end)
            if number == PROPERTIES:
                result.properties = where
            elif number == APPLICATION_PROPERTIES:
                result.application_properties = where
            elif number == HEADER:
                result.header = where
            elif number == MESSAGE_ANNOTATIONS:
                result.message_annotations = where
            else:
                result.delivery_annotations = where
            pos = end
    except DecodeError:
        if not partial:
            raise
        result.complete = False
    result.body = pos
    return result


def _check_order(number: int, last: int) -> None:
    """Raise DecodeError unless a section behind those before the body is one of the body's."""
    if number > FOOTER:
        raise DecodeError(f"{number:#x} is not a message section")
    if number <= last:
        raise DecodeError(f"message section {number:#x} is out of order")


class Inspected:
    """The fields of a received message that routing needs; times in milliseconds, 0 for none."""

    absolute_expiry: int = 0
    creation_time: int = 0
    deliver_at: int = 0
    deliver_delay: int = 0
    duplicate_id: bytes | None = None
    group: str | None = None
    group_sequence: int = 0
    last_value: str | None = None
    routing_type: int | None = None
    to: str | None = None

    def __init__(self, data: bytes, durable: bool, priority: int, ttl: int | None) -> None:
        self.data = data
        self.durable = durable
        self.priority = priority
        self.ttl = ttl


#: Encoded header section -> (durable, priority, ttl); producers repeat a handful of headers.
_headers: dict[bytes, tuple[bool, int, int | None]] = {}
_MAX_HEADERS = 512
_NO_HEADER: tuple[bool, int, int | None] = (False, _DEFAULT_PRIORITY, None)


def _header_fields(encoded: bytes, value: int) -> tuple[bool, int, int | None]:
    fields, _ = decode_value(encoded, value)
    if not isinstance(fields, list) or len(fields) > 5:
        raise DecodeError("the header section is not a list of five fields")
    fields += [None] * (5 - len(fields))
    durable, priority, ttl = fields[0], fields[1], fields[2]
    if durable is not None and type(durable) is not bool:
        raise DecodeError("header.durable is not a boolean")
    for name, number in (("priority", priority), ("ttl", ttl), ("delivery-count", fields[4])):
        if number is not None and (type(number) is not int or number < 0):
            raise DecodeError(f"header.{name} is not an unsigned integer")
    result = (
        bool(durable),
        min(priority, 9) if isinstance(priority, int) else _DEFAULT_PRIORITY,
        ttl if isinstance(ttl, int) else None,
    )
    if len(_headers) >= _MAX_HEADERS:
        _headers.clear()
    _headers[encoded] = result
    return result


def plain_header(data: bytes) -> tuple[bool, int, int | None] | None:
    """Return ``(durable, priority, ttl)`` of a message that has nothing else for routing; None: use :func:`inspect`.

    Such a message is a header, properties up to content-encoding and a body. Half of all that is
    ever received looks so, hence a function that makes no object. Raises DecodeError.
    """
    try:
        return _plain_header(data)
    except IndexError:
        raise DecodeError("the message ends inside a section") from None


def _plain_header(data: bytes) -> tuple[bool, int, int | None] | None:
    start = 0
    fields = _NO_HEADER
    if data[:4] == b"\x00Sp\xc0":
        start = data[4] + 5
        head = data[:start]
        found = _headers.get(head)
        fields = _header_fields(head, 3) if found is None else found
    section = data[start : start + 4]
    if section == b"\x00SsE":
        start += 4
        section = data[start : start + 4]
    elif section == b"\x00Ss\xc0":
        # Up to content-encoding (8 fields) nothing is for us: expiry, creation and group come later.
        if len(data) < start + 9 or data[start + 5] > 8:
            return None
        start += 5 + data[start + 4]
        section = data[start : start + 4]
    if section == b"\x00Su\xa0":
        if start + 4 >= len(data) or start + 5 + data[start + 4] > len(data):
            raise DecodeError("the message ends inside its body")
        return fields
    if section[:3] in _BODIES:
        skip_value(data, start + 3)
        return fields
    return None


def inspect(data: bytes, *, last_value_key: bytes = b"_AMQ_LVQ_NAME", partial: bool = False) -> Inspected:
    """Return the fields of the message ``data`` that routing needs. Raises DecodeError when it is no message.

    ``last_value_key`` is the application property that the address's last-value queues use. The
    result's ``data`` is the message without delivery annotations, which are between the sender and us.
    ``partial``: the bytes end somewhere behind the start of the body (a large message's head).
    """
    try:
        return _inspect(data, last_value_key, partial)
    except IndexError:
        raise DecodeError("the message ends inside a section") from None


def _inspect(data: bytes, last_value_key: bytes, partial: bool) -> Inspected:
    result = Inspected(data, *_NO_HEADER)
    sections = walk(data)
    if sections.header is not None:
        start, value, end = sections.header
        head = data[start:end]
        found = _headers.get(head)
        found = _header_fields(head, value - start) if found is None else found
        result.durable, result.priority, result.ttl = found
    if sections.message_annotations is not None:
        _inspect_annotations(result, data, sections.message_annotations)
    if sections.properties is not None:
        _inspect_properties(result, data, sections.properties)
    if sections.application_properties is not None:
        _inspect_application_properties(result, data, sections.application_properties, last_value_key)
    if sections.body < len(data) and not partial:
        skip_value(data, read_descriptor(data, sections.body)[1])
    if sections.delivery_annotations is not None:
        start, _, end = sections.delivery_annotations
        result.data = data[:start] + data[end:]
    return result


_BODIES = (b"\x00Su", b"\x00Sw", b"\x00Sv")


def _inspect_annotations(result: Inspected, data: bytes, where: tuple[int, int, int]) -> None:
    _, value, end = where
    if data.find(b"x-opt-delivery-", value, end) < 0 and data.find(b"x-opt-routing-type", value, end) < 0:
        return
    annotations, _ = decode_value(data, value)
    if not isinstance(annotations, dict):
        raise DecodeError("the message annotations are not a map")
    at, delay = annotations.get("x-opt-delivery-time"), annotations.get("x-opt-delivery-delay")
    if isinstance(at, int) and at > 0:
        result.deliver_at = int(at)
    elif isinstance(delay, int | float) and 0 < delay < 1 << 53:
        result.deliver_delay = int(delay)
    routing_type = annotations.get("x-opt-routing-type")
    if isinstance(routing_type, int) and routing_type in (0, 1):
        result.routing_type = int(routing_type)


def _inspect_properties(result: Inspected, data: bytes, where: tuple[int, int, int]) -> None:
    pos, end = where[1], where[2]
    code = data[pos]
    if code == 0x45:
        return
    if code == 0xC0:
        count, pos = data[pos + 2], pos + 3
    elif code == 0xD0 and end - pos >= 9:
        count, pos = _u32(data, pos + 5)[0], pos + 9
    else:
        raise DecodeError("the properties section is not a list")
    for index in range(min(count, 12)):
        if pos >= end:
            raise DecodeError("the properties section is shorter than its count")
        code = data[pos]
        if code == 0x40:
            pos += 1
        elif code in (0xA0, 0xA1, 0xA3) and index < 8 and index != 2:
            pos += 2 + data[pos + 1]
        elif index < 8 and index != 2:
            pos = skip_value(data, pos)
        else:
            value, pos = decode_value(data, pos, 2)
            _property_for_routing(result, index, value)


def _property_for_routing(result: Inspected, index: int, value: object) -> None:
    # Plain integers: routing and selectors must not know the types of the wire.
    if index == 2:
        result.to = value if isinstance(value, str) else None
    elif index == 8:
        result.absolute_expiry = max(int(value), 0) if isinstance(value, int) else 0
    elif index == 9:
        result.creation_time = max(int(value), 0) if isinstance(value, int) else 0
    elif index == 10:
        result.group = value if isinstance(value, str) else None
    else:
        result.group_sequence = int(value) if isinstance(value, int) else 0


def _inspect_application_properties(
    result: Inspected, data: bytes, where: tuple[int, int, int], last_value_key: bytes
) -> None:
    _, value, end = where
    if data.find(b"_AMQ_DUPL_ID", value, end) < 0 and data.find(last_value_key, value, end) < 0:
        return
    properties, _ = decode_value(data, value)
    if not isinstance(properties, dict):
        raise DecodeError("the application properties are not a map")
    duplicate = properties.get("_AMQ_DUPL_ID")
    if isinstance(duplicate, str):
        result.duplicate_id = duplicate.encode()
    elif isinstance(duplicate, bytes):
        result.duplicate_id = duplicate
    elif duplicate is not None:
        result.duplicate_id = str(duplicate).encode()
    last_value = properties.get(last_value_key.decode())
    if last_value is not None:
        result.last_value = str(last_value)


# -- towards consumers --------------------------------------------------------------------------


def encode_header(durable: bool, priority: int, ttl: int | None, first_acquirer: bool, count: int) -> bytes:
    """Return a header section; ``ttl`` in milliseconds, None for none, ``count`` of earlier failed deliveries."""
    parts = [b"\x41" if durable else b"\x42", b"\x50%c" % priority if priority != _DEFAULT_PRIORITY else b"\x40"]
    parts.append(b"\x40" if ttl is None else encode_uint(min(max(ttl, 0), _MAX_TTL)))
    parts.append(b"\x41" if first_acquirer else b"\x40")
    parts.append(encode_uint(count) if count else b"\x40")
    while parts[-1] == b"\x40":
        parts.pop()
    return b"\x00Sp" + encode_compound(0xC0, 0xD0, len(parts), b"".join(parts))


def annotation_entries(annotations: Mapping[str, str | int | bytes]) -> tuple[int, bytes]:
    """Return the encoded keys and values of message annotations, and how many elements they are."""
    body = b"".join(encode_symbol(key) + encode_value(value) for key, value in annotations.items())
    return 2 * len(annotations), body


def for_delivery(
    data: bytes,
    *,
    durable: bool,
    priority: int,
    ttl: int | None,
    first_acquirer: bool,
    delivery_count: int,
    annotations: Mapping[str, str | int | bytes] | None = None,
    properties: Mapping[str, str | int | bytes] | None = None,
) -> tuple[bytes, int]:
    """Return the sections that replace the start of ``data``, and from where on ``data`` follows as it is.

    Only the header and, where ``annotations`` or application ``properties`` are added, those are encoded anew.
    """
    sections = walk(data, partial=True)
    head = encode_header(durable, priority, ttl, first_acquirer, delivery_count)
    rest = 0
    for section in (sections.header, sections.delivery_annotations):
        if section is not None:
            rest = section[2]
    if annotations:
        count, body = annotation_entries(annotations)
        if sections.message_annotations is not None:
            _, value, end = sections.message_annotations
            old_count, old_body = _without_keys(*_map_contents(data, value, end), annotations)
            count, body, rest = count + old_count, old_body + body, end
        head += b"\x00Sr" + encode_compound(0xC1, 0xD1, count, body)
    if properties and sections.complete:  # of a large message whose properties are cut off here, they stay as they are
        count = 2 * len(properties)
        body = b"".join([encode_value(each) for pair in properties.items() for each in pair])
        start = end = sections.body
        if sections.application_properties is not None:
            start, value, end = sections.application_properties
            old_count, old_body = _map_contents(data, value, end)
            count, body = count + old_count, old_body + body
        head += data[rest:start] + b"\x00St" + encode_compound(0xC1, 0xD1, count, body)
        rest = end
    return head, rest


def _map_contents(data: bytes, value: int, end: int) -> tuple[int, bytes]:
    code = data[value]
    if code == 0xC1:
        return data[value + 2], data[value + 3 : end]
    if code == 0xD1 and end - value >= 9:
        return int(_u32(data, value + 5)[0]), data[value + 9 : end]
    return 0, b""


def _without_keys(count: int, body: bytes, keys: Mapping[str, object]) -> tuple[int, bytes]:
    """Return the contents of a map without these keys: what the broker says, a producer cannot say too."""
    if not any(key.encode() in body for key in keys):
        return count, body
    kept = []
    position = 0
    while position < len(body):
        key, middle = decode_value(body, position)
        end = skip_value(body, middle)
        if key not in keys:
            kept.append(body[position:end])
        position = end
    return 2 * len(kept), b"".join(kept)


def encode_properties(fields: list[object]) -> bytes:
    """Return a properties section of up to 13 fields."""
    return encode_described(PROPERTIES, encode_fields(fields))
