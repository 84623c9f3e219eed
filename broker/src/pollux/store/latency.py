"""How long records take until they are on stable storage: counts by upper bound, for monitoring."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class LatencyHistogram:
    """Counts by upper bound, seconds."""

    BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(self.BOUNDS) + 1)
        #: The sum of all values, seconds.
        self.total = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count ``count`` values that are all the same."""
        self._counts[bisect_left(self.BOUNDS, seconds)] += count
        self.total += seconds * count

    def cumulative(self) -> list[tuple[str, float]]:
        """``(upper bound, values up to it)`` for each bucket, as Prometheus wants them."""
        bounds = [*(str(bound) for bound in self.BOUNDS), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))
