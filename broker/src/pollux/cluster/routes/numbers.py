"""Numbers of the messages of one link: a message that is sent again is known, however late, with constant memory.

Whoever forwards gives each message the number that follows in the *life* of its process, once, when the message
enters the store-and-forward queue; both are stored with it. Whoever takes it in stores the last number of each life in
the same transaction as the message. A life is eight random bytes, so a store that was restored from a copy counts in a
life of its own: what it numbers is never taken for what was there before.

What is numbered in one life is sent in one order. Where the other node tells of addresses that are full there, a
process has several lives for its messages, each a *lane*, so that those of a full address can wait while others go on.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from pollux.formats.records import LINK_LIVES

if TYPE_CHECKING:
    from collections.abc import Iterable


#: Lanes of a process. More addresses than these share some.
LANES = 16


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


class Lanes:
    """Gives numbers for each address: those of one address in one life, whatever other addresses there are.

    ``life`` is the only one until ``apart`` is set, which is for a node that remembers so many lives.
    """

    def __init__(self, life: bytes) -> None:
        self.apart = False
        self._one = Numbering(life)
        self._lanes = [Numbering(blake2b(life + bytes((at,)), digest_size=8).digest()) for at in range(LANES)]
        #: The first addresses have a lane each, as long as there are lanes.
        self._known: dict[str, Numbering] = {}

    def of(self, name: str) -> Numbering:
        """Return who numbers messages for a name (address or address::queue)."""
        if not self.apart:
            return self._one
        found = self._known.get(name)
        return found if found is not None else self._found(base_of(name))

    def _found(self, address: str) -> Numbering:
        found = self._known.get(address)
        if found is None:
            count = len(self._known)
            if count == LANES:
                return self._lanes[crc32(address.encode()) % LANES]
            found = self._known[address] = self._lanes[count]
        return found

    def gives(self, life: bytes) -> bool:
        """Return whether numbers of a life are given here, and not by an earlier process."""
        return any(one.life == life for one in (self._one, *self._lanes))

    def next(self, name: str) -> Number:
        """Return the next number for a name."""
        return self.of(name).next()


def base_of(name: str) -> str:
    """Return the address of a message's name, which may be one of a queue, too (address::queue)."""
    return name.partition("::")[0]


class Taken:
    """The last numbers taken in of one link, by life, the newest life last. What waits is of one or two processes."""

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
