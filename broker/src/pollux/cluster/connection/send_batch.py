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
    from pollux.cluster.connection.payloads import Run
    from pollux.cluster.connection.sent import Sent
    from pollux.message import Message
    from pollux.routing.reference import MessageReference

#: Messages and bytes in one payload.
_COUNT, _BYTES = 500, 128 << 10


class Packing:
    """One turn's messages: a payload of those that are alike, or of others."""

    __slots__ = ("_count", "_others", "_runs", "_shapes", "_size", "life")

    def __init__(self) -> None:
        #: Of the last message.
        self.life = b""
        self._size = 0
        self._others: list[Forwarded] = []
        #: Those that are alike, and how many they are.
        self._runs: list[Run] = []
        self._count = 0
        self._shapes: dict[Shape, int] = {}

    def __len__(self) -> int:
        return self._count or len(self._others)

    def fits(self, one: Forwarded | Plain | None) -> bool:
        """Whether a message may be added to some that are here."""
        same, other = self._count, len(self._others)
        if not isinstance(one, Plain):
            same, other = other, same
        return not other and self._size < _BYTES and same < _COUNT

    def take(self, waiting: deque[MessageReference], sent: Sent) -> None:
        """Take what waits first as long as it is plain, was not sent before, and fits: nearly all of it."""
        while waiting and not self._others and self._size < _BYTES and self._count < _COUNT:
            first = waiting[0].message.content
            # Where one is to be given up each is looked at.
            if not isinstance(first, Plain) or sent.gives_up or first.number <= sent.last(first.life):
                return
            self._take_run(waiting, first, sent)

    def _take_run(self, waiting: deque[MessageReference], first: Plain, sent: Sent) -> None:
        """Take the one that waits first, and those behind it that are like it and have the numbers that follow."""
        shape, number, timestamp = first.shape, first.number, waiting[0].message.timestamp
        size, room = 0, _BYTES - self._size
        run: list[bytes] = []
        for reference in islice(waiting, _COUNT - self._count):
            message = reference.message
            plain = message.content
            if (
                size >= room
                or not isinstance(plain, Plain)
                or plain.shape is not shape
                or plain.number != number
                or message.timestamp != timestamp
            ):
                break
            number += 1
            size += len(message.data)
            run.append(message.data)
        references = [waiting.popleft() for _ in run]
        sent.begin_run(
            first.life, range(first.number, number), references, sum([one.message.size for one in references])
        )
        self._add(first, timestamp, run, size)

    def add(self, one: Forwarded | Plain, message: Message) -> None:
        """Add a message that fits."""
        if isinstance(one, Plain):
            self._add(one, message.timestamp, [message.data], len(message.data))
        else:
            self.life = one.life
            self._size += len(message.data)
            self._others.append(one)

    def _add(self, first: Plain, timestamp: int, run: list[bytes], size: int) -> None:
        which = self._shapes.setdefault(first.shape, len(self._shapes))
        self._runs.append((which, first.number, timestamp, run))
        self._count += len(run)
        self._size += size
        self.life = first.life

    def payloads(self, room: int) -> Iterator[bytes]:
        """Return the payloads; ``room``: bytes of the largest."""
        if self._runs:
            return payloads.alike([shape.one for shape in self._shapes], self._runs, room)
        return payloads.messages(self._others, room)
