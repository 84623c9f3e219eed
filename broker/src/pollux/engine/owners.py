"""Whose the queues and addresses are: what counts for their users, in number and in bytes.

Those of broker.xml and those that the broker made for itself are nobody's.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pollux.engine.memory import ADDRESS, QUEUE
from pollux.errors import LimitError

if TYPE_CHECKING:
    from pollux.engine.memory import Memory
    from pollux.routing.spec import QueueSpec


class Owners:
    """Counts the queues and addresses of each user, and has their bytes counted."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._queues: Counter[str] = Counter()
        #: Address -> the user who had it made.
        self._addresses: dict[str, str] = {}

    def check(self, spec: QueueSpec, limit: int) -> None:
        """Raise LimitError when the user of a queue has ``limit`` queues already (-1: any number is right)."""
        user = _user(spec)
        if user is not None and 0 <= limit <= self._queues[user]:
            raise LimitError(
                f"user {user!r} has {limit} queues already and may have no more (max-queues of "
                "resource-limit-settings, max-queues-per-user): delete one, or raise the limit"
            )

    def queue_added(self, spec: QueueSpec, *, already: bool) -> None:
        """Count a queue. ``already``: it was there before this start. Raises LimitError, and it must not be."""
        user = _user(spec)
        if user is not None:
            self._memory.user(user).take(QUEUE + len(spec.name), already=already)
            self._queues[user] += 1

    def queue_gone(self, spec: QueueSpec) -> None:
        """Count a deleted queue no more."""
        user = _user(spec)
        if user is not None:
            self._memory.user(user).give(QUEUE + len(spec.name))
            self._queues[user] -= 1
            if self._queues[user] <= 0:
                del self._queues[user]

    def address_added(self, name: str, user: str | None) -> None:
        """Count an address that a client had made. Raises LimitError, and it must not be."""
        if user is not None:
            self._memory.user(user).take(ADDRESS + len(name))
            self._addresses[name] = user

    def address_gone(self, name: str) -> None:
        """Count a deleted address no more."""
        user = self._addresses.pop(name, None)
        if user is not None:
            self._memory.user(user).give(ADDRESS + len(name))


def _user(spec: QueueSpec) -> str | None:
    return None if spec.configuration_managed or spec.internal else spec.user
