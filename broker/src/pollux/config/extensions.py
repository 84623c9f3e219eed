"""Users, permissions, and Pollux's own elements (namespace ``urn:pollux:1``)."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Struct

from pollux.config.acceptors import OLD_TLS_VERSIONS, TLS_VERSIONS
from pollux.config.active_passive import ActivePassive
from pollux.config.clusters import Property
from pollux.config.kinds import (
    GIB,
    KIB,
    MIB,
    Boolean,
    Choices,
    Directory,
    Duration,
    Enumeration,
    File,
    Files,
    Integer,
    Password,
    Size,
    Text,
    Words,
)
from pollux.config.markers import Attribute, Derived, Element, Listed, Needs
from pollux.redacted import Redacted

NAMESPACE = "urn:pollux:1"

_NO_LIMIT = ((-1, "no limit"),)


class PermissionType(StrEnum):
    """Name what a role may do at an address. Names and values are broker.xml's spelling."""

    send = "send"
    consume = "consume"
    browse = "browse"
    createAddress = "createAddress"  # noqa: N815  (the schema's spelling is the value written in files)
    deleteAddress = "deleteAddress"  # noqa: N815
    createDurableQueue = "createDurableQueue"  # noqa: N815
    deleteDurableQueue = "deleteDurableQueue"  # noqa: N815
    createNonDurableQueue = "createNonDurableQueue"  # noqa: N815
    deleteNonDurableQueue = "deleteNonDurableQueue"  # noqa: N815
    manage = "manage"


class LogLevel(StrEnum):
    """Least severe kind of log line written."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    """TEXT for people, JSON (one object in a line) for machines."""

    TEXT = "TEXT"
    JSON = "JSON"


class PermissionShape(Struct, frozen=True):
    """Hold ``<permission type= roles=/>``."""

    type: Annotated[PermissionType, Enumeration(values=PermissionType), Attribute(required=True), "What is allowed."]
    roles: Annotated[tuple[str, ...], Words(), Attribute(required=True), "Roles that may do it."]
    line: int = 0


class SecuritySettingShape(Struct, frozen=True):
    """``<security-setting>`` as it is written."""

    match: Annotated[str, Text(required=True), Attribute(required=True), "Address or pattern of addresses."]
    permissions: Annotated[tuple[PermissionShape, ...], Listed("permission"), "Permissions at these addresses."] = ()
    line: int = 0


class RoleMapping(Struct, frozen=True):
    """``<role-mapping from= to=/>``: whoever has the role ``from_role`` also has ``to_roles``."""

    from_role: Annotated[str, Text(required=True), Attribute(required=True), Element("from"), "Role a user has."]
    to_roles: Annotated[tuple[str, ...], Words(), Attribute(required=True), Element("to"), "Roles it stands for."]


class SecuritySettingsShape(Struct, frozen=True):
    """``<security-settings>`` as it is written."""

    settings: Annotated[tuple[SecuritySettingShape, ...], Listed("security-setting"), "Permissions by address."] = ()
    role_mappings: Annotated[tuple[RoleMapping, ...], Listed("role-mapping"), "Roles that stand for others."] = ()


class SecuritySetting(Struct, frozen=True):
    """One ``<security-setting>``: role names by permission (broker.xml's name) at the addresses it matches."""

    match: str
    permissions: Mapping[str, frozenset[str]]
    line: int = 0


class ResourceLimit(Struct, frozen=True):
    """Hold the limits of one user."""

    match: Annotated[str, Text(required=True), Attribute(required=True), "User name; # means everyone else."]
    max_sessions: Annotated[
        int, Integer(special=_NO_LIMIT), Element(aliases=("max-connections",)), "Connections at a time."
    ] = -1
    max_queues: Annotated[int, Integer(special=_NO_LIMIT), "Queues the user may create."] = -1
    line: int = 0


class Management(Redacted, frozen=True):
    """``<px:management>``: the HTTP port of health, metrics, the JSON API and the console."""

    hidden: ClassVar[frozenset[str]] = frozenset({"key_store_password", "trust_store_password"})

    enabled: Annotated[bool, Boolean(), "Off: no HTTP port."] = True
    host: Annotated[str, Text(required=True), "Address to listen on."] = "127.0.0.1"
    port: Annotated[int, Integer(minimum=0, maximum=65535), "Port to listen on; 0 takes any free one."] = 8161
    ssl_enabled: Annotated[bool, Boolean(), "HTTPS instead of HTTP."] = False
    key_store_path: Annotated[tuple[Path, ...], Files(), "Certificate and key: PEM or PKCS12."] = ()
    key_store_password: Annotated[str | None, Password(), "Password of the key store."] = None
    trust_store_path: Annotated[Path | None, File(), "Authorities that sign clients' certificates."] = None
    trust_store_password: Annotated[str | None, Password(), "Password of the trust store."] = None
    need_client_auth: Annotated[bool, Boolean(), "Clients must show a certificate."] = False
    enabled_protocols: Annotated[
        tuple[str, ...], Choices(allowed=TLS_VERSIONS, refused=OLD_TLS_VERSIONS), "TLS versions; both when not given."
    ] = ()
    enabled_cipher_suites: Annotated[tuple[str, ...], Words(), "Ciphers for TLS 1.2."] = ()
    metrics_anonymous: Annotated[bool, Boolean(), "Metrics are readable without login (health always is)."] = False
    line: int = 0


class Limits(Struct, frozen=True):
    """``<px:limits>``: bounds on what clients may use. An acceptor's URI can narrow some of them."""

    max_connections: Annotated[int, Integer(minimum=1), "Connections at a time, all acceptors together."] = 10000
    max_queues_per_user: Annotated[
        int,
        Integer(minimum=1, special=_NO_LIMIT),
        "Queues that clients of one user may have at a time, their subscriptions' too; max-queues goes before.",
    ] = 50_000
    max_mqtt_sessions: Annotated[int, Integer(minimum=1), "MQTT sessions, of clients that are away too."] = 100_000
    max_retained_messages: Annotated[int, Integer(minimum=0), "Retained MQTT messages."] = 100_000
    max_retained_size: Annotated[int, Size(minimum=0), "Bytes of all retained MQTT messages."] = 256 * MIB
    max_state_size: Annotated[
        int,
        Size(minimum=MIB, special=((-1, "half of global-max-size"),)),
        "Bytes that clients may make the broker hold beside messages; they count in global-max-size.",
    ] = -1
    max_connections_per_user: Annotated[
        int, Integer(minimum=1, special=_NO_LIMIT), "Connections of one user at a time."
    ] = -1
    max_connections_per_host: Annotated[
        int,
        Integer(minimum=1, special=((0, "as many as are left for others"), *_NO_LIMIT)),
        "Connections from one IPv4 address or one /64 network of IPv6 at a time.",
    ] = 0
    max_frame_size: Annotated[
        int, Size(minimum=512, maximum=GIB), "Largest AMQP frame that an acceptor's maxFrameSize may allow."
    ] = MIB
    max_message_size: Annotated[
        int, Size(minimum=1024, special=_NO_LIMIT), "Largest message a client may send, of any protocol."
    ] = -1
    max_sessions_per_connection: Annotated[
        int, Integer(minimum=1, maximum=65536), "AMQP sessions on one connection."
    ] = 256
    max_consumers_per_connection: Annotated[
        int, Integer(minimum=1, maximum=1_000_000), "AMQP links, or STOMP or MQTT subscriptions, on one connection."
    ] = 4096
    max_unsettled_per_connection: Annotated[
        int, Integer(minimum=1, maximum=10_000_000), "Messages an AMQP client may hold unsettled."
    ] = 100_000
    max_transaction_size: Annotated[
        int, Size(minimum=1024), "Bytes of messages one transaction may hold before it is refused."
    ] = 100 * MIB
    max_handshake_size: Annotated[
        int,
        Size(minimum=MIB, special=((-1, "an eighth of the memory the process may use"),)),
        "Bytes that all connections together may hold that have not logged in.",
    ] = -1
    handshake_timeout: Annotated[int, Duration(minimum=100, maximum=3_600_000), "Time a client has to log in."] = 10000
    write_timeout: Annotated[
        int, Duration(minimum=100, maximum=3_600_000), "Time a client may take nothing of what waits for it."
    ] = 60000
    write_buffer_size: Annotated[
        int, Size(minimum=16 * KIB, maximum=GIB), "Bytes waiting for a client at which deliveries to it pause."
    ] = 512 * KIB
    line: int = 0


class SymmetricGroup(Struct, frozen=True):
    """``<px:symmetric>``: a group of equals on one store (ActiveMQ classic's master/slave), none of them preferred."""

    lock_keep_alive_period: Annotated[
        int,
        Duration(minimum=0, maximum=600_000),
        "At most this long between two checks of the lock by the one that serves, and the wait of another one between"
        " obtaining the lock and serving; 0 does not wait.",
    ] = 2000
    lock_acquire_sleep_interval: Annotated[
        int,
        Duration(minimum=100, maximum=600_000),
        "At most this long between two attempts of a waiting broker to obtain the lock (it is woken earlier where the"
        " file system can).",
    ] = 10000


class ZooKeeperTls(Redacted, frozen=True):
    """``<px:zookeeper-tls>``: TLS between this broker and ZooKeeper; its servers are always verified."""

    hidden: ClassVar[frozenset[str]] = frozenset({"trust_store_password", "key_store_password"})

    trust_store_path: Annotated[
        Path | None, File(), "Authorities of ZooKeeper's certificates, PEM or PKCS12; else those of the system."
    ] = None
    trust_store_password: Annotated[str | None, Password(), "Password of the trust store."] = None
    key_store_path: Annotated[
        Path | None,
        File(),
        "Certificate and key that this broker shows, PEM or PKCS12; ZooKeeper asks for one by default.",
    ] = None
    key_store_password: Annotated[str | None, Password(), "Password of the key store."] = None
    verify_host: Annotated[bool, Boolean(), "The certificate must be for the name in connect-string."] = True
    line: int = 0


class HighAvailability(Redacted, frozen=True):
    """``<px:high-availability>``: what Artemis's ``<ha-policy>`` has no words for."""

    hidden: ClassVar[frozenset[str]] = frozenset({"zookeeper_password"})

    lease_guard: Annotated[
        int,
        Duration(minimum=500, maximum=600_000),
        "How long a live may confirm after the last proof that the store is still its own; then it stops by itself.",
    ] = 4000
    lease_margin: Annotated[
        int,
        Duration(minimum=100, maximum=600_000),
        "What others wait longer than lease-guard before they take the store from a live that gives no sign of life.",
    ] = 2000
    store_lease: Annotated[
        int | None,
        Duration(minimum=1),
        "How long the file server keeps the locks of a host that is gone (NFSv4: its lease time); checked against"
        " lease-guard and lease-margin.",
    ] = None
    peers: Annotated[
        tuple[str, ...],
        Words(),
        "HTTP addresses (px:management) of the other members: asked whether they see the same store.",
    ] = ()
    failure_domain: Annotated[
        str | None,
        Text(),
        "What fails together with this machine (rack, room): a colocated backup is in another one if it can be.",
    ] = None
    scale_down_cluster: Annotated[
        str | None,
        Text(),
        "Name of the cluster-connection by which scale-down hands over (EAP: cluster-name); else the first one.",
    ] = None
    replica_timeout: Annotated[
        int,
        Duration(minimum=500, maximum=600_000),
        "How long a live waits for the confirmation of a backup in sync before it goes on without it.",
    ] = 5000
    page_above: Annotated[
        int,
        Size(minimum=MIB, special=_NO_LIMIT),
        "Bytes of messages in memory above which addresses that page and hold more than their share do so: before a"
        " killed broker's locks and connections are free the kernel takes its memory apart, 0.1 s for each GiB.",
    ] = 128 * MIB
    zookeeper_user: Annotated[
        str | None, Text(), "Name with which the brokers log in to ZooKeeper; what they make there is theirs alone."
    ] = None
    zookeeper_password: Annotated[str | None, Password(), "Password of zookeeper-user."] = None
    zookeeper_tls: Annotated[ZooKeeperTls | None, "Connections to ZooKeeper are encrypted."] = None
    symmetric: Annotated[SymmetricGroup | None, "This broker belongs to a group of equals; without <ha-policy>."] = None
    active_passive: Annotated[
        ActivePassive | None,
        Needs("active-passive"),
        "A resource manager decides who serves (Qpid's cluster); without <ha-policy>.",
    ] = None
    line: int = 0


class Logging(Struct, frozen=True):
    """Hold ``<px:logging>``."""

    level: Annotated[LogLevel, Enumeration(values=LogLevel), "Least severe kind of line written."] = LogLevel.INFO
    format: Annotated[LogFormat, Enumeration(values=LogFormat), "TEXT or JSON."] = LogFormat.TEXT
    file: Annotated[Path | None, File(), "File appended to; without it standard error."] = None
    line: int = 0


class Security(Struct, frozen=True):
    """``<px:security>``: where users are, and the key of masked passwords.

    Paths are absolute once loaded; in the file they are relative to the directory of broker.xml.
    """

    users_file: Annotated[Path, File(), "Users and their verifiers."] = Path("artemis-users.properties")
    roles_file: Annotated[Path, File(), "Roles and their users."] = Path("artemis-roles.properties")
    certificate_users_file: Annotated[Path | None, File(), "Users by certificate subject."] = None
    anonymous_user: Annotated[
        str | None, Text(required=True), "User that clients without login are; without it they are refused."
    ] = None
    anonymous_roles: Annotated[tuple[str, ...], Words(), "Roles of anonymous-user."] = ()
    key_file: Annotated[Path | None, File(), "Key of passwords masked as ENC(...); mode 0600."] = None
    login_delay: Annotated[
        int, Duration(maximum=60_000), "Wait after a failed login, doubled for each further one."
    ] = 250
    max_login_delay: Annotated[int, Duration(maximum=600_000), "Upper limit of login-delay."] = 10000
    line: int = 0


class AuditedMessages(Struct, frozen=True):
    """``<px:messages match=>``: what happens to the messages of these addresses is audited too."""

    match: Annotated[str, Text(required=True), Attribute(required=True), "Address or pattern of addresses."]
    line: int = 0


class Audit(Struct, frozen=True):
    """``<px:audit>``: the audit trail (docs/audit-format.md). Every broker of a pair has its own."""

    enabled: Annotated[bool, Boolean(), "Off: no audit trail."] = True
    directory: Annotated[Path, Directory(), "Where its files are."] = Path("data/audit")
    max_file_size: Annotated[int, Size(minimum=64 * KIB, maximum=GIB), "Size at which a new file is begun."] = 64 * MIB
    max_files: Annotated[int, Integer(minimum=2, maximum=100_000), "Files kept; the oldest is deleted."] = 32
    flush_interval: Annotated[
        int, Duration(minimum=10, maximum=60_000), "Longest time until what happened is handed to the disk."
    ] = 200
    messages: Annotated[tuple[AuditedMessages, ...], Listed("messages"), "Addresses whose messages are audited."] = ()
    line: int = 0


class ClusterOptions(Struct, frozen=True):
    """``<px:cluster>``: what Artemis's ``<cluster-connection>`` has no words for."""

    duplicate_ids: Annotated[
        str,
        Text(),
        "Addresses whose duplicate ids count at every node, by prefixes as in a cluster connection's address; the same"
        " on every node.",
    ] = ""
    line: int = 0


class OnError(StrEnum):
    """Say what becomes of a message at which a plugin fails: it is sent all the same, or refused."""

    ignore = "ignore"
    refuse = "refuse"


class PluginSettings(Struct, frozen=True):
    """``<px:plugin name=>``: an installed plugin, and what it is given."""

    name: Annotated[str, Text(required=True), Attribute(required=True), "Its entry point in pollux.plugins."]
    on_error: Annotated[
        OnError,
        Enumeration(values=OnError),
        Attribute(),
        "What becomes of a message at which it fails: ignore (sent all the same) or refuse.",
    ] = OnError.ignore
    properties: Annotated[tuple[Property, ...], Listed("property"), "What it is given."] = ()
    #: The method that it has to have for the place it is named at; empty: any.
    method: Annotated[str, Derived()] = ""
    line: int = 0


class BrokerPlugin(Struct, frozen=True):
    """``<broker-plugin class-name=>``, as Artemis writes it."""

    class_name: Annotated[
        str, Text(required=True), Attribute(required=True), "A plugin's entry point in pollux.plugins."
    ]
    properties: Annotated[tuple[Property, ...], Listed("property"), "What it is given."] = ()
    line: int = 0


class Plugins(Struct, frozen=True):
    """``<px:plugins>``: Python code that runs in the broker (docs/plugins.md)."""

    plugins: Annotated[tuple[PluginSettings, ...], Listed("plugin"), "Plugins, in the order they are asked in."] = ()


class Extensions(Struct, frozen=True):
    """Hold what stands beside ``<core>`` in the namespace ``urn:pollux:1``."""

    security: Annotated[Security, "Users and keys."]
    management: Annotated[Management, "The HTTP port."]
    limits: Annotated[Limits, "Bounds on what clients may use."]
    high_availability: Annotated[HighAvailability, "Lease and groups."]
    logging: Annotated[Logging, "The log."]
    audit: Annotated[Audit, "The audit trail."]
    cluster: Annotated[ClusterOptions, "Duplicate ids of a cluster."]
    plugins: Annotated[Plugins, "Python code that runs in the broker."]
