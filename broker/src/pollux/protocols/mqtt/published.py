"""Messages of PUBLISH packets: what their properties and topic aliases mean. Pure."""

from __future__ import annotations

from pollux.message import Encoding, Message
from pollux.protocols.mqtt.large import LargeRest
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, violation
from pollux.wire.mqtt.stored import block_end, scan_properties
from pollux.wire.mqtt.topics import check_topic_name

#: First byte of a PUBLISH -> flags of the stored form: all but DUP, which says nothing about the message.
FLAGS = [bytes((first & 0xF7,)) for first in range(256)]


def published(
    first: int, topic: bytes, rest: bytes, address: str, *, now: int, origin: int, user: str | None
) -> Message:
    """Return the message of a PUBLISH, with what its properties mean to the broker."""
    expiration = 0
    special: dict[str, str] | None = None
    large = rest.large if isinstance(rest, LargeRest) else None
    if rest[0]:
        end = block_end(rest)
        scanned = scan_properties(rest[:end])
        if scanned.block is not rest:
            rest = scanned.block + rest[end:]
        if scanned.expiry is not None:
            # 0 is a message that is worth something now only: the least a time in milliseconds can say.
            expiration = now + (scanned.expiry * 1000 or 1)
        special = scanned.special
    message = Message(
        Encoding.MQTT,
        address,
        FLAGS[first & 0xFF] + topic + rest,
        durable=bool(first & 6),
        expiration=expiration,
        large=large,
        timestamp=now,
        origin=origin,
        user=user,
    )
    if special is not None:
        apply_special(message, special)
    return message


def apply_special(message: Message, special: dict[str, str]) -> None:
    """Set what user properties say that have Artemis's names; values that do not parse mean nothing."""
    duplicate_id = special.get("_AMQ_DUPL_ID")
    if duplicate_id:
        message.duplicate_id = duplicate_id.encode("utf-8")
    deliver_at = special.get("_AMQ_SCHED_DELIVERY", "")
    if deliver_at.isascii() and deliver_at.isdigit() and len(deliver_at) < 16:
        message.deliver_at = int(deliver_at)
    message.last_value = special.get("_AMQ_LVQ_NAME")
    message.group = special.get("JMSXGroupID")
    sequence = special.get("JMSXGroupSeq", "")
    if sequence.lstrip("-").isdigit() and sequence.isascii() and len(sequence) < 11:
        message.group_sequence = int(sequence)


#: Bytes of the topics that one client's aliases stand for.
MAX_ALIASED = 4 * 1024 * 1024


class TopicAliases:
    """The topic aliases that a MQTT 5 client has given, at most ``maximum``."""

    __slots__ = ("_aliases", "maximum", "size")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._aliases: dict[int, bytes] = {}
        #: Bytes of their topics.
        self.size = 0

    def topic_of(self, topic: bytes, rest: bytes) -> bytes:
        """Return the topic, in place of its alias (section 3.3.2.3.4). Raises ProtocolError."""
        if not (rest[0] or len(topic) == 2):
            return topic
        end = block_end(rest)
        alias = scan_properties(rest[:end]).alias if rest[0] else 0
        if not alias:
            if len(topic) == 2:
                raise violation("a PUBLISH with neither topic nor alias")
            return topic
        if alias > self.maximum:
            raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}; at most {self.maximum}")
        if len(topic) == 2:
            known = self._aliases.get(alias)
            if known is None:
                raise violation(f"topic alias {alias} stands for no topic")
            return known
        check_topic_name(topic[2:])
        self.size += len(topic) - len(self._aliases.get(alias, b""))
        if self.size > MAX_ALIASED:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"all aliases' topics are more than {MAX_ALIASED} bytes")
        self._aliases[alias] = topic
        return topic
