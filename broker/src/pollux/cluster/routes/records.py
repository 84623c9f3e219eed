"""One versioned record for each queue: what nodes tell each other of themselves. State, not changes: a record that is
heard twice is heard once, one that is older than what is known is left out, and one that was missed is noticed.

A telling has a number; they follow each other without a gap. Every so often a digest of all that was told goes along:
where it differs from what was heard, or a number is missing, everything is told anew.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from msgspec import Struct, msgpack
from msgspec.structs import astuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Owner (a node id) and name of a queue.
Key = tuple[bytes, str]


class QueueRecord(Struct, frozen=True, array_like=True):
    """A queue as the node that owns it describes it, and the way by which this was heard.

    ``version`` grows with each change, within one owner. ``path``: the nodes from who tells this to the owner, both
    included. ``filter`` is the queue's own. ``consumers``: how many take every message; ``filtered``: of the others
    how many have which filter. ``credit``: messages that these take now; ``backlog``: messages that wait. Not
    ``reachable``: a link on the path is down, and what is sent waits there. ``gone``: the queue was deleted, or nobody
    tells of it. ``home``: it is a durable subscription that its client takes from there; it is ``user``'s (None:
    everybody's). ``no_local``: it is one that takes no message of the connection it is attached from.
    """

    owner: bytes
    queue: str
    version: int
    address: str
    multicast: bool
    path: tuple[bytes, ...]
    filter: str = ""
    consumers: int = 0
    filtered: tuple[tuple[str, int], ...] = ()
    credit: int = 0
    backlog: int = 0
    reachable: bool = True
    gone: bool = False
    home: bool = False
    user: str | None = None
    no_local: bool = False

    @property
    def key(self) -> Key:
        """Which queue it is about."""
        return self.owner, self.queue

    @property
    def has_consumers(self) -> bool:
        """Whether anybody takes messages there."""
        return bool(self.consumers or self.filtered)

    @property
    def group(self) -> tuple[str, str]:
        """Address and routing name: a message goes to one of the queues of a group.

        ANYCAST queues of one address are one group whatever their names are, MULTICAST ones are by their name.
        """
        return self.address, self.queue if self.multicast else ""


class Telling(Struct, frozen=True, array_like=True):
    """Hold what is told at once. ``whole``: it is everything, what is not in it is not there."""

    number: int
    whole: bool
    records: tuple[QueueRecord, ...]
    digest: int = -1


#: Fields of a record as 0.1.0 knows it, whose digest is of these. With any of the others the version is another one.
_MARKED = 13


def _mark(record: QueueRecord) -> int:
    marked = msgpack.encode(astuple(record)[:_MARKED])
    return int.from_bytes(blake2b(marked, digest_size=7).digest(), "little")


class Teller:
    """Hold what one peer is told. It remembers a mark for each record, so that only what changed is told."""

    def __init__(self) -> None:
        self._told: dict[Key, int] = {}
        self._number = 0
        self._digest = 0

    def all(self, records: Iterable[QueueRecord]) -> Telling:
        """Tell everything: at the beginning, and when the peer missed something."""
        listed = tuple(records)
        self._told = {record.key: _mark(record) for record in listed}
        self._digest = _sum(self._told.values())
        return self._next(listed, whole=True)

    def changes(self, records: Mapping[Key, QueueRecord], keys: Iterable[Key]) -> Telling | None:
        """Tell of these queues what the peer does not know, None: nothing. Those not in ``records`` are gone."""
        listed = []
        for key in keys:
            before, record = self._told.get(key), records.get(key)
            if record is None:
                if before is not None:
                    del self._told[key]
                    self._digest ^= before
                    listed.append(QueueRecord(*key, 0, "", False, (), gone=True))
                continue
            mark = _mark(record)
            if mark != before:
                self._digest ^= mark ^ (before or 0)
                self._told[key] = mark
                listed.append(record)
        return self._next(tuple(listed), whole=False) if listed else None

    def digest(self) -> Telling:
        """Tell nothing but the digest of what was told so far."""
        return self._next((), whole=False)

    def _next(self, records: tuple[QueueRecord, ...], *, whole: bool) -> Telling:
        self._number += 1
        return Telling(self._number, whole, records, self._digest)


class Listener:
    """Hold what was heard of one peer."""

    def __init__(self) -> None:
        self.records: dict[Key, QueueRecord] = {}
        self._marks: dict[Key, int] = {}
        self._digest = 0
        self._number = 0
        #: Why everything has to be told anew; empty when it need not.
        self.missed = "nothing was heard yet"

    def hear(self, telling: Telling) -> set[Key]:
        """Take a telling; return the queues of which something else is known now. :attr:`missed` may be set then."""
        if telling.whole:
            return self._hear_all(telling)
        if telling.number <= self._number:
            return set()
        if self.missed:
            return set()
        if telling.number != self._number + 1:
            self.missed = f"telling {telling.number} came after {self._number}"
            return set()
        self._number = telling.number
        changed = set()
        for record in telling.records:
            known = self.records.get(record.key)
            if record.gone:
                if known is not None:
                    self._forget(record.key)
                    changed.add(record.key)
            elif known is not None and record.version < known.version:
                self.missed = f"queue {record.queue!r} was told of in version {record.version} after {known.version}"
            else:
                self._keep(record)
                changed.add(record.key)
        if not self.missed and telling.digest != self._digest:
            self.missed = f"the digest of telling {telling.number} is another one"
        return changed

    def _hear_all(self, telling: Telling) -> set[Key]:
        before = dict(self.records)
        self.records.clear()
        self._marks.clear()
        self._digest = 0
        for record in telling.records:
            if not record.gone:
                self._keep(record)
        self._number = telling.number
        self.missed = ""
        changed = {key for key, record in self.records.items() if before.get(key) != record}
        return changed | (before.keys() - self.records.keys())

    def _keep(self, record: QueueRecord) -> None:
        key, mark = record.key, _mark(record)
        self._digest ^= mark ^ self._marks.get(key, 0)
        self._marks[key] = mark
        self.records[key] = record

    def _forget(self, key: Key) -> None:
        del self.records[key]
        self._digest ^= self._marks.pop(key)

    def disconnected(self) -> None:
        """The peer is not heard any more: what was heard is kept, until everything is told again."""
        self.missed = "the link was down"
        self._number = 0


def _sum(marks: Iterable[int]) -> int:
    total = 0
    for mark in marks:
        total ^= mark
    return total
