"""Read from one client: in portions, in turn with others, and not at all while that has a reason.

A client that sends much at once has a portion of it handled, and is read on when the rest was: others have their turn
in between (:mod:`pollux.engine.share`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.share import Portion

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.engine.share import Share
    from pollux.process.output import Output
    from pollux.protocols.base import Session

#: Why a client is not being read: it does not take its answers; the session asked for it; what was read is not handled.
SLOW = 2
SESSION = 4
_BEHIND = 8


class Input:
    """The reading side of one connection; the other one is ``output``."""

    __slots__ = (
        *("_behind", "_catching_up", "_handler", "_output", "_portion", "_position", "_session", "_share"),
        *("active", "paused"),
    )

    def __init__(self, share: Share, output: Output) -> None:
        self._share = share
        self._output = output
        self._session: Session
        self._handler: Callable[[bytes], None]
        #: Why the client is not being read: the bits above; 0 reads.
        self.paused = 0
        #: What was read and waits for its turn, from the position on, and whether that is asked for.
        self._behind = b""
        self._position = 0
        self._catching_up = False
        self._portion = Portion()
        #: Set by every byte received, cleared by the sweep.
        self.active = True

    def begin(self, session: Session, handler: Callable[[bytes], None]) -> None:
        """Hand what is taken from here on to ``handler``: the session, or what is before it."""
        self._session = session
        self._handler = handler

    def take(self, data: bytes) -> None:
        """Hand bytes to the session; what is more than this client's portion waits until others had their turn."""
        size = len(data)
        if self._behind or size > self._portion.size or (size > self._portion.size >> 3 and not self._share.room):
            self._behind = self._behind[self._position :] + data if self._behind else data
            self._position = 0
            self.pause(_BEHIND)
            self._catch_up_later()
        else:
            self._handle(data)

    def _handle(self, data: bytes) -> None:
        share = self._share
        # A short slice is not much more than what another thread takes: then what this thread did counts for a portion.
        pressed = share.pressed
        begun, effort = share.clock(), share.effort() if pressed else 0.0
        self._handler(data)
        took = share.clock() - begun
        self._portion.took(len(data), share.effort() - effort if pressed else took, share.slice)
        share.spent(took)
        if self._output.paused and self._output.unsent() > self._output.limit:
            # It sends but does not read the answers: what piles up for it is bounded by not reading it.
            self.pause(SLOW)

    def _catch_up_later(self) -> None:
        if not self._catching_up and not self.paused & ~_BEHIND:
            self._catching_up = True
            self._share.add(self._catch_up, of_broker=self._session.of_broker)

    def _catch_up(self) -> bool:
        """Handle the next portion of what is behind; whether there is one more."""
        if self._output.closing:
            self._behind = b""
        elif self.paused & ~_BEHIND:
            self._catching_up = False
            return False  # goes on when it is read again
        else:
            self.active = True
            start, self._position = self._position, self._position + self._portion.size
            portion = self._behind[start : self._position]
            if self._position >= len(self._behind):
                self._behind = b""
            self._handle(portion)
        if self._behind:
            return True
        self._catching_up = False
        self.resume(_BEHIND)
        return False

    @property
    def waiting(self) -> int:
        """The number of bytes that were read and wait for their turn."""
        return len(self._behind) - self._position if self._behind else 0

    def pause(self, why: int) -> None:
        """Read no more, for one of the reasons above."""
        if not self.paused and not self._output.closing:
            self._output.transport.pause_reading()
        self.paused |= why

    def resume(self, why: int) -> None:
        """Read again when ``why`` was the only reason not to."""
        if self.paused & why:
            self.paused &= ~why
            if self._behind:
                self._catch_up_later()
            if not self.paused and not self._output.transport.is_closing():
                self._output.transport.resume_reading()
