"""Decide who hosts the backup of a live: what the live does next, and what a host answers. Pure; times are seconds.

Hosts are known as they tell of themselves, so what is known may be old: the host has the last word, and its answer is
the same when the same live asks again. Who has the right to serve is not decided here: the lock of the store, or the
sequence of a replicated pair, keeps a node id to one life wherever its backup is.
"""

from __future__ import annotations

from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: An answer that no backup follows holds its slot so long.
RESERVED = 30.0


class Host(Struct, frozen=True):
    """A host as it tells of itself.

    ``node``: the id of its own live. ``domain``: what fails together; empty: its ``machine`` alone. ``room``: backups
    it takes at most. ``backups``: the node ids whose backups it has, or promised to have. ``group``: its group-name.
    ``alone``: its own live finds nobody who can have its backup.
    """

    node: bytes
    machine: str
    room: int
    domain: str = ""
    backups: frozenset[bytes] = frozenset()
    group: str = ""
    alone: bool = False


class BackupRequest(Struct, frozen=True):
    """Hold what a live wants. ``asked``: attempts since it had a backup last; ``retries``: attempts allowed, -1: any.

    ``at``: who has its backup as far as it knows, empty: nobody. ``last``: when it asked last. ``interval``: seconds
    between two attempts.
    """

    node: bytes
    machine: str
    domain: str = ""
    group: str = ""
    at: bytes = b""
    asked: int = 0
    retries: int = -1
    last: float = 0.0
    interval: float = 5.0


class Next(NamedTuple):
    """Hold what a live does.

    ``what``: keep (its backup is where it should be), ask (``host``), move (ask ``host``, and leave the other one when
    that has everything), wait (until ``again``), give up.
    """

    what: str
    reason: str
    host: bytes = b""
    again: float = 0.0


def unfit(request: BackupRequest, host: Host) -> str:
    """Return why a host cannot have the backup of a live; empty: it can."""
    if host.node == request.node:
        return "it is the live itself"
    if host.machine == request.machine:
        return f"it is on the live's own machine, {host.machine}"
    if host.group != request.group:
        return f"its group-name is {host.group!r}, not {request.group!r}"
    if request.node not in host.backups and len(host.backups) >= host.room:
        return f"it has {len(host.backups)} backups of max-backups {host.room}"
    return ""


def decide(request: BackupRequest, hosts: Sequence[Host], now: float) -> Next:
    """Say what a live does that wants a backup. ``hosts``: those that are reached now."""
    known = {host.node: host for host in hosts}
    current = known.get(request.at)
    if current is not None and request.node in current.backups and not unfit(request, current):
        lonely = _helped(request, hosts)
        if lonely is not None:
            return Next("move", f"it makes room for the live of {lonely.machine}, which finds no host", lonely.node)
        return Next("keep", f"{current.machine} has the backup")
    again = request.last + request.interval if request.asked else now
    if 0 <= request.retries < request.asked:
        return Next("give up", f"nobody took the backup in {request.asked} attempts (backup-request-retries)")
    if now < again:
        return Next("wait", "the last attempt was just now", again=again)
    fitting = [host for host in hosts if not unfit(request, host)]
    if not fitting:
        reasons = "; ".join(f"{host.machine}: {unfit(request, host)}" for host in hosts if host.node != request.node)
        return Next(
            "wait", f"no host can have it: {reasons or 'no other host is reached'}", again=now + request.interval
        )
    chosen = min(fitting, key=lambda host: _rank(request, host))
    return Next("ask", f"{chosen.machine} has {len(chosen.backups)} backups, the fewest", chosen.node)


def _helped(request: BackupRequest, hosts: Sequence[Host]) -> Host | None:
    """Return a host with room whose own live finds none, when this live is the one that has to make place for it.

    A circle of lives that host each other leaves out one whose host is free for all but itself.
    """
    known = {host.node for host in hosts}
    for lonely in sorted((host for host in hosts if host.alone), key=lambda host: host.node):
        if unfit(request, lonely):
            continue
        movers = {
            node
            for host in hosts
            if host.machine != lonely.machine and host.group == lonely.group
            for node in host.backups & known - {lonely.node}
        }
        if min(movers, key=lambda node: _mixed(node, lonely.node), default=b"") == request.node:
            return lonely
    return None


def _mixed(node: bytes, other: bytes) -> bytes:
    """Return what orders pairs of nodes, the same wherever it is asked."""
    return blake2b(node + other, digest_size=8).digest()


def _rank(request: BackupRequest, host: Host) -> tuple[bool, bool, int, bytes]:
    """Who has it already comes first, then another failure domain, then the fewest backups, then a fixed order."""
    own, other = request.domain or request.machine, host.domain or host.machine
    return request.node not in host.backups, own == other, len(host.backups), _mixed(request.node, host.node)


class Slots:
    """The slots of one host, from 1 on: each node id keeps its own. ``promised`` ones are given up after a while."""

    def __init__(self, host: Host, kept: Mapping[bytes, int] | None = None) -> None:
        """``kept``: the slots of backups that are here already."""
        self.host = host
        #: The host's own live finds nobody for its backup.
        self.alone = False
        self.slots: dict[bytes, int] = dict(kept or {})
        self._promised: dict[bytes, float] = {}
        #: When each asked for its slot last.
        self._asked: dict[bytes, float] = {}

    def ask(self, request: BackupRequest, now: float) -> tuple[int, str]:
        """Answer a live: its slot, or 0 and why not. Asked again it is the same slot."""
        self.expire(now)
        refusal = unfit(request, self.told())
        if refusal:
            return 0, refusal
        if request.node not in self.slots:
            self.slots[request.node] = next(n for n in range(1, self.host.room + 1) if n not in self.slots.values())
            self._promised[request.node] = now + RESERVED
        self._asked[request.node] = now
        return self.slots[request.node], ""

    def started(self, node: bytes) -> None:
        """The backup of a node runs here: its slot is no promise any more."""
        self._promised.pop(node, None)

    def drop(self, node: bytes) -> None:
        """The backup of a node is not here any more, nor wanted."""
        self.slots.pop(node, None)
        self._promised.pop(node, None)
        self._asked.pop(node, None)

    def expire(self, now: float) -> None:
        """Give up what was promised and did not come."""
        for node in [node for node, until in self._promised.items() if until <= now]:
            self.drop(node)

    def told(self) -> Host:
        """Return what this host tells of itself."""
        host = self.host
        return Host(host.node, host.machine, host.room, host.domain, frozenset(self.slots), host.group, self.alone)

    def unwanted(self, elsewhere: Mapping[bytes, bytes], serving: Collection[bytes], heard: float) -> list[bytes]:
        """Return the nodes whose lives say that their backup is elsewhere; not those that are served from here.

        ``heard``: when they may have said so, seconds. Who asked for its slot later has changed its mind.
        """
        return [
            node
            for node in self.slots
            if node in elsewhere
            and elsewhere[node] != self.host.node
            and node not in serving
            and self._asked.get(node, -inf) < heard
        ]
