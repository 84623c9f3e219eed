"""A consumer of this broker's own: takes messages of a queue a few at a time, and does something with them together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector


class Taker(ABC):
    """Takes messages of a queue; all it took in one turn of the loop, :meth:`_hand_over` finds in ``_taken``."""

    #: After all consumers of clients.
    priority = -(1 << 31)
    selector: Selector | None = None
    browsing = False
    no_local = False
    origin = 0

    def __init__(self, loop: asyncio.AbstractEventLoop, credit: int = 0) -> None:
        self.credit = credit
        self._taker_loop = loop
        self._attached = False
        self._taken: list[MessageReference] = []

    def deliver(self, references: list[MessageReference]) -> None:
        """Take messages."""
        self.credit -= len(references)
        if not self._taken:
            self._taker_loop.call_soon(self._hand_over)
        self._taken += references

    def queue_deleted(self, _queue: Queue) -> None:
        """The queue is gone, and what it held."""
        self._attached = False
        self._taken = []

    @abstractmethod
    def _hand_over(self) -> None:
        """Do something with what was taken."""
