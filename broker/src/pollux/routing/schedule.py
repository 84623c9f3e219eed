"""Hold the messages of a queue that wait for their time: those sent for later, and those whose next attempt is delayed.

A part of :class:`pollux.routing.backlog.Backlog`, which knows what becomes of them. Pure, times are passed in.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from pollux.routing.reference import MessageReference

_Found = TypeVar("_Found")
#: Entries that were taken out are cut off when they are this many, and most of all.
_TRIM = 256


class Times(Generic[_Found]):
    """Hold things by their ids and by when they are due; of those of one time the one with the lower order is first.

    Taking some out of very many costs what these cost: their entries stay in the heap, and are passed over there.
    """

    def __init__(self) -> None:
        #: Time, order, id, and what it is; the order is one entry's alone, so that nothing behind it is compared.
        self._heap: list[tuple[int, int, int, _Found]] = []
        self._by_id: dict[int, tuple[int, int, int, _Found]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, number: int) -> bool:
        return number in self._by_id

    def add(self, at: int, order: int, number: int, found: _Found) -> None:
        """Put something in that is due at ``at``, in the place of what has that id."""
        entry = self._by_id[number] = (at, order, number, found)
        heappush(self._heap, entry)

    @property
    def soonest(self) -> int:
        """When the first one is due, 0 when there is none."""
        heap = self._heap
        while heap and self._by_id.get(heap[0][2]) is not heap[0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def pop(self, now: int) -> _Found | None:
        """Take out the first one that is due; None: none is."""
        if not 0 < self.soonest <= now:
            return None
        entry = heappop(self._heap)
        del self._by_id[entry[2]]
        return entry[3]

    def take(self, ids: Container[int]) -> list[_Found]:
        """Take out by id, in the order of their times."""
        few = ids if isinstance(ids, AbstractSet) and len(ids) < len(self._by_id) else self._by_id
        taken = sorted(self._by_id[number] for number in few if number in self._by_id and number in ids)
        for entry in taken:
            del self._by_id[entry[2]]
        self._trim()
        return [entry[3] for entry in taken]

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._by_id) + _TRIM:
            self._heap = list(self._by_id.values())
            heapify(self._heap)

    def shed(self, most: int) -> list[_Found]:
        """Take out ``most``, in no order."""
        taken: list[_Found] = []
        while self._by_id and len(taken) < most:
            taken.append(self._by_id.popitem()[1][3])
        self._trim()
        return taken

    def first(self, limit: int) -> list[tuple[int, int]]:
        """When those are due that are first, and their ids."""
        return [(at, number) for at, _, number, _ in islice(self.in_order(), limit)]

    def in_order(self) -> Iterator[tuple[int, int, int, _Found]]:
        """Yield those that are here now and still are when it is their turn: time, order, id, and what it is.

        Who takes the first few sorts these only: of two in a heap the one above comes first.
        """
        heap = self._heap.copy()
        ahead = [(heap[0], 0)] if heap else []
        while ahead:
            entry, at = heappop(ahead)
            if self._by_id.get(entry[2]) is entry:
                yield entry
            for below in (2 * at + 1, 2 * at + 2):
                if below < len(heap):
                    heappush(ahead, (heap[below], below))


class Schedule:
    """Hold those in memory, with the position to which each goes (-1: the end), and those on disk only, by priority."""

    def __init__(self) -> None:
        self.hot = Times[tuple["MessageReference", int]]()
        self.cold = Times[tuple[int, int]]()
        self._order = 0

    def __len__(self) -> int:
        return len(self.hot) + len(self.cold)

    def __contains__(self, number: int) -> bool:
        return number in self.hot or number in self.cold

    def add(self, reference: MessageReference, at: int, position: int) -> None:
        """Have a message wait until ``at``; ``position`` is its place, -1 for the end."""
        self._order += 1
        self.hot.add(at, self._order, reference.message.id, (reference, position))

    def add_cold(self, number: int, at: int, priority: int) -> None:
        """Have a message that is on disk only wait until ``at``."""
        self._order += 1
        self.cold.add(at, self._order, number, (priority, number))

    def next_due(self) -> int:
        """Return when the first one is due, 0 when there is none."""
        return min(filter(None, (self.hot.soonest, self.cold.soonest)), default=0)

    def in_order(self) -> Iterator[tuple[int, int, MessageReference | None]]:
        """When each of those that are here now is due, its id, and it if it is in memory, the next one first.

        May be used across changes: what leaves before its turn is left out.
        """
        hot: Iterator[tuple[int, int, int, MessageReference | None]] = (
            (at, order, number, reference) for at, order, number, (reference, _) in self.hot.in_order()
        )
        cold = ((at, order, number, None) for at, order, number, _ in self.cold.in_order())
        # Merging looks one ahead: what was the next one may have left since.
        return ((at, number, reference) for at, _, number, reference in merge(hot, cold) if number in self)
