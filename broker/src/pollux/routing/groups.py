"""Message groups: which consumer owns which group of one queue.

All messages of a group go to one consumer for as long as it stays. A message whose group sequence
is negative closes its group once it was handed over: the next message may go to another consumer.
The table is bounded: owners of groups that have nothing in delivery are forgotten first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.message import Message
    from pollux.routing.consumer import Attachment

#: Groups remembered for one queue.
MAX_GROUPS = 100_000

GroupKey = str | int


class Group:
    """One open group. ``skipped`` has, by message priority, the least position other consumers passed over."""

    __slots__ = ("owner", "skipped")

    def __init__(self, owner: Attachment) -> None:
        self.owner = owner
        self.skipped: dict[int, int] = {}


class GroupTable:
    """The groups of one queue. ``buckets``: -1 one for each group id, 0 grouping is off, else group ids are hashed."""

    __slots__ = ("buckets", "full_at", "groups", "limit")

    def __init__(self, buckets: int, limit: int = MAX_GROUPS) -> None:
        self.buckets = buckets
        self.limit = limit
        #: How many groups make it worth looking for idle ones (more than ``limit`` when all were busy).
        self.full_at = limit
        self.groups: dict[GroupKey, Group] = {}

    def key(self, message: Message) -> GroupKey | None:
        """Return the key of the message's group; None when it has none or grouping is off."""
        group = message.group
        if group is None or self.buckets == 0:
            return None
        if self.buckets < 0:
            return group
        return crc32(group.encode()) % self.buckets

    def open(self, key: GroupKey, owner: Attachment, in_delivery: Callable[[], Iterable[Message]]) -> list[Group]:
        """``owner`` owns the group from now on.

        When the table is full, groups without a message ``in_delivery`` are closed; they are returned.
        """
        closed = self._forget(in_delivery()) if len(self.groups) >= self.full_at else []
        self.groups[key] = Group(owner)
        owner.groups.add(key)
        return closed

    def close(self, key: GroupKey) -> Group | None:
        """The group has no owner from now on."""
        group = self.groups.pop(key, None)
        if group is not None:
            group.owner.groups.discard(key)
        return group

    def close_all_of(self, owner: Attachment) -> list[Group]:
        """``owner`` left."""
        closed = [self.groups.pop(key) for key in owner.groups]
        owner.groups.clear()
        return closed

    def close_all(self) -> list[Group]:
        """Every group is to be assigned anew."""
        closed = list(self.groups.values())
        for group in closed:
            group.owner.groups.clear()
        self.groups.clear()
        return closed

    def _forget(self, in_delivery: Iterable[Message]) -> list[Group]:
        busy = {self.key(message) for message in in_delivery}
        surplus = len(self.groups) - self.limit * 9 // 10
        idle = [key for key in self.groups if key not in busy][:surplus]
        self.full_at = max(self.limit, len(self.groups) - len(idle) + self.limit // 10)
        return [group for key in idle if (group := self.close(key)) is not None]
