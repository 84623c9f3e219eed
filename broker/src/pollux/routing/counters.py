"""Numbers of what happened to the messages of one queue."""

from __future__ import annotations

from msgspec import Struct


class QueueCounters(Struct):
    """Count what happened since the queue was created or the counters were reset.

    ``replaced``: displaced by a newer last value or by the ring. ``removed``: taken out by management.
    """

    added: int = 0
    acknowledged: int = 0
    expired: int = 0
    killed: int = 0
    replaced: int = 0
    removed: int = 0
