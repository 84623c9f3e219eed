"""The pauses between attempts to connect: the arithmetic alone. Times are milliseconds; no clock, no I/O.

An *attempt* is one pass over all known brokers without a pause in between, because a backup refuses at once and the
live may be the next one on the list. Pauses lie between attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

#: As `reconnectAttempts` or `initialConnectAttempts`: never give up.
UNLIMITED = -1


class RetryPolicy(Struct, frozen=True):
    """`retryInterval`, `retryIntervalMultiplier` and `maxRetryInterval` of a URL."""

    interval: int = 2000
    multiplier: float = 1.0
    maximum: int = 2000

    def pause(self, failed: int) -> float:
        """Return the pause after `failed` (1, 2, ...) attempts: interval * multiplier^(failed-1), up to the maximum."""
        pause = float(min(self.interval, self.maximum))
        if self.multiplier == 1.0 or pause == 0:
            return pause
        # Not as a power: that overflows after an hour without a broker.
        for _ in range(failed - 1):
            if pause >= self.maximum:
                break
            pause *= self.multiplier
        return min(pause, float(self.maximum))

    def pauses(self, attempts: int) -> Iterator[float]:
        """Yield the pause before each of `attempts` attempts, the first 0; endless for :data:`UNLIMITED`."""
        pause = float(min(self.interval, self.maximum))
        number = 0
        while attempts == UNLIMITED or number < attempts:
            yield 0.0 if number == 0 else pause
            if number:
                pause = min(pause * self.multiplier, float(self.maximum))
            number += 1
