"""Whether a client is read: not as long as anybody holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollux.protocols.base import Transport


class Reading:
    """The reading side of a connection, and who holds it back. Both calls may be made again: they count once."""

    __slots__ = ("_transport", "holders")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.holders: set[object] = set()

    def hold(self, holder: object) -> None:
        """Take no more bytes until ``holder`` has released."""
        if not self.holders:
            self._transport.pause_reading()
        self.holders.add(holder)

    def release(self, holder: object) -> None:
        """Take bytes again, unless somebody else holds."""
        if holder in self.holders:
            self.holders.remove(holder)
            if not self.holders:
                self._transport.resume_reading()

    def end(self) -> None:
        """Release nothing any more: the connection is lost."""
        self.holders.clear()
