"""The settings of an active-passive cluster as one value, and which of its addresses is this broker's own."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

from pollux.config.acceptors import Endpoint
from pollux.config.active_passive import connector_of
from pollux.errors import PolluxError
from pollux.ha.active_passive.ready import MARGIN

if TYPE_CHECKING:
    from pollux.config.acceptors import AcceptorSettings
    from pollux.config.active_passive import ActivePassive, BrokerAddress
    from pollux.config.model import Configuration

_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104  (compared, not listened on)
#: Longest time to connect to another broker, seconds.
_CONNECT = 5.0
#: Copies of older data that are kept, as in broker.xml's replication by default.
_KEEP = 2
#: How long the last step of a copy may take, seconds; as there.
_SYNCHRONISATION = 30.0


class Settings(NamedTuple):
    """Times in seconds. Members are named by their addresses: ``me`` is ours, ``others`` are the rest by name."""

    me: str
    host: str
    port: int
    others: dict[str, Endpoint]
    #: The TLS of our own address; None: without.
    tls: AcceptorSettings | None
    brokers_url: str
    public_url: str
    replicate: str
    backup_timeout: float
    heartbeat: float
    retry: float
    grant: float = 0.0
    min_in_sync: int = 0
    keep: int = _KEEP
    synchronisation: float = _SYNCHRONISATION
    virtual_address: str = ""
    #: How clients log in at our own address; empty: in all ways.
    mechanisms: tuple[str, ...] = ()

    @property
    def terms(self) -> dict[str, object]:
        """Return what has to be the same on all members, by option; else one waits for less than another relies on."""
        return {
            "ha-replicate": self.replicate,
            "ha-backup-timeout": self.backup_timeout,
            "link-heartbeat-interval": self.heartbeat,
            "grant-lease": self.grant,
            "min-in-sync": self.min_in_sync,
        }

    @property
    def lease(self) -> float:
        """How long a backup is ready by one word of its primary; how long a primary's loop may stand still."""
        return 2 * self.heartbeat

    @property
    def patience(self) -> float:
        """How long a primary waits for a backup in sync that is silent, before it sees who else is primary."""
        return self.lease - self.last_look

    @property
    def last_look(self) -> float:
        """How long somebody who was promoted in a primary's place may take to say so.

        A backup that hangs says nothing all that time: it and the patience before it are within the lease, which has to
        run out anyway before the primary goes on.
        """
        return min(_CONNECT, self.lease / 4)

    @property
    def connect_timeout(self) -> float:
        """How long to try to connect to another broker, and to wait for what it answers."""
        return min(_CONNECT, self.lease)

    @property
    def grace(self) -> float:
        """How long a new primary waits for each heir: never shorter than an heir may take itself for one."""
        return max(self.backup_timeout, self.lease * MARGIN)


def settings_of(configuration: Configuration) -> Settings:
    """Return the settings. Raises PolluxError where none of the addresses is this broker's own."""
    given = configuration.active_passive
    if given is None:
        raise PolluxError("this broker is in no active-passive cluster")
    found = {one: tls for one in given.brokers for tls in _mine(configuration, one)}
    mine = list(found)
    if len(mine) != 1:
        raise PolluxError(_which(given, mine))
    others = {str(one): endpoint_of(configuration, one) for one in given.brokers if one != mine[0]}
    return Settings(
        str(mine[0]),
        mine[0].host,
        mine[0].port,
        others,
        found[mine[0]] if mine[0].tls else None,
        given.ha_brokers_url,
        given.ha_public_url,
        given.ha_replicate.value,
        given.ha_backup_timeout,
        given.link_heartbeat_interval,
        given.link_maintenance_interval,
        given.grant_lease,
        given.min_in_sync,
        virtual_address=given.virtual_address,
        mechanisms=found[mine[0]].sasl_mechanisms,
    )


def _which(given: ActivePassive, mine: list[BrokerAddress]) -> str:
    found = f"{', '.join(map(str, mine))} are" if mine else "none is"
    return (
        f"of ha-brokers-url ({', '.join(map(str, given.brokers))}) {found} this broker's own: give each broker one"
        " address, with the port of an acceptor that has CORE among its protocols"
    )


def endpoint_of(configuration: Configuration, address: BrokerAddress) -> Endpoint:
    """Return how another broker is connected to: with TLS as the connector says that has its host and port.

    Raises PolluxError where there is none.
    """
    if not address.tls:
        return Endpoint("tcp", address.host, address.port)
    found = connector_of(configuration.connectors, address)
    if found is None:
        raise PolluxError(f"{address} of ha-brokers-url has no <connector> with sslEnabled and this host and port")
    return found


def _mine(configuration: Configuration, address: BrokerAddress) -> list[AcceptorSettings]:
    """Return the settings of our acceptor that listens there, if one does."""
    for acceptor in configuration.acceptors:
        right = acceptor.settings.ssl_enabled == address.tls and acceptor.speaks("CORE")
        if acceptor.port != address.port or not right:
            continue
        if acceptor.host.lower() == address.host or (acceptor.host in _WILDCARDS and _is_local(address.host)):
            return [acceptor.settings]
    return []


def _is_local(host: str) -> bool:
    """Whether this machine has the address: nobody else can listen on it."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
        except OSError:
            continue
        return True
    return False
