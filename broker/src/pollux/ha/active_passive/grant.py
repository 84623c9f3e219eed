"""Until when a promoted broker serves by its resource manager's word (``grant-lease``). Pure.

The resource manager says again and again that this broker is the one that serves, and stops before it promotes another
one; one that was replaced is demoted before it is chosen again. A word counts from when it was **asked for**: a time by
this broker's own clock, which whoever speaks had from it before seeing whether the cluster still has its majority. So a
word that was under way for long, or was said by somebody who stood still meanwhile, is worth no more than it was when
it was looked up. With ``seconds`` 0 one promotion is enough for ever, and that the old primary is gone is the resource
manager's promise alone.
"""

from __future__ import annotations

from typing import NamedTuple

from pollux.errors import InvalidRequestError
from pollux.ha.active_passive.ready import MARGIN


class Word(NamedTuple):
    """The newest word: for when it was asked, and until when it is worth something. None: for ever."""

    at: float | None
    until: float | None


class Grant:
    """Times are seconds of this broker's own clock. Set in the loop; may be read by any thread."""

    __slots__ = ("_at", "_until", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = self._until = 0.0

    def given(self, asked_at: float, now: float) -> bool:
        """Count a word. False when it says nothing: it is of the future, or too old."""
        if not self.seconds:
            return True
        if not now - self.seconds < asked_at <= now:
            return False
        if asked_at > self._at:
            self._at, self._until = asked_at, asked_at + self.seconds
        return True

    def renewed(self, asked_at: float, now: float) -> int | None:
        """Count a word, and return its milliseconds that are left. Raises InvalidRequestError where it is nothing."""
        if not self.given(asked_at, now):
            raise InvalidRequestError(
                f"the word was asked for at {asked_at:.3f}, here it is {now:.3f}: it is older than grant-lease"
                f" ({self.seconds:g} s), or of another clock"
            )
        return self.left_ms(now)

    @property
    def word(self) -> Word:
        """The newest word."""
        return Word(self._at, self._until) if self.seconds else Word(None, None)

    @property
    def outlasts(self) -> float:
        """How long after a promotion an older grant of somebody else may still be worth something, seconds."""
        return self.seconds * MARGIN

    def renewed_since(self, when: float) -> bool:
        """Whether nobody else had been promoted at ``when``, for certain."""
        return not self.seconds or self._at >= when

    def left(self, now: float) -> float | None:
        """Seconds until this broker stops to serve; None: for ever."""
        return max(0.0, self._until - now) if self.seconds else None

    def left_ms(self, now: float) -> int | None:
        """The same in whole milliseconds, as it is shown."""
        return int(1000 * left) if (left := self.left(now)) is not None else None
