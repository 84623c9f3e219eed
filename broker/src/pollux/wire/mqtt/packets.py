"""MQTT control packets as values, other than the two on the hot path.

A client's PUBLISH is a tuple and its plain PUBACK an ``int`` (see :mod:`pollux.wire.mqtt.decoder`);
everything else is one of these. Versions are the protocol levels of CONNECT: 3 (3.1), 4 (3.1.1) and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct, field

from pollux.redacted import Redacted
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from pollux.wire.mqtt.properties import Properties

V31 = 3
V311 = 4
V5 = 5
#: What people call them.
VERSIONS = {V31: "3.1", V311: "3.1.1", V5: "5"}


class Will(Redacted, frozen=True):
    """The message to publish when the client goes without saying so (MQTT 5, section 3.1.3.2)."""

    hidden: ClassVar[frozenset[str]] = frozenset({"payload"})

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


class Connect(Redacted, frozen=True):
    """CONNECT (section 3.1). ``clean_start`` is clean session before 5. ``version`` is the protocol level asked for."""

    #: The properties may have authentication data.
    hidden: ClassVar[frozenset[str]] = frozenset({"password", "properties"})

    client_id: str
    version: int = V5
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=dict)


class ConnAck(Struct):
    """CONNACK (section 3.2). ``reason`` is 3.1.1's return code when decoded from that version."""

    session_present: bool = False
    reason: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


class Publish(Struct):
    """PUBLISH (section 3.3) in full; brokers decode the tuple form instead."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)


class Ack(Struct):
    """PUBACK, PUBREC, PUBREL or PUBCOMP (sections 3.4 to 3.7): ``kind`` is the packet type."""

    kind: int
    packet_id: int
    reason: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


class Filter(Struct):
    """One topic filter of a SUBSCRIBE with its options (section 3.8.3.1)."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Subscribe(Struct):
    """SUBSCRIBE (section 3.8)."""

    packet_id: int
    filters: list[Filter]
    properties: Properties = field(default_factory=dict)


class SubAck(Struct):
    """SUBACK (section 3.9): a granted QoS or a failure for each filter, in order."""

    packet_id: int
    reasons: list[int]
    properties: Properties = field(default_factory=dict)


class Unsubscribe(Struct):
    """UNSUBSCRIBE (section 3.10)."""

    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=dict)


class UnsubAck(Struct):
    """UNSUBACK (section 3.11); 3.1.1 has no reasons in it."""

    packet_id: int
    reasons: list[int] = field(default_factory=list)
    properties: Properties = field(default_factory=dict)


class PingReq(Struct):
    """PINGREQ (section 3.12)."""


class PingResp(Struct):
    """PINGRESP (section 3.13)."""


class Disconnect(Struct):
    """DISCONNECT (section 3.14)."""

    reason: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


class Auth(Redacted, frozen=True):
    """AUTH (section 3.15), MQTT 5 only."""

    hidden: ClassVar[frozenset[str]] = frozenset({"properties"})

    reason: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | ConnAck
    | Publish
    | Ack
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
