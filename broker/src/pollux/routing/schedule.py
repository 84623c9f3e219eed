"""Hold the messages of a queue that wait for their time: those sent for later, and those whose next attempt is delayed.

A part of :class:`pollux.routing.backlog.Backlog`, which knows what becomes of them. Pure, times are passed in.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, merge, nsmallest
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from pollux.routing.reference import MessageReference

#: Time, order, and what waits: a reference and its position (-1: the end), or a priority and an id.
_Hot = tuple[int, int, "MessageReference", int]
_Cold = tuple[int, int, int, int]
#: Time, order, id, and the reference of one in memory.
_Shown = tuple[int, int, int, "MessageReference | None"]
_Entry = TypeVar("_Entry", _Hot, _Cold)


class Schedule:
    """Hold them by when they are due: in memory, and on disk only. The first of those of one time came first."""

    def __init__(self) -> None:
        self._hot: list[_Hot] = []
        self._cold: list[_Cold] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._hot) + len(self._cold)

    @property
    def in_memory(self) -> int:
        """How many are in memory."""
        return len(self._hot)

    @property
    def on_disk(self) -> int:
        """How many are on disk only."""
        return len(self._cold)

    def add(self, reference: MessageReference, at: int, position: int) -> None:
        """Have a message wait until ``at``; ``position`` is its place, -1 for the end."""
        self._order += 1
        heappush(self._hot, (at, self._order, reference, position))

    def add_cold(self, number: int, at: int, priority: int) -> None:
        """Have a message that is on disk only wait until ``at``."""
        self._order += 1
        heappush(self._cold, (at, self._order, priority, number))

    def next_due(self) -> int:
        """Return when the first one is due, 0 when there is none."""
        return min((heap[0][0] for heap in (self._hot, self._cold) if heap), default=0)

    def pop(self, now: int) -> tuple[MessageReference, int] | None:
        """Take out the first in memory that is due: it and its position. None: none is."""
        return heappop(self._hot)[2:] if self._hot and self._hot[0][0] <= now else None

    def pop_cold(self, now: int) -> tuple[int, int] | None:
        """Take out the first on disk only that is due: its priority and its id. None: none is."""
        return heappop(self._cold)[2:] if self._cold and self._cold[0][0] <= now else None

    def take(self, ids: Container[int]) -> tuple[list[tuple[MessageReference, int]], list[tuple[int, int]]]:
        """Take out by id, in the order of their times: what :meth:`pop` and :meth:`pop_cold` return of each."""
        hot = sorted(entry for entry in self._hot if entry[2].message.id in ids)
        if hot:
            self._hot = [entry for entry in self._hot if entry[2].message.id not in ids]
            heapify(self._hot)
        cold = sorted(entry for entry in self._cold if entry[3] in ids)
        if cold:
            self._cold = [entry for entry in self._cold if entry[3] not in ids]
            heapify(self._cold)
        return [entry[2:] for entry in hot], [entry[2:] for entry in cold]

    def shed(self, most: int) -> list[MessageReference]:
        """Take out ``most`` of those in memory, in no order."""
        taken: list[MessageReference] = []
        while self._hot and len(taken) < most:
            taken.append(self._hot.pop()[2])
        return taken

    def shed_cold(self, most: int) -> list[int]:
        """Take out ``most`` of those on disk only, in no order; return their ids."""
        taken: list[int] = []
        while self._cold and len(taken) < most:
            taken.append(self._cold.pop()[3])
        return taken

    def references(self) -> Iterator[MessageReference]:
        """Those in memory in order. Not to be used across changes; see :meth:`in_order`."""
        return (entry[2] for entry in sorted(self._hot))

    def cold_ids(self) -> Iterator[int]:
        """Ids of those on disk only. Not to be used across changes; see :meth:`in_order`."""
        return (entry[3] for entry in sorted(self._cold))

    def first(self, limit: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of those that are due first, ``limit`` each of those in memory and on disk only; of the latter when."""
        hot = [entry[2].message.id for entry in nsmallest(limit, self._hot)]
        return hot, [(entry[3], entry[0]) for entry in nsmallest(limit, self._cold)]

    def in_order(self) -> Iterator[tuple[int, int, MessageReference | None]]:
        """When each of those that are here now is due, its id, and it if it is in memory, the next one first.

        May be used across changes: what left meanwhile is in it still. Who takes the first few sorts these only.
        """
        hot: Iterator[_Shown] = (
            (at, order, found.message.id, found) for at, order, found, _ in _lazily_sorted(list(self._hot))
        )
        cold: Iterator[_Shown] = (
            (at, order, number, None) for at, order, _, number in _lazily_sorted(list(self._cold))
        )
        # The order is one entry's alone: nothing behind it is compared.
        return ((at, number, reference) for at, _, number, reference in merge(hot, cold))


def _lazily_sorted(heap: list[_Entry]) -> Iterator[_Entry]:
    """Yield the entries of a heap in order, and leave it as it is: of two in it the one above comes first."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        entry, at = heappop(ahead)
        yield entry
        for below in (2 * at + 1, 2 * at + 2):
            if below < len(heap):
                heappush(ahead, (heap[below], below))
