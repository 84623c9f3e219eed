"""The duplicate ids an address remembers: the newest ``limit`` of them. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Longer ids are remembered by their digest, so that what one costs has a bound.
_LONGEST = 64


def _short(duplicate_id: bytes) -> bytes:
    return duplicate_id if len(duplicate_id) <= _LONGEST else blake2b(duplicate_id).digest()


class DuplicateCache:
    """A ring of ids. When it is full each new id takes the place of the oldest; 0 remembers nothing.

    The ring grows as ids come, so that a large limit costs nothing where no one uses it. An id may have a node, that
    alone has its message: as long as the id is known, so is that.
    """

    __slots__ = ("_away", "_next", "_ring", "_slots", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 0)
        self._ring: list[bytes | None] = []
        self._slots: dict[bytes, int] = {}
        self._away: dict[bytes, bytes] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, duplicate_id: bytes) -> bool:
        return _short(duplicate_id) in self._slots

    def __iter__(self) -> Iterator[bytes]:
        """Yield the ids, oldest first."""
        for i in range(len(self._ring)):
            found = self._ring[(self._next + i) % len(self._ring)]
            if found is not None:
                yield found

    def add(self, duplicate_id: bytes) -> bool:
        """Remember an id. False when it was there already: the message is a duplicate."""
        duplicate_id = _short(duplicate_id)
        if duplicate_id in self._slots:
            return False
        if self.limit == 0:
            return True
        slot = self._next
        if len(self._ring) < self.limit:
            if slot == len(self._ring):
                self._ring.append(duplicate_id)
            else:
                self._replace(slot, duplicate_id)
        else:
            self._replace(slot, duplicate_id)
        self._slots[duplicate_id] = slot
        self._next = (slot + 1) % self.limit
        return True

    def _replace(self, slot: int, duplicate_id: bytes) -> None:
        oldest = self._ring[slot]
        if oldest is not None:
            del self._slots[oldest]
            self._away.pop(oldest, None)
        self._ring[slot] = duplicate_id

    def send_away(self, duplicate_id: bytes, node: bytes) -> None:
        """Note that a node alone has the message of an id; of one that is not known nothing is noted."""
        duplicate_id = _short(duplicate_id)
        if duplicate_id in self._slots:
            self._away[duplicate_id] = node

    def node_of(self, duplicate_id: bytes) -> bytes | None:
        """Return the node that alone has the message of an id; None: its message came here, or it is not known."""
        return self._away.get(_short(duplicate_id))

    def remove(self, duplicate_id: bytes) -> None:
        """Forget an id: its transaction was rolled back, or an administrator says so."""
        duplicate_id = _short(duplicate_id)
        slot = self._slots.pop(duplicate_id, None)
        if slot is not None:
            self._ring[slot] = None
            self._away.pop(duplicate_id, None)

    def restore(self, ids: Iterable[bytes]) -> None:
        """Remember what the journal had, oldest first."""
        for duplicate_id in ids:
            self.remove(duplicate_id)
            self.add(duplicate_id)

    def resize(self, limit: int) -> None:
        """Change the limit; the newest ids are kept."""
        ids, away = list(self), dict(self._away)
        self.limit = max(limit, 0)
        self.clear()
        for duplicate_id in ids[-self.limit :] if self.limit else ():
            self.add(duplicate_id)
            if duplicate_id in away:
                self._away[duplicate_id] = away[duplicate_id]

    def clear(self) -> None:
        """Forget everything."""
        self._ring.clear()
        self._slots.clear()
        self._away.clear()
        self._next = 0
