"""Whether a client is read from: several parts of a session may want it to wait, and it waits for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux.protocols.base import Transport

#: Why reading may be paused.
LOG_IN, PARKED, FILE, PIECES = range(4)


class Reading:
    """Holds the reasons not to read from a client, and pauses its transport while there are any."""

    __slots__ = ("_reasons", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reasons: set[int] = set()

    @property
    def paused(self) -> bool:
        """The client cannot be heard now: its silence says nothing."""
        return bool(self._reasons)

    def pause(self, reason: int) -> None:
        """Take no more bytes."""
        if not self._reasons:
            self._transport.pause_reading()
        self._reasons.add(reason)

    def resume(self, reason: int) -> None:
        """Take bytes again, when ``reason`` was the last one not to."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons:
                self._transport.resume_reading()
