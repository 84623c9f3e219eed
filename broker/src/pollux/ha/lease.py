"""The lease guard: until when a live broker may acknowledge.

Only a *completed* proof of the activation right pushes it forward, counted from the moment the proof began. The
journal asks after each sync and before each acknowledgement; once it has expired it never comes back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


def boot_clock() -> float:
    """Seconds of CLOCK_BOOTTIME: never set back, and unlike CLOCK_MONOTONIC it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Right(NamedTuple):
    """The right to serve with the data of a node, in one epoch; the same for all policies.

    ``began`` is by the clock of who proves it: when the store was found free, or the lock was obtained.
    """

    node_id: bytes
    epoch: int
    reason: str
    began: float


class Lease:
    """``seconds`` after the beginning of the last completed proof nothing may be acknowledged any more.

    ``extend`` is called by the thread that proves, ``held`` and ``expired`` by any.
    """

    __slots__ = ("_began", "_clock", "_lost", "_until", "seconds")

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_clock) -> None:
        self.seconds = seconds
        self._clock = clock
        #: When the last completed proof began, and until when it is worth something.
        self._began = self._until = 0.0
        self._lost = False

    def extend(self, began: float) -> bool:
        """Count a completed proof that began at ``began`` (by the lease's clock); False when it came too late.

        The first proof starts the lease.
        """
        now = self._clock()
        assert self._began <= began <= now  # noqa: S101  (a proof of the future would let two serve)
        if self._lost or (self._until and now >= self._until):
            self._lost = True
            return False
        self._began, self._until = began, began + self.seconds
        return self.held()

    def shorten(self, seconds: float) -> None:
        """Let a proof be worth ``seconds`` if that is less, the last one too. By the thread that proves."""
        less = self.seconds - seconds
        if less > 0:
            self.seconds = seconds
            if self._until:
                self._until -= less

    def held(self) -> bool:
        """Whether acknowledgements may leave now."""
        if self._lost:
            return False
        if self._clock() < self._until:
            return True
        self._lost = self._until > 0
        return False

    def left(self) -> float:
        """Seconds left; 0 when it has expired or never began."""
        return 0.0 if self._lost else max(0.0, self._until - self._clock())

    def drop(self) -> None:
        """Give the right up: nothing is acknowledged from now on."""
        self._lost = True
