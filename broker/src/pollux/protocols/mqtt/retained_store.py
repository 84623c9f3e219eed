"""Retained messages (MQTT 5, section 3.3.1.3): the last one of each topic, found by topic filter.

In memory as a tree of topic levels, and in the bindings journal (kind ``mqtt-retained``, key: topic, value: expiration
in wall milliseconds, 8 bytes, then the stored form of :mod:`pollux.wire.mqtt.stored`). Bounded in number and bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pollux.engine.memory import User

RETAINED_KIND = "mqtt-retained"
#: What an entry costs beyond its bytes.
_OVERHEAD = 800


class Retained:
    """A retained message: its stored form and when it expires (wall milliseconds, 0 never)."""

    __slots__ = ("data", "expiration", "topic")

    def __init__(self, topic: str, data: bytes, expiration: int) -> None:
        self.topic = topic
        self.data = data
        self.expiration = expiration


class _Node:
    __slots__ = ("children", "entry")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.entry: Retained | None = None


class RetainedStore:
    """All retained messages. ``put(kind, key, value)`` makes a change durable, ``holder`` accounts for their bytes.

    ``limit`` is how many there may be, ``byte_limit`` how many bytes they may have together (-1 each: any number).
    """

    def __init__(self, put: Callable[[str, str, bytes | None], None], holder: User) -> None:
        self._put = put
        self._holder = holder
        self._root = _Node()
        self.count = 0
        self.bytes = 0
        self.limit = -1
        self.byte_limit = -1

    def restore(self, topic: str, value: bytes, now: int) -> None:
        """Take in a record at start; an expired one is deleted."""
        expiration = int.from_bytes(value[:8], "big")
        if len(value) < 12 or 0 < expiration <= now:
            self._put(RETAINED_KIND, topic, None)
            return
        self._insert(Retained(topic, value[8:], expiration))
        self._holder.take(len(value) - 8 + _OVERHEAD, already=True)

    def set(self, topic: str, data: bytes, expiration: int) -> None:
        """Retain ``data`` (stored form). Raises LimitError when there is no room for one more."""
        old = self.get(topic)
        size = len(data) + _OVERHEAD - (len(old.data) + _OVERHEAD if old is not None else 0)
        full = old is None and 0 <= self.limit <= self.count
        if full or 0 <= self.byte_limit < self.bytes + size:
            raise LimitError(
                f"no room for a retained message on {topic!r}: {self.count} are kept in {self.bytes} bytes "
                f"(max-retained-messages {self.limit}, max-retained-size {self.byte_limit})"
            )
        if size > 0:
            self._holder.take(size)
        else:
            self._holder.give(-size)
        if old is not None:
            self.bytes -= len(old.data) + _OVERHEAD
            self.count -= 1
        self._insert(Retained(topic, data, expiration))
        self._put(RETAINED_KIND, topic, expiration.to_bytes(8, "big") + data)

    def clear(self, topic: str) -> None:
        """Forget the retained message of ``topic`` (MQTT-3.3.1-6)."""
        if self._remove(topic):
            self._put(RETAINED_KIND, topic, None)

    def get(self, topic: str) -> Retained | None:
        """Return the retained message of exactly this topic."""
        node: _Node | None = self._root
        for level in topic.split("/"):
            node = node.children.get(level) if node is not None else None
        return node.entry if node is not None else None

    def match(self, topic_filter: str, now: int) -> Iterator[Retained]:
        """Yield those a new subscription gets; the expired ones on the way are forgotten afterwards."""
        expired = []
        for entry in self._match(self._root, topic_filter.split("/"), 0):
            if 0 < entry.expiration <= now:
                expired.append(entry.topic)
            else:
                yield entry
        for topic in expired:
            self.clear(topic)

    def all(self) -> list[Retained]:
        """Return all of them."""
        return list(self._below(self._root))

    def expire(self, now: int) -> Iterator[None]:
        """Forget all that expired by ``now``, one of all entries in each step: there may be very many."""
        for entry in self._below(self._root):
            if 0 < entry.expiration <= now and self.get(entry.topic) is entry:
                self.clear(entry.topic)
            yield

    def _insert(self, entry: Retained) -> None:
        node = self._root
        for level in entry.topic.split("/"):
            following = node.children.get(level)
            if following is None:
                following = node.children[level] = _Node()
            node = following
        node.entry = entry
        self.count += 1
        self.bytes += len(entry.data) + _OVERHEAD

    def _remove(self, topic: str) -> bool:
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in topic.split("/"):
            following = node.children.get(level)
            if following is None:
                return False
            path.append((node, level))
            node = following
        if node.entry is None:
            return False
        self.count -= 1
        self.bytes -= len(node.entry.data) + _OVERHEAD
        self._holder.give(len(node.entry.data) + _OVERHEAD)
        node.entry = None
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.children or child.entry is not None:
                break
            del parent.children[level]
        return True

    def _match(self, node: _Node, levels: list[str], depth: int) -> Iterator[Retained]:
        level = levels[depth]
        if level == "#":  # also the parent level itself (section 4.7.1.2)
            yield from self._below(node, hide=depth == 0)
            return
        if level == "+":
            following = [child for name, child in list(node.children.items()) if depth > 0 or not name.startswith("$")]
        else:
            child = node.children.get(level)
            following = [] if child is None else [child]
        depth += 1
        for child in following:
            if depth < len(levels):
                yield from self._match(child, levels, depth)
            elif child.entry is not None:
                yield child.entry

    def _below(self, node: _Node, *, hide: bool = False) -> Iterator[Retained]:
        """Yield every entry at or below ``node``; with ``hide`` none whose topic starts with ``$`` (MQTT-4.7.2-1)."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node.entry is not None:
                yield node.entry
            stack += [child for name, child in node.children.items() if not (hide and name.startswith("$"))]
            hide = False
