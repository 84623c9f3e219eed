"""Takes out of a promoted broker's copy all that it does not have: queues of a level below ``all``.

The copy is of files and has everything; what a level leaves out is taken out when another broker than before serves
with it, before clients are. So whoever restarts with its own data keeps it, as in Qpid.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pollux.logs import event

if TYPE_CHECKING:
    from pollux.ha.activation import OpenedQueues

logger = logging.getLogger("pollux.ha")


class Dropped(NamedTuple):
    """A queue that is gone (level none) or empty (level configuration), and how many messages it had."""

    queue: str
    level: str
    messages: int


class Kept(NamedTuple):
    """The queues that a broker began to serve with and how many messages they had, and what was taken out before."""

    queues: int
    messages: int
    dropped: tuple[Dropped, ...]


def apply(queues: OpenedQueues, level: str, *, received: bool) -> Kept:
    """Take out what backups do not have. ``level``: of queues that do not say. ``received``: others served before."""
    paged = queues.pages.unread_by_queue()
    kept = 0
    dropped: list[Dropped] = []
    for queue in sorted(queues.space.queues, key=lambda queue: queue.name):
        wanted = (queue.spec.replicate or level) if received else "all"
        messages = queue.message_count + paged.get(queue.id, 0)
        if wanted == "none":
            queues.delete_queue(queue.name)
        elif wanted == "configuration":
            queues.purge(queue)
        else:
            kept += messages
        if wanted == "none" or (wanted == "configuration" and messages):
            dropped.append(Dropped(queue.name, wanted, messages))
    if dropped:
        deleted = sum(one.level == "none" for one in dropped)
        event(logger, logging.WARNING, "queues are replicated in part", deleted=deleted, emptied=len(dropped) - deleted)
    return Kept(len(queues.space.queues), kept, tuple(dropped))
