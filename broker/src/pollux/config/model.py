"""The broker's configuration as frozen values: what broker.xml says, with the schema's defaults.

Field names are the schema's element names in snake_case; sizes are bytes, durations are in the
schema's unit (milliseconds unless a field says otherwise). The annotations are the table from
which parsing, validation, nearest-name suggestions and ``docs/configuration.md`` are made, so a
new setting is added here and nowhere else. Nothing here does I/O; see :mod:`pollux.config.loader`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import field

from pollux.config.acceptors import Acceptor, AcceptorSettings, Connector, ConnectorSettings, Endpoint, TransportShape
from pollux.config.active_passive import ActivePassive
from pollux.config.address_settings import (
    AddressFullPolicy,
    AddressSetting,
    AddressSettings,
    AddressSettingShape,
    ConfigDelete,
    DiskFullPolicy,
    PageFullPolicy,
)
from pollux.config.addresses import AddressConfig, AddressShape, Divert, QueueConfig, WildcardAddresses
from pollux.config.amqp_connections import AmqpConnection
from pollux.config.bridges import Bridge
from pollux.config.clusters import (
    BroadcastGroup,
    ClusterConnection,
    ConnectionRouter,
    DiscoveryGroup,
    GroupingHandler,
    HaPolicy,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
)
from pollux.config.extensions import (
    Audit,
    BrokerPlugin,
    ClusterOptions,
    HighAvailability,
    Limits,
    LogFormat,
    Logging,
    LogLevel,
    Management,
    PermissionType,
    PluginSettings,
    ResourceLimit,
    RoleMapping,
    Security,
    SecuritySetting,
    SecuritySettingsShape,
)
from pollux.config.federation import Federation
from pollux.config.kinds import (
    LONG_MAX,
    MIB,
    Boolean,
    Duration,
    Enumeration,
    Integer,
    Password,
    Size,
    Text,
    Words,
)
from pollux.config.markers import ByDesign, Derived, Element, Listed, Needs, NoEffect, Only, Read
from pollux.config.persistence import JournalType, Persistence
from pollux.config.problems import ConfigError, Feature, Problem, Severity
from pollux.config.resolve import AddressSettingsResolver, PermissionsResolver
from pollux.config.stores import DatabaseStore, FileStore, Store

__all__ = [
    "Acceptor",
    "AcceptorSettings",
    "AddressConfig",
    "AddressFullPolicy",
    "AddressSetting",
    "AddressSettings",
    "AddressSettingsResolver",
    "BroadcastGroup",
    "ClusterConnection",
    "ClusterOptions",
    "ConfigDelete",
    "ConfigError",
    "Configuration",
    "ConnectionRouter",
    "Connector",
    "ConnectorSettings",
    "CriticalAnalyzerPolicy",
    "DatabaseStore",
    "DiscoveryGroup",
    "DiskFullPolicy",
    "Endpoint",
    "Feature",
    "FileStore",
    "GroupingHandler",
    "HaPolicy",
    "JournalType",
    "Limits",
    "LogFormat",
    "LogLevel",
    "Logging",
    "Management",
    "PageFullPolicy",
    "PermissionType",
    "PermissionsResolver",
    "Problem",
    "QueueConfig",
    "ResourceLimit",
    "RoleMapping",
    "Security",
    "SecuritySetting",
    "Severity",
    "Store",
    "WildcardAddresses",
]

_OFF = ((-1, "off"),)
_NO_LIMIT = ((-1, "no limit"),)
_FOR_EVER = ((-1, "for ever"),)


class CriticalAnalyzerPolicy(StrEnum):
    """Say what happens when the broker stops responding to itself."""

    LOG = "LOG"
    HALT = "HALT"
    SHUTDOWN = "SHUTDOWN"


class Configuration(Persistence, frozen=True):
    """Hold what one broker was told. Directories are absolute; passwords are in clear text."""

    hidden: ClassVar[frozenset[str]] = frozenset({"cluster_password"})

    name: Annotated[str, Text(required=True), "Name of the broker."] = "localhost"
    # -- memory and disk
    global_max_size: Annotated[
        int, Size(special=((-1, "global-max-size-percent-of-jvm-max-memory"),)), "Memory of all addresses together."
    ] = -1
    global_max_messages: Annotated[
        int, Integer(maximum=LONG_MAX, special=_NO_LIMIT), "Messages of all addresses together."
    ] = -1
    global_max_size_percent_of_jvm_max_memory: Annotated[
        int,
        Integer(minimum=1, maximum=100, unit="percent"),
        "global-max-size as a part of the memory the process may use.",
    ] = 50
    max_disk_usage: Annotated[
        int,
        Integer(minimum=0, maximum=100, unit="percent", special=_OFF),
        "Use of the disk, as df shows it, at which producers stop.",
    ] = 90
    min_disk_free: Annotated[
        int, Size(special=_OFF), "Free bytes below which producers stop; takes the place of max-disk-usage."
    ] = -1
    disk_scan_period: Annotated[int, Duration(minimum=1), "How often the disk is checked."] = 5000
    # -- connections and sessions
    connection_ttl_override: Annotated[
        int, Duration(special=_OFF), "Silence after which a client is dead, for all clients."
    ] = -1
    connection_ttl_check_interval: Annotated[
        int, Duration(minimum=1), "How often clients are checked, at least; they always are twice a second."
    ] = 2000
    async_connection_execution_enabled: Annotated[
        bool,
        Boolean(),
        ByDesign(
            "no request holds up the connections' input: the journal, large files and log-ins have threads of their own"
        ),
        "Requests are not processed where input is read.",
    ] = True
    graceful_shutdown_enabled: Annotated[bool, Boolean(), "Wait for clients to leave when stopping."] = False
    graceful_shutdown_timeout: Annotated[int, Duration(special=_FOR_EVER), "Longest wait for clients to leave."] = -1
    configuration_file_refresh_period: Annotated[
        int, Duration(special=_OFF), "How often broker.xml is checked for changes."
    ] = 5000
    management_notification_address: Annotated[
        str, Text(required=True), "Address at which messages tell what happens in the broker (docs/management.md)."
    ] = "activemq.notifications"
    suppress_session_notifications: Annotated[bool, Boolean(), "No messages about sessions that begin and end."] = False
    # -- messages
    transaction_timeout: Annotated[int, Duration(minimum=1), "Age at which a transaction is rolled back."] = 300000
    transaction_timeout_scan_period: Annotated[int, Duration(minimum=1), "How often transactions are checked."] = 1000
    message_expiry_scan_period: Annotated[int, Duration(special=_OFF), "How often messages are checked for expiry."] = (
        30000
    )
    address_queue_scan_period: Annotated[int, Duration(special=_OFF), "How often unused queues are looked for."] = 30000
    id_cache_size: Annotated[int, Integer(), "Duplicate ids remembered for an address."] = 20000
    persist_id_cache: Annotated[bool, Boolean(), "Duplicate ids survive a restart."] = True
    persist_delivery_count_before_delivery: Annotated[
        bool,
        Boolean(),
        "Count a delivery to a client on disk before it is made, so that a crash in the middle of it is counted.",
    ] = False
    max_redelivery_records: Annotated[
        int,
        Integer(special=_NO_LIMIT),
        NoEffect("delivery counts are written in batches, and only for failed deliveries"),
        "Delivery counts written for one message.",
    ] = 10
    populate_validated_user: Annotated[
        bool,
        Boolean(),
        "Note on each message who sent it, in place of what it says itself: header (STOMP) or user property (MQTT 5)"
        " JMSXUserID, message annotation x-opt-VALIDATED-USER (AMQP), JMSXUserID in selectors.",
    ] = False
    reject_empty_validated_user: Annotated[
        bool,
        Boolean(),
        ByDesign("every client has a user, if only the anonymous one, so none is ever refused for it"),
        "Refuse messages of unknown users (needs populate-validated-user and security-enabled).",
    ] = False
    mqtt_session_scan_interval: Annotated[
        int,
        Duration(special=_OFF),
        ByDesign("each session has a timer of its own and ends at its time, whatever this says"),
        "How often MQTT sessions are checked for expiry.",
    ] = 5000
    mqtt_subscription_persistence_enabled: Annotated[
        bool,
        Boolean(),
        Only((True,), "subscriptions of sessions that persist are always kept"),
        "MQTT subscriptions survive a restart.",
    ] = True
    wild_card_routing_enabled: Annotated[bool, Boolean(), "Bindings to a pattern receive what matches it."] = True
    wildcard_addresses: Annotated[WildcardAddresses, "How patterns of addresses are written."] = field(
        default_factory=WildcardAddresses
    )
    literal_match_markers: Annotated[
        str, Text(), "Two characters around a match that is meant literally, for instance ()."
    ] = ""
    # -- security
    security_enabled: Annotated[bool, Boolean(), "Off: everybody may do everything."] = True
    security_invalidation_interval: Annotated[int, Duration(), "How long a check of a login or permission holds."] = (
        10000
    )
    authentication_cache_size: Annotated[int, Integer(), "Logins remembered."] = 1000
    authorization_cache_size: Annotated[int, Integer(), "Permissions remembered."] = 1000
    mask_password: Annotated[
        bool | None, Boolean(), "true: all passwords in the file are masked; false or absent: those written ENC(...)."
    ] = None
    cluster_user: Annotated[str, Text(required=True), "User of connections between brokers."] = (
        "ACTIVEMQ.CLUSTER.ADMIN.USER"
    )
    cluster_password: Annotated[str, Password(), "Password of connections between brokers."] = "CHANGE ME!!"  # noqa: S105  (Artemis's default, which is refused wherever it would be used)
    # -- health
    critical_analyzer: Annotated[bool, Boolean(), "Watch that the broker responds to itself."] = True
    critical_analyzer_timeout: Annotated[int, Duration(minimum=1), "Silence that is critical."] = 120000
    critical_analyzer_check_period: Annotated[
        int, Duration(special=((0, "half of critical-analyzer-timeout"),)), "How often the broker is asked."
    ] = 0
    critical_analyzer_policy: Annotated[
        CriticalAnalyzerPolicy, Enumeration(values=CriticalAnalyzerPolicy), "What happens then."
    ] = CriticalAnalyzerPolicy.LOG
    network_check_list: Annotated[
        tuple[str, ...],
        Words(),
        Needs("network-check"),
        "Hosts, of which one must answer a ping; else this broker does not serve. See docs/replication.md.",
    ] = ()
    network_check_url_list: Annotated[
        tuple[str, ...],
        Words(),
        Element("network-check-URL-list"),
        Needs("network-check"),
        "The same with web servers: any answer to a GET counts.",
    ] = ()
    network_check_period: Annotated[int, Duration(minimum=1), Needs("network-check"), "Pause between two checks."] = (
        10000
    )
    network_check_timeout: Annotated[
        int, Duration(minimum=1, maximum=60000), Needs("network-check"), "How long one check waits for an answer."
    ] = 1000
    network_check_nic: Annotated[
        str | None,
        Text(),
        Element("network-check-NIC"),
        Needs("network-check"),
        "Network interface of the pings (-I of the default command).",
    ] = None
    network_check_ping_command: Annotated[
        str | None,
        Text(),
        Needs("network-check"),
        "Instead of `ping -c 1 -w %d %s`: %d is the time-out in seconds, %s the host. No shell sees it.",
    ] = None
    network_check_ping6_command: Annotated[
        str | None,
        Text(),
        Needs("network-check"),
        "The same for addresses of IPv6, instead of `ping -6 -c 1 -w %d %s`.",
    ] = None
    # -- parts
    acceptors: Annotated[
        tuple[Acceptor, ...], Listed("acceptor", wrapper="acceptors"), Read(TransportShape), "Ports that clients use."
    ] = ()
    connectors: Annotated[
        tuple[Connector, ...], Listed("connector", wrapper="connectors"), Read(TransportShape), "Ways to other brokers."
    ] = ()
    security_settings: Annotated[
        tuple[SecuritySetting, ...], Read(SecuritySettingsShape), "Who may do what at which addresses."
    ] = ()
    role_mappings: Annotated[tuple[RoleMapping, ...], Derived(), "Roles that stand for others."] = ()
    address_settings: Annotated[
        tuple[AddressSetting, ...],
        Listed("address-setting", wrapper="address-settings"),
        Read(AddressSettingShape),
        "Settings by address match.",
    ] = ()
    resource_limit_settings: Annotated[
        tuple[ResourceLimit, ...],
        Listed("resource-limit-setting", wrapper="resource-limit-settings"),
        "Limits of users.",
    ] = ()
    addresses: Annotated[
        tuple[AddressConfig, ...],
        Listed("address", wrapper="addresses"),
        Read(AddressShape),
        "Addresses and queues created at start.",
    ] = ()
    diverts: Annotated[
        tuple[Divert, ...], Listed("divert", wrapper="diverts"), "Messages that go elsewhere as well, or instead."
    ] = ()
    bridges: Annotated[
        tuple[Bridge, ...], Listed("bridge", wrapper="bridges"), "Queues whose messages go to other brokers."
    ] = ()
    federations: Annotated[
        tuple[Federation, ...], Listed("federation", wrapper="federations"), "What is fetched from other brokers."
    ] = ()
    broker_connections: Annotated[
        tuple[AmqpConnection, ...],
        Listed("amqp-connection", wrapper="broker-connections"),
        Read(AmqpConnection),
        "Connections to other brokers by AMQP.",
    ] = ()
    broadcast_groups: Annotated[
        tuple[BroadcastGroup, ...],
        Listed("broadcast-group", wrapper="broadcast-groups"),
        Needs("broadcast-groups"),
        "Announcements.",
    ] = ()
    discovery_groups: Annotated[
        tuple[DiscoveryGroup, ...],
        Listed("discovery-group", wrapper="discovery-groups"),
        Needs("discovery-groups"),
        "Discovery.",
    ] = ()
    cluster_connections: Annotated[
        tuple[ClusterConnection, ...],
        Listed("cluster-connection", wrapper="cluster-connections"),
        Needs("cluster-connections"),
        "Clusters; cluster-connection-uri is the same as a URI.",
    ] = ()
    grouping_handler: Annotated[
        GroupingHandler | None, "Message groups in a cluster: each has one queue of all nodes' for its messages."
    ] = None
    connection_routers: Annotated[
        tuple[ConnectionRouter, ...],
        Listed("connection-router", wrapper="connection-routers", aliases=("connection-route",)),
        "Which broker serves which clients, of acceptors that name a router (`router=`).",
    ] = ()
    ha_policy: Annotated[HaPolicy | None, "High availability."] = None
    # -- Pollux's own (namespace urn:pollux:1)
    management: Annotated[Management, Derived(), "The HTTP port."] = field(default_factory=Management)
    limits: Annotated[Limits, Derived(), "Bounds on what clients may use."] = field(default_factory=Limits)
    high_availability: Annotated[HighAvailability, Derived(), "Lease and groups."] = field(
        default_factory=HighAvailability
    )
    logging: Annotated[Logging, Derived(), "The log."] = field(default_factory=Logging)
    security: Annotated[Security, Derived(), "Users and keys."] = field(default_factory=Security)
    audit: Annotated[Audit, Derived(), "The audit trail."] = field(default_factory=Audit)
    broker_plugins: Annotated[
        tuple[BrokerPlugin, ...],
        Listed("broker-plugin", wrapper="broker-plugins"),
        "Plugins in Python, as px:plugins has them.",
    ] = ()
    remoting_incoming_interceptors: Annotated[
        tuple[str, ...],
        Text(required=True),
        Listed("class-name", wrapper="remoting-incoming-interceptors"),
        "Plugins in Python that look at what clients send (on_send).",
    ] = ()
    remoting_outgoing_interceptors: Annotated[
        tuple[str, ...],
        Text(required=True),
        Listed("class-name", wrapper="remoting-outgoing-interceptors"),
        "Plugins in Python that look at what consumers get (on_deliver).",
    ] = ()
    cluster: Annotated[ClusterOptions, Derived(), "What a cluster does besides."] = field(
        default_factory=ClusterOptions
    )
    plugins: Annotated[tuple[PluginSettings, ...], Derived(), "Python code that runs in the broker."] = ()
    # -- where it came from
    path: Annotated[Path | None, Derived(), "The file."] = None
    included: Annotated[tuple[Path, ...], Derived(), "Files that it includes."] = ()
    features: Annotated[tuple[Feature, ...], Derived(), "What the file asks for beyond a single broker."] = ()
    warnings: Annotated[tuple[Problem, ...], Derived(), "What is allowed but probably not meant."] = ()

    def unsupported_features(self, built: frozenset[str] = frozenset()) -> list[Feature]:
        """Name what the file asks for that is not in ``built``, in the order of the file."""
        return [feature for feature in self.features if feature.name not in built]

    @property
    def database(self) -> DatabaseStore | None:
        """The database in which the store is; None: it is in files."""
        return self.store.database_store if self.store is not None else None

    @property
    def shares_store(self) -> bool:
        """Whether other brokers use the same store, one at a time; a store in a database whoever reaches it may use."""
        policy = self.ha_policy
        return (
            self.high_availability.symmetric is not None
            or (policy is not None and policy.shared_store is not None)
            or self.database is not None
        )

    @property
    def replication_part(self) -> ReplicationPrimary | ReplicationBackup | None:
        """This broker's part in a replicated pair; None when it has none."""
        replication = self.ha_policy.replication if self.ha_policy is not None else None
        return (replication.primary or replication.backup) if replication is not None else None

    @property
    def scale_down(self) -> ScaleDown | None:
        """Where this broker's messages go when it is stopped for good, or once it took over; None: nowhere."""
        policy = self.ha_policy
        if policy is None:
            return None
        if policy.primary_only is not None:
            return policy.primary_only.scale_down
        store = policy.shared_store or policy.replication
        return store.backup.scale_down if store is not None and store.backup is not None else None

    @property
    def scale_down_number(self) -> int:
        """The cluster connection by which messages are handed over, in the order of the file."""
        wanted = self.high_availability.scale_down_cluster
        return next((number for number, one in enumerate(self.cluster_connections) if one.name == wanted), 0)

    @property
    def scales_down_instead(self) -> bool:
        """Whether this is a backup that hands over what its live had instead of serving it."""
        scale_down, policy = self.scale_down, self.ha_policy
        is_backup = policy is not None and policy.primary_only is None
        return is_backup and self.in_ha_group and scale_down is not None and scale_down.enabled

    @property
    def restarts_backup(self) -> bool:
        """Whether a backup whose work is done waits again."""
        store = self.ha_policy and (self.ha_policy.shared_store or self.ha_policy.replication)
        return bool(store and store.backup and store.backup.restart_backup)

    @property
    def active_passive(self) -> ActivePassive | None:
        """The settings of the active-passive cluster that this broker is in; None when it is in none."""
        own = self.high_availability.active_passive
        return own if own is not None and own.ha_cluster else None

    @property
    def queue_replication(self) -> ActivePassive | None:
        """The settings by which single queues are replicated; None when they are not."""
        own = self.high_availability.active_passive
        return own if own is not None and (own.ha_cluster or own.ha_queue_replication) else None

    @property
    def copies_its_store(self) -> bool:
        """Whether each member of the group has a store of its own, and keeps a copy of the one of whoever serves."""
        return self.replication_part is not None or self.active_passive is not None

    @property
    def in_ha_group(self) -> bool:
        """Whether other brokers may serve instead of this one, so that it may have to wait."""
        return self.shares_store or self.copies_its_store

    def global_limit(self, memory: int) -> int:
        """Bytes that all addresses may use together, where the process may use ``memory`` bytes."""
        if self.global_max_size >= 0:
            return self.global_max_size
        return memory * self.global_max_size_percent_of_jvm_max_memory // 100

    @property
    def page_above(self) -> int:
        """Bytes in memory above which addresses with more than their share page; -1 where nobody takes over."""
        return self.high_availability.page_above if self.in_ha_group and self.persistence_enabled else -1

    def state_limit(self, memory: int) -> int:
        """Bytes of what clients make the broker hold beside messages, of a process that may use ``memory``."""
        limit = self.limits.max_state_size
        if limit >= 0:
            return limit
        return max(self.global_limit(memory) // 2, MIB)

    def handshake_limit(self, memory: int) -> int:
        """Bytes that connections may hold together before they have logged in, of a process that may use ``memory``."""
        limit = self.limits.max_handshake_size
        return limit if limit >= 0 else memory // 8
