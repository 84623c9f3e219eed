"""Who else belongs to the cluster connection: static connectors, or who is heard of by UDP multicast; and being heard.

The sockets and timers around :mod:`pollux.wire.core.datagram` (bytes) and :mod:`pollux.cluster.announcements` (who is
there). Everything is called in the loop's thread.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from pollux import multicast
from pollux.cluster.announcements import Dropped, Guesses, endpoints
from pollux.errors import PolluxError
from pollux.logs import event
from pollux.wire.core import datagram
from pollux.wire.core.announced import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.config.acceptors import ConnectorSettings, Endpoint
    from pollux.config.clusters import BroadcastGroup, DiscoveryGroup
    from pollux.config.model import Configuration
    from pollux.wire.core import ClusterKey

logger = logging.getLogger("pollux.ha")

_REMEDIES = {
    "size": "find out who sends it; give this cluster a group-address or group-port of its own",
    "foreign": "find out who sends it; give this cluster a group-address or group-port of its own",
    "form": "find out who sends it; give this cluster a group-address or group-port of its own",
    "version": "upgrade the older one of the two brokers",
    "password": "give all brokers of a cluster the same cluster-user and cluster-password, and every cluster a"
    " group-address or group-port of its own",
    "guesses": "find out who sends it: a password is being guessed, or another cluster has the same group",
    "full": "give every cluster a group-address or group-port of its own",
    "plain": "announce a connector with sslEnabled=true there: this broker's own has it, and reaches nobody without",
}


class DiscoveryError(PolluxError):
    """A group cannot be used; the text names it and the remedy."""


class Others:
    """The other members as static connectors name them."""

    #: How long :meth:`first` takes at most, seconds.
    patience = 0.0

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.endpoints = endpoints
        #: Called when :attr:`endpoints` has changed.
        self.on_change: list[Callable[[], None]] = []

    def start(self) -> None:
        """Look for them from now on. Raises DiscoveryError."""

    def stop(self) -> None:
        """Look for nobody any more."""

    async def first(self) -> None:
        """Wait until everybody who is there can have been found."""

    async def pause(self, seconds: float) -> None:
        """Wait before they are tried again, until there is somebody new at most."""
        await asyncio.sleep(seconds)


class Discovered(Others, asyncio.DatagramProtocol):
    """The other members as they announce themselves in a group. ``template``: the settings of our own connector."""

    def __init__(
        self,
        group: DiscoveryGroup,
        key: ClusterKey,
        template: ConnectorSettings,
        *,
        member: str,
        period: float,
    ) -> None:
        """``period``: how often members announce themselves, seconds."""
        super().__init__(())
        self._group = group
        self._key = key
        self._template = template
        self._clock = asyncio.get_running_loop().time
        self._period = period
        self.patience = group.initial_wait_timeout / 1000 + period
        self._table = Table(member, silence=group.refresh_timeout / 1000)
        self.dropped = Dropped()
        self._guesses = Guesses()
        self._found = asyncio.Event()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._waited = False

    def start(self) -> None:
        """Read what is announced from now on. Raises DiscoveryError."""
        self._socket = receiver(self._group)
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(loop.create_datagram_endpoint(lambda: self, sock=self._socket))

    def stop(self) -> None:
        """Close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._transport is not None:
            self._transport.close()
        elif self._socket is not None:
            self._socket.close()

    async def first(self) -> None:
        """Wait for ``initial-wait-timeout`` at most, and once one was found until the others can have been."""
        if self._waited:
            return
        if await _within(self._found, self._group.initial_wait_timeout / 1000):
            # It may be the live of another pair: what is said in a whole period was said by all.
            await asyncio.sleep(self._period)
        self._waited = True

    async def pause(self, seconds: float) -> None:
        """Wait before they are tried again, until there is somebody new at most."""
        # What has changed since the last pause counts too: who came meanwhile was not tried.
        await _within(self._changed, seconds)
        self._changed.clear()

    # -- asyncio's view

    def connection_made(self, transport: Any) -> None:
        """The socket is read from now on."""
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str | Any, int]) -> None:
        """Take an announcement; a datagram may be anybody's."""
        now, source = self._clock(), str(address[0])
        if not self._guesses.may_look(source, now):
            self._drop("guesses", address, now)
            return
        try:
            said = datagram.decode(data, self._key)
        except datagram.DatagramError as error:
            if error.kind == "password":
                self._guesses.wrong(source, now)
            self._drop(error.kind, address, now)
            return
        self._guesses.right(source)
        problem = self._table.heard(said, now)
        if problem == "full":
            self._drop(problem, address, now)
        elif not problem:
            self._look(now, address)

    def error_received(self, exc: Exception) -> None:
        """The system says that something could not be received."""
        logger.debug("discovery: %s", exc)

    def _drop(self, kind: str, address: tuple[str | Any, int], now: float) -> None:
        count = self.dropped.note(kind, now)
        if count:
            event(
                logger,
                logging.WARNING,
                "announcements dropped",
                group=self._group.name,
                reason=kind,
                source=address[0],
                count=count,
                remedy=_REMEDIES[kind],
            )

    def _look(self, now: float, address: tuple[str | Any, int] | None) -> None:
        """Something may have changed; and somebody may become silent."""
        gone = self._table.expire(now)
        for member in gone:
            event(logger, logging.INFO, "member is not announced any more", member=member, group=self._group.name)
        found, refused = endpoints(self._table.members(), self._template)
        if refused and address is not None:
            self._drop("plain", address, now)
        if found != self.endpoints:
            for one in found:
                if one not in self.endpoints:
                    where = f"{one.host}:{one.port}"
                    event(logger, logging.INFO, "member discovered", member=where, group=self._group.name)
            self.endpoints = found
            if found:
                self._found.set()
            self._changed.set()
            for function in self.on_change:
                function()
        if self._timer is not None:
            self._timer.cancel()
        due = self._table.due()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.01, due - now), self._silent)

    def _silent(self) -> None:
        self._timer = None
        self._look(self._clock(), None)


class Announcer:
    """Says in one broadcast group, again and again, where this broker is reached."""

    def __init__(self, group: BroadcastGroup, connectors: Iterable[Endpoint], key: ClusterKey, *, member: str) -> None:
        self._group = group
        self._key = key
        self._number = 0
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""
        reached = tuple(
            datagram.Reached(one.host, one.port, one.settings.ssl_enabled)
            for one in connectors
            if one.scheme == "tcp" and one.port
        )
        self._mine = datagram.Announcement(member, time.time_ns() // 1_000_000, os.urandom(16), 0, reached)
        try:
            datagram.encode(self._mine, key)
        except ValueError as error:
            raise DiscoveryError(
                f"broadcast-group {group.name!r}: {error}; announce fewer connectors, or with shorter host names"
            ) from error

    def open(self) -> None:
        """Make the socket. Raises DiscoveryError."""
        self._socket = sender(self._group)

    def start(self) -> None:
        """Announce this broker from now on."""
        self._again()

    def stop(self) -> None:
        """Say that this broker is not reached any more, if it ever was, and close the socket."""
        if self._timer is not None:
            self._timer.cancel()
            self._say(leaving=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _again(self) -> None:
        self._say(leaving=False)
        self._timer = asyncio.get_running_loop().call_later(self._group.broadcast_period / 1000, self._again)

    def _say(self, *, leaving: bool) -> None:
        self._number += 1
        mine = self._mine
        said = datagram.Announcement(mine.member, mine.began, mine.life, self._number, mine.connectors, leaving)
        self._send(datagram.encode(said, self._key))

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(data, (self._group.group_address or "", self._group.group_port or 0))
        except OSError as error:
            self._failed(error, "look at the routes of this machine, or set local-bind-address to one of the network")
        else:
            self._problem = ""

    def _failed(self, error: OSError, remedy: str = "look at the JGroups file that this group names") -> None:
        problem = error.strerror or str(error)
        if problem != self._problem:
            self._problem = problem
            event(
                logger,
                logging.WARNING,
                "this broker cannot be announced",
                group=self._group.name,
                reason=problem,
                remedy=remedy,
            )


def period(configuration: Configuration) -> float:
    """How often members announce themselves, seconds: as this broker does, or by default."""
    return max((group.broadcast_period for group in configuration.broadcast_groups), default=2000) / 1000


def receiver(group: DiscoveryGroup) -> socket.socket:
    """Return a socket that receives what is sent to the group. Raises DiscoveryError."""
    try:
        return multicast.receiver(group.group_address or "", group.group_port or 0, group.local_bind_address)
    except OSError as error:
        raise DiscoveryError(_unusable("discovery-group", group, error)) from error


def sender(group: BroadcastGroup) -> socket.socket:
    """Return a socket to send to the group, within this network only. Raises DiscoveryError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        local = group.local_bind_address
        # What is said on the loopback interface stays there; elsewhere it does not pass a router.
        hops = 0 if local is not None and ipaddress.ip_address(local).is_loopback else 1
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        if local is not None:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(local))
        if local is not None or group.local_bind_port > 0:
            made.bind((local or "", max(0, group.local_bind_port)))
    except OSError as error:
        made.close()
        raise DiscoveryError(_unusable("broadcast-group", group, error)) from error
    return made


def _unusable(what: str, group: DiscoveryGroup | BroadcastGroup, error: OSError) -> str:
    return (
        f"{what} {group.name!r}: {group.group_address}:{group.group_port} cannot be used on"
        f" {group.local_bind_address or 'the interface that the system chooses'}: {error.strerror}; set"
        " local-bind-address to an address that this machine has"
    )


async def _within(happened: asyncio.Event, seconds: float) -> bool:
    # Not asyncio.wait_for: until Python 3.12 that takes the end of a task for the event where both come at once.
    try:
        async with asyncio.timeout(seconds):
            return await happened.wait()
    except TimeoutError:
        return False
