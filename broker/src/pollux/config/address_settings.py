"""Settings of addresses: all of them with the schema's defaults, and what one ``<address-setting>`` gives.

The records are the table of elements: the loader, the validators and the reference in
``docs/configuration.md`` are driven by their annotations. Matching is in :mod:`pollux.config.match`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from pollux.config.kinds import LONG_MAX, MIB, Boolean, Decimal, Duration, Enumeration, Integer, Size, Text
from pollux.config.markers import Attribute, Element
from pollux.message import RoutingType


class AddressFullPolicy(StrEnum):
    """Say what happens to messages for an address that reached ``max-size-bytes`` or ``max-size-messages``."""

    PAGE = "PAGE"
    BLOCK = "BLOCK"
    FAIL = "FAIL"
    DROP = "DROP"


class DiskFullPolicy(StrEnum):
    """Say what happens to messages for an address while the disk is full."""

    BLOCK = "BLOCK"
    FAIL = "FAIL"
    DROP = "DROP"


class PageFullPolicy(StrEnum):
    """Say what happens to messages for an address whose pages reached ``page-limit-*``."""

    FAIL = "FAIL"
    DROP = "DROP"


class SlowConsumerUnit(StrEnum):
    """Say what ``slow-consumer-threshold`` counts messages in."""

    MESSAGES_PER_SECOND = "MESSAGES_PER_SECOND"
    MESSAGES_PER_MINUTE = "MESSAGES_PER_MINUTE"
    MESSAGES_PER_HOUR = "MESSAGES_PER_HOUR"
    MESSAGES_PER_DAY = "MESSAGES_PER_DAY"

    @property
    def seconds(self) -> int:
        """Return the length of the unit of time."""
        return {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400}[self.value.rpartition("_")[2]]


class SlowConsumerPolicy(StrEnum):
    """Say what happens to a consumer below ``slow-consumer-threshold``: its connection is closed, or it is logged."""

    KILL = "KILL"
    NOTIFY = "NOTIFY"


class ConfigDelete(StrEnum):
    """Say what happens to a queue, address or divert that is no longer in broker.xml."""

    OFF = "OFF"
    FORCE = "FORCE"


_OFF = ((-1, "off"),)
_NO_LIMIT = ((-1, "no limit"),)


class AddressSettings(Struct, frozen=True):
    """Everything that applies to one address, after all matching settings were merged.

    Sizes are bytes and durations milliseconds unless a field says otherwise. -1 means "off" or "no limit".
    """

    dead_letter_address: Annotated[str | None, Text(), "Where messages go that could not be delivered."] = None
    auto_create_dead_letter_resources: Annotated[
        bool, Boolean(), "Create the dead-letter-address and a queue on it for each original address."
    ] = False
    dead_letter_queue_prefix: Annotated[str, Text(), "Prefix of queues created for dead letters."] = "DLQ."
    dead_letter_queue_suffix: Annotated[str, Text(), "Suffix of queues created for dead letters."] = ""
    expiry_address: Annotated[str | None, Text(), "Where expired messages go; without it they are dropped."] = None
    auto_create_expiry_resources: Annotated[
        bool, Boolean(), "Create the expiry-address and a queue on it for each original address."
    ] = False
    expiry_queue_prefix: Annotated[str, Text(), "Prefix of queues created for expired messages."] = "EXP."
    expiry_queue_suffix: Annotated[str, Text(), "Suffix of queues created for expired messages."] = ""
    no_expiry: Annotated[bool, Boolean(), "Messages never expire, whatever their producer asked for."] = False
    expiry_delay: Annotated[
        int, Duration(minimum=0, special=_OFF), "Time to live of messages that were sent without one."
    ] = -1
    min_expiry_delay: Annotated[int, Duration(special=_OFF), "Shortest time to live; shorter ones are raised."] = -1
    max_expiry_delay: Annotated[int, Duration(special=_OFF), "Longest time to live; longer ones are lowered."] = -1
    enable_ingress_timestamp: Annotated[
        bool,
        Boolean(),
        "Note on each message when it came in, milliseconds since the epoch: message annotation x-opt-ingress-time"
        " (AMQP), header (STOMP) or user property (MQTT 5) ingress-timestamp.",
    ] = False
    redelivery_delay: Annotated[int, Duration(), "Wait before a returned message is delivered again."] = 0
    redelivery_delay_multiplier: Annotated[float, Decimal(), "Factor on redelivery-delay for each further attempt."] = (
        1.0
    )
    redelivery_collision_avoidance_factor: Annotated[
        float, Decimal(maximum=1.0), "Random part of redelivery-delay, so that returns do not come back together."
    ] = 0.0
    max_redelivery_delay: Annotated[
        int, Duration(special=((-1, "10 times redelivery-delay"),)), "Upper limit of the redelivery delay."
    ] = -1
    max_delivery_attempts: Annotated[
        int,
        Integer(minimum=1, special=((-1, "no limit"), (0, "no limit"))),
        "Attempts before a message is a dead letter.",
    ] = 10
    max_size_bytes: Annotated[int, Size(special=_NO_LIMIT), "Memory an address may use before it is full."] = -1
    max_size_messages: Annotated[
        int, Integer(maximum=LONG_MAX, special=_NO_LIMIT), "Messages an address may hold before it is full."
    ] = -1
    page_limit_bytes: Annotated[int, Size(special=_NO_LIMIT), "Bytes an address may page."] = -1
    page_limit_messages: Annotated[
        int, Integer(maximum=LONG_MAX, special=_NO_LIMIT), "Messages an address may page."
    ] = -1
    max_size_bytes_reject_threshold: Annotated[
        int, Size(special=_OFF), "With BLOCK: size at which messages of producers without flow control are refused."
    ] = -1
    page_size_bytes: Annotated[int, Size(minimum=1024), "Size of a page file."] = 10 * MIB
    max_read_page_messages: Annotated[
        int, Integer(special=_NO_LIMIT), "Paged messages read into memory for one queue."
    ] = -1
    max_read_page_bytes: Annotated[int, Size(special=_NO_LIMIT), "Bytes of pages read into memory for one queue."] = (
        20 * MIB
    )
    prefetch_page_messages: Annotated[
        int, Integer(special=((-1, "as max-read-page-messages"),)), "Paged messages kept ready for one queue."
    ] = -1
    prefetch_page_bytes: Annotated[
        int, Size(special=((-1, "as max-read-page-bytes"),)), "Bytes of paged messages kept ready for one queue."
    ] = -1
    address_full_policy: Annotated[
        AddressFullPolicy, Enumeration(values=AddressFullPolicy), "What happens when the address is full."
    ] = AddressFullPolicy.PAGE
    disk_full_policy: Annotated[
        DiskFullPolicy, Enumeration(values=DiskFullPolicy), "What happens while the disk is full."
    ] = DiskFullPolicy.BLOCK
    page_full_policy: Annotated[
        PageFullPolicy | None, Enumeration(values=PageFullPolicy), "What happens when the page limits are reached."
    ] = None
    default_last_value_queue: Annotated[
        bool,
        Boolean(),
        Element(aliases=("last-value-queue",)),
        "Queues keep only the newest message of each last-value key.",
    ] = False
    default_last_value_key: Annotated[str | None, Text(), "Property that is the last-value key."] = None
    default_non_destructive: Annotated[bool, Boolean(), "Consumers do not remove messages from queues."] = False
    default_exclusive_queue: Annotated[bool, Boolean(), "Only one consumer of a queue receives at a time."] = False
    default_group_rebalance: Annotated[bool, Boolean(), "Groups are reassigned when a consumer is added."] = False
    default_group_rebalance_pause_dispatch: Annotated[
        bool, Boolean(), "Deliveries pause while groups are reassigned."
    ] = False
    default_group_buckets: Annotated[
        int, Integer(special=((-1, "one for each group"),)), "Buckets groups are hashed into; 0 switches grouping off."
    ] = -1
    default_group_first_key: Annotated[
        str | None, Text(), "Property set on the first message of a group a consumer receives."
    ] = None
    default_consumers_before_dispatch: Annotated[int, Integer(), "Consumers needed before deliveries start."] = 0
    default_delay_before_dispatch: Annotated[
        int, Duration(special=((-1, "for ever"),)), "Longest wait for default-consumers-before-dispatch."
    ] = -1
    slow_consumer_threshold: Annotated[
        int,
        Integer(maximum=LONG_MAX, special=_OFF),
        "Rate below which a consumer is slow that had more messages to take for a whole slow-consumer-check-period.",
    ] = -1
    slow_consumer_threshold_measurement_unit: Annotated[
        SlowConsumerUnit, Enumeration(values=SlowConsumerUnit), "Unit of slow-consumer-threshold."
    ] = SlowConsumerUnit.MESSAGES_PER_SECOND
    slow_consumer_policy: Annotated[
        SlowConsumerPolicy,
        Enumeration(values=SlowConsumerPolicy),
        "What happens to a slow consumer: NOTIFY logs it, KILL also closes its connection.",
    ] = SlowConsumerPolicy.NOTIFY
    slow_consumer_check_period: Annotated[
        int, Duration(minimum=1, unit="seconds"), "How often consumers are looked at."
    ] = 5
    redistribution_delay: Annotated[
        int,
        Duration(special=_OFF),
        "Wait after the last consumer left before messages move to other brokers.",
    ] = -1
    retroactive_message_count: Annotated[
        int,
        Integer(maximum=LONG_MAX),
        "Last messages of an address that a queue gets which is made later (0: none). They are kept in memory and on"
        " disk, also when the address has no queue: it is not deleted automatically, unless"
        " auto-delete-addresses-delay is set.",
    ] = 0
    send_to_dla_on_no_route: Annotated[
        bool, Boolean(), "Messages that match no queue go to the dead-letter-address."
    ] = False
    auto_create_queues: Annotated[bool, Boolean(), "Create a queue when a client needs it."] = True
    auto_delete_queues: Annotated[
        bool, Boolean(), "Delete an automatically created queue without consumers and messages."
    ] = True
    auto_delete_created_queues: Annotated[
        bool, Boolean(), "Delete also queues an administrator created, when without consumers and messages."
    ] = False
    auto_delete_queues_delay: Annotated[int, Duration(), "Wait before an unused queue is deleted."] = 0
    auto_delete_queues_message_count: Annotated[
        int,
        Integer(maximum=LONG_MAX, special=((-1, "any number"),)),
        "Messages an unused queue may still hold when it is deleted.",
    ] = 0
    auto_delete_queues_skip_usage_check: Annotated[bool, Boolean(), "Delete also queues that were never used."] = False
    config_delete_queues: Annotated[
        ConfigDelete, Enumeration(values=ConfigDelete), "What happens on reload to queues gone from the file."
    ] = ConfigDelete.OFF
    auto_create_addresses: Annotated[bool, Boolean(), "Create an address when a client needs it."] = True
    auto_delete_addresses: Annotated[bool, Boolean(), "Delete an automatically created address without queues."] = True
    auto_delete_addresses_delay: Annotated[int, Duration(), "Wait before an unused address is deleted."] = 0
    auto_delete_addresses_skip_usage_check: Annotated[
        bool, Boolean(), "Delete also addresses that were never used."
    ] = False
    config_delete_addresses: Annotated[
        ConfigDelete, Enumeration(values=ConfigDelete), "What happens on reload to addresses gone from the file."
    ] = ConfigDelete.OFF
    management_browse_page_size: Annotated[
        int, Integer(minimum=1, special=_NO_LIMIT), "Messages one management request may list."
    ] = 200
    management_message_attribute_size_limit: Annotated[
        int, Integer(special=_NO_LIMIT), "Length to which management cuts values of message attributes."
    ] = 256
    default_purge_on_no_consumers: Annotated[bool, Boolean(), "Remove all messages when the last consumer leaves."] = (
        False
    )
    default_max_consumers: Annotated[int, Integer(special=_NO_LIMIT), "Consumers a queue allows at a time."] = -1
    default_queue_routing_type: Annotated[
        RoutingType, Enumeration(values=RoutingType), "Routing type of queues created automatically."
    ] = RoutingType.MULTICAST
    default_address_routing_type: Annotated[
        RoutingType, Enumeration(values=RoutingType), "Routing type of addresses created automatically."
    ] = RoutingType.MULTICAST
    default_ring_size: Annotated[
        int, Integer(maximum=LONG_MAX, special=_NO_LIMIT), "Messages a queue keeps; the oldest leaves."
    ] = -1
    enable_metrics: Annotated[
        bool,
        Boolean(),
        "Export metrics of the address and its queues.",
    ] = True
    id_cache_size: Annotated[
        int, Integer(special=((-1, "as the broker's id-cache-size"),)), "Duplicate ids remembered for an address."
    ] = 20000


class AddressSettingShape(AddressSettings, frozen=True):
    """``<address-setting>`` as it is written."""

    match: Annotated[str, Text(required=True), Attribute(required=True), "Address or pattern of addresses."] = ""


class AddressSetting(Struct, frozen=True):
    """One ``<address-setting>``: its match and only what it gives (field names of :class:`AddressSettings`)."""

    match: str
    values: Mapping[str, object]
    line: int = 0
