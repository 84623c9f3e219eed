"""Keeps what must not overtake a large message while its body goes over a link in pieces, between others. Pure.

Its number is taken, and nothing with a later one of its life may go before it. Nor may what is for its address, which
has another life where another process numbered it, or another large message: one body goes at a time. Others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.forwarded import order_of
from pollux.cluster.routes.numbers import base_of

if TYPE_CHECKING:
    from collections import deque

    from pollux.message import Message
    from pollux.routing.reference import MessageReference


class Aside:
    """Messages that wait for the end of a body, in their order. ``False`` while no body goes."""

    def __init__(self) -> None:
        #: What those have that wait: a life or an address of these.
        self._lives: set[bytes] = set()
        self._addresses: set[str] = set()
        self._messages: list[MessageReference] = []

    def __bool__(self) -> bool:
        return bool(self._lives)

    def begin(self, message: Message) -> None:
        """Have what must not overtake this large message wait from now on: its body goes."""
        self._waits(message, anyway=True)

    def keeps(self, reference: MessageReference) -> bool:
        """Whether a message has to wait; then it is kept here, and others of its life and address will be."""
        if not self._waits(reference.message, anyway=reference.message.large is not None):
            return False
        self._messages.append(reference)
        return True

    def _waits(self, message: Message, *, anyway: bool) -> bool:
        order = order_of(message)
        if order is None:  # it is no message of a link, and no other one's
            return False
        life, address = order.life, base_of(order.address)
        if not anyway and life not in self._lives and address not in self._addresses:
            return False
        self._lives.add(life)
        self._addresses.add(address)
        return True

    def give_back(self, waiting: deque[MessageReference]) -> None:
        """Put what is kept before what waits."""
        waiting.extendleft(reversed(self._messages))
        self._messages.clear()

    def end(self, waiting: deque[MessageReference]) -> None:
        """Put what is kept before what waits: the body has gone."""
        self.give_back(waiting)
        self._lives.clear()
        self._addresses.clear()

    def forget(self) -> None:
        """Keep nothing any more: the connection is gone, and the queue has them again."""
        self._messages.clear()
        self._lives.clear()
        self._addresses.clear()
