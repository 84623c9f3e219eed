"""Everybody's fair share of the event loop: work of unknown size is done in small pieces, each piece's owner in turn.

The loop serves sockets between two turns. So whoever asks for much (ten thousand queues in one read, as many
subscriptions to end) waits for its own work, and nobody else waits for more than one slice of it. That holds for the
disk as well: pieces wait while what earlier ones wrote is still on its way there, so that nobody else's confirm has
very much before it.
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
    from typing import Protocol

    class Disk(Protocol):
        """The disk that pieces write to, as far as a share asks it."""

        @property
        def behind(self) -> bool:
            """Whether so much is on its way that more would only wait longer."""

        @property
        def crowded(self) -> bool:
            """Whether so much has come back from it that nothing more may come before that is done with."""

        def when_stable(self, callback: Callable[[Exception | None], None]) -> None:
            """Call back, not within this call, when everything written so far is on disk."""


#: Seconds that pieces take together in one turn of the loop; one piece at least is done in each. Half of it costs busy
#: AMQP clients a tenth of their throughput, as each turn has a hand-over to the writer.
SLICE = 0.004
#: The same while somebody asks for more than there is time for, which is when pieces were left in so many turns in a
#: row: what normal traffic leaves is done with in fewer.
SHORT_SLICE = SLICE / 4
PRESSED = 8
#: Seconds that slices stay short after something was left for the last time: who sends one large request after the
#: other leaves nothing between two of them.
CALM = 0.1
#: Work below this is not counted, seconds: an eighth of a slice.
SMALL = SLICE / 8
#: Turns whose work may be on its way to a disk that does not keep up.
_UNSTABLE = 2
#: Steps that are done at once: nobody is kept waiting for what is little.
AT_ONCE = 64
#: Bytes of one client handled in a piece: to begin with, at least, at most.
FIRST_PORTION = 4096
LEAST_PORTION = 64
LARGEST_PORTION = 1 << 20

logger = logging.getLogger("pollux.post")


class Share:
    """Does pieces of work. ``clock`` is monotonic seconds that go on within a turn (a loop's own do not); ``effort``
    those of them in which this thread ran, so that what is little is done at once on a busy machine, too.
    """

    __slots__ = (
        *("_calming", "_left", "_left_at", "_links", "_loop", "_planned", "_spent", "_unstable", "_waiting"),
        *("clock", "disk", "effort", "on_pressed", "slice", "turns"),
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
        effort: Callable[[], float] = time.thread_time,
    ) -> None:
        self.clock = clock
        self.effort = effort
        self._loop = loop
        self._waiting: deque[Callable[[], bool]] = deque()
        #: The broker's own: what other brokers say (with it come the confirms of replicas, without which nothing is on
        #: disk), and what is on disk and enters queues.
        self._links: deque[Callable[[], bool]] = deque()
        self._planned = False
        self._spent = 0.0
        #: Turns whose work is not on disk yet.
        self._unstable = 0
        #: Pieces wait for it; the broker sets it.
        self.disk: Disk | None = None
        #: Turns of the loop in which there was something to do.
        self.turns = 0
        #: Of them, those up to now in a row that left something for the next one.
        self._left = 0
        #: When something was left for the last time while slices were short; what looks whether that is long ago.
        self._left_at = 0.0
        self._calming: asyncio.TimerHandle | None = None
        #: Seconds that pieces take together in one turn now; who is told that they became few (True) or many again.
        self.slice = SLICE
        self.on_pressed: Callable[[bool], None] = lambda _pressed: None

    def add(self, piece: Callable[[], bool], *, of_broker: bool = False) -> None:
        """Call ``piece`` in later turns of the loop until it returns False. What is no client's waits for no disk."""
        (self._links if of_broker else self._waiting).append(piece)
        self._plan()

    def work(self, steps: Iterator[object]) -> None:
        """Go through ``steps``, each a small piece of work: a few at once, the rest when its turn comes."""
        begun, effort = self.clock(), self.effort()
        more = False
        for done, _ in enumerate(islice(steps, AT_ONCE), 1):
            more = done == AT_ONCE or self.effort() - effort > self.slice
            if more:
                break
        self.spent(self.clock() - begun)
        if more:
            self.add(lambda: next(steps, self) is not self)

    def close(self) -> None:
        """Forget all pieces that wait."""
        self._waiting.clear()
        self._links.clear()
        if self._calming is not None:
            self._calming.cancel()
            self._calming = None
            self.slice = SLICE
            self.on_pressed(False)

    def spent(self, seconds: float) -> None:
        """Count ``seconds`` that were spent at once; little is not counted."""
        if seconds > SMALL:
            self._spent += seconds
            self._plan()

    @property
    def pressed(self) -> bool:
        """Whether slices are short, as somebody asks for more than there is time for."""
        return self._calming is not None

    @property
    def room(self) -> bool:
        """Whether more than a small piece may be done in this turn."""
        return self._spent < self.slice and not self._held

    @property
    def _held(self) -> bool:
        """Whether pieces wait for the disk: one turn's are being written, and another's come next."""
        if self.disk is None:
            return False
        return (self._unstable >= _UNSTABLE and self.disk.behind) or self.disk.crowded

    def _stable(self, _error: Exception | None) -> None:
        self._unstable -= 1
        if self._waiting:
            self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._planned = False
        self._spent = 0.0
        links, clock = self._links, self.clock
        # What is held goes on when the disk has done with an earlier turn.
        waiting: deque[Callable[[], bool]] = deque() if self._held else self._waiting
        if not waiting and not links:
            return
        self.turns += 1
        begun = clock()
        written = bool(waiting)
        while (waiting or links) and self._spent < self.slice:
            for pieces in (links, waiting):
                if pieces and self._spent < self.slice:
                    _do(pieces)
                    self._spent = clock() - begun
        if self.disk is not None and written:
            self._unstable += 1
            self.disk.when_stable(self._stable)
        if waiting or links or (self._waiting and not self._held):
            self._plan()
        self._press(left=bool(self._waiting or links))

    def _press(self, *, left: bool) -> None:
        """Make slices short when too much has been waiting for too long."""
        self._left = self._left + 1 if left else 0
        if self._calming is not None:
            if left:
                self._left_at = self._loop.time()
        elif self._left >= PRESSED:
            self._left_at = self._loop.time()
            self._calming = self._loop.call_later(CALM, self._calm)
            self.slice = SHORT_SLICE
            self.on_pressed(True)

    def _calm(self) -> None:
        """Make slices whole again if nothing was left for a while, else look again."""
        rest = self._left_at + CALM - self._loop.time()
        # While pieces wait for the disk there is no turn that could leave them.
        if rest > 0 or self._waiting:
            self._calming = self._loop.call_later(max(rest, CALM / 4), self._calm)
            return
        self._calming = None
        self._left = 0
        self.slice = SLICE
        self.on_pressed(False)


def _do(pieces: deque[Callable[[], bool]]) -> None:
    """Do the first piece; it is the last one then, if there is more of it."""
    piece = pieces.popleft()
    try:
        more = piece()
    except Exception:
        logger.exception("a piece of work failed")
        more = False
    if more:
        pieces.append(piece)


class Portion:
    """How many bytes of one client make a piece: what took a slice at its last rate. Normal traffic never meets it."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = FIRST_PORTION

    def took(self, size: int, seconds: float, most: float) -> None:
        """Learn that ``size`` bytes were handled within ``seconds``, of which there may be ``most``."""
        if seconds > most:
            self.size = max(LEAST_PORTION, int(size * most / seconds))
        elif size >= self.size and seconds < most / 2:
            self.size = min(LARGEST_PORTION, self.size * 2)
