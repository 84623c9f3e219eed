"""Which queues are looked at when nothing has told of them: those that are not as they were at the look before.

What is told of a queue, and whether something of it is to be moved, depends on who takes from it, on their credit and
on what waits. Credit and backlog change with each message and tell nobody. A queue at rest costs a few sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pollux.routing.queue import Queue

#: Queues in one portion, and those of which it is asked at once whether they belong to one.
_SOME, _MANY = 200, 2000


class Looks:
    """Holds how queues were when they were looked at. Pure."""

    def __init__(self) -> None:
        #: Consumers, their credit, and messages that wait.
        self._seen: dict[Queue, tuple[int, int, int]] = {}

    def portions(self, queues: Sequence[Queue]) -> Iterator[list[Queue]]:
        """Yield, some at a time, those that are to be looked at; nothing of very many queues for a pause in between."""
        for start in range(0, len(queues), _MANY):
            stirred = self.stirred(queues[start : start + _MANY])
            for begin in range(0, len(stirred), _SOME):
                yield stirred[begin : begin + _SOME]
            if not stirred and start + _MANY < len(queues):
                yield []

    def stirred(self, queues: Iterable[Queue]) -> list[Queue]:
        """Return those of the queues that are to be looked at; they count as looked at from now on."""
        found = []
        seen = self._seen
        for queue in queues:
            if queue.spec.internal:
                continue
            consumers = queue.consumers
            credit = sum([consumer.credit for consumer in consumers]) if consumers else 0
            now = (len(consumers), credit, queue.waiting + queue.cold)
            if seen.get(queue) != now:
                seen[queue] = now
                found.append(queue)
        return found

    def forget(self) -> None:
        """Have every queue looked at once more."""
        self._seen.clear()
