"""How long a backup may take itself for ready, and its primary has to wait before it goes on without it. Pure.

A backup asks its primary again and again whether it still counts; an answer holds ``seconds`` from when it was *asked*.
The primary remembers when it answered last, which is later than that, so what it waits is never too short. Both measure
a length of time, so their clocks need not agree; one that runs faster is what MARGIN is for.
"""

from __future__ import annotations

#: How much longer a primary waits than a backup's lease lasts: clocks differ by far less.
MARGIN = 1.05


class ReadyLease:
    """The backup's side. Times are seconds of its own clock."""

    __slots__ = ("_asked_at", "_heir_until", "_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._asked_at = self._until = 0.0
        self._heir_until = 0.0

    def answered(self, asked_at: float) -> None:
        """Count the primary's yes to what was asked at ``asked_at``."""
        self._asked_at = max(self._asked_at, asked_at)
        self._until = self._asked_at + self.seconds

    def primary_ended(self, now: float, grace: float) -> None:
        """Count that the primary has certainly ended while this lease still held: then it did not go on without us.

        Nobody was promoted before its last answer, and whoever was since waits for us for ``grace`` seconds.
        """
        if self.held(now):
            self._heir_until = self._asked_at + grace

    def handed_over(self, now: float, grace: float) -> None:
        """Count that the primary, which served until now, serves no more and has given everything to us."""
        if self.held(now):
            self._heir_until = now + grace

    def drop(self) -> None:
        """Be ready no more: our copy is made anew."""
        self._asked_at = self._until = self._heir_until = 0.0

    def held(self, now: float) -> bool:
        """Whether this backup certainly has everything that was confirmed."""
        return now < max(self._until, self._heir_until)

    def left(self, now: float) -> float:
        """Seconds left."""
        return max(0.0, max(self._until, self._heir_until) - now)


class Granted:
    """The primary's side: until when each backup may take itself for ready. Times are seconds of its own clock."""

    __slots__ = ("_seconds", "_until")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds * MARGIN
        self._until: dict[str, float] = {}

    def answer(self, backup: str, now: float) -> None:
        """Note, before it leaves, that a backup is told that it still counts."""
        self._until[backup] = now + self._seconds

    def ended(self, backup: str) -> None:
        """Note that the backup's process is gone for certain, and what it was told with it."""
        self._until.pop(backup, None)

    def left(self, backup: str, now: float) -> float:
        """Seconds until a backup that is lost has noticed; nothing is confirmed without it before."""
        return max(0.0, self._until.get(backup, 0.0) - now)
