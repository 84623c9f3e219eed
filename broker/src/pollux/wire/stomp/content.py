"""The neutral view of a stored STOMP message: what selectors see and what other protocols send on.

The stored form is described in :mod:`pollux.wire.stomp`. All application headers are strings, as
STOMP has no other type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pollux.wire.content import Content, PropertyValue
from pollux.wire.stomp.encoder import ADDED_HEADERS, identity_value
from pollux.wire.stomp.headers import StompError, Version, parse_headers

if TYPE_CHECKING:
    from pollux.message import Message

#: Headers that are no application property: they have a field of their own, or served their purpose on receipt.
STANDARD_HEADERS: Final = ADDED_HEADERS | {
    "destination",
    "destination-type",
    "content-length",
    "content-type",
    "content-encoding",
    "correlation-id",
    "reply-to",
    "type",
    "persistent",
    "priority",
    "expires",
    "AMQ_SCHEDULED_DELAY",
    "AMQ_SCHEDULED_TIME",
    "_AMQ_SCHED_DELIVERY",
    "_AMQ_DUPL_ID",
}
_TEXT_TYPES: Final = ("text/", "application/json", "application/xml", "application/javascript")
_TEXT_SUFFIXES: Final = ("+json", "+xml")


def stored_headers(data: bytes) -> dict[str, str]:
    """The decoded headers of a stored message; empty when they cannot be decoded."""
    try:
        return parse_headers(data[: max(data.find(b"\n\n"), 0)], Version.V1_2)
    except StompError:
        return {}


def is_text(content_type: str | None, *, has_length: bool) -> bool:
    """Whether a body announced like this is UTF-8 text.

    The content type decides; without one the convention of STOMP brokers does: ``content-length``
    marks bytes, its absence text.
    """
    if content_type is None:
        return not has_length
    kind, _, parameters = content_type.lower().partition(";")
    kind = kind.strip()
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset and charset not in ("utf-8", "utf8", "us-ascii"):
        return False
    return kind.startswith(_TEXT_TYPES) or kind.endswith(_TEXT_SUFFIXES) or bool(charset)


def decode_content(message: Message) -> Content:
    """The neutral view of a stored STOMP message. Never raises: what cannot be decoded is left out.

    The body of a large message is what of it is in ``message.data``.
    """
    data = message.data
    headers = stored_headers(data)
    body_start = data.find(b"\n\n") + 2
    body = data[body_start:] if body_start >= 2 else b""
    text = is_text(headers.get("content-type"), has_length="content-length" in headers)
    if text and message.large is None:
        try:
            body.decode()
        except UnicodeDecodeError:
            text = False
    correlation = headers.get("correlation-id")
    properties: dict[str, PropertyValue] = {
        name: value for name, value in headers.items() if name not in STANDARD_HEADERS
    }
    return Content(
        body=body,
        text=text,
        properties=properties,
        message_id=str(message.id) if message.id else None,
        correlation_id=identity_value(correlation) if correlation is not None else None,
        content_type=headers.get("content-type"),
        content_encoding=headers.get("content-encoding"),
        reply_to=headers.get("reply-to"),
        subject=headers.get("type"),
    )
