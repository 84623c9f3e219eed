"""Where clients find the members of this broker's pair or cluster: what each announces, and what clients are told.

A member announces its acceptors with the host of the connector that others use to reach it. Pure: no I/O, no time.
What others announce was said by somebody who knows the cluster password or shares the store; it is bounded and checked
all the same.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.config.acceptors import PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pollux.config.acceptors import Acceptor, Endpoint
    from pollux.config.model import Configuration

#: Members remembered, addresses of one member, and servers that a client is told of.
MAXIMUM_MEMBERS = 64
MAXIMUM_ADDRESSES = 16
MAXIMUM_SERVERS = 64
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}", re.ASCII)
_SCHEMES = {False: "amqp", True: "amqps"}


class Address(NamedTuple):
    """Where a member takes clients: with or without TLS, and which protocols; none: all."""

    host: str
    port: int
    tls: bool
    protocols: tuple[str, ...] = ()


class Announcement(NamedTuple):
    """A member as it describes itself: its id, its connector's endpoints (``links``, for brokers), where clients go."""

    member: str
    links: tuple[tuple[str, int], ...]
    addresses: tuple[Address, ...]

    def as_content(self) -> dict[str, Any]:
        """As it is sent, or written beside the store: a map of lists."""
        return {
            "links": [list(link) for link in self.links],
            "addresses": [[one.host, one.port, one.tls, list(one.protocols)] for one in self.addresses],
        }


def parse(member: str, content: object) -> Announcement | None:
    """The announcement in a map that a member sent; None when it is none, or longer than a member may be."""
    try:
        given: Any = content
        if len(given["links"]) > MAXIMUM_ADDRESSES:
            return None
        links = tuple((_host(host), _port(port)) for host, port in given["links"])
        listed = given["addresses"]
        if len(listed) > MAXIMUM_ADDRESSES:
            return None
        addresses = tuple(
            Address(_host(host), _port(port), bool(tls), tuple(name for name in PROTOCOLS if name in protocols))
            for host, port, tls, protocols in listed
            # One for protocols that are not known here is nothing for a client of this broker.
            if not protocols or any(name in protocols for name in PROTOCOLS)
        )
    except (TypeError, ValueError, LookupError):
        return None
    return Announcement(member, links, addresses)


def _host(text: object) -> str:
    if not isinstance(text, str) or not _HOST.fullmatch(text):
        raise ValueError("not a host")
    return text


def _port(number: object) -> int:
    if not isinstance(number, int) or not 0 < number < 65536:
        raise ValueError("not a port")
    return number


def announcement_of(configuration: Configuration, member: str) -> Announcement:
    """Return what this broker announces; without addresses when it has no cluster connection."""
    own = [endpoint for endpoint in _own(configuration) if endpoint.scheme == "tcp" and endpoint.port]
    links = tuple((endpoint.host, endpoint.port) for endpoint in own)
    acceptors = [one for one in configuration.acceptors if one.scheme == "tcp" and one.port and one.settings.auto_start]
    ports = {acceptor.port for acceptor in acceptors}
    found: dict[Address, None] = {}
    for endpoint in own:
        if endpoint.port not in ports:
            # It leads here by another port (a translated address): that is all that is known.
            found[Address(endpoint.host, endpoint.port, endpoint.settings.ssl_enabled)] = None
            continue
        # The acceptor that the connector leads to comes first.
        for acceptor in sorted(acceptors, key=lambda one: one.port != endpoint.port):
            for tls in _kinds(acceptor):
                if _reachable(acceptor.host, endpoint.host):
                    protocols = tuple(name for name in acceptor.settings.protocols if name != "CORE")
                    if protocols or not acceptor.settings.protocols:
                        found[Address(endpoint.host, acceptor.port, tls, protocols)] = None
    return Announcement(member, links[:MAXIMUM_ADDRESSES], tuple(found)[:MAXIMUM_ADDRESSES])


def _own(configuration: Configuration) -> Iterable[Endpoint]:
    connectors = {connector.name: connector for connector in configuration.connectors}
    for name in dict.fromkeys(cluster.connector_ref for cluster in configuration.cluster_connections):
        yield from connectors[name].endpoints if name in connectors else ()


def _kinds(acceptor: Acceptor) -> tuple[bool, ...]:
    """Whether it takes connections with TLS, without, or both."""
    settings = acceptor.settings
    if not settings.ssl_enabled:
        return (False,)
    return (True, False) if settings.ssl_allow_plain else (True,)


def _reachable(listening: str, announced: str) -> bool:
    """Whether an acceptor may be meant by the announced host: one on the loopback is not, from elsewhere."""
    return not _is_loopback(listening) or _is_loopback(announced)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Topology:
    """The others of one broker's pair, or the nodes of its cluster: static connectors, and what was announced."""

    def __init__(self, configuration: Configuration, member: str = "") -> None:
        self.mine = announcement_of(configuration, member)
        self._static = _static(configuration)
        #: Members of a pair have the same of it in their connectors.
        self._tls = any(endpoint.settings.ssl_enabled for endpoint in _own(configuration))
        # Lives of other pairs are named for their votes: they have other data, and clients must not end there.
        part = configuration.replication_part
        self._voters = part is not None and part.manager is None and len(self._static) > 1
        self._announced: dict[str, Announcement] = {}

    def heard(self, announcement: Announcement | None) -> None:
        """Note the announcement of a member of the pair; the last one counts, also while that member is gone."""
        if announcement is None or announcement.member == self.mine.member:
            return
        self._announced.pop(announcement.member, None)
        if len(self._announced) >= MAXIMUM_MEMBERS:
            del self._announced[next(iter(self._announced))]
        self._announced[announcement.member] = announcement

    def forget(self, member: str) -> None:
        """Send no client any more to a member that does not come back; nor by a connector that led to it."""
        known = self._announced.get(member)
        if known is not None:
            self._announced[member] = known._replace(addresses=())

    def places(self) -> list[tuple[str, int, bool]]:
        """Where other nodes reach the brokers of this one: host, port, and whether by TLS. This broker first."""
        said = [self.mine, *self._announced.values()]
        return [(host, port, self._tls) for one in said for host, port in one.links]

    def servers(
        self, protocol: str, tls: bool, places: Iterable[tuple[str, int, bool]] = ()
    ) -> list[tuple[str, int, str]]:
        """Where a client of ``protocol`` may go instead: host, port, scheme (amqp or amqps).

        A client with TLS is told only of addresses with TLS; one without of plain ones, or of all where there are none.
        ``places``: where brokers of the cluster are reached that need not have announced anything here (host, port,
        whether by TLS): backups, and nodes to which there is no link.
        """
        found = [
            address
            for announcement in self._announced.values()
            for address in announcement.addresses
            if not address.protocols or protocol in address.protocols
        ]
        known = {link for announcement in self._announced.values() for link in announcement.links}
        if not self._voters:
            found += [address for address in self._static if (address.host, address.port) not in known]
        found += [Address(host, port, by_tls) for host, port, by_tls in places if (host, port) not in known]
        mine = {(address.host, address.port) for address in self.mine.addresses}
        fitting = [address for address in found if address.tls == tls and (address.host, address.port) not in mine]
        if not fitting and not tls:
            fitting = found
        listed = dict.fromkeys((one.host, one.port, _SCHEMES[one.tls]) for one in fitting)
        return list(listed)[:MAXIMUM_SERVERS]


def _static(configuration: Configuration) -> list[Address]:
    """The other members by the static connectors; they may take other protocols than the brokers' own, or not."""
    connectors: Mapping[str, Any] = {connector.name: connector for connector in configuration.connectors}
    found: dict[Address, None] = {}
    for cluster in configuration.cluster_connections:
        for name in cluster.static_connectors.connector_refs if cluster.static_connectors else ():
            if name in connectors and name != cluster.connector_ref:
                for endpoint in connectors[name].endpoints:
                    found[Address(endpoint.host, endpoint.port, endpoint.settings.ssl_enabled)] = None
    return list(found)
