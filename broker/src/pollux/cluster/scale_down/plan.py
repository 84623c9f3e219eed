"""Decide where a broker that is scaled down puts what it has, and how far it is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pollux.config.clusters import ScaleDown

#: Messages that may be on the way to one node, and bytes of them in memory.
MOST_ON_THE_WAY, MOST_BYTES_ON_THE_WAY = 4000, 8 << 20


class About(Struct, frozen=True, array_like=True):
    """Hold what a node tells of itself to those that send to it.

    ``draining``: it gives away what it has. ``free``: bytes that its store has room for, roughly. ``group``: its
    group-name of scale-down, empty without one. ``host``: the machine it is on.
    """

    draining: bool = False
    free: int = 0
    group: str = ""
    host: str = ""


class Wanted(Struct, frozen=True):
    """Whom broker.xml names. ``connectors`` empty: every node of the cluster. ``group`` empty: of whatever group."""

    connectors: tuple[str, ...] = ()
    group: str = ""
    enabled: bool = True
    #: Messages in one transaction at most; -1: as many as are convenient.
    interval: int = -1


def wanted_of(scale_down: ScaleDown | None) -> Wanted:
    """Return whom a broker with this element, or without one, gives what it has."""
    if scale_down is None:
        return Wanted(enabled=False)
    return Wanted(scale_down.connectors, scale_down.group_name or "", scale_down.enabled, scale_down.commit_interval)


class Peer(NamedTuple):
    """A node as the links to it show it. ``about`` None: it has not told yet. ``reason``: why it is not connected."""

    connector: str
    node: bytes
    name: str
    connected: bool
    about: About | None
    reason: str = ""


def targets(peers: Sequence[Peer], wanted: Wanted) -> tuple[list[Peer], str]:
    """Return the nodes that may get messages, and, when there is none, why in words for an operator."""
    named = _named(peers, wanted)
    fitting = [peer for peer in named if peer.connected and not unfit(peer, wanted)]
    if fitting:
        return fitting, ""
    if not named:
        return [], "no other node is named: give scale-down connectors, or the cluster-connection static-connectors"
    reasons = "; ".join(f"{peer.name or peer.connector}: {unfit(peer, wanted)}" for peer in named)
    return [], f"no node may take messages: {reasons}"


def nowhere(peers: Sequence[Peer], wanted: Wanted) -> str:
    """Return why a stop would find nobody who takes messages; empty: somebody does, or not all have told yet."""
    named = _named(peers, wanted)
    told = bool(named) and all(peer.connected and peer.about is not None for peer in named)
    return targets(peers, wanted)[1] if told else ""


def _named(peers: Sequence[Peer], wanted: Wanted) -> list[Peer]:
    return [peer for peer in peers if not wanted.connectors or peer.connector in wanted.connectors]


def unfit(peer: Peer, wanted: Wanted) -> str:
    """Return why a node may get nothing; empty: it may."""
    if not peer.connected:
        return peer.reason or "it is not connected"
    if peer.about is None:
        return "it has not told yet what it takes"
    if peer.about.draining:
        return "it is being scaled down itself"
    if wanted.group and peer.about.group != wanted.group:
        group = f"its group-name is {peer.about.group!r}" if peer.about.group else "it has no group-name"
        return f"{group}, not {wanted.group!r}"
    return ""


def choose(
    fitting: Sequence[Peer], takers: Collection[bytes], given: Mapping[bytes, int], size: int, host: str
) -> Peer:
    """Return the node that gets a queue of ``size`` bytes.

    One that has consumers of it (``takers``), then one on another machine than ``host``, then the one with most room
    once it has what it was ``given`` already. The same for whoever asks: the last word has the node id.
    """

    def score(peer: Peer) -> tuple[bool, bool, bool, int, bytes]:
        about = peer.about or About()
        left = about.free - given.get(peer.node, 0)
        return peer.node in takers, left >= size, about.host != host, left, peer.node

    return max(fitting, key=score)


def room_for(waiting: int, size: int) -> int:
    """Return how many messages may be written for a node: ``waiting`` of them, ``size`` bytes, are on their way."""
    return max(0, MOST_ON_THE_WAY - waiting) if size <= MOST_BYTES_ON_THE_WAY else 0


class Shape(NamedTuple):
    """A queue, as far as another one of its name has to be the same to take its messages."""

    address: str
    routing_type: str
    selector: str


def contradiction(name: str, here: Shape, there: Shape) -> str:
    """Return why the queue ``there`` cannot be handed over to the one that is ``here``; empty: it can."""
    for what, ours, theirs in zip(("address", "routing type", "filter"), here, there, strict=True):
        if ours != theirs:
            return f"there is another queue {name!r}, of {what} {ours!r} instead of {theirs!r}: delete one of them"
    return ""


class Part(NamedTuple):
    """A queue that is not empty; or a thing of another kind (``what``) that has messages, by its name.

    ``held``: messages that go only with the stop, as they are with consumers or a session. ``refused``: why its target
    does not take it.
    """

    queue: str
    messages: int
    held: int = 0
    refused: str = ""
    what: str = "queue"

    @property
    def label(self) -> str:
        """Return what it is called where queues are listed."""
        return self.queue if self.what == "queue" else f"{self.what} {self.queue}"


class Sight(Struct, frozen=True):
    """Hold what is left. ``on_the_way``: messages that wait for another node's confirm, by its name.

    ``unreached``: those among them for nodes that are not connected. ``coming``: names of nodes that still hold
    messages for this one. ``states``: sessions and the like that are not handed over yet.
    """

    parts: tuple[Part, ...] = ()
    on_the_way: int = 0
    unreached: tuple[tuple[str, int], ...] = ()
    coming: tuple[str, ...] = ()
    states: int = 0
    #: Why nobody may get anything; empty: somebody may.
    nobody: str = ""
    #: What is held goes when the broker stops.
    stops: bool = False

    @property
    def left(self) -> int:
        """Return how many messages are not on another node's disk."""
        return sum(part.messages for part in self.parts) + self.on_the_way + sum(count for _, count in self.unreached)


class Progress(NamedTuple):
    """How far it is. ``state``: moving, waiting (somebody else has to do something: ``reason``), ready, or drained.

    Ready: what is left goes when the broker stops, and nothing else is in the way.
    """

    state: str
    reason: str = ""


def progress(sight: Sight) -> Progress:
    """Say how far it is, and what it waits for."""
    refused = next((part for part in sight.parts if part.refused), None)
    moving = [part for part in sight.parts if part.messages > part.held and not part.refused]
    if sight.nobody and (sight.parts or sight.states):
        return Progress("waiting", sight.nobody)
    if moving or sight.on_the_way or (sight.states and not sight.parts):
        left = f"{sight.left} messages are left"
        if sight.on_the_way and not moving:
            left += ", on the way: if that stays so, `pollux cluster why` of their queue says what they wait for"
        return Progress("moving", left if sight.left else "sessions and subscriptions are handed over")
    if refused is not None:
        return Progress("waiting", f"{refused.what} {refused.queue!r}: {refused.refused}")
    if sight.unreached:
        name, count = sight.unreached[0]
        return Progress("waiting", f"{count} messages wait for node {name}, which is not connected")
    if sight.coming:
        return Progress("waiting", f"node {sight.coming[0]} still has messages for this one")
    if sight.parts:
        part = sight.parts[0]
        others = f" and {len(sight.parts) - 1} other queues" if len(sight.parts) > 1 else ""
        held = f"messages of queue {part.queue!r}{others} are with consumers or sessions"
        if sight.stops:
            return Progress("ready", f"{held}: they go when the broker stops")
        return Progress("waiting", f"{held}: they go when these leave")
    return Progress("drained")
