"""Turns for each of many names: so many at a time, the others wait in order, and nothing is kept where nobody is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class _Line:
    """Those who have their turn for one name, and who wait for theirs."""

    __slots__ = ("free", "present")

    def __init__(self, at_a_time: int) -> None:
        self.free = asyncio.Semaphore(at_a_time)
        self.present = 0


class Turns:
    """``at_a_time`` have their turn for one name, ``waiting`` more may wait for theirs."""

    __slots__ = ("_at_a_time", "_lines", "_most")

    def __init__(self, at_a_time: int, waiting: int) -> None:
        self._at_a_time = at_a_time
        self._most = at_a_time + waiting
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, name: str, seconds: float | None) -> AsyncIterator[None]:
        """Have a turn for ``name``. Raises TimeoutError when too many wait, or it does not come within ``seconds``.

        None waits for as long as it takes.
        """
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self._at_a_time)
        elif line.present >= self._most:
            raise TimeoutError
        line.present += 1
        try:
            async with asyncio.timeout(seconds):
                await line.free.acquire()
            try:
                yield
            finally:
                line.free.release()
        finally:
            line.present -= 1
            if not line.present:
                del self._lines[name]

    def __len__(self) -> int:
        return len(self._lines)
