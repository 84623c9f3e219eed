"""STOMP frames out: what a server sends, as bytes. Pure; knows headers and stored messages, not sessions.

A delivery of a stored STOMP message does not touch its headers: :meth:`Delivery.stored` puts the
few lines the broker adds in front of the stored block. A peer uses the first of repeated headers
(1.1 and 1.2 "Repeated Header Entries"), and the stored form holds none of the added names anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from pollux.message import INGRESS_TIMESTAMP, VALIDATED_USER
from pollux.wire.stomp.headers import Version, escape, for_version, format_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.message import Message
    from pollux.wire.content import Content, PropertyValue

#: The broker's annotations under the names STOMP clients of Artemis know.
_ANNOTATIONS: Final = {VALIDATED_USER: "JMSXUserID", INGRESS_TIMESTAMP: "ingress-timestamp"}
#: What ends a frame.
NUL: Final = b"\0"
#: How a correlation or message id of another type is written, and read back by ``content``. The
#: spellings are those of the JMS mapping of AMQP 1.0, so that a reply finds its request.
ID_BINARY: Final = "ID:AMQP_BINARY:"
ID_UUID: Final = "ID:AMQP_UUID:"
ID_ULONG: Final = "ID:AMQP_ULONG:"


def frame(command: str, headers: Mapping[str, str], body: bytes = b"", version: Version = Version.V1_2) -> bytes:
    """One frame. ``content-length`` is added when there is a body.

    CONNECTED takes ``version`` 1.0, because it is never escaped.
    """
    block = format_headers(dict(headers), version)
    length = b"content-length:%d\n" % len(body) if body else b""
    return b"%b\n%b%b\n%b\0" % (command.encode(), block, length, body)


def receipts(identities: list[bytes]) -> bytes:
    """RECEIPT frames for the (still escaped) values of ``receipt`` headers."""
    return b"RECEIPT\nreceipt-id:" + b"\n\n\0RECEIPT\nreceipt-id:".join(identities) + b"\n\n\0"


def error(
    message: str,
    details: str,
    version: Version,
    receipt: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """An ERROR frame: ``message`` in one line, ``details`` as the body (STOMP 1.2 "ERROR")."""
    all_headers = {"message": " ".join(message.split())[:1024], "content-type": "text/plain"}
    if receipt is not None:
        all_headers["receipt-id"] = receipt
    all_headers.update(headers or {})
    return frame("ERROR", all_headers, (details or message).encode(errors="replace"), version)


def identity_text(value: str | int | bytes | UUID) -> str:
    """A correlation or message id of any type as a header value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return ID_BINARY + value.hex().upper()
    if isinstance(value, UUID):
        return ID_UUID + str(value)
    return ID_ULONG + str(value)


def identity_value(text: str) -> str | int | bytes | UUID:
    """The inverse of :func:`identity_text`; text that only looks like one stays text."""
    try:
        if text.startswith(ID_BINARY):
            return bytes.fromhex(text[len(ID_BINARY) :])
        if text.startswith(ID_UUID):
            return UUID(text[len(ID_UUID) :])
        if text.startswith(ID_ULONG) and text.isascii() and text[len(ID_ULONG) :].isdigit():
            return int(text[len(ID_ULONG) :][:20])
    except ValueError:
        pass
    return text


def property_text(value: PropertyValue) -> str:
    """A property as a header value: booleans as JMS writes them, bytes as UTF-8 where they are, else hex."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return "" if value is None else str(value)


class Delivery:
    """Encodes MESSAGE frames for one subscription.

    ``subscription`` is the id header as the client wrote it (escaped), None when a 1.0 client gave
    none. ``suffix`` makes the ids that a client acknowledges by differ between subscriptions: it
    ends the ``ack`` header in 1.2 (``with_ack``: there is one unless the mode is auto), else ``message-id``.
    """

    __slots__ = ("_after_id", "_head", "version", "with_ack")

    def __init__(self, version: Version, subscription: bytes | None, suffix: bytes, *, with_ack: bool) -> None:
        self.version = version
        self.with_ack = with_ack
        subscribed = b"subscription:%b\n" % subscription if subscription is not None else b""
        # Used as templates: a % of the client's stands for itself.
        self._head = (b"MESSAGE\n%bmessage-id:" % subscribed).replace(b"%", b"%%")
        self._after_id = b"%d\nack:%d" + suffix if with_ack else b"%d" + suffix

    def templates(self) -> tuple[bytes, bytes]:
        """Return what comes before the stored headers, to be filled in with ``(id, id, timestamp)``, the second id
        only ``with_ack``: for the first delivery, and for a later one."""
        start = self._head + self._after_id
        return start + b"\ntimestamp:%d\n", start + b"\nredelivered:true\ntimestamp:%d\n"

    def opening(self, message: Message, *, redelivered: bool) -> bytes:
        """The lines the broker adds, from the command on; the message's own header lines follow."""
        template = self.templates()[redelivered]
        identity = (message.id, message.id) if self.with_ack else (message.id,)
        return template % (*identity, message.timestamp)

    def noted(self, notes: Mapping[str, PropertyValue] | None) -> bytes:
        """Header lines of one delivery alone, to stand before the message's own."""
        if not notes:
            return b""
        headers = {name: property_text(value) for name, value in notes.items()}
        if self.version is Version.V1_0:
            headers = {name.replace(":", "_"): value for name, value in headers.items()}
        return format_headers(headers, self.version)

    def stored(self, message: Message) -> bytes:
        """The stored header block, empty line and body of a STOMP message as this version must get them."""
        data = message.data
        if self.version is Version.V1_2 or b"\\" not in data:
            return data
        end = data.find(b"\n\n") + 2
        return self.stored_head(data[:end]) + data[end:]

    def stored_head(self, head: bytes) -> bytes:
        """The same for a header block alone, with its empty line."""
        return for_version(head[:-1], self.version) + b"\n"

    def foreign(self, message: Message, content: Content, destination: str, length: int | None = None) -> bytes:
        """The header block (with the empty line) of a message of another protocol, or with annotations.

        The body follows. ``content-length`` is given for bytes and for text that holds a NUL;
        by the convention of STOMP brokers its absence marks text. ``length`` is given for a large
        message, whose body is not in ``content``.
        """
        headers = {"destination": destination}
        if length is not None:
            headers["content-length"] = str(length)
        elif not content.text or b"\0" in content.body:
            headers["content-length"] = str(len(content.body))
        if content.content_type is not None:
            headers["content-type"] = content.content_type
        elif content.text:
            headers["content-type"] = "text/plain"
        if content.content_encoding is not None:
            headers["content-encoding"] = content.content_encoding
        if content.correlation_id is not None:
            headers["correlation-id"] = identity_text(content.correlation_id)
        if content.reply_to is not None:
            headers["reply-to"] = content.reply_to
        if content.subject is not None:
            headers["type"] = content.subject
        if message.durable:
            headers["persistent"] = "true"
        headers["priority"] = str(message.priority)
        if message.expiration:
            headers["expires"] = str(message.expiration)
        for name, value in content.properties.items():
            if name and name not in ADDED_HEADERS:
                headers.setdefault(name, property_text(value))
        for name, value in (message.annotations or {}).items():
            headers[_ANNOTATIONS.get(name, name)] = property_text(value)
        if self.version is Version.V1_0:  # a name cannot hold a colon there
            headers = {name.replace(":", "_"): value for name, value in headers.items()}
        return format_headers(headers, self.version) + b"\n"


#: Headers only the broker writes on a MESSAGE, or that concern only a SEND: never stored, never taken from properties.
ADDED_HEADERS: Final = frozenset(
    ("receipt", "transaction", "message-id", "subscription", "ack", "redelivered", "timestamp")
)


def escaped(text: str, version: Version) -> bytes:
    """``text`` as the bytes of a header value."""
    return escape(text, version).encode()
