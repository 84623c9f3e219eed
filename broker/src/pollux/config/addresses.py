"""Addresses and queues created at start, and how patterns of addresses are written."""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from pollux.config.kinds import LONG_MAX, Boolean, Duration, Enumeration, Integer, Text
from pollux.config.markers import Attribute, Derived, Element, Listed, Read
from pollux.message import RoutingType

_NO_LIMIT = ((-1, "no limit"),)
_FOR_EVER = ((-1, "for ever"),)


class FilterShape(Struct, frozen=True):
    """Hold ``<filter string="..."/>``."""

    string: Annotated[str, Text(required=True), Attribute(required=True), "JMS selector."]


class QueueConfig(Struct, frozen=True):
    """A queue created at start. None means: as the address's settings say."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    routing_type: Annotated[RoutingType, Derived()] = RoutingType.MULTICAST
    filter: Annotated[str | None, Read(FilterShape), "Only messages this JMS selector accepts."] = None
    durable: Annotated[bool, Boolean(), "The queue and its durable messages survive a restart."] = True
    user: Annotated[str | None, Text(required=True), "User the queue belongs to."] = None
    max_consumers: Annotated[
        int | None, Integer(special=_NO_LIMIT), Attribute(), "Consumers at a time (default-max-consumers)."
    ] = None
    purge_on_no_consumers: Annotated[
        bool | None, Boolean(), Attribute(), "Remove all messages when the last consumer leaves."
    ] = None
    exclusive: Annotated[bool | None, Boolean(), Attribute(), "Only one consumer receives at a time."] = None
    group_rebalance: Annotated[bool | None, Boolean(), Attribute(), "Reassign groups when a consumer is added."] = None
    group_rebalance_pause_dispatch: Annotated[
        bool | None, Boolean(), Attribute(), "Pause deliveries while groups are reassigned."
    ] = None
    group_buckets: Annotated[
        int | None, Integer(special=((-1, "one for each group"),)), Attribute(), "Buckets groups are hashed into."
    ] = None
    group_first_key: Annotated[str | None, Text(), Attribute(), "Property set on a group's first message."] = None
    last_value: Annotated[bool | None, Boolean(), Attribute(), "Keep only the newest message of each key."] = None
    last_value_key: Annotated[str | None, Text(), Attribute(), "Property that is the last-value key."] = None
    non_destructive: Annotated[bool | None, Boolean(), Attribute(), "Consumers do not remove messages."] = None
    consumers_before_dispatch: Annotated[
        int | None, Integer(), Attribute(), "Consumers needed before deliveries start."
    ] = None
    delay_before_dispatch: Annotated[
        int | None, Duration(special=_FOR_EVER), Attribute(), "Longest wait for consumers-before-dispatch."
    ] = None
    ring_size: Annotated[
        int | None, Integer(maximum=LONG_MAX, special=_NO_LIMIT), Attribute(), "Messages kept; the oldest leaves."
    ] = None
    enabled: Annotated[bool | None, Boolean(), Attribute(), "Off: messages are not routed to the queue."] = None
    line: int = 0

    def with_routing_type(self, routing_type: RoutingType) -> "QueueConfig":
        """Return the same queue with the routing type of the element it stands in."""
        return replace(self, routing_type=routing_type)


class QueuesShape(Struct, frozen=True):
    """Hold ``<anycast>`` or ``<multicast>``."""

    queues: Annotated[tuple[QueueConfig, ...], Listed("queue"), "Queues of this routing type."] = ()


class AddressShape(Struct, frozen=True):
    """Hold ``<address>`` as it is written."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    anycast: Annotated[QueuesShape | None, "ANYCAST: each message goes to one queue."] = None
    multicast: Annotated[QueuesShape | None, "MULTICAST: each message goes to every queue."] = None
    line: int = 0


class AddressConfig(Struct, frozen=True):
    """An address created at start, with its queues (``QueueConfig.routing_type`` says which kind each is)."""

    name: str
    routing_types: frozenset[RoutingType] = frozenset()
    queues: tuple[QueueConfig, ...] = ()
    line: int = 0


class DivertRouting(StrEnum):
    """Say which routing type the copy of a divert has: one of them, none (STRIP) or that of the message (PASS)."""

    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"
    STRIP = "STRIP"
    PASS = "PASS"  # noqa: S105  (no password)


class Divert(Struct, frozen=True):
    """Messages for one address that go to another one as well, or instead."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    address: Annotated[str, Text(required=True), Element(required=True), "Address, or pattern, to look at."]
    forwarding_address: Annotated[str, Text(required=True), Element(required=True), "Where messages go."]
    exclusive: Annotated[bool, Boolean(), "Messages go there instead; else a copy goes there as well."] = False
    filter: Annotated[str | None, Read(FilterShape), "Only messages this JMS selector accepts."] = None
    routing_type: Annotated[DivertRouting, Enumeration(values=DivertRouting), "Routing type of what goes there."] = (
        DivertRouting.STRIP
    )
    line: int = 0


class WildcardAddresses(Struct, frozen=True):
    """How patterns of addresses are written."""

    routing_enabled: Annotated[
        bool, Boolean(), Element(aliases=("enabled",)), "Bindings to a pattern receive what matches it."
    ] = True
    delimiter: Annotated[str, Text(required=True), "Between the words of an address; one character."] = "."
    any_words: Annotated[str, Text(required=True), "Any number of words, also none; one character."] = "#"
    single_word: Annotated[str, Text(required=True), "Exactly one word; one character."] = "*"
