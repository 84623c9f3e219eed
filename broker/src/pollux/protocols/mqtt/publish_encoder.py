"""PUBLISH packets to one MQTT client, off the fast path: aliases, properties, and the client's largest packet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.copies import ORIGINAL_ADDRESS
from pollux.message import INGRESS_TIMESTAMP, VALIDATED_USER, Encoding
from pollux.wire.decoders import content_of
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.content import encode_content, property_pairs
from pollux.wire.mqtt.primitives import MAX_VARIABLE_INTEGER, encode_variable
from pollux.wire.mqtt.stored import block_end, topic_end, with_properties, without_user_property

if TYPE_CHECKING:
    from pollux.message import Message
    from pollux.protocols.mqtt.subscription import Subscription
    from pollux.routing.reference import MessageReference
    from pollux.wire.mqtt.topics import TopicMapping

#: Topics that get an alias on one connection, and the shortest worth one.
MAX_ALIASES = 256
#: Topics shorter than this are not worth an alias; longer ones would be held by it for too many clients.
_MIN_ALIASED, _MAX_ALIASED = 5, 1024
#: The broker's annotations as user properties; others keep their names.
_ANNOTATIONS = {VALIDATED_USER: "JMSXUserID", INGRESS_TIMESTAMP: "ingress-timestamp"}


class PublishEncoder:
    """Makes the packets of one connection, and holds the topic aliases it has given out.

    ``max_packet`` 0 is no limit; ``alias_maximum`` as the client says.
    """

    __slots__ = ("_aliases", "_foreign", "_mapping", "_v5", "max_aliases", "max_packet")

    def __init__(self, mapping: TopicMapping, *, v5: bool, max_packet: int, alias_maximum: int) -> None:
        self._mapping = mapping
        self._v5 = v5
        self.max_packet = max_packet
        self.max_aliases = min(alias_maximum, MAX_ALIASES)
        self._aliases: dict[bytes, int] = {}
        #: The message of another protocol that was translated last.
        self._foreign: tuple[Message, bytes] | None = None

    def stored(self, message: Message) -> bytes:
        """Return the stored form of ``message``, also when another protocol sent it."""
        if message.encoding is Encoding.MQTT:
            return message.data
        if message.large is not None:
            # Read and translated when its turn comes; until then only what decides the QoS is needed.
            return b"\x32\0\0" if message.durable else b"\x30\0\0"
        if self._foreign is not None and self._foreign[0] is message:
            return self._foreign[1]
        topic = self._mapping.topic(message.address)
        data = encode_content(content_of(message), topic, 1 if message.durable else 0, self._mapping)
        self._foreign = (message, data)
        return data

    def packet(
        self,
        subscription: Subscription,
        reference: MessageReference,
        form: tuple[bytes, int, int],
        now: int,
        more: int = 0,
    ) -> bytes | None:
        """Return a PUBLISH of a stored ``form``, first byte and identifier; None when the client takes none so large.

        ``more`` bytes of payload will follow from a file.
        """
        message = reference.message
        data, first, packet_id = form
        end = topic_end(data)
        topic = data[1:end]
        annotations = message.annotations or {}
        if ORIGINAL_ADDRESS in annotations and message.encoding is Encoding.MQTT:
            # It was moved (dead letter, expiry): the topic is where it is now.
            raw = self._mapping.topic(message.address).encode("utf-8", "replace")[:65_535]
            topic = len(raw).to_bytes(2, "big") + raw
        identifier = packet_id.to_bytes(2, "big") if packet_id else b""
        if not self._v5:
            body = b"".join((topic, identifier, data[block_end(data, end) :]))
            if self._too_large(len(body) + more):
                return None
            return bytes((first,)) + encode_variable(len(body) + more) + body
        extra = subscription.extra
        if message.expiration:
            # What is left of it, in seconds (MQTT-3.3.2-6).
            extra += b"\x02" + (-(-(message.expiration - now) // 1000)).to_bytes(8, "big")[-4:]
        if annotations or reference.notes is not None:
            shown = {_ANNOTATIONS.get(name, name): value for name, value in annotations.items()}
            for name in _ANNOTATIONS.values():
                if name in shown:
                    data = without_user_property(data, end, name)
            pairs = property_pairs({**shown, **(reference.notes or {})})
            extra += p.encode_properties({p.PropertyId.USER_PROPERTY: pairs})[1:] if pairs else b""
        alias = 0
        if self.max_aliases:
            alias = self._aliases.get(topic, 0)
            if alias:
                topic = b"\0\0"
            elif len(self._aliases) < self.max_aliases and _MIN_ALIASED <= len(topic) <= _MAX_ALIASED:
                alias = len(self._aliases) + 1
            if alias:
                extra += b"\x23" + alias.to_bytes(2, "big")
        if extra:
            block, payload = with_properties(data, end, extra)
            body = b"".join((topic, identifier, block, payload))
        else:
            body = b"".join((topic, identifier, data[end:]))
        if self._too_large(len(body) + more):
            return None
        if alias and topic != b"\0\0":
            self._aliases[topic] = alias
        return bytes((first,)) + encode_variable(len(body) + more) + body

    def _too_large(self, length: int) -> bool:
        """Return whether a packet with this remaining length may not be sent (section 3.1.2.11.4)."""
        if length > MAX_VARIABLE_INTEGER:
            return True
        return bool(self.max_packet) and 1 + len(encode_variable(length)) + length > self.max_packet
