"""Clustering and high availability in broker.xml: records with the schema's defaults.

Everything here is parsed and validated completely; whether a broker may start with it is
decided by :meth:`pollux.config.model.Configuration.unsupported_features`. The older spellings
(master and slave, live-only, check-for-live-server) mean the same and arrive in the same fields.
Durations are milliseconds unless a field says otherwise.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Struct

from pollux.config.kinds import KIB, MIB, Boolean, Duration, Enumeration, Integer, Password, Size, Text
from pollux.config.markers import Attribute, ByDesign, Element, Listed, Needs
from pollux.config.retries import CallTimeout, ConnectionTtl, MaxRetryInterval, RetryInterval, RetryMultiplier
from pollux.redacted import Redacted

_FOR_EVER = ((-1, "for ever"),)
_NO_LIMIT = ((-1, "no limit"),)
_PORT = ((-1, "any free port"),)


class MessageLoadBalancing(StrEnum):
    """How messages are spread over a cluster."""

    OFF = "OFF"
    STRICT = "STRICT"
    ON_DEMAND = "ON_DEMAND"
    OFF_WITH_REDISTRIBUTION = "OFF_WITH_REDISTRIBUTION"


class GroupingHandlerType(StrEnum):
    """Whether this broker decides about groups or asks the one that does."""

    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class RouterKeyType(StrEnum):
    """Say what a connection router looks at."""

    CLIENT_ID = "CLIENT_ID"
    SNI_HOST = "SNI_HOST"
    SOURCE_IP = "SOURCE_IP"
    USER_NAME = "USER_NAME"
    ROLE_NAME = "ROLE_NAME"


class Property(Struct, frozen=True):
    """A ``<property key= value=/>`` pair."""

    key: Annotated[str, Text(required=True), Attribute(required=True), "Name."]
    value: Annotated[str, Text(), Attribute(required=True), "Value."]


class StaticConnectors(Struct, frozen=True):
    """Members of a cluster named by their connectors."""

    connector_refs: Annotated[
        tuple[str, ...], Text(required=True), Listed("connector-ref"), "Connectors to other members."
    ] = ()
    allow_direct_connections_only: Annotated[
        bool, Boolean(), Attribute(), "Connect only to the members listed, not to those they tell of."
    ] = False


class DiscoveryGroupRef(Struct, frozen=True):
    """A reference to a ``<discovery-group>``."""

    discovery_group_name: Annotated[str, Text(required=True), Attribute(required=True), "Name of the discovery group."]


class BroadcastGroup(Struct, frozen=True):
    """Where this broker announces itself by UDP multicast while it serves."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    local_bind_address: Annotated[str | None, Text(), "Address of the interface from which is sent."] = None
    local_bind_port: Annotated[int, Integer(minimum=0, maximum=65535, special=_PORT), "Local port of the socket."] = -1
    group_address: Annotated[str | None, Text(), "Multicast address."] = None
    group_port: Annotated[int | None, Integer(minimum=1, maximum=65535), "UDP port."] = None
    broadcast_period: Annotated[int, Duration(minimum=1), "Time between announcements."] = 2000
    jgroups_file: Annotated[str | None, Text(), Needs("jgroups"), "JGroups configuration file."] = None
    jgroups_channel: Annotated[str | None, Text(), Needs("jgroups"), "JGroups channel."] = None
    connector_refs: Annotated[
        tuple[str, ...], Text(required=True), Listed("connector-ref"), "Connectors announced."
    ] = ()
    line: int = 0


class DiscoveryGroup(Struct, frozen=True):
    """Where this broker listens for announcements."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    group_address: Annotated[str | None, Text(), "Multicast address."] = None
    group_port: Annotated[int | None, Integer(minimum=1, maximum=65535), "UDP port."] = None
    jgroups_file: Annotated[str | None, Text(), Needs("jgroups"), "JGroups configuration file."] = None
    jgroups_channel: Annotated[str | None, Text(), Needs("jgroups"), "JGroups channel."] = None
    refresh_timeout: Annotated[int, Duration(minimum=1), "Silence after which a broker is taken off the list."] = 10000
    local_bind_address: Annotated[str | None, Text(), "Address of the interface on which is listened."] = None
    local_bind_port: Annotated[
        int,
        Integer(minimum=0, maximum=65535, special=_PORT),
        "No effect: announcements arrive at group-port.",
    ] = -1
    initial_wait_timeout: Annotated[
        int, Duration(), "How long the start of a replicated pair waits for the first announcement; else no effect."
    ] = 10000
    line: int = 0


class ClusterConnection(Struct, frozen=True):
    """A ``<cluster-connection>``: how this broker and the others of a cluster reach each other."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    connector_ref: Annotated[
        str, Text(required=True), Element(required=True), "Connector that others use to reach this broker."
    ]
    address: Annotated[
        str, Text(), "Prefix of the addresses it applies to; several separated by commas; ! excludes."
    ] = ""
    check_period: Annotated[
        int, Duration(minimum=1), "How long a second connector to a node that is reached is left alone."
    ] = 30000
    connection_ttl: ConnectionTtl = 60000
    min_large_message_size: Annotated[
        int, Size(minimum=1), "No effect: what the store keeps as a large message is sent in pieces."
    ] = 100 * KIB
    call_timeout: CallTimeout = 30000
    retry_interval: RetryInterval = 500
    retry_interval_multiplier: RetryMultiplier = 1.0
    max_retry_interval: MaxRetryInterval = 2000
    initial_connect_attempts: Annotated[
        int, Integer(special=_NO_LIMIT), "Attempts to reach a node at first before it is taken for gone."
    ] = -1
    reconnect_attempts: Annotated[
        int, Integer(special=_NO_LIMIT), "Attempts to reach it again; then what waits for it is routed anew."
    ] = -1
    use_duplicate_detection: Annotated[
        bool, Boolean(), "No effect: a message that is sent again is known by its number on the link."
    ] = True
    forward_when_no_consumers: Annotated[
        bool | None, Boolean(), "Older spelling of message-load-balancing: true means STRICT, false ON_DEMAND."
    ] = None
    message_load_balancing: Annotated[
        MessageLoadBalancing, Enumeration(values=MessageLoadBalancing), "How messages are spread over the cluster."
    ] = MessageLoadBalancing.ON_DEMAND
    max_hops: Annotated[int, Integer(), "How many links away a queue may be that is sent to; 0: none."] = 1
    confirmation_window_size: Annotated[
        int, Size(minimum=1, special=((-1, "off"),)), "Bytes between confirmations."
    ] = MIB
    producer_window_size: Annotated[int, Size(minimum=1, special=((-1, "off"),)), "Window of producers."] = MIB
    call_failover_timeout: Annotated[
        int, Duration(special=_FOR_EVER), "No effect: a link that breaks is made anew, and goes on where it was."
    ] = -1
    notification_interval: Annotated[int, Duration(minimum=1), "Time between tellings of all nodes to a new peer."] = (
        1000
    )
    notification_attempts: Annotated[int, Integer(), "How often all nodes are told to a new peer again."] = 2
    scale_down_connector: Annotated[str | None, Text(), "Connector used for scaling down."] = None
    client_id: Annotated[str | None, Text(), "Identifies the connection at the other end."] = None
    topology_scanner_attempts: Annotated[
        int,
        Integer(special=_NO_LIMIT),
        "No effect: connectors are tried for ever, so parts of a cluster find each other.",
    ] = 30
    static_connectors: Annotated[StaticConnectors | None, "Members by connectors."] = None
    discovery_group_ref: Annotated[DiscoveryGroupRef | None, "Members by discovery."] = None
    line: int = 0

    @property
    def load_balancing(self) -> MessageLoadBalancing:
        """How messages are spread, whichever of the two spellings was used."""
        if self.forward_when_no_consumers is None:
            return self.message_load_balancing
        return MessageLoadBalancing.STRICT if self.forward_when_no_consumers else MessageLoadBalancing.ON_DEMAND


class GroupingHandler(Struct, frozen=True):
    """Who decides which broker of a cluster serves a message group."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Name."]
    type: Annotated[
        GroupingHandlerType,
        Enumeration(values=GroupingHandlerType),
        Element(required=True),
        ByDesign("every node decides, and all of them decide alike: none is asked"),
        "LOCAL on one broker, REMOTE on the others.",
    ]
    address: Annotated[str, Text(), "Addresses with this prefix; all when empty."] = ""
    timeout: Annotated[
        int, Duration(minimum=1), ByDesign("no other node is asked: nothing is waited for"), "Wait for a decision."
    ] = 5000
    group_timeout: Annotated[
        int,
        Duration(special=_FOR_EVER),
        ByDesign("where a group goes is computed: none is bound, so none has to be forgotten"),
        "How long an unused group stays bound.",
    ] = -1
    reaper_period: Annotated[
        int,
        Duration(minimum=1),
        ByDesign("where a group goes is computed: none is bound, so none has to be forgotten"),
        "How often bindings are checked for group-timeout.",
    ] = 30000
    line: int = 0


class RouterCache(Struct, frozen=True):
    """How long a router remembers its decisions."""

    persisted: Annotated[bool, Boolean(), "Decisions survive a restart."] = False
    timeout: Annotated[int, Duration(special=_FOR_EVER), "How long a decision holds."] = -1


class RouterPolicy(Struct, frozen=True):
    """How a router chooses: CONSISTENT_HASH, CONSISTENT_HASH_MODULO, FIRST_ELEMENT, LEAST_CONNECTIONS, ROUND_ROBIN."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Name of the policy."]
    properties: Annotated[tuple[Property, ...], Listed("property"), "Settings of the policy."] = ()


class RouterPool(Redacted, frozen=True):
    """The brokers a router chooses from."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    username: Annotated[str | None, Text(), "User on the targets."] = None
    password: Annotated[str | None, Password(), "Password on the targets."] = None
    check_period: Annotated[int, Duration(minimum=1), "How often targets are checked."] = 5000
    quorum_size: Annotated[int, Integer(minimum=0), "Targets that must be ready."] = 1
    quorum_timeout: Annotated[int, Duration(), "Wait for quorum-size."] = 3000
    local_target_enabled: Annotated[bool, Boolean(), "This broker is a target too."] = False
    cluster_connection: Annotated[str | None, Text(), "Targets by cluster connection."] = None
    static_connectors: Annotated[StaticConnectors | None, "Targets by connectors."] = None
    discovery_group_ref: Annotated[DiscoveryGroupRef | None, "Targets by discovery."] = None


class ConnectionRouter(Struct, frozen=True):
    """Sends clients to the broker that should serve them."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Unique name."]
    key_type: Annotated[
        RouterKeyType,
        Enumeration(values=RouterKeyType),
        Element(aliases=("key", "target-key")),
        "What the decision is about.",
    ] = RouterKeyType.SOURCE_IP
    key_filter: Annotated[str | None, Text(), "Regular expression for the part of the key that counts."] = None
    local_target_filter: Annotated[str | None, Text(), "Keys this broker serves itself."] = None
    cache: Annotated[RouterCache | None, "Memory of decisions."] = None
    policy: Annotated[RouterPolicy | None, "How to choose."] = None
    pool: Annotated[RouterPool | None, "From what to choose."] = None
    line: int = 0


class ScaleDown(Struct, frozen=True):
    """Where messages go when this broker is stopped for good."""

    enabled: Annotated[bool, Boolean(), "Off: this broker only receives."] = True
    group_name: Annotated[str | None, Text(), "Only brokers of this group."] = None
    discovery_group_ref: Annotated[DiscoveryGroupRef | None, "Targets by discovery."] = None
    connectors: Annotated[
        tuple[str, ...], Text(required=True), Listed("connector-ref", wrapper="connectors"), "Targets by connectors."
    ] = ()
    commit_interval: Annotated[
        int, Integer(minimum=1, special=((-1, "only at the end"),)), "Messages in one transaction."
    ] = -1


class DistributedManager(Struct, frozen=True):
    """The coordination service of a replicated pair, for instance ZooKeeper."""

    class_name: Annotated[str | None, Text(), "Artemis's class name, or zookeeper."] = None
    properties: Annotated[
        tuple[Property, ...], Listed("property", wrapper="properties"), "Settings, for instance connect-string."
    ] = ()


class ReplicationPrimary(Struct, frozen=True):
    """Hold ``<replication><primary>``."""

    group_name: Annotated[str | None, Text(), "Pairs only with backups of this group."] = None
    cluster_name: Annotated[str | None, Text(), "Cluster connection used for replication."] = None
    max_saved_replicated_journals_size: Annotated[
        int, Integer(special=((-1, "all"),)), "Copies of older data kept."
    ] = 2
    check_for_active_server: Annotated[
        bool, Boolean(), Element(aliases=("check-for-live-server",)), "At start look for a broker with this node id."
    ] = False
    initial_replication_sync_timeout: Annotated[
        int, Duration(minimum=1), "Limit of the last step of synchronisation."
    ] = 30000
    vote_on_replication_failure: Annotated[bool, Boolean(), "Ask for a vote when replication is lost."] = False
    quorum_size: Annotated[int, Integer(minimum=1, special=((-1, "size of the cluster"),)), "Votes cast."] = -1
    vote_retries: Annotated[int, Integer(), "Votes tried."] = 12
    vote_retry_wait: Annotated[int, Duration(minimum=1), "Wait between votes."] = 5000
    quorum_vote_wait: Annotated[int, Duration(minimum=1, unit="seconds"), "Wait for the votes."] = 30
    retry_replication_wait: Annotated[int, Duration(minimum=1), "Wait before trying to replicate again."] = 2000
    manager: Annotated[DistributedManager | None, "Coordination service."] = None
    coordination_id: Annotated[str | None, Text(), "Common identity of a group of equals."] = None


class ReplicationBackup(Struct, frozen=True):
    """Hold ``<replication><backup>``."""

    group_name: Annotated[str | None, Text(), "Pairs only with lives of this group."] = None
    cluster_name: Annotated[str | None, Text(), "Cluster connection used for replication."] = None
    max_saved_replicated_journals_size: Annotated[
        int, Integer(special=((-1, "all"),)), "Copies of older data kept."
    ] = 2
    scale_down: Annotated[ScaleDown | None, Needs("scale-down"), "Scale down instead of becoming live."] = None
    restart_backup: Annotated[bool, Boolean(), "Start again as backup after failback."] = False
    allow_failback: Annotated[bool, Boolean(), "Stop when the preferred live comes back."] = True
    failback_delay: Annotated[int, Duration(), "Wait before failback."] = 5000
    initial_replication_sync_timeout: Annotated[
        int, Duration(minimum=1), "Limit of the last step of synchronisation."
    ] = 30000
    vote_on_replication_failure: Annotated[bool, Boolean(), "Ask for a vote when replication is lost."] = False
    quorum_size: Annotated[int, Integer(minimum=1, special=((-1, "size of the cluster"),)), "Votes cast."] = -1
    vote_retries: Annotated[int, Integer(), "Votes tried."] = 12
    vote_retry_wait: Annotated[int, Duration(minimum=1), "Wait between votes."] = 5000
    retry_replication_wait: Annotated[int, Duration(minimum=1), "Wait before looking for a live again."] = 2000
    quorum_vote_wait: Annotated[int, Duration(minimum=1, unit="seconds"), "Wait for the votes."] = 30
    manager: Annotated[DistributedManager | None, "Coordination service."] = None


class SharedStorePrimary(Struct, frozen=True):
    """Hold ``<shared-store><primary>``."""

    failback_delay: Annotated[int, Duration(), "Wait before failback."] = 5000
    failover_on_shutdown: Annotated[bool, Boolean(), "The backup takes over also after a clean stop."] = False
    wait_for_activation: Annotated[bool, Boolean(), "Starting waits until the broker is live."] = True


class SharedStoreBackup(Struct, frozen=True):
    """Hold ``<shared-store><backup>``."""

    allow_failback: Annotated[bool, Boolean(), "Stop when the preferred live comes back."] = True
    failback_delay: Annotated[int, Duration(), "Wait before failback."] = 5000
    failover_on_shutdown: Annotated[bool, Boolean(), "Another backup takes over also after a clean stop."] = False
    scale_down: Annotated[ScaleDown | None, Needs("scale-down"), "Scale down instead of becoming live."] = None
    restart_backup: Annotated[bool, Boolean(), "Start again as backup after failback."] = False


class _Colocated(Struct, frozen=True):
    """Hold what both kinds of colocation have in common."""

    request_backup: Annotated[bool, Boolean(), "Ask another broker for a backup."] = False
    backup_request_retries: Annotated[int, Integer(special=_FOR_EVER), "Attempts to get a backup."] = -1
    backup_request_retry_interval: Annotated[int, Duration(minimum=1), "Wait between the attempts."] = 5000
    max_backups: Annotated[int, Integer(), "Backups this broker accepts."] = 1
    backup_port_offset: Annotated[int, Integer(minimum=1, maximum=65535), "Added to ports for each backup."] = 100
    excludes: Annotated[
        tuple[str, ...],
        Text(required=True),
        Listed("connector-ref", wrapper="excludes"),
        "Connectors whose ports stay.",
    ] = ()


class ReplicationColocated(_Colocated, frozen=True):
    """Hold ``<replication><colocated>``."""

    primary: Annotated[ReplicationPrimary | None, Element(aliases=("master",)), "The preferred live."] = None
    backup: Annotated[ReplicationBackup | None, Element(aliases=("slave",)), "The backups created."] = None


class SharedStoreColocated(_Colocated, frozen=True):
    """Hold ``<shared-store><colocated>``."""

    primary: Annotated[SharedStorePrimary | None, Element(aliases=("master",)), "The preferred live."] = None
    backup: Annotated[SharedStoreBackup | None, Element(aliases=("slave",)), "The backups created."] = None


class PrimaryOnly(Struct, frozen=True):
    """Hold ``<primary-only>``: a broker without backup."""

    scale_down: Annotated[ScaleDown | None, Needs("scale-down"), "Where messages go on a clean stop."] = None


class Replication(Struct, frozen=True):
    """Hold exactly one of the three."""

    primary: Annotated[ReplicationPrimary | None, Element(aliases=("master",)), "Serves and replicates."] = None
    backup: Annotated[ReplicationBackup | None, Element(aliases=("slave",)), "Follows a live."] = None
    colocated: Annotated[ReplicationColocated | None, Needs("colocated"), "Both in one process."] = None


class SharedStore(Struct, frozen=True):
    """Hold exactly one of the three."""

    primary: Annotated[SharedStorePrimary | None, Element(aliases=("master",)), "Holds the store."] = None
    backup: Annotated[SharedStoreBackup | None, Element(aliases=("slave",)), "Waits for the store."] = None
    colocated: Annotated[SharedStoreColocated | None, Needs("colocated"), "Both in one process."] = None


class HaPolicy(Struct, frozen=True):
    """Hold exactly one of the three."""

    primary_only: Annotated[PrimaryOnly | None, Element(aliases=("live-only",)), "No backup."] = None
    replication: Annotated[Replication | None, Needs("replication"), "A copy on the backup's disk."] = None
    shared_store: Annotated[SharedStore | None, Needs("shared-store"), "One store for both."] = None
    line: int = 0
