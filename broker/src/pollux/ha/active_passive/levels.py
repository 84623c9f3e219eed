"""Takes out of a promoted broker's copy all that it does not have: queues of a level below ``all``.

The copy is of files and has everything; what a level leaves out is taken out when another broker than before serves
with it, before clients are. So whoever restarts with its own data keeps it, as in Qpid.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.logs import event

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice

logger = logging.getLogger("pollux.ha")


def apply(post: PostOffice, level: str) -> None:
    """Take out what backups do not have. ``level``: of queues that do not say."""
    deleted, emptied = 0, 0
    for queue in list(post.space.queues):
        wanted = queue.spec.replicate or level
        if wanted == "none":
            post.delete_queue(queue.name)
            deleted += 1
        elif wanted == "configuration":
            emptied += post.purge(queue) > 0
    if deleted or emptied:
        event(logger, logging.WARNING, "queues are replicated in part", deleted=deleted, emptied=emptied)
