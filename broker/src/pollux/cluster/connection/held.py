"""Holds back messages for addresses that are full at their node, while others go on over the same link. Pure.

What is held back stays in the store-and-forward queue. Nothing may overtake it that is for its address, which keeps its
order, or that has a number in its life: what is not above the last number of a life is taken for sent. So whatever has
an address or a life of a message that is held back is held back, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.forwarded import order_of
from pollux.cluster.routes.numbers import base_of
from pollux.routing.selector import Selector

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Collection

    from pollux.message import Message
    from pollux.routing.reference import MessageReference


class Held:
    """Decides what waits of one link, from the messages it was asked about in the order of their queue."""

    def __init__(self) -> None:
        #: The addresses that are full, as the node told; and how many messages were held back since it told of room.
        self.full: frozenset[str] = frozenset()
        self.count = 0
        self._addresses: set[str] = set()
        self._lives: set[bytes] = set()
        self._selector = Selector("for an address with room", self.lets)

    @property
    def selector(self) -> Selector | None:
        """Return what lets through what is sent; None: everything is."""
        return self._selector if self.full else None

    def told(self, addresses: Collection[str]) -> bool:
        """Take the addresses that are full now; return whether what was held back is to be looked at again."""
        again = bool(self.full - set(addresses))
        self.full = frozenset(addresses)
        if again:
            self.count = 0
            self._lives.clear()
            self._addresses.clear()
        self._addresses |= self.full
        return again

    def waits(self, address: str) -> bool:
        """Whether messages for an address are held back."""
        return address in self._addresses

    def lets(self, message: Message) -> bool:
        """Whether a message is sent now; else it, and what must not overtake it, is held back."""
        if self._lets(message):
            return True
        self.count += 1
        return False

    def sift(self, waiting: deque[MessageReference]) -> list[MessageReference]:
        """Take those that are held back out of messages that were let through, in the order of sending; return them.

        What was held back before is behind them, or has nothing to do with them.
        """
        if not self.full:
            return []
        references = list(waiting)
        waiting.clear()
        back: list[MessageReference] = []
        lives, self._lives = self._lives, set()
        addresses, self._addresses = self._addresses, set(self.full)
        for reference in references:
            (waiting if self._lets(reference.message) else back).append(reference)
        self._lives |= lives
        self._addresses |= addresses
        return back

    def _lets(self, message: Message) -> bool:
        order = order_of(message)
        if order is None:  # it is no message of a link, and no other one's
            return True
        life, address = order.life, base_of(order.address)
        if address not in self._addresses and life not in self._lives:
            return True
        self._addresses.add(address)
        self._lives.add(life)
        return False
