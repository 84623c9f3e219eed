"""Messages that are sent next, in their order, as payloads. What plain ones have in common is said once."""

from __future__ import annotations

from itertools import islice
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
        while waiting and not self._others and self._size < _BYTES and len(self._items) < _COUNT:
            first = waiting[0].message.content
            # Where one is to be given up each is looked at.
            if not isinstance(first, Plain) or sent.gives_up or not self._take_run(waiting, first, sent):
                return

    def _take_run(self, waiting: deque[MessageReference], first: Plain, sent: Sent) -> bool:
        """Take those that wait first and have one shape and ascending numbers; whether there is one."""
        shape, number, size = first.shape, sent.last(first.life), 0
        items, which = self._items, self._shapes.get(shape, len(self._shapes))
        begun, room = len(items), _BYTES - self._size
        references = []
        for reference in islice(waiting, _COUNT - begun):
            message = reference.message
            plain = message.content
            if size >= room or not isinstance(plain, Plain) or plain.shape is not shape or plain.number <= number:
                break
            number, data = plain.number, message.data
            size += len(data)
            items.append((which, number, message.timestamp, data))
            references.append(reference)
        if not references:
            return False
        self._shapes[shape] = which
        self._size += size
        self.life = first.life
        numbers = [item[1] for item in items[begun:]]
        sent.begin_run(first.life, numbers, references, sum([reference.message.size for reference in references]))
        for _ in references:
            waiting.popleft()
        return True

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
