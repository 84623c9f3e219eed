"""Active-passive clusters: Qpid's options, as ``<px:active-passive>`` has them and qpidd.conf. Values, and the URL.

The names are Qpid's, so that whoever comes from there finds each one. What is ours has no ``ha-`` before it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Struct, field

from pollux.config.kinds import Boolean, Enumeration, Integer, Kind, Password, Size, Text
from pollux.config.markers import Derived, NoEffect
from pollux.redacted import Redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.config.acceptors import Connector, Endpoint

#: Where Qpid's brokers listen when the URL does not say.
DEFAULT_PORT = 5672
_MAX_ADDRESSES = 64
_TIME = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{0,9})?)\s*(?P<unit>s|ms|us|ns|)", re.ASCII)
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_ADDRESS = re.compile(
    # What stands before a port is a host, whatever its name.
    r"(?:(?P<scheme>[a-z]+):(?![0-9]{1,6}\Z))?"
    r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9._-]{1,255})(?::(?P<port>[0-9]{1,6}))?",
    re.ASCII,
)


class Seconds(Kind, frozen=True):
    """A length of time as Qpid writes it: seconds, fractions allowed, or with one of the suffixes s, ms, us, ns."""

    minimum: float = 0.0
    maximum: float = 86_400.0
    #: What less than the minimum would mean.
    because: str = ""

    label: ClassVar[str] = "seconds (s, ms, us, ns suffixes)"

    def parse(self, text: str) -> float:
        """Return seconds. Raises ValueError."""
        found = _TIME.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text.strip()[:60]!r} is not a time: write seconds, such as 0.5, or 500ms")
        value = float(found["number"]) * _UNITS[found["unit"]]
        if not self.minimum <= value <= self.maximum:
            reason = f" ({self.because})" if self.because and value < self.minimum else ""
            raise ValueError(
                f"{text.strip()} is out of range: allowed is {self.minimum:g} to {self.maximum:g} seconds{reason}"
            )
        return value

    def describe(self) -> str:
        return f"{self.label}; {self.minimum:g} to {self.maximum:g}"

    def render(self, value: object) -> str:
        return f"{value:g}" if isinstance(value, float) else super().render(value)


class Level(StrEnum):
    """Name what of a queue, an address or a binding backups have. Names and values are Qpid's spelling."""

    none = "none"
    configuration = "configuration"
    all = "all"


class BrokerAddress(Struct, frozen=True):
    """One address of a URL."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'ssl:' if self.tls else ''}{host}:{self.port}"


def parse_url(text: str) -> tuple[BrokerAddress, ...]:
    """Return the addresses of a URL in Qpid's grammar; user and password before ``@`` are refused, unseen.

    ``["amqp:"] addr ("," addr)*`` where ``addr = ["tcp:" | "ssl:"] host [":" port]``. Raises ValueError.
    """
    text = text.strip()
    if "@" in text:
        raise ValueError("a user does not belong in the URL: write ha-username and ha-password")
    found: dict[BrokerAddress, None] = {}
    parts = text.removeprefix("amqp:").split(",")
    if len(parts) > _MAX_ADDRESSES:
        raise ValueError(f"more than {_MAX_ADDRESSES} addresses")
    for part in parts:
        match = _ADDRESS.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()[:80]!r} is not an address: write host:port, several separated by commas")
        if match["scheme"] not in (None, "tcp", "ssl"):
            raise ValueError(f"{match['scheme']}: is not supported: write tcp: or ssl:")
        port = int(match["port"] or DEFAULT_PORT)
        if not 0 < port < 65536:
            raise ValueError(f"{part.strip()[:80]!r} has no port from 1 to 65535")
        address = BrokerAddress(match["host"].strip("[]").lower(), port, match["scheme"] == "ssl")
        if address in found:
            raise ValueError(f"{address} is given twice")
        found[address] = None
    return tuple(found)


def connector_of(connectors: Iterable[Connector], address: BrokerAddress) -> Endpoint | None:
    """Return the endpoint of a connector that says how an ``ssl:`` address is connected to."""
    for connector in connectors:
        for endpoint in connector.endpoints:
            same = (endpoint.host.lower(), endpoint.port) == (address.host, address.port)
            if same and endpoint.settings.ssl_enabled:
                return endpoint
    return None


class Url(Text, frozen=True):
    """Addresses of brokers, in Qpid's grammar; kept as it is written."""

    label: ClassVar[str] = "addresses, comma separated"

    def parse(self, text: str) -> str:
        """Return the text. Raises ValueError."""
        if text.strip():
            parse_url(text)
        return text.strip()


class ActivePassive(Redacted, frozen=True):
    """``<px:active-passive>``: a cluster of which a resource manager decides who serves (Qpid's ``ha`` module)."""

    hidden: ClassVar[frozenset[str]] = frozenset({"ha_password"})

    ha_cluster: Annotated[bool, Boolean(), "Join the cluster."] = True
    ha_queue_replication: Annotated[
        bool,
        Boolean(),
        "Have replicas of single queues of other brokers, and let them have some; in a cluster it is always so.",
    ] = False
    ha_brokers_url: Annotated[
        str, Url(), "Addresses of all brokers of the cluster, this one's too; never a virtual one."
    ] = ""
    ha_public_url: Annotated[str, Url(), "Addresses that clients are told: the virtual one, where there is one."] = ""
    ha_replicate: Annotated[
        Level,
        Enumeration(values=Level),
        "What of objects without qpid.replicate backups have; the same on all brokers.",
    ] = Level.none
    ha_username: Annotated[str, Text(), "User of the brokers between each other; without it cluster-user."] = ""
    ha_password: Annotated[str | None, Password(), "Password of ha-username."] = None
    ha_mechanism: Annotated[
        str,
        Text(),
        NoEffect("brokers prove to each other that they know the password, and none is sent"),
        "SASL mechanism of the brokers between each other.",
    ] = ""
    ha_backup_timeout: Annotated[
        float, Seconds(), "How long a promoted broker waits for backups that were ready; others at a total outage."
    ] = 10.0
    ha_flow_messages: Annotated[
        int,
        Integer(),
        NoEffect("changes of files are copied, not messages; what is under way is bounded in bytes"),
        "Messages under way to a backup.",
    ] = 1000
    ha_flow_bytes: Annotated[
        int, Size(), NoEffect("16 MiB may be under way to a backup"), "Bytes under way to a backup."
    ] = 0
    link_maintenance_interval: Annotated[
        float, Seconds(minimum=0.01), "Pause of a backup between two attempts to find the broker that serves."
    ] = 2.0
    link_heartbeat_interval: Annotated[
        float,
        Seconds(minimum=0.05, because="without heartbeats a broker that hangs would never be noticed"),
        "A broker that is silent for twice as long is dead to the others.",
    ] = 120.0
    min_in_sync: Annotated[
        int,
        Integer(maximum=63),
        "Ready backups without which nothing is confirmed, instead of going on with fewer copies.",
    ] = 0
    grant_lease: Annotated[
        float,
        Seconds(),
        "How long a promoted broker serves without the resource manager's agent saying so again; 0: for ever.",
    ] = 0.0
    virtual_address: Annotated[
        str,
        Text(),
        "The IP address that the resource manager has where the primary is: it is told when it is elsewhere.",
    ] = ""
    #: The qpidd.conf that it was read from; empty: broker.xml.
    source: Annotated[str, Derived(), "The file."] = ""
    line: int = 0
    #: Where each option was given.
    lines: dict[str, int] = field(default_factory=dict)

    def line_of(self, option: str) -> int:
        """Return the line of an option, else that of the element."""
        return self.lines.get(option.replace("-", "_"), self.line)

    @property
    def brokers(self) -> tuple[BrokerAddress, ...]:
        """The addresses of all brokers."""
        return parse_url(self.ha_brokers_url) if self.ha_brokers_url else ()

    @property
    def public(self) -> tuple[BrokerAddress, ...]:
        """The addresses that clients are told."""
        return parse_url(self.ha_public_url) if self.ha_public_url else ()
