"""The protocol-neutral view of a message: what selectors see and what crosses between protocols.

Each codec has ``decode_content(message) -> Content`` for what it stored (:mod:`pollux.wire.decoders`); sessions
encode a foreign message from its :class:`Content`. This keeps N protocols at N decoders and N encoders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from uuid import UUID

#: What a property may hold: the JMS primitive types plus bytes.
PropertyValue = str | int | float | bool | bytes | None


class Content(Struct):
    """A decoded message. ``body`` is UTF-8 where ``text`` is true, else opaque bytes.

    ``delivery_mode``, priority, expiration and timestamp live on the ``Message``.
    """

    body: bytes = b""
    text: bool = False
    properties: dict[str, PropertyValue] = field(default_factory=dict)
    message_id: str | int | bytes | UUID | None = None
    correlation_id: str | int | bytes | UUID | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    reply_to: str | None = None
    subject: str | None = None
