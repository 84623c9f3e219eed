"""The waiting messages of one priority of one queue, in order, with stable positions.

Every message that enters gets the next position (a number that only grows) and keeps it for as
long as the queue has it: a message that is returned goes back to its position, and a consumer that
skipped messages (a selector, another's group) remembers only the position up to which it has looked.

Layout, first to last::

    front   messages returned to a position before ``items``: position -> reference, sorted when needed
    items   hot messages; items[i] has position base + i; None is a hole (taken from the middle)
    cold    ids of messages that are only on disk (after a restart), not yet given positions
    tail    messages that arrived while there was a cold backlog; they follow it

This module knows nothing of consumers. Costs: appending and taking from the head are slices of a
list; taking from the middle and returning are O(log n) or better.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from pollux.routing.reference import MessageReference

#: Consumed entries at the beginning of ``items`` are cut off when they are this many and 1/16 of the list.
_TRIM = 256
#: ``items`` with more holes than this, and three quarters of holes, is folded into ``front``.
_FOLD = 1024
#: Messages returned out of order that are sorted in one by one.
_SORT = 16
#: Later than any expiration.
NEVER = 2**63


class Level:
    """Hold one priority. ``hot`` counts the references in ``front`` and ``items``; ``tail`` is not dispatchable yet.

    ``grouped`` is set while it may hold messages of groups, ``soonest`` is not after the first expiration
    of any message here; they go back when the level is empty.
    """

    __slots__ = (
        "base",
        "cold",
        "cold_at",
        "cold_removed",
        "flight",
        "front",
        "front_at",
        "grouped",
        "head",
        "holes",
        "hot",
        "incoming",
        "items",
        "priority",
        "soonest",
        "tail",
        "unsorted",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.base = 0
        self.head = 0
        self.holes = 0
        self.hot = 0
        self.grouped = False
        self.soonest = NEVER
        self.items: list[MessageReference | None] = []
        self.tail: list[MessageReference | None] = []
        #: Where new messages go: ``items``, or ``tail`` while there is a cold backlog.
        self.incoming = self.items
        self.front: dict[int, MessageReference] = {}
        self.front_at: list[int] = []
        #: Positions in ``front`` that are not in ``front_at`` yet.
        self.unsorted: list[int] = []
        self.cold = array("Q")
        self.cold_at = 0
        self.cold_removed: set[int] = set()
        #: Cold ids that are being read now, in order.
        self.flight: list[int] = []

    # -- hot

    @property
    def end(self) -> int:
        """The position the next message that becomes hot will get."""
        return self.base + len(self.items)

    def extend(self, references: Sequence[MessageReference]) -> None:
        """Add at the end."""
        self.incoming.extend(references)
        if self.incoming is self.items:
            self.hot += len(references)

    def append(self, reference: MessageReference) -> int:
        """Add one at the end. Its position, -1 while there is a cold backlog before it."""
        self.incoming.append(reference)
        if self.incoming is not self.items:
            return -1
        self.hot += 1
        return self.base + len(self.items) - 1

    def get(self, position: int) -> MessageReference | None:
        """The message waiting at ``position``, None when there is none."""
        offset = position - self.base
        if offset >= self.head:
            return self.items[offset] if offset < len(self.items) else None
        return self.front.get(position)

    def following(self, position: int) -> int:
        """The first position at or after ``position`` where a message waits; -1 when there is none."""
        base = self.base
        items = self.items
        offset = position - base
        if offset < self.head:
            if self.front:
                if self.unsorted:
                    self._sort()
                front = self.front
                front_at = self.front_at
                i = bisect_left(front_at, position)
                while i < len(front_at):
                    if front_at[i] in front:
                        return front_at[i]
                    i += 1
            offset = self.head
        if not self.holes:
            return base + offset if offset < len(items) else -1
        while offset < len(items):
            if items[offset] is not None:
                return base + offset
            offset += 1
        return -1

    def take(self, position: int) -> MessageReference:
        """Remove the message waiting at ``position`` (there must be one)."""
        offset = position - self.base
        items = self.items
        if offset < self.head:
            reference = self.front.pop(position)
            if not self.front:
                self.front_at.clear()
                self.unsorted.clear()
            elif len(self.front_at) > 4 * len(self.front) + 64:
                self.front_at = sorted(self.front)
                self.unsorted.clear()
        else:
            found = items[offset]
            assert found is not None  # noqa: S101  (the caller just saw it there)
            reference = found
            items[offset] = None
            if offset == self.head:
                offset += 1
                while offset < len(items) and items[offset] is None:
                    offset += 1
                    self.holes -= 1
                self.head = offset
                if offset >= _TRIM and offset * 16 >= len(items):
                    self._trim()
            else:
                self.holes += 1
                if self.holes > _FOLD and self.holes * 4 > (len(items) - self.head) * 3:
                    self._fold()
        self.hot -= 1
        if not self.hot:
            self._emptied()
        return reference

    def take_head(self, count: int) -> tuple[int, list[MessageReference]]:
        """Remove up to ``count`` from the head; only while there is neither ``front`` nor holes.

        Returns the position of the first and the references (their positions follow each other).
        """
        head = self.head
        taken: list[MessageReference] = self.items[head : head + count]  # type: ignore[assignment]  # no holes
        start = self.base + head
        head += len(taken)
        self.head = head
        self.hot -= len(taken)
        if not self.hot:
            self._emptied()
        elif head >= _TRIM and head * 16 >= len(self.items):
            self._trim()
        return start, taken

    def put_back(self, position: int, reference: MessageReference) -> None:
        """Return a message taken before to its position (or another one in its place)."""
        offset = position - self.base
        if offset >= self.head:
            assert self.items[offset] is None  # noqa: S101  (another message would be lost)
            self.items[offset] = reference
            self.holes -= 1
        else:
            assert position not in self.front  # noqa: S101  (as above)
            self.front[position] = reference
            if not self.front_at or position > self.front_at[-1]:
                self.front_at.append(position)
            else:
                self.unsorted.append(position)
        self.hot += 1

    def _sort(self) -> None:
        """Bring ``front_at`` up to date: few positions one by one, many (a consumer left) all at once."""
        if len(self.unsorted) > _SORT:
            self.front_at = sorted(self.front)
        else:
            front_at = self.front_at
            for position in self.unsorted:
                i = bisect_left(front_at, position)
                if i == len(front_at) or front_at[i] != position:
                    front_at.insert(i, position)
        self.unsorted.clear()

    def positions(self) -> Iterator[tuple[int, MessageReference]]:
        """All hot messages with their positions, in order. Not to be used across changes."""
        if self.unsorted:
            self._sort()
        for position in self.front_at:
            reference = self.front.get(position)
            if reference is not None:
                yield position, reference
        for offset in range(self.head, len(self.items)):
            reference = self.items[offset]
            if reference is not None:
                yield self.base + offset, reference

    def _trim(self) -> None:
        del self.items[: self.head]
        self.base += self.head
        self.head = 0

    def _emptied(self) -> None:
        assert self.head + self.holes == len(self.items)  # noqa: S101  (a message would be lost)
        assert not self.front  # noqa: S101  (as above)
        self.base += len(self.items)
        self.items.clear()
        self.front_at.clear()
        self.unsorted.clear()
        self.head = self.holes = 0
        if not self.tail:
            self.grouped = False
            self.soonest = NEVER

    def _fold(self) -> None:
        """Few messages are left among many holes (consumers skip them): keep only those."""
        for offset in range(self.head, len(self.items)):
            reference = self.items[offset]
            if reference is not None:
                position = self.base + offset
                self.front[position] = reference
                self.front_at.append(position)
        self.base += len(self.items)
        self.items.clear()
        self.head = self.holes = 0

    # -- cold: the message at cold[cold_at + i] will have position end + len(flight) + i

    @property
    def cold_count(self) -> int:
        """Messages that are only on disk, including those being read."""
        return len(self.cold) - self.cold_at - len(self.cold_removed) + len(self.flight) - self.flight.count(0)

    def restore(self, ids: Iterable[int]) -> None:
        """Append a backlog of ids; messages added from now on follow it."""
        self.cold.extend(ids)
        if self.cold_count and self.incoming is self.items:
            self.incoming = self.tail

    def request(self, limit: int) -> list[int]:
        """The next cold ids to read; they are in flight until :meth:`land`."""
        wanted: list[int] = []
        while not wanted and self.cold_at < len(self.cold):
            ids = self.cold[self.cold_at : self.cold_at + limit].tolist()
            self.cold_at += len(ids)
            removed = self.cold_removed
            if removed:
                for i, number in enumerate(ids):
                    if number in removed:
                        removed.discard(number)
                        ids[i] = 0
            self.flight.extend(ids)
            wanted = [number for number in ids if number]
        if not wanted and self.flight:
            self.land([None] * len(self.flight))
        if self.cold_at > 65536 and self.cold_at * 2 > len(self.cold):
            del self.cold[: self.cold_at]
            self.cold_at = 0
        return wanted

    def land(self, references: Sequence[MessageReference | None]) -> None:
        """Make hot what was in flight: one entry for each id, None for one that is gone (its position stays)."""
        assert len(references) == len(self.flight)  # noqa: S101  (all that follows would get wrong positions)
        for reference in references:
            self.items.append(reference)
            if reference is None:
                self.holes += 1
            else:
                self.hot += 1
        self.flight = []
        if self.incoming is self.tail and self.cold_count == 0:
            removed = len(self.cold) - self.cold_at  # what is left of it was removed; positions stay
            self.cold = array("Q")
            self.cold_at = 0
            self.cold_removed.clear()
            if self.hot:
                self.items.extend([None] * removed)
                self.holes += removed
            else:
                self._emptied()
                self.base += removed
            self.hot += len(self.tail)
            self.items.extend(self.tail)
            self.tail.clear()
            self.incoming = self.items
        while self.head < len(self.items) and self.items[self.head] is None:
            self.head += 1
            self.holes -= 1
        if not self.hot:
            self._emptied()

    def remove_cold(self, ids: Container[int]) -> list[int]:
        """Forget cold messages; those found, in order."""
        removed = []
        for i, number in enumerate(self.flight):
            if number and number in ids:
                self.flight[i] = 0
                removed.append(number)
        for i in range(self.cold_at, len(self.cold)):
            number = self.cold[i]
            if number in ids and number not in self.cold_removed:
                self.cold_removed.add(number)
                removed.append(number)
        if removed and not self.flight and self.cold_count == 0:
            self.land(())
        return removed

    def shed_cold(self, most: int) -> list[int]:
        """Forget up to ``most`` cold messages from the end, but for those being read; ids, none: it is empty."""
        ids: list[int] = []
        while most > 0 and not ids and len(self.cold) > self.cold_at:
            start = max(len(self.cold) - most, self.cold_at)
            last = self.cold[start:]
            del self.cold[start:]
            removed = self.cold_removed.intersection(last)
            self.cold_removed -= removed
            ids = [number for number in last if number not in removed]
        return ids

    @property
    def limit(self) -> int:
        """The position the next message added will have."""
        return self.end + len(self.flight) + len(self.cold) - self.cold_at + len(self.tail)

    @property
    def cold_end(self) -> int:
        """The position behind the cold backlog."""
        return self.end + len(self.flight) + len(self.cold) - self.cold_at

    def is_cold(self, position: int) -> bool:
        """Is (or was) the message at ``position`` only on disk?"""
        return 0 <= position - self.end < len(self.flight) + len(self.cold) - self.cold_at

    def waiting_at(self, position: int) -> MessageReference | None:
        """The message in the tail that will have ``position``."""
        offset = position - self.end - len(self.flight) - (len(self.cold) - self.cold_at)
        return self.tail[offset] if 0 <= offset < len(self.tail) else None

    def cold_from(self, position: int, limit: int) -> list[tuple[int, int]]:
        """(position, id) of up to ``limit`` cold messages at ``position`` and after it."""
        found: list[tuple[int, int]] = []
        end = self.end
        flight = len(self.flight)
        last = end + flight + len(self.cold) - self.cold_at
        position = max(position, end)
        while position < last and len(found) < limit:
            offset = position - end
            number = self.flight[offset] if offset < flight else self.cold[self.cold_at + offset - flight]
            if number and number not in self.cold_removed:
                found.append((position, number))
            position += 1
        return found

    def holds(self, position: int, number: int) -> bool:
        """Does message ``number`` still wait at ``position``, hot or cold?"""
        reference = self.get(position)
        if reference is not None:
            return reference.message.id == number
        return self.cold_from(position, 1)[:1] == [(position, number)]

    def cold_ids(self) -> Iterator[int]:
        """All cold ids in order."""
        yield from filter(None, self.flight)
        removed = self.cold_removed
        for i in range(self.cold_at, len(self.cold)):
            if self.cold[i] not in removed:
                yield self.cold[i]
