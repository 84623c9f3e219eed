"""Takes waiting messages of one kind out of a queue, a portion at a time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.message import DEFAULT_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.message import Message
    from pollux.routing.backlog import Backlog
    from pollux.routing.reference import MessageReference


def take_where(
    backlog: Backlog, wanted: Callable[[Message], bool], start: int, limit: int
) -> tuple[list[MessageReference], int]:
    """Take out what is ``wanted`` of the messages in memory of normal priority, and may be handed out.

    Looks at ``limit`` of them at most, from position ``start`` (0: the first) on. Returns what it took, and where to go
    on, -1: nowhere.
    """
    level = backlog.level(DEFAULT_PRIORITY)
    taken: list[MessageReference] = []
    for _ in range(limit):
        position = level.following(start)
        if position < 0:
            return taken, -1
        start = position + 1
        reference = level.get(position)
        if reference is not None and wanted(reference.message):
            level.take(position)
            backlog.take_out(reference)
            taken.append(reference)
    return taken, start
