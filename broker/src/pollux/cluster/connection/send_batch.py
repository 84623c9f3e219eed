"""Messages that are sent next, in their order, as payloads. What plain ones have in common is said once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection import payloads
from pollux.cluster.connection.forwarded import Plain

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    from pollux.cluster.connection.forwarded import Forwarded, Shape
    from pollux.cluster.connection.payloads import Item
    from pollux.cluster.connection.sent import Sent
    from pollux.message import Message
    from pollux.routing.reference import MessageReference

#: Messages and bytes in one payload.
_COUNT, _BYTES = 500, 128 << 10


class Packing:
    """One turn's messages: a payload of those that are alike, or of others."""

    __slots__ = ("_items", "_others", "_shapes", "_size", "life")

    def __init__(self) -> None:
        #: Of the last message.
        self.life = b""
        self._size = 0
        self._others: list[Forwarded] = []
        self._items: list[Item] = []
        self._shapes: dict[Shape, int] = {}

    def __len__(self) -> int:
        return len(self._items) or len(self._others)

    def fits(self, one: Forwarded | Plain | None) -> bool:
        """Whether a message may be added to some that are here."""
        same, other = (self._items, self._others) if isinstance(one, Plain) else (self._others, self._items)
        return not other and self._size < _BYTES and len(same) < _COUNT

    def take(self, waiting: deque[MessageReference], sent: Sent) -> None:
        """Take what waits first as long as it is plain, was not sent before, and fits: nearly all of it."""
        items, shapes = self._items, self._shapes
        while waiting and not self._others and self._size < _BYTES and len(items) < _COUNT:
            reference = waiting[0]
            message = reference.message
            plain = message.content
            if not isinstance(plain, Plain) or not sent.begins(plain.life, plain.number, reference):
                return
            waiting.popleft()
            self.life = plain.life
            self._size += len(message.data)
            items.append((shapes.setdefault(plain.shape, len(shapes)), plain.number, message.timestamp, message.data))

    def add(self, one: Forwarded | Plain, message: Message) -> None:
        """Add a message that fits."""
        self.life = one.life
        self._size += len(message.data)
        if isinstance(one, Plain):
            which = self._shapes.setdefault(one.shape, len(self._shapes))
            self._items.append((which, one.number, message.timestamp, message.data))
        else:
            self._others.append(one)

    def payloads(self, room: int) -> Iterator[bytes]:
        """Return the payloads; ``room``: bytes of the largest."""
        if self._items:
            return payloads.alike([shape.one for shape in self._shapes], self._items, room)
        return payloads.messages(self._others, room)
