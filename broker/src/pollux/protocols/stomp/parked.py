"""Frames that must wait because an address takes no more messages. Pure bookkeeping.

SENDs wait in order. ACKs, NACKs, subscriptions and new transactions do not (they may be what makes
room), unless they belong to a transaction of which something waits already.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.wire.stomp.decoder import Frame


class Parking:
    """Hold frames; ``size`` is their bytes. ``full`` is called with each that comes beyond ``limit``.

    ``draining``: the first of them is being handled, and goes through although others wait behind it.
    """

    __slots__ = ("_frames", "_full", "_limit", "_transactions", "draining", "size")

    def __init__(self, limit: int, full: Callable[[], None]) -> None:
        self._limit = limit
        self._full = full
        self.draining = False
        self._frames: deque[tuple[Frame, str | None]] = deque()
        self._transactions: dict[str, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame, transaction: str | None) -> None:
        """Keep a frame until those before it are done; ``transaction`` is its transaction header."""
        self._frames.append((frame, transaction))
        self.size += _cost(frame)
        if transaction is not None:
            self._transactions[transaction] = self._transactions.get(transaction, 0) + 1
        if self.size > self._limit:
            self._full()

    def concerns(self, transaction: str | None) -> bool:
        """Whether a frame of this transaction has to wait behind others of it."""
        return transaction in self._transactions and not self.draining

    def pop(self) -> Frame:
        """Take out the frame that waits longest."""
        frame, transaction = self._frames.popleft()
        self.size -= _cost(frame)
        if transaction is not None:
            self._transactions[transaction] -= 1
            if not self._transactions[transaction]:
                del self._transactions[transaction]
        return frame

    def last_to_front(self) -> None:
        """The frame added last had been taken out too early: it is the first again."""
        self._frames.appendleft(self._frames.pop())

    def clear(self) -> None:
        """Forget all of it."""
        self._frames.clear()
        self._transactions.clear()
        self.size = 0


def _cost(frame: Frame) -> int:
    """Bytes, objects included."""
    return len(frame.block) + len(frame.body) + 250
