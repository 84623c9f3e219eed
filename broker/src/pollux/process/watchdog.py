"""The critical analyzer: notices when the event loop or the store's writer stands still, and what is done then.

A thread that sleeps in the kernel compares time stamps; the loop sets its own each period and sends a probe through
the store (``when_stable``), whose answer proves that the writer still writes. One analyzer also feeds the
service manager's watchdog and measures the loop's lag. It knows nothing of messages.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from pollux.config.model import CriticalAnalyzerPolicy
from pollux.logs import event
from pollux.process.exits import EXIT_HALTED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    StableProbe = Callable[[Callable[[Exception | None], None]], None]

logger = logging.getLogger("pollux.critical")

#: The loop measures itself at least this often, seconds.
MAXIMUM_BEAT = 1.0
#: After SHUTDOWN was asked for, a loop that stays stuck is ended this many seconds later.
SHUTDOWN_GRACE = 30.0


class CriticalAnalyzer:
    """Watch one loop and one store. Times are seconds, as ``clock`` counts them; ``halt`` ends the process at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        timeout: float,
        period: float,
        policy: CriticalAnalyzerPolicy,
        probe: StableProbe,
        alive: Callable[[], None] | None = None,
        enabled: bool = True,
        halt: Callable[[int], None] = os._exit,
        shutdown: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._timeout = timeout
        self._period = period
        self._policy = policy
        self._probe = probe
        self._alive = alive
        self._enabled = enabled
        self._halt = halt
        self._shutdown = shutdown or (lambda: os.kill(os.getpid(), signal.SIGTERM))
        self._clock = clock
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._beat_period = min(MAXIMUM_BEAT, period)
        self._due = 0.0
        self._beat = self._clock()
        #: When the store was asked for a sign of life that has not come yet; None: it answered.
        self._probed: float | None = None
        self._reported = ""
        #: How late the loop ran its last beat, and the worst of the last minute, seconds.
        self.lag = 0.0
        self._lags: list[float] = [0.0] * 60
        self._lag_slot = 0

    @property
    def maximum_lag(self) -> float:
        """Return the longest the loop was late in about the last minute, seconds."""
        return max(self._lags)

    def start(self) -> None:
        """Watch from here on; call in the loop's thread."""
        self._due = self._loop.time() + self._beat_period
        self._beat = self._clock()
        self._timer = self._loop.call_at(self._due, self._on_beat)
        if self._enabled:
            self._thread = threading.Thread(target=self._watch, name="pollux-critical", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and the timer."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _on_beat(self) -> None:
        now = self._loop.time()
        self.lag = max(0.0, now - self._due)
        self._lag_slot = (self._lag_slot + 1) % len(self._lags)
        self._lags[self._lag_slot] = self.lag
        self._beat = self._clock()
        if self._probed is None:
            self._probed = self._beat
            self._probe(self._on_stable)
        if self._alive is not None and not self._late(self._beat):
            self._alive()
        self._due = now + self._beat_period
        self._timer = self._loop.call_at(self._due, self._on_beat)

    def _on_stable(self, _error: Exception | None) -> None:
        self._probed = None

    def _late(self, now: float) -> str:
        """Say what stands still; empty when nothing does."""
        probed = self._probed
        if now - self._beat > self._timeout:
            return f"the event loop has not run for {now - self._beat:.1f} s"
        if probed is not None and now - probed > self._timeout:
            return f"the journal's writer has not finished a write for {now - probed:.1f} s"
        return ""

    def _watch(self) -> None:
        asked = 0.0
        while not self._stopped.wait(self._period):
            now = self._clock()
            late = self._late(now)
            if not late:
                if self._reported:
                    event(logger, logging.WARNING, "critical analyzer: the broker responds again")
                self._reported = ""
                asked = 0.0
                continue
            if asked:
                if now - asked > SHUTDOWN_GRACE:
                    self._end("the shutdown did not begin")
                continue
            if not self._reported:
                event(logger, logging.CRITICAL, f"critical analyzer: {late}", policy=self._policy.value)
                faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
            self._reported = late
            if self._policy is CriticalAnalyzerPolicy.HALT:
                self._end(late)
            elif self._policy is CriticalAnalyzerPolicy.SHUTDOWN:
                asked = now
                self._shutdown()

    def _end(self, reason: str) -> None:
        event(logger, logging.CRITICAL, "critical analyzer: halting", reason=reason, exit=EXIT_HALTED)
        for handler in logging.getLogger().handlers:
            handler.flush()
        self._halt(EXIT_HALTED)
