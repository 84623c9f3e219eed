"""Which of two retained messages of a topic counts: the one that was published later, by the wall clock. Pure.

Clocks that differ only decide between messages that were retained at different nodes at nearly the same time; all nodes
come to the same result, whatever the order in which they hear. What was cleared is remembered, so that a node that was
away does not bring it back.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What versions are kept as in the bindings; the key is the topic.
KIND = "mqtt-retained-at"
#: Topics that were cleared and are remembered; the longest known are forgotten first.
CLEARED = 100_000
_STORED = struct.Struct(">Q16s")


class Version(NamedTuple):
    """When a topic was retained or cleared, wall milliseconds, and at which node (16 bytes)."""

    at: int
    node: bytes


class Versions:
    """The versions of all topics, as they changed here one after the other. ``put(topic, value)`` keeps one."""

    def __init__(self, node: bytes, put: Callable[[str, bytes | None], None]) -> None:
        self._node = node
        self._put = put
        self._known: OrderedDict[str, tuple[int, Version]] = OrderedDict()
        self._cleared: OrderedDict[str, None] = OrderedDict()
        #: Counts changes of this life.
        self.number = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, topic: str) -> Version | None:
        """Return the version of a topic."""
        known = self._known.get(topic)
        return known[1] if known is not None else None

    def restore(self, topic: str, value: bytes, *, retained: bool) -> None:
        """Take in what was kept. ``retained``: there is a message of the topic."""
        if len(value) == _STORED.size:
            self._note(topic, Version(*_STORED.unpack(value)), retained=retained)

    def change(self, topic: str, now: int, *, retained: bool) -> Version:
        """Note that the topic was retained or cleared at this node now: later than anything known of it."""
        before = self.get(topic)
        version = Version(max(now, before.at + 1) if before is not None else now, self._node)
        self.keep(topic, version, retained=retained)
        return version

    def is_new(self, topic: str, version: Version) -> bool:
        """Whether a version counts more than what is known."""
        before = self.get(topic)
        return before is None or version > before

    def keep(self, topic: str, version: Version, *, retained: bool) -> None:
        """Note a version, which is new."""
        self._note(topic, version, retained=retained)
        self._put(topic, _STORED.pack(*version))

    def _note(self, topic: str, version: Version, *, retained: bool) -> None:
        self.number += 1
        self._known[topic] = self.number, version
        self._known.move_to_end(topic)
        self._cleared.pop(topic, None)
        if not retained:
            self._cleared[topic] = None
            if len(self._cleared) > CLEARED:
                forgotten = self._cleared.popitem(last=False)[0]
                del self._known[forgotten]
                self._put(forgotten, None)

    def since(self, number: int) -> Iterator[str]:
        """Return the topics that changed after this number of changes."""
        for topic in reversed(self._known):
            if self._known[topic][0] <= number:
                return
            yield topic
