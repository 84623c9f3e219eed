"""Room for what is new, and for what was accepted when there is none left.

The disk is full when a limit says so or when somebody finds no room (:mod:`pollux.store.usage`); then new messages
are refused, and what was accepted goes where room was set aside (:mod:`pollux.store.reserve`). There is room again when
what a shortage took can be set aside again: with less it would soon be back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.errors import DiskFullError
from pollux.store.reserve import Reserve
from pollux.store.segments import RETRY_SECONDS
from pollux.store.usage import DiskWatch, Finder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.maintenance import Maintenance
    from pollux.store.port import Files
    from pollux.store.segments import SegmentPool
    from pollux.store.settings import StoreSettings
    from pollux.store.usage import DiskUsage


class Room:
    """One store's room. For the loop's thread, but :meth:`tell` and :meth:`give_up`."""

    def __init__(
        self,
        settings: StoreSettings,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        *,
        on_change: Callable[[DiskUsage], None],
        in_loop: Callable[..., None],
    ) -> None:
        """``on_change`` is told first whenever the disk becomes full, or has room again.

        ``in_loop`` calls a function in the loop, from any thread.
        """
        self._loop = loop
        self._in_loop = in_loop
        self._on_change = on_change
        self.watch = DiskWatch(settings, files, loop, self._changed)
        self.reserve = Reserve(settings.journal_directory, files, settings.journal_file_size)
        #: What else takes room, and gives some back: both None until this life has begun.
        self.pool: SegmentPool | None = None
        self.maintenance: Maintenance | None = None
        #: Told after ``on_change``.
        self.listeners: list[Callable[[DiskUsage], None]] = []
        #: How often the writer found no room, and who waits until what it took is set aside again.
        self._shortages = 0
        self._regaining: asyncio.Task[None] | None = None
        self._closed = False

    def check(self) -> None:
        """Raise DiskFullError while new messages are refused."""
        if self.watch.full:
            raise DiskFullError(self.watch.reason or "the disk is full")

    def check_written(self) -> None:
        """Raise DiskFullError while a write finds no room, whatever the limits say."""
        if self.watch.full and self.watch.no_room_reason is not None:
            raise DiskFullError(self.watch.no_room_reason)

    def _changed(self, usage: DiskUsage) -> None:
        self._on_change(usage)
        if self.maintenance is not None:
            self.maintenance.room(full=usage.full)
        for listener in self.listeners:
            listener(usage)

    def tell(self, finder: Finder, reason: str | None) -> None:
        """Tell, from any thread, why ``finder`` finds no room; None: it found some."""
        self._in_loop(self._told, finder, reason)

    def _told(self, finder: Finder, reason: str | None) -> None:
        if reason is not None:
            self._shortages += 1
            self.watch.no_room(finder, reason)
        elif finder is Finder.BINDINGS or self.pool is None:
            self.watch.no_room(finder, None)  # before there is a pool, and a reserve, or without both
        elif self._regaining is None and not self._closed:
            self._regaining = self._loop.create_task(self._regain())

    async def _regain(self) -> None:
        while True:
            before = self._shortages
            busy = self.maintenance is not None and self.maintenance.busy
            waiting = self.pool is not None and self.pool.no_room
            if not busy and not waiting and await asyncio.to_thread(self.reserve.make) and self._shortages == before:
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._regaining = None
        self.watch.no_room(Finder.WRITER, None)
        self.watch.no_room(Finder.POOL, None)

    def give_up(self) -> bool:
        """Give up, in the writer's thread, what is set aside for a full disk; False when nothing is left."""
        return self.reserve.release() or (self.pool is not None and self.pool.give_up())

    async def close(self) -> None:
        """Look no more, and set nothing aside any more."""
        self._closed = True
        await self.watch.stop()
        if self._regaining is not None:
            self._regaining.cancel()
            await asyncio.wait([self._regaining])
