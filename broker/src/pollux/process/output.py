"""Write to one client: what a turn writes goes out together, and what waits for the disk when that is over.

It knows of no session and no deadline. The session calls :meth:`Output.write` itself, as every message goes through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pollux.process.holds import Holds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

#: Bytes beyond the high-water mark that answers may pile up to before the client is no longer read.
ANSWER_ALLOWANCE = 1024 * 1024
#: Bytes written in one turn beyond which they go out before it ends.
_OUT_LIMIT = 64 << 10


class Owner(Protocol):
    """The connection, as its output sees it."""

    def pause_writing(self) -> None:
        """Hold the session back."""

    def resume_writing(self) -> None:
        """Let the session go on."""


class Output:
    """The writing side of one connection. ``high_water``: bytes that may wait before the session has to, too."""

    __slots__ = (
        *("_held_back", "_high_water", "_holds", "_loop", "_out", "_out_size", "_owner"),
        *("closing", "limit", "paused", "transport", "written"),
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, high_water: int) -> None:
        self._loop = loop
        self._high_water = high_water
        #: The socket's, or what TLS made of it; set before anything is written.
        self.transport: asyncio.Transport
        #: What was written this turn behind the first write; None: nothing was written yet.
        self._out: list[bytes] | None = None
        self._out_size = 0
        #: What of it waits until something is on disk; and whether the session waits for that.
        self._holds = Holds()
        self._held_back = False
        #: Who is told of that; set by hold() and not before: who connects and goes leaves no cycle to the collector.
        self._owner: Owner
        #: Bytes of all that was written.
        self.written = 0
        #: The session waits, as its client does not keep up: the owner sets it.
        self.paused = False
        #: Bytes that may wait to be sent before the client is no longer read.
        self.limit = high_water + ANSWER_ALLOWANCE
        #: close() or abort() was called, or the connection is gone.
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for sending.

        The transport makes a system call of each write. So the first of a turn goes out at once, as there is mostly
        no other, and those behind it (deliveries from many queues) go out together when the turn ends.
        """
        size = len(data)
        self.written += size
        out = self._out
        if out is None:
            self._out = []
            self._loop.call_soon(self._end_turn)
            self.transport.write(data)
            return
        out.append(data if type(data) is bytes else bytes(data))
        self._out_size += size
        if self._out_size > _OUT_LIMIT:
            self._flush()  # now, so that the transport can say that the client is slow

    def _end_turn(self) -> None:
        if not self._holds:
            self._flush()
            self._out = None

    def _flush(self) -> None:
        out = self._out
        if self._holds:
            self._hold_back()
        elif out:
            self._out = []
            self._out_size = 0
            self._send(out)

    def _send(self, out: list[bytes]) -> None:
        if out and not self.transport.is_closing():
            # One that was cut off since it was queued: uvloop raises for a write to a handle that is closed.
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    # -- what waits for the disk

    def hold(self, owner: Owner) -> Callable[[Exception | None], None]:
        """Keep what is written from now on until the answer is called: with None it goes out, with an error never.

        Holds end in the order in which they began. ``owner`` is told when the session has to wait for that.
        """
        self._owner = owner
        if self._out is None:
            self._out = []
        if not self._holds:
            self._flush()
        self._holds.append(len(self._out))
        return self._release

    def _release(self, error: Exception | None) -> None:
        """End the first hold: what was written before the next one began goes out."""
        if not self._holds:
            return
        if error is not None:
            self._holds.clear()
            self.abort()
            return
        out = self._out or []
        many = self._holds.end_first(len(out))
        self._out = out[many:] if self._holds else None
        ready = out[:many]
        self._out_size -= sum(map(len, ready))
        self._send(ready)
        if self._holds or self.transport.is_closing():
            return
        if self._held_back:
            self._held_back = False
            # What went out may have been more than the client takes at once: then the transport says when it goes on.
            if self.transport.get_write_buffer_size() <= self._high_water:
                self._owner.resume_writing()
        if self.closing:
            self.transport.close()

    def _hold_back(self) -> None:
        """Have the session wait when so much is held that the transport would have it wait."""
        if self._out_size > self._high_water and not self._held_back:
            self._held_back = True
            if not self.paused:
                self._owner.pause_writing()

    @property
    def held(self) -> bool:
        """Whether something waits for the disk."""
        return bool(self._holds)

    # -- how much there is

    def unsent(self) -> int:
        """Return the bytes that were written and are still here."""
        return self._out_size + self.transport.get_write_buffer_size()

    def taken(self) -> int:
        """Return the bytes the client has taken so far (for TLS an estimate that grows alike)."""
        return self.written - self.transport.get_write_buffer_size()

    # -- the end

    def close(self) -> None:
        """Close after everything queued was sent."""
        self.closing = True
        self._flush()
        if not self._holds:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.closing = True
        self.transport.abort()
