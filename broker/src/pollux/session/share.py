"""Everybody's fair share of the event loop: work of unknown size is done in small pieces, each piece's owner in turn.

The loop serves sockets between two turns. So whoever asks for much (ten thousand queues in one read, as many
subscriptions to end) waits for its own work, and nobody else waits for more than one slice of it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

#: Seconds that pieces take together in one turn of the loop; one piece at least is done in each.
SLICE = 0.004
#: Work below this is not counted, seconds: an eighth of a slice.
SMALL = SLICE / 8
#: Steps that are done at once: nobody is kept waiting for what is little.
AT_ONCE = 64
#: Bytes of one client handled in a piece: to begin with, at least, at most.
FIRST_PORTION = 4096
LEAST_PORTION = 256
LARGEST_PORTION = 1 << 20

logger = logging.getLogger("pollux.post")


class Share:
    """Does pieces of work. ``clock`` is monotonic seconds that go on within a turn (a loop's own do not)."""

    __slots__ = ("_loop", "_planned", "_spent", "_waiting", "clock", "turns")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._loop = loop
        self._waiting: deque[Callable[[], bool]] = deque()
        self._planned = False
        self._spent = 0.0
        #: Turns of the loop in which there was something to do.
        self.turns = 0

    def add(self, piece: Callable[[], bool]) -> None:
        """Call ``piece`` in later turns of the loop until it returns False."""
        self._waiting.append(piece)
        self._plan()

    def work(self, steps: Iterator[object]) -> None:
        """Go through ``steps``, each a small piece of work: a few at once, the rest when its turn comes."""
        begun = self.clock()
        more = sum(1 for _ in islice(steps, AT_ONCE)) == AT_ONCE
        self.spent(self.clock() - begun)
        if more:
            self.add(lambda: next(steps, self) is not self)

    def close(self) -> None:
        """Do nothing more."""
        self._waiting.clear()

    def spent(self, seconds: float) -> None:
        """So much was done at once; what is small is not counted."""
        if seconds > SMALL:
            self._spent += seconds
            self._plan()

    @property
    def room(self) -> bool:
        """Whether more than a small piece may be done in this turn."""
        return self._spent < SLICE

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._planned = False
        self._spent = 0.0
        waiting, clock = self._waiting, self.clock
        if not waiting:
            return
        self.turns += 1
        begun = clock()
        while waiting:
            piece = waiting.popleft()
            try:
                more = piece()
            except Exception:
                logger.exception("a piece of work failed")
                more = False
            if more:
                waiting.append(piece)
            self._spent = clock() - begun
            if self._spent >= SLICE:
                break
        if waiting:
            self._plan()


class Portion:
    """How many bytes of one client make a piece: what took a slice at its last rate. Normal traffic never meets it."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = FIRST_PORTION

    def took(self, size: int, seconds: float) -> None:
        """``size`` bytes were handled within ``seconds``."""
        if seconds > SLICE:
            self.size = max(LEAST_PORTION, int(size * SLICE / seconds))
        elif size >= self.size and seconds < SLICE / 2:
            self.size = min(LARGEST_PORTION, self.size * 2)
