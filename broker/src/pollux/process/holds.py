"""Count what is written to a client and waits until something is on disk. Pure."""

from __future__ import annotations

from collections import deque


class Holds(deque[int]):
    """For each hold that lasts, the parts that were written before it began. They end in the order of their beginnings.

    A deque, as the connection asks with each turn whether there is any.
    """

    def end_first(self, written: int) -> int:
        """End the first hold; return how many of the ``written`` parts go out now: those before the next one began."""
        self.popleft()
        parts = self[0] if self else written
        for position in range(len(self)):
            self[position] -= parts
        return parts
