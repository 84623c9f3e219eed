"""Records of core bridges, which send messages to other brokers or fetch them, with the schema's defaults.

Durations are milliseconds. Nothing here is a cluster: a bridge knows one queue, and one place to send to.
"""

from typing import Annotated, ClassVar

from pollux.config.addresses import DivertRouting, FilterShape
from pollux.config.clusters import DiscoveryGroupRef, StaticConnectors
from pollux.config.kinds import (
    KIB,
    LONG_MAX,
    MIB,
    Boolean,
    Duration,
    Enumeration,
    Integer,
    Password,
    Size,
    Text,
)
from pollux.config.markers import Attribute, ByDesign, Element, NoEffect, Read
from pollux.config.retries import ConnectionTtl, MaxRetryInterval, RetryInterval, RetryMultiplier
from pollux.redacted import Redacted

_OFF = ((-1, "off"),)
_FOR_EVER = ((-1, "for ever"),)

_PIECES = "large messages are sent in pieces of a frame"
_PING = "a link asks after a third of connection-ttl"


class Bridge(Redacted, frozen=True):
    """A ``<bridge>``: takes messages from a queue here and sends each to another broker exactly once."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    queue_name: Annotated[str, Text(required=True), Element(required=True), "Queue that it takes from."]
    forwarding_address: Annotated[
        str | None, Text(required=True), "Address there; when not given, the one each message was sent to."
    ] = None
    ha: Annotated[
        bool,
        Boolean(),
        ByDesign(
            "a bridge goes on with whichever member of a pair serves: its connector names both, or the bridge does"
        ),
        "It follows a failover there.",
    ] = False
    filter: Annotated[str | None, Read(FilterShape), "Only messages this JMS selector accepts."] = None
    min_large_message_size: Annotated[
        int, Size(minimum=1), NoEffect(_PIECES), "Size from which a message is large."
    ] = 100 * KIB
    check_period: Annotated[
        int, Duration(minimum=1, special=_OFF), NoEffect(_PING), "How often the connection is checked for pings."
    ] = 30000
    connection_ttl: ConnectionTtl = 60000
    retry_interval: RetryInterval = 2000
    retry_interval_multiplier: RetryMultiplier = 1.0
    max_retry_interval: MaxRetryInterval = 2000
    initial_connect_attempts: Annotated[
        int, Integer(special=_FOR_EVER), "Attempts to connect at first; then it is stopped until a restart."
    ] = -1
    reconnect_attempts: Annotated[
        int, Integer(special=_FOR_EVER), "Attempts to connect again; then it is stopped until a restart."
    ] = -1
    failover_on_server_shutdown: Annotated[bool, Boolean(), NoEffect("nor has it in Artemis"), "Superseded."] = False
    use_duplicate_detection: Annotated[
        bool,
        Boolean(),
        ByDesign("every message has a number by which the other broker knows it again, whatever this says"),
        "Messages that are sent again are known there.",
    ] = True
    confirmation_window_size: Annotated[
        int, Size(minimum=1, special=_OFF), "Bytes that may be sent and not confirmed; at most 16 MiB."
    ] = MIB
    producer_window_size: Annotated[
        int, Size(minimum=1, special=_OFF), "Bytes that the other broker lets be on their way to its disk."
    ] = MIB
    user: Annotated[str | None, Text(required=True), "The other broker's cluster-user, where it is another one."] = None
    password: Annotated[str | None, Password(), "The other broker's cluster-password, where it is another one."] = None
    reconnect_attempts_same_node: Annotated[
        int, Integer(), "Attempts at the broker that was reached last before another one is tried."
    ] = 10
    routing_type: Annotated[DivertRouting, Enumeration(values=DivertRouting), "Routing type of what goes there."] = (
        DivertRouting.PASS
    )
    concurrency: Annotated[
        int,
        Integer(minimum=1),
        NoEffect("one link sends without waiting for what it sent before, and keeps the order"),
        "Links side by side.",
    ] = 1
    pending_ack_timeout: Annotated[
        int,
        Duration(maximum=LONG_MAX),
        NoEffect("what was not confirmed when it stops is sent again by its number"),
        "Wait for what is not confirmed when it stops.",
    ] = 60000
    client_id: Annotated[str | None, Text(required=True), "Name shown at the other broker."] = None
    static_connectors: Annotated[StaticConnectors | None, "The other broker, or the members of its pair."] = None
    discovery_group_ref: Annotated[DiscoveryGroupRef | None, "The other broker by discovery."] = None
    line: int = 0
