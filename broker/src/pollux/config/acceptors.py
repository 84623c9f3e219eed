"""Acceptors and connectors: their URIs as values, and the parameters each may carry.

The two settings classes are the table of URI parameters: a field ``key_store_path`` is the
parameter ``keyStorePath`` unless its mark says otherwise. Parsing is in :mod:`pollux.config.uris`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Struct

from pollux.config.kinds import (
    GIB,
    KIB,
    MIB,
    Boolean,
    Choices,
    Decimal,
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
from pollux.config.markers import Attribute, ByDesign, Content, Element
from pollux.redacted import Redacted

PROTOCOLS = ("AMQP", "STOMP", "MQTT", "CORE")
#: Spoken by Artemis and not here: an acceptor that offers one of ours as well offers ours.
FOREIGN_PROTOCOLS = ("OPENWIRE", "HORNETQ")
#: What tunes the tunnel through HTTP that clients of Artemis's core protocol have.
HTTP_PARAMETERS = (
    *("httpEnabled", "httpClientIdleTime", "httpClientIdleScanPeriod", "httpResponseTime", "httpServerScanPeriod"),
    *("httpRequiresSessionId", "httpUpgradeEnabled", "httpUpgradeEndpoint", "useServlet", "servletPath"),
)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
OLD_TLS_VERSIONS = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
SASL_MECHANISMS = ("SCRAM-SHA-256", "PLAIN", "EXTERNAL", "ANONYMOUS")
_OTHER_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-1", "GSSAPI", "XOAUTH2", "CRAM-MD5", "DIGEST-MD5")

_DEFAULT = ((-1, "as the broker's setting"),)
_OFF = ((-1, "off"),)


class StoreType(StrEnum):
    """Name what a key or trust store is; Java's own kinds are converted by ``pollux migrate``."""

    PEM = "PEM"
    PKCS12 = "PKCS12"


class TlsSettings(Redacted, frozen=True):
    """TLS parameters of an acceptor or connector. Paths are absolute once loaded."""

    hidden: ClassVar[frozenset[str]] = frozenset({"key_store_password", "trust_store_password"})

    ssl_enabled: Annotated[bool, Boolean(), "TLS on this port."] = False
    key_store_path: Annotated[
        tuple[Path, ...],
        Files(),
        "Certificate chain and key: PEM or PKCS12; several separated by commas (one for each SNI name).",
    ] = ()
    key_store_password: Annotated[str | None, Password(), "Password of the key store."] = None
    trust_store_path: Annotated[Path | None, File(), "Authorities whose certificates are accepted: PEM or PKCS12."] = (
        None
    )
    trust_store_password: Annotated[str | None, Password(), "Password of the trust store."] = None
    crl_path: Annotated[
        Path | None,
        File(),
        "Revocation lists, one of each authority in the chain: a certificate on its list is refused, and so is every"
        " one whose list is missing or too old. PEM (several in one file) or DER.",
    ] = None
    key_store_type: Annotated[
        StoreType | None,
        Enumeration(values=StoreType),
        ByDesign("what a store is shows its content"),
        "What the key store is.",
    ] = None
    trust_store_type: Annotated[
        StoreType | None,
        Enumeration(values=StoreType),
        ByDesign("what a store is shows its content"),
        "What the trust store is.",
    ] = None
    enabled_protocols: Annotated[
        tuple[str, ...], Choices(allowed=TLS_VERSIONS, refused=OLD_TLS_VERSIONS), "TLS versions; both when not given."
    ] = ()
    enabled_cipher_suites: Annotated[
        tuple[str, ...], Words(), "Ciphers for TLS 1.2, as OpenSSL or the IANA names them."
    ] = ()
    sni_host: Annotated[
        str | None,
        Text(),
        "Name a client must ask for (acceptor); name that is asked for instead of the host's (connector).",
    ] = None


class AcceptorSettings(TlsSettings, frozen=True):
    """Parameters of an acceptor's URI, with defaults."""

    protocols: Annotated[
        tuple[str, ...],
        Element(aliases=("protocol",)),
        Choices(allowed=PROTOCOLS, beside=FOREIGN_PROTOCOLS),
        "Protocols spoken here; all when not given. OPENWIRE, HORNETQ (and CORE for clients) beside them are left out,"
        " with a warning.",
    ] = ()
    ssl_allow_plain: Annotated[bool, Boolean(), "With sslEnabled: plain connections too, on the same port."] = False
    need_client_auth: Annotated[bool, Boolean(), "Clients must show a certificate."] = False
    want_client_auth: Annotated[bool, Boolean(), "Clients may show a certificate."] = False
    backlog: Annotated[int, Integer(minimum=1, maximum=65535), "Connections waiting to be accepted."] = 1024
    connections_allowed: Annotated[
        int, Integer(minimum=1, special=((-1, "no limit"),)), "Connections at a time on this acceptor."
    ] = -1
    connection_ttl: Annotated[int, Duration(minimum=1, special=_DEFAULT), "Silence after which a client is dead."] = -1
    handshake_timeout: Annotated[
        int,
        Element("handshake-timeout"),
        Duration(minimum=1, unit="seconds", special=_DEFAULT),
        "Time a client has to log in.",
    ] = -1
    max_frame_size: Annotated[
        int,
        Size(minimum=512, maximum=GIB, special=((-1, "AMQP 131072 bytes; STOMP and MQTT no limit of their own"),)),
        "Largest AMQP frame, STOMP body (and header block) and MQTT packet a client may send.",
    ] = -1
    tcp_no_delay: Annotated[bool, Boolean(), "Send small packets at once."] = True
    tcp_send_buffer_size: Annotated[
        int, Size(minimum=4096, maximum=GIB, special=_DEFAULT), "Socket buffer; -1 leaves it to the system."
    ] = -1
    tcp_receive_buffer_size: Annotated[
        int, Size(minimum=4096, maximum=GIB, special=_DEFAULT), "Socket buffer; -1 leaves it to the system."
    ] = -1
    write_buffer_low_water_mark: Annotated[
        int, Size(minimum=1, maximum=GIB, special=_DEFAULT), "Bytes waiting for a client at which deliveries go on."
    ] = -1
    write_buffer_high_water_mark: Annotated[
        int, Size(minimum=1, maximum=GIB, special=_DEFAULT), "Bytes waiting for a client at which deliveries pause."
    ] = -1
    anycast_prefix: Annotated[
        tuple[str, ...], Words(), "Prefixes by which AMQP and STOMP clients say that an address is ANYCAST."
    ] = ()
    multicast_prefix: Annotated[
        tuple[str, ...], Words(), "Prefixes by which AMQP and STOMP clients say that an address is MULTICAST."
    ] = ()
    sasl_mechanisms: Annotated[
        tuple[str, ...],
        Choices(allowed=SASL_MECHANISMS, refused=_OTHER_MECHANISMS),
        "SASL mechanisms offered; what the users' verifiers and the acceptor allow when not given.",
    ] = ()
    amqp_credits: Annotated[int, Integer(minimum=1, maximum=1_000_000), "Credit given to AMQP senders."] = 1000
    amqp_low_credits: Annotated[int, Integer(minimum=0, maximum=1_000_000), "Credit below which more is given."] = 300
    amqp_min_large_message_size: Annotated[
        int, Size(minimum=1024, special=_OFF), "Size from which an AMQP message is large."
    ] = 100 * KIB
    amqp_idle_timeout: Annotated[int, Duration(), "Idle timeout the broker asks of AMQP clients; 0 none."] = 30000
    amqp_duplicate_detection: Annotated[bool, Boolean(), "Honour _AMQ_DUPL_ID of AMQP messages."] = True
    stomp_consumer_credits: Annotated[
        int, Size(minimum=1, special=((-1, "no limit"),)), "Bytes sent to a STOMP client before it acknowledges."
    ] = MIB
    stomp_min_large_message_size: Annotated[
        int,
        Element("stompMinLargeMessageSize", aliases=("stomp-min-large-message-size",)),
        Size(minimum=1024, special=_OFF),
        "Size from which a STOMP message is large.",
    ] = 100 * KIB
    disable_stomp_server_header: Annotated[bool, Boolean(), "No server header in CONNECTED."] = False
    heart_beat_to_connection_ttl_modifier: Annotated[
        float,
        Decimal(minimum=1.0, maximum=100.0),
        "Heart-beats missed, as a factor on their interval, after which a STOMP client is dead.",
    ] = 2.0
    mqtt_min_large_message_size: Annotated[
        int, Size(minimum=1024, special=_OFF), "Size from which an MQTT message is large."
    ] = 100 * KIB
    maximum_packet_size: Annotated[
        int,
        Size(minimum=512, maximum=256 * MIB, special=((-1, "as maxFrameSize, else what the protocol allows"),)),
        "Largest MQTT packet, told to MQTT 5 clients.",
    ] = -1
    receive_maximum: Annotated[
        int, Integer(minimum=1, maximum=65535), "QoS 1 and 2 messages an MQTT 5 client may have in flight."
    ] = 4096
    topic_alias_maximum: Annotated[int, Integer(maximum=65535), "Topic aliases an MQTT 5 client may use."] = 65535
    server_keep_alive: Annotated[
        int,
        Duration(maximum=65535, unit="seconds", special=_OFF),
        "Longest keep alive of MQTT 5 clients; MQTT 3.1.1 has no way to say it (connectionTtl holds for those).",
    ] = 60
    default_mqtt_session_expiry_interval: Annotated[
        int,
        Duration(unit="seconds", special=((-1, "never"),)),
        "Expiry of sessions of MQTT 3.1.1 clients without clean session.",
    ] = -1
    close_mqtt_connection_on_publish_authorization_failure: Annotated[
        bool, Boolean(), "Close MQTT 3.1.1 connections that publish without permission."
    ] = True
    allow_link_stealing: Annotated[
        bool, Boolean(), "A second connection with the same MQTT client id takes the first one's place."
    ] = True
    web_socket_origins: Annotated[
        tuple[str, ...],
        Words(),
        "Sites (https://host:port) whose pages may use WebSocket here; all when not given.",
    ] = ()
    web_socket_max_frame_payload_length: Annotated[
        int,
        Element("webSocketMaxFramePayloadLength", aliases=("stompMaxFramePayloadLength",)),
        Size(minimum=125, maximum=GIB, special=((-1, "no limit of their own, as no frame is kept whole"),)),
        "Largest WebSocket frame a client may send.",
    ] = -1
    auto_start: Annotated[bool, Boolean(), "Listen from the start."] = True
    proxy_protocol_enabled: Annotated[
        bool, Boolean(), "Each connection begins with the header of a proxy (PROXY protocol, versions 1 and 2)."
    ] = False
    router: Annotated[str | None, Text(), "Connection router of this acceptor: where its clients are served."] = None


class ConnectorSettings(TlsSettings, frozen=True):
    """Parameters of a connector's URI, with defaults."""

    verify_host: Annotated[bool, Boolean(), "The certificate must be for the host connected to, or for sniHost."] = True
    trust_all: Annotated[bool, Boolean(), "Accept any certificate."] = False
    tcp_no_delay: Annotated[bool, Boolean(), "Send small packets at once."] = True
    tcp_send_buffer_size: Annotated[int, Size(minimum=4096, maximum=GIB, special=_DEFAULT), "Socket buffer."] = -1
    tcp_receive_buffer_size: Annotated[int, Size(minimum=4096, maximum=GIB, special=_DEFAULT), "Socket buffer."] = -1
    connect_timeout: Annotated[
        int,
        Element("connect-timeout-millis", aliases=("connectTimeout",)),
        Duration(minimum=1, special=_DEFAULT),
        "Limit of connecting.",
    ] = -1
    local_address: Annotated[str | None, Text(), "Local address to connect from."] = None
    local_port: Annotated[int, Integer(maximum=65535), "Local port to connect from; 0 any."] = 0


class TransportShape(Struct, frozen=True):
    """``<acceptor>`` or ``<connector>`` as it is written."""

    uri: Annotated[str, Text(required=True), Content(), "tcp://host:port?parameter=value;parameter=value"]
    name: Annotated[str | None, Text(required=True), Attribute(), "Unique name; needed for a connector."] = None
    line: int = 0


class Acceptor(Struct, frozen=True):
    """A port that clients use. ``settings`` are its URI's parameters, typed and with their defaults.

    ``scheme`` ws: clients have to speak WebSocket, which they may with tcp. wss in the file is ws with TLS here.
    """

    name: str
    scheme: str
    host: str
    port: int
    settings: AcceptorSettings = AcceptorSettings()
    line: int = 0

    def speaks(self, protocol: str) -> bool:
        """Tell whether clients of ``protocol`` (AMQP, STOMP, MQTT, CORE) are served here."""
        return not self.settings.protocols or protocol in self.settings.protocols


class Endpoint(Struct, frozen=True):
    """Hold one URI of a connector."""

    scheme: str
    host: str
    port: int
    settings: ConnectorSettings = ConnectorSettings()


class Connector(Struct, frozen=True):
    """A way to another broker: one endpoint, or several that are tried in turn."""

    name: str
    endpoints: tuple[Endpoint, ...]
    line: int = 0
