"""Work out what a SEND frame's headers ask for, once for all frames with the same headers. Pure.

A producer's frames mostly differ in their receipt and body only. :class:`SendPlan` is everything
that follows from the other headers; the session keeps plans by header block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.message import DEFAULT_PRIORITY, Encoding, Message, RoutingType
from pollux.protocols.stomp.destinations import parse_destination
from pollux.wire.stomp.encoder import ADDED_HEADERS
from pollux.wire.stomp.headers import StompError, Version, canonical, parse_headers

if TYPE_CHECKING:
    from pollux.protocols.stomp.settings import StompSettings

_LATEST = 1 << 62
#: Headers that mean more than being passed on.
_SPECIAL = ADDED_HEADERS | {
    "expires",
    "AMQ_SCHEDULED_DELAY",
    "AMQ_SCHEDULED_TIME",
    "_AMQ_SCHED_DELIVERY",
    "JMSXGroupID",
    "JMSXGroupSeq",
    "_AMQ_LVQ_NAME",
    "_AMQ_DUPL_ID",
}


class SendPlan:
    """How to store a SEND: ``head`` is the stored header block with the separating empty line.

    ``delay`` is relative to receipt, ``deliver_at`` absolute (milliseconds). ``checked`` is the
    session's batch in which permission and room were last verified. ``transaction`` is the header.
    """

    __slots__ = (
        "address",
        "alike",
        "checked",
        "delay",
        "deliver_at",
        "duplicate_id",
        "durable",
        "expires",
        "group",
        "group_sequence",
        "head",
        "last_value",
        "plain",
        "priority",
        "receipt",
        "routing_type",
        "transaction",
    )

    def __init__(self, block: bytes, version: Version, settings: StompSettings) -> None:
        headers = parse_headers(block, version)
        get = headers.get
        destination = parse_destination(get("destination"), get("destination-type"), settings)
        self.address: str = destination.name
        self.routing_type: RoutingType | None = destination.routing_type
        self.durable = get("persistent", "false").lower() == "true"
        self.priority = _number(headers, "priority", DEFAULT_PRIORITY, 9) if "priority" in headers else DEFAULT_PRIORITY
        self.receipt: str | None = None
        self.transaction: str | None = None
        self.expires = self.delay = self.deliver_at = self.group_sequence = 0
        self.group: str | None = None
        self.last_value: str | None = None
        self.duplicate_id: bytes | None = None
        without: frozenset[str] = frozenset()
        if not _SPECIAL.isdisjoint(headers):
            self._read_special(headers)
            if not ADDED_HEADERS.isdisjoint(headers):
                without = ADDED_HEADERS
        #: Nothing but address, durability and priority is set: see :meth:`message`.
        self.plain = not (
            self.expires
            or self.delay
            or self.deliver_at
            or self.group
            or self.group_sequence
            or self.last_value is not None
            or self.duplicate_id
        )
        #: Its messages differ in nothing but their bodies, and what confirms them.
        self.alike = self.plain and self.transaction is None and self.receipt is None
        self.head = canonical(block, version, without) + b"\n"
        self.checked = 0

    def _read_special(self, headers: dict[str, str]) -> None:
        """Take over the headers that most messages do not have."""
        get = headers.get
        self.receipt = get("receipt")
        self.transaction = get("transaction")
        self.expires = _number(headers, "expires", 0, _LATEST)
        self.delay = _number(headers, "AMQ_SCHEDULED_DELAY", 0, _LATEST)
        self.deliver_at = _number(headers, "_AMQ_SCHED_DELIVERY", 0, _LATEST) or _number(
            headers, "AMQ_SCHEDULED_TIME", 0, _LATEST
        )
        self.group = get("JMSXGroupID") or None
        self.group_sequence = _number(headers, "JMSXGroupSeq", 0, 2**31 - 1, least=-(2**31))
        self.last_value = get("_AMQ_LVQ_NAME")
        duplicate_id = get("_AMQ_DUPL_ID")
        self.duplicate_id = duplicate_id.encode() if duplicate_id else None

    def message(self, body: bytes, now: int, origin: int, user: str | None) -> Message:
        """The message to store. ``now`` is wall-clock milliseconds."""
        if self.plain:
            return Message(
                Encoding.STOMP,
                self.address,
                self.head + body,
                durable=self.durable,
                priority=self.priority,
                timestamp=now,
                routing_type=self.routing_type,
                origin=origin,
                user=user,
            )
        return Message(
            Encoding.STOMP,
            self.address,
            self.head + body,
            durable=self.durable,
            priority=self.priority,
            expiration=self.expires,
            timestamp=now,
            deliver_at=self.deliver_at or (now + self.delay if self.delay else 0),
            group=self.group,
            group_sequence=self.group_sequence,
            last_value=self.last_value,
            duplicate_id=self.duplicate_id,
            routing_type=self.routing_type,
            origin=origin,
            user=user,
        )


def _number(headers: dict[str, str], name: str, default: int, most: int, least: int = 0) -> int:
    text = headers.get(name)
    if text is None:
        return default
    try:
        value = int(text[:21])
    except ValueError:
        raise StompError(f"the header {name!r} is {text[:32]!r}, not a number") from None
    if len(text) > 20 or not least <= value <= most:
        raise StompError(f"the header {name!r} is {text[:32]!r}, not in {least}..{most}")
    return value
