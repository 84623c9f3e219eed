"""Connection URLs: `(tcp://a:61616,tcp://b:61616)?reconnectAttempts=5`, `udp://231.7.7.7:9876?user=u`. Pure.

Parameter names, units and meanings are those of the Artemis client. One that Artemis has and this client does not is
refused by name; one that nobody knows is refused with the nearest known name. Nothing is ignored.
"""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from msgspec import Struct, field

from pollux.client.errors import UrlError
from pollux.client.policies import PACKAGE, POLICIES
from pollux.client.retry import UNLIMITED, RetryPolicy
from pollux.config.nearest import did_you_mean
from pollux.config.uris import UriError, parse_uris
from pollux.redacted import Redacted

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_MILLISECONDS: Final = 2**31 - 1


class Wire(StrEnum):
    """A protocol that the traffic interface speaks."""

    AMQP = "amqp"
    STOMP = "stomp"
    MQTT = "mqtt"


class Endpoint(NamedTuple):
    """The host and port where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Options(Redacted, frozen=True):
    """Everything a URL may say. Times in milliseconds, sizes in bytes."""

    hidden: ClassVar[frozenset[str]] = frozenset({"password"})

    #: Passes over all brokers after a connection was lost; 0: a loss is final; -1: never give up.
    reconnect_attempts: int = 0
    #: Passes over all brokers for the first connection.
    initial_connect_attempts: int = 1
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    #: One broker must accept a connection and let us log in within this.
    connect_timeout: int = 5000
    #: The broker drops a connection on which it heard nothing for so long.
    connection_ttl: int = 60000
    #: A connection on which nothing was heard for so long is taken for lost; -1: only TCP tells.
    client_failure_check_period: int = 30000
    call_timeout: int = 30000
    #: What a call may wait on top of that while the connection fails over; -1: as long as it takes.
    call_failover_timeout: int = 30000
    #: Bytes of messages kept until they are confirmed, to be sent again after a failover; -1: none are, and a
    #: send that was under way raises.
    confirmation_window_size: int = 1024 * 1024
    #: Bytes of messages a consumer is sent ahead; 0: one message at a time.
    consumer_window_size: int = 1024 * 1024
    policy: str = "RoundRobinConnectionLoadBalancingPolicy"
    #: Brokers that a broker names for failover are tried too.
    use_topology: bool = True
    user: str | None = None
    password: str | None = None
    client_id: str | None = None
    ssl_enabled: bool = False
    #: PEM file with the authorities that may sign the broker's certificate; None: the system's.
    ca_file: str | None = None
    #: PEM files for a certificate of our own.
    certificate_file: str | None = None
    key_file: str | None = None
    verify_host: bool = True
    trust_all: bool = False
    protocol: Wire = Wire.AMQP


class Group(Struct, frozen=True):
    """The UDP multicast group where brokers announce themselves. Times in milliseconds."""

    address: str
    port: int
    #: This machine's address in the network meant; None: the system chooses.
    local_bind_address: str | None = None
    #: A broker of which nothing was heard for so long is not tried any more.
    refresh_timeout: int = 10000
    #: How long an attempt waits for the first broker where none is known.
    initial_wait: int = 10000

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class Target(Struct, frozen=True):
    """A parsed URL: the brokers, in the order written, and the options; or where brokers announce themselves."""

    endpoints: tuple[Endpoint, ...]
    options: Options
    group: Group | None = None


def _integer(minimum: int, maximum: int = MAX_MILLISECONDS) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is not a whole number") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"{value} is out of range: allowed is {minimum} to {maximum}")
        return value

    return read


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a number") from None
    if not 1.0 <= value <= 1000.0:
        raise ValueError(f"{text[:40]} is out of range: allowed is 1.0 to 1000.0")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return text.lower() == "true"


def _policy(text: str) -> str:
    name = text.removeprefix(PACKAGE)
    if name not in POLICIES:
        raise ValueError(f"{text[:120]!r} is not one of {', '.join(POLICIES)}{did_you_mean(name, POLICIES)}")
    return name


def _protocol(text: str) -> Wire:
    try:
        return Wire(text.lower())
    except ValueError:
        names = [each.value for each in Wire]
        near = did_you_mean(text, names)
        raise ValueError(f"{text[:40]!r} is not one of {', '.join(names)}{near}") from None


def _text(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


#: Parameter -> field of Options (those of RetryPolicy with a dot) and how its value is read.
PARAMETERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "reconnectAttempts": ("reconnect_attempts", _integer(UNLIMITED)),
    "initialConnectAttempts": ("initial_connect_attempts", _integer(UNLIMITED)),
    "retryInterval": (".interval", _integer(0)),
    "retryIntervalMultiplier": (".multiplier", _factor),
    "maxRetryInterval": (".maximum", _integer(0)),
    "connect-timeout-millis": ("connect_timeout", _integer(1)),
    "connectionTTL": ("connection_ttl", _integer(1)),
    "clientFailureCheckPeriod": ("client_failure_check_period", _integer(-1)),
    "callTimeout": ("call_timeout", _integer(1)),
    "callFailoverTimeout": ("call_failover_timeout", _integer(-1)),
    "confirmationWindowSize": ("confirmation_window_size", _integer(-1)),
    "consumerWindowSize": ("consumer_window_size", _integer(0)),
    "connectionLoadBalancingPolicyClassName": ("policy", _policy),
    "useTopologyForLoadBalancing": ("use_topology", _boolean),
    "user": ("user", _text),
    "password": ("password", str),
    "clientID": ("client_id", _text),
    "sslEnabled": ("ssl_enabled", _boolean),
    "trustStorePath": ("ca_file", _text),
    "keyStorePath": ("certificate_file", _text),
    "keyPath": ("key_file", _text),
    "verifyHost": ("verify_host", _boolean),
    "trustAll": ("trust_all", _boolean),
    "protocol": ("protocol", _protocol),
}


def _address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(f"{text[:60]!r} is not an IPv4 address") from None


#: The parameters of udp://: field of Group and how its value is read.
GROUP_PARAMETERS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "localBindAddress": ("local_bind_address", _address),
    "refreshTimeout": ("refresh_timeout", _integer(1)),
    "discoveryInitialWaitTimeout": ("initial_wait", _integer(0)),
}
_ONLY_CORE = "it belongs to Artemis's core protocol, which this client does not speak"
_ALWAYS = "this client always waits for the broker where that matters"
#: Parameters of the Artemis client that mean nothing here, and why.
REFUSED: Final[dict[str, str]] = {
    "ha": "every URL with more than one broker fails over",
    "failoverAttempts": "use reconnectAttempts",
    "producerWindowSize": "credit is the broker's to give in AMQP; use confirmationWindowSize",
    "producerMaxRate": "limit the rate where messages are made",
    "consumerMaxRate": "limit the rate where messages are handled",
    "blockOnAcknowledge": _ALWAYS,
    "blockOnDurableSend": _ALWAYS,
    "blockOnNonDurableSend": _ALWAYS,
    "autoGroup": "give messages a group_id",
    "groupID": "give messages a group_id",
    "preAcknowledge": _ONLY_CORE,
    "minLargeMessageSize": "AMQP needs no distinction of large messages on the client's side",
    "compressLargeMessage": _ONLY_CORE,
    "compressLargeMessages": _ONLY_CORE,
    "cacheLargeMessagesClient": _ONLY_CORE,
    "transactionBatchSize": "acknowledgements are sent at once",
    "ackBatchSize": "acknowledgements are sent at once",
    "dupsOKBatchSize": "acknowledgements are sent at once",
    "useGlobalPools": "there are no threads",
    "scheduledThreadPoolMaxSize": "there are no threads",
    "threadPoolMaxSize": "there are no threads",
    "initialMessagePacketSize": _ONLY_CORE,
    "trustStorePassword": "files are PEM; keys without a password",
    "keyStorePassword": "files are PEM; keys without a password",
    "trustStoreType": "files are PEM",
    "keyStoreType": "files are PEM",
    "enabledCipherSuites": "OpenSSL's defaults are used",
    "enabledProtocols": "TLS 1.2 and later are used",
    "httpEnabled": "HTTP is not spoken",
    "deserializationBlackList": "there are no Java objects here",
    "deserializationWhiteList": "there are no Java objects here",
    "localBindPort": "nothing is sent to the group from here",
}


def parse_url(text: str) -> Target:
    """Take a connection URL apart; raises :class:`UrlError` with everything that is wrong."""
    text, secure, groups = _without_schemes(text)
    try:
        uris = parse_uris(text)
    except UriError as error:
        raise UrlError(str(error)) from None
    parameters: dict[str, str] = {}
    problems: list[str] = []
    for uri in uris:
        if uri.scheme != "tcp":
            problems.append(f"scheme {uri.scheme!r} is not supported: write tcp://host:port, or tcps:// with TLS")
        elif uri.port == 0:
            problems.append(f"port 0 of {uri.host} cannot be connected to")
        for name, value in uri.parameters.items():
            if parameters.setdefault(name, value) != value:
                problems.append(f"parameter {name!r} differs between brokers: options are for the whole connection")
    if secure:
        if len(uris) != secure:
            problems.append("tcp:// and tcps:// are mixed: TLS is for all brokers or for none")
        if parameters.setdefault("sslEnabled", "true").lower() == "false":
            problems.append("tcps:// contradicts sslEnabled=false")
    endpoints = tuple(dict.fromkeys(Endpoint(uri.host, uri.port) for uri in uris))
    group = None
    if groups:
        group, wrong = _group(text, endpoints, parameters)
        problems += wrong
        endpoints = ()
    values, retry, wrong = _read(parameters)
    problems += wrong
    if problems:
        raise UrlError("; ".join(dict.fromkeys(problems)))
    return Target(endpoints, Options(retry=RetryPolicy(**retry), **values), group)  # type: ignore[arg-type]  # by the table


def _without_schemes(text: str) -> tuple[str, int, int]:
    """Return the URL with `tcp://` for each `tcps://` and `udp://` before its parameters, and how many of each."""
    brokers, mark, parameters = text.partition(")") if text.lstrip().startswith("(") else text.partition("?")
    if re.search(r"(?i)\bjgroups://", brokers):
        raise UrlError("discovery by jgroups:// is not provided: write udp://group:port, or list the brokers")
    brokers, secure = re.subn(r"(?i)\btcps://", "tcp://", brokers)
    brokers, groups = re.subn(r"(?i)\budp://", "tcp://", brokers)
    return brokers + mark + parameters, secure, groups


def _group(text: str, places: tuple[Endpoint, ...], parameters: dict[str, str]) -> tuple[Group | None, list[str]]:
    """Return the group of a udp:// URL, whose parameters are taken out; and what is wrong."""
    problems: list[str] = []
    values: dict[str, object] = {}
    for name, (key, read) in GROUP_PARAMETERS.items():
        if name in parameters:
            try:
                values[key] = read(parameters.pop(name))
            except ValueError as error:
                problems.append(f"parameter {name!r}: {error}")
    if len(places) != 1:
        return None, [*problems, "udp:// stands alone: the brokers are those that announce themselves there"]
    ((host, port),) = places
    try:
        usable = ipaddress.IPv4Address(host).is_multicast
    except ValueError:
        usable = False
    if not usable:
        problems.append(f"{host!r} is not an IPv4 multicast address (224.0.0.0 to 239.255.255.255)")
    if f"{host}:{port}" not in text:
        problems.append("udp:// needs a port: write udp://group:port, as in the brokers' broadcast-group")
    return Group(host, port, **values), problems  # type: ignore[arg-type]  # by the table


def _read(parameters: dict[str, str]) -> tuple[dict[str, object], dict[str, object], list[str]]:
    """Return the fields of Options and of RetryPolicy, and what is wrong."""
    values: dict[str, object] = {}
    retry: dict[str, object] = {}
    problems: list[str] = []
    for name, text in parameters.items():
        if name in REFUSED:
            problems.append(f"parameter {name!r} is not supported: {REFUSED[name]}")
            continue
        if name in GROUP_PARAMETERS:
            problems.append(f"parameter {name!r} is for udp://, and this URL names its brokers")
            continue
        known = PARAMETERS.get(name)
        if known is None:
            problems.append(
                f"unknown parameter {name[:60]!r}{did_you_mean(name, [*PARAMETERS, *GROUP_PARAMETERS, *REFUSED])}"
            )
            continue
        try:
            value = known[1](text)
        except ValueError as error:
            problems.append(f"parameter {name!r}: {error}")
            continue
        (retry if known[0].startswith(".") else values)[known[0].removeprefix(".")] = value
    if not problems:
        if ("keyPath" in parameters) and "keyStorePath" not in parameters:
            problems.append("parameter 'keyPath' needs 'keyStorePath'")
        tls = {"trustStorePath", "keyStorePath", "keyPath", "verifyHost", "trustAll"} & parameters.keys()
        if tls and not values.get("ssl_enabled"):
            problems.append(f"parameter {min(tls)!r} needs sslEnabled=true or tcps://")
        interval, maximum = _number(retry, "interval", 2000), _number(retry, "maximum", 2000)
        if interval > maximum and "maxRetryInterval" not in parameters:
            retry["maximum"] = interval
        elif interval > maximum and "retryInterval" not in parameters:
            retry["interval"] = maximum
        elif interval > maximum:
            problems.append(f"retryInterval={interval} is larger than maxRetryInterval={maximum}")
        if values.get("initial_connect_attempts") == 0:
            problems.append("initialConnectAttempts=0 would never connect: allowed is -1 (no limit) or 1 and more")
    return values, retry, problems


def _number(values: dict[str, object], name: str, default: int) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else default
