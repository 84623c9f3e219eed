"""Have what waits in a queue be on disk only, from where it is read when its turn comes: the opposite of ``hydrate``.

For queues that nobody takes from. A level keeps what may be left on disk between its hot messages and its tail
(:mod:`pollux.routing.level`), so of the hot ones all behind the first that freezes follow it. Pure.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.routing.backlog import Backlog
    from pollux.routing.level import Level
    from pollux.routing.reference import MessageReference

    May = Callable[[MessageReference], bool]


def freeze(backlog: Backlog, may: May, *, watched: bool) -> list[MessageReference]:
    """Forget the messages of which ``may`` says that the disk has them, as far as order allows; those that left.

    ``watched``: somebody remembers positions here, so none may change. Last values are kept in memory as a whole, and
    what has a delivery time is, too.
    """
    if backlog.last_values is not None:
        return []
    frozen: list[MessageReference] = []
    for level in backlog.levels:
        if level.flight:
            continue
        found = _of_tail(level, may) if level.cold_count else _of_items(level, may, watched=watched)
        failures = {each.message.id: each.delivery_count for each in found if each.delivery_count}
        backlog.restore(level.priority, [each.message.id for each in found], failures)
        frozen += found
    for reference in frozen:
        backlog.take_out(reference)
    return frozen


def _of_tail(level: Level, may: May) -> list[MessageReference]:
    found = list(takewhile(may, (each for each in level.tail if each is not None)))
    level.tail[:] = [each for each in level.tail if each is not None][len(found) :]
    return found


def _of_items(level: Level, may: May, *, watched: bool) -> list[MessageReference]:
    """Take out a run of the hot messages; what is behind it becomes the tail."""
    start, end = level.head, len(level.items)
    while start < end and ((first := level.items[start]) is None or not may(first)):
        start += 1
    rest = [each for each in level.items[start:] if each is not None]
    holes = end - start - len(rest)
    found = list(takewhile(may, rest))
    if not found or (watched and holes):
        return []
    del level.items[start:]
    level.holes -= holes
    level.hot -= len(rest)
    level.tail.extend(rest[len(found) :])
    return found
