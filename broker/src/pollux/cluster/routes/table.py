"""The queues of other nodes and the paths to them: by owner and name, with every path, the shortest connected one used.

Split horizon: a peer is never told of its own queues, nor of those whose path goes through it. A record that comes back
to its owner, or to a node it went through, is left out. So links both ways, rings and meshes do not loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pollux.cluster.routes.records import Listener

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from pollux.cluster.routes.records import Key, QueueRecord, Telling


class Path(NamedTuple):
    """A way to a queue: the peer that is next, how many hops it is, whether all links of it are up."""

    peer: bytes
    distance: int
    connected: bool
    record: QueueRecord


class RoutingTable:
    """All that a node knows of others' queues. ``me`` is its node id; ``hops`` how far it looks (max-hops)."""

    def __init__(self, me: bytes, *, hops: int = 1, horizon: bool = True) -> None:
        """``horizon`` False: without split horizon, which is for tests of what that is good for."""
        self._me = me
        self._hops = hops
        self._horizon = horizon
        self._peers: dict[bytes, Listener] = {}
        self._connected: set[bytes] = set()
        self._best: dict[Key, Path] = {}
        self._groups: dict[tuple[str, str], dict[Key, Path]] = {}
        #: Grows with each change of a path, its record included.
        self.version = 0

    # -- peers

    def listener(self, peer: bytes) -> Listener:
        """Return what was heard of a peer."""
        found = self._peers.get(peer)
        if found is None:
            found = self._peers[peer] = Listener()
        return found

    def hear(self, peer: bytes, telling: Telling) -> set[Key]:
        """Take what a peer tells; return the queues to which the path is another one now."""
        listener = self.listener(peer)
        changed = listener.hear(telling)
        # With a whole telling a peer is there again: paths through it are connected, also where nothing else changed.
        return self._review(changed | listener.records.keys() if telling.whole else changed)

    def connected(self, peer: bytes) -> None:
        """The peer is reachable from now on; it tells everything anew."""
        self._connected.add(peer)

    def disconnected(self, peer: bytes) -> set[Key]:
        """The link to a peer is down: its queues stay known, and are used when there is no other."""
        self._connected.discard(peer)
        listener = self._peers.get(peer)
        if listener is None:
            return set()
        listener.disconnected()
        return self._review(listener.records)

    def forget(self, peer: bytes) -> set[Key]:
        """A peer does not come back: nothing that was heard of it counts."""
        self._connected.discard(peer)
        listener = self._peers.pop(peer, None)
        return self._review(listener.records) if listener is not None else set()

    # -- queues

    def path(self, key: Key, without: Container[bytes] = ()) -> Path | None:
        """Return the best way to a queue, not through any of the nodes ``without``."""
        if not without:
            return self._best.get(key)
        return min(self._paths(key, without), key=_preference, default=None)

    def paths(self, key: Key) -> list[Path]:
        """Return every way to a queue, the best one first."""
        return sorted(self._paths(key), key=_preference)

    def group(self, group: tuple[str, str]) -> Mapping[Key, Path]:
        """Return the queues of a group (see :attr:`QueueRecord.group`) at other nodes."""
        return self._groups.get(group, {})

    @property
    def groups(self) -> Iterable[tuple[str, str]]:
        """Address and routing name of all groups that other nodes have queues of."""
        return self._groups.keys()

    @property
    def queues(self) -> Mapping[Key, Path]:
        """Return the best way to each queue."""
        return self._best

    def _paths(self, key: Key, without: Container[bytes] = ()) -> Iterator[Path]:
        for peer, listener in self._peers.items():
            record = listener.records.get(key)
            if record is None or not record.path or (self._horizon and self._me in record.path):
                continue
            if len(record.path) > self._hops or any(node in without for node in record.path):
                continue
            yield Path(peer, len(record.path), peer in self._connected and record.reachable, record)

    def _review(self, keys: Iterable[Key]) -> set[Key]:
        changed = set()
        for key in sorted(keys):  # so that one history is one history
            before, now = self._best.get(key), min(self._paths(key), key=_preference, default=None)
            if now == before:
                continue
            changed.add(key)
            if before is not None:
                self._take_out(key, before)
            if now is not None:
                self._best[key] = now
                self._groups.setdefault(now.record.group, {})[key] = now
        if changed:
            self.version += 1
        return changed

    def _take_out(self, key: Key, before: Path) -> None:
        del self._best[key]
        group = self._groups[before.record.group]
        del group[key]
        if not group:
            del self._groups[before.record.group]

    # -- telling on

    def told(self, peer: bytes, key: Key) -> QueueRecord | None:
        """Return what a peer is told of another node's queue; None: nothing."""
        path = self._best.get(key)
        if path is None or (self._horizon and (peer in path.record.path or path.peer == peer)):
            return None
        return replace(path.record, path=(self._me, *path.record.path), reachable=path.connected)


def _preference(path: Path) -> tuple[bool, int, bytes]:
    return not path.connected, path.distance, path.peer
