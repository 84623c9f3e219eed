"""The keep alive of one MQTT connection: whether its client is heard of often enough (MQTT 5, section 3.1.2.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.protocols.base import SECOND_LOOK

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.protocols.mqtt.backpressure import Reading


class KeepAlive:
    """Calls ``over`` when nothing was heard of a client for ``silence`` seconds (0: never)."""

    __slots__ = ("_looked_again", "_loop", "_over", "_reading", "heard", "silence", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, reading: Reading, over: Callable[[], None]) -> None:
        self._loop = loop
        self._reading = reading
        self._over = over
        self.timer: asyncio.TimerHandle | None = None
        self._looked_again = False
        self.silence = 0.0
        #: When something came last, by the loop's clock; whoever reads sets it.
        self.heard = loop.time()

    def start(self) -> None:
        """Start to look."""
        if self.silence:
            self.timer = self._loop.call_later(self.silence, self.look)

    def stop(self) -> None:
        """Look no more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def look(self) -> None:
        """End it when nothing was heard for long enough, at the second look; else look again later."""
        now = self._loop.time()
        if self._reading.paused:
            self.heard = now  # we do not listen: silence is ours
        left = self.heard + self.silence - now
        if left > 0:
            self._looked_again = False
        elif not self._looked_again:
            # Perhaps it was this loop that stood still: what the client sent meanwhile is read before the second look.
            self._looked_again = True
            left = SECOND_LOOK
        else:
            self.timer = None
            self._over()
            return
        self.timer = self._loop.call_later(left, self.look)
