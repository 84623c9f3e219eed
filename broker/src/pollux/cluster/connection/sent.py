"""Keeps account of each life's messages on a link: numbers, those the peer has, and those on their way. Pure.

A life is a process that numbered messages for this node. Numbers of one go in order over one connection; what was sent
over an earlier one, and not confirmed, may be there or not, until the peer says up to where it has them.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pollux.cluster.connection.forwarded import Forwarded, Plain
    from pollux.routing.reference import MessageReference


class Fate(Enum):
    """The fate of a message that waits for the peer."""

    SEND = auto()
    #: The peer has it.
    DONE = auto()
    #: Later ones went before it: it needs another number.
    RENUMBER = auto()
    #: It was sent before and not taken.
    GIVE_UP = auto()


class _Run(NamedTuple):
    """Messages that went together: their numbers, which follow each other, and the bytes of all of them."""

    numbers: range
    references: list[MessageReference]
    size: int


class Sent:
    """The numbers of one link."""

    def __init__(self) -> None:
        #: Bytes of what is on its way.
        self.size = 0
        #: The next message that was sent before and not taken is given up, as an operator wants it.
        self.gives_up = False
        #: By life, in the order of their numbers.
        self._in_flight: dict[bytes, deque[_Run]] = {}
        #: By life: the highest number that this process sent; what the peer had when it accepted this connection; the
        #: last one sent over it. And what was sent over earlier ones and not confirmed.
        self._highest: dict[bytes, int] = {}
        self._taken: dict[bytes, int] = {}
        self._last: dict[bytes, int] = {}
        self._open: set[tuple[bytes, int]] = set()
        #: The highest numbers and the open ones of each node that was reached: a number is another message elsewhere.
        self._of_nodes: dict[bytes, tuple[dict[bytes, int], set[tuple[bytes, int]]]] = {}

    def begin(self, node: bytes, taken: dict[bytes, int]) -> None:
        """Begin a connection to a node, which has ``taken`` of this link: by life, up to which number."""
        self._taken, self._last = taken, dict(taken)
        self._highest, self._open = self._of_nodes.setdefault(node, ({}, set()))

    def end(self) -> None:
        """End a connection: nobody knows whether what is on its way arrives."""
        for life, flight in self._in_flight.items():
            self._open.update((life, number) for run in flight for number in run.numbers)
        self.forget()

    def forget(self) -> None:
        """Have nothing on its way."""
        self._in_flight.clear()
        self.size = 0

    @property
    def in_flight(self) -> int:
        """Return how many messages were sent and not confirmed."""
        return sum(len(run.numbers) for flight in self._in_flight.values() for run in flight)

    @property
    def holds(self) -> bool:
        """Whether something was sent that the peer has not said to have, by an earlier connection or this one."""
        return bool(self._open) or any(self._in_flight.values())

    def highest(self, node: bytes, life: bytes) -> int:
        """Return the highest number of a life that was sent to a node, whether it arrived or not; 0: none was."""
        return self._of_nodes[node][0].get(life, 0) if node in self._of_nodes else 0

    @property
    def numbers(self) -> dict[tuple[bytes, bytes], int]:
        """Return the highest numbers that were sent, by node and life."""
        return {(node, life): top for node, (lives, _) in self._of_nodes.items() for life, top in lives.items()}

    def begins(self, life: bytes, number: int, reference: MessageReference) -> bool:
        """Whether a message was not sent over this connection: then it is on its way from now on."""
        if number <= self._last.get(life, 0) or (self.gives_up and (life, number) in self._open):
            return False
        self.begin_run(life, range(number, number + 1), [reference], reference.message.size)
        return True

    def last(self, life: bytes) -> int:
        """Return the number that was sent over this connection, or that the peer had before, of a life last."""
        return self._last.get(life, 0)

    def begin_run(self, life: bytes, numbers: range, references: list[MessageReference], size: int) -> None:
        """Have messages of ``size`` bytes on their way. Their numbers are above :meth:`last`."""
        top = self._last[life] = numbers[-1]
        if top > self._highest.get(life, 0):
            self._highest[life] = top
        if self._open:
            self._open.difference_update((life, number) for number in numbers)
        flight = self._in_flight.get(life)
        if flight is None:
            flight = self._in_flight[life] = deque()
        flight.append(_Run(numbers, references, size))
        self.size += size

    def next(self, one: Forwarded | Plain, reference: MessageReference) -> Fate:
        """Return what becomes of a message; what is sent is on its way from now on."""
        life, number = one.life, one.number
        if self.begins(life, number, reference):
            return Fate.SEND
        taken = self._taken.get(life, 0)
        if number > taken and self.gives_up and (life, number) in self._open:
            self.gives_up = False
            self._open.discard((life, number))
            return Fate.GIVE_UP
        # It was sent before this connection: by this process, or by one before it.
        if number <= taken and ((life, number) in self._open or number > self._highest.get(life, 0)):
            self._open.discard((life, number))
            return Fate.DONE
        return Fate.RENUMBER

    def take_back(self, life: bytes) -> None:
        """The last message of a life was not sent after all."""
        # One that is taken back is large, and a large one is a run of its own.
        self.size -= self._in_flight[life].pop().size

    def confirmed(self, life: bytes, number: int) -> list[MessageReference]:
        """Return what is done: the peer has it all up to this number."""
        flight = self._in_flight.get(life)
        done: list[MessageReference] = []
        while flight and flight[0].numbers[0] <= number:
            run = flight.popleft()
            taken, size = run.references, run.size
            if run.numbers[-1] > number:
                many = number + 1 - run.numbers[0]
                taken, left = taken[:many], taken[many:]
                size = sum([reference.message.size for reference in taken])
                flight.appendleft(_Run(run.numbers[many:], left, run.size - size))
            done += taken
            self.size -= size
        return done
