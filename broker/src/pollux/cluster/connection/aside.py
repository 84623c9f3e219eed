"""Keeps what must not overtake a large message while its body goes over a link in pieces, between others. Pure.

Its number is taken, and nothing with a later one of its life may go before it; nor may another large message, as one
body goes at a time. All others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque

    from pollux.routing.reference import MessageReference


class Aside:
    """Messages that wait for the end of a body, in their order. ``False`` while no body goes."""

    def __init__(self) -> None:
        self._lives: set[bytes] = set()
        self._messages: list[MessageReference] = []

    def __bool__(self) -> bool:
        return bool(self._lives)

    def begin(self, life: bytes) -> None:
        """Have messages of a life wait from now on: the body of one of its messages goes."""
        self._lives = {life}

    def keeps(self, life: bytes, reference: MessageReference) -> bool:
        """Whether a message has to wait; then it is kept here, and others of its life will be."""
        if life not in self._lives and reference.message.large is None:
            return False
        self._lives.add(life)
        self._messages.append(reference)
        return True

    def give_back(self, waiting: deque[MessageReference]) -> None:
        """Put what is kept before what waits."""
        waiting.extendleft(reversed(self._messages))
        self._messages.clear()

    def end(self, waiting: deque[MessageReference]) -> None:
        """Put what is kept before what waits: the body has gone."""
        self.give_back(waiting)
        self._lives.clear()

    def forget(self) -> None:
        """Keep nothing any more: the connection is gone, and the queue has them again."""
        self._messages.clear()
        self._lives.clear()
