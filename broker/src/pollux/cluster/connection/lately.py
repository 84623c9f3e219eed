"""Remembers which messages came from another node lately, by their ids. Pure.

Ids are given in ascending order, and without a gap to what comes together: each run of them is remembered, not each id.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Runs remembered; of more than that the older half is forgotten.
_MOST = 100_000


class Lately:
    """Ids of messages, and when they came by some clock. ``False`` when there are none."""

    __slots__ = ("_first", "_last", "_when")

    def __init__(self) -> None:
        #: Of each run its first and last id, and when it came.
        self._first: list[int] = []
        self._last: list[int] = []
        self._when: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._when)

    def __len__(self) -> int:
        return sum(self._last) - sum(self._first) + len(self._first)

    def add(self, ids: Sequence[int], now: float) -> None:
        """Note ids in ascending order that are higher than all before."""
        if not ids:
            return
        if ids[-1] - ids[0] != len(ids) - 1:
            for one in ids:
                self._add(one, one, now)
        else:
            self._add(ids[0], ids[-1], now)
        if len(self._when) > _MOST:
            self._forget(_MOST // 2)

    def _add(self, first: int, last: int, now: float) -> None:
        if self._when and self._when[-1] == now and self._last[-1] == first - 1:
            self._last[-1] = last
            return
        self._first.append(first)
        self._last.append(last)
        self._when.append(now)

    def when(self, message_id: int) -> float | None:
        """Return when a message came; None: not lately."""
        index = bisect_right(self._first, message_id) - 1
        return self._when[index] if index >= 0 and message_id <= self._last[index] else None

    @property
    def oldest(self) -> float:
        """When the first of them came. Raises IndexError when there are none."""
        return self._when[0]

    def forget(self, until: float) -> bool:
        """Forget what came until then; return whether there was any."""
        count = bisect_right(self._when, until)
        self._forget(count)
        return count > 0

    def _forget(self, count: int) -> None:
        del self._first[:count], self._last[:count], self._when[:count]
