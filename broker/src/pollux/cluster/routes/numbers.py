"""Numbers of the messages of one link: a message that is sent again is known, however late, with constant memory.

Whoever forwards gives each message the number that follows in the *life* of its process, once, when the message
enters the store-and-forward queue; both are stored with it. Whoever takes it in stores the last number of each life in
the same transaction as the message. A life is eight random bytes, so a store that was restored from a copy counts in a
life of its own: what it numbers is never taken for what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pollux.formats.records import LINK_LIVES

if TYPE_CHECKING:
    from collections.abc import Iterable


class Number(NamedTuple):
    """The number of a message within a life of the node that forwards it."""

    life: bytes
    value: int


class Numbering:
    """Gives numbers, from 1 on."""

    def __init__(self, life: bytes) -> None:
        self.life = life
        self.count = 0

    def next(self) -> Number:
        """Return the next number."""
        self.count += 1
        return Number(self.life, self.count)

    def take(self, count: int) -> int:
        """Return the first of so many next numbers."""
        self.count += count
        return self.count - count + 1


class Taken:
    """The last numbers taken in of one link, by life, the newest life last. What waits is of one or two lives."""

    def __init__(self, numbers: Iterable[Number] = ()) -> None:
        self._last: dict[bytes, int] = {}
        for number in numbers:
            self.take(number)

    def is_new(self, number: Number) -> bool:
        """Whether a message of this number was not taken in yet."""
        return number.value > self._last.get(number.life, 0)

    def last(self, life: bytes) -> int:
        """Return the last number that was taken in of a life; 0: none was."""
        return self._last.get(life, 0)

    def take(self, number: Number) -> None:
        """Remember that it was: all before it of its life are taken in, too."""
        last = self._last.pop(number.life, 0)
        self._last[number.life] = max(last, number.value)
        if len(self._last) > LINK_LIVES:
            del self._last[next(iter(self._last))]

    @property
    def numbers(self) -> list[Number]:
        """The last number of each life."""
        return [Number(*one) for one in self._last.items()]
