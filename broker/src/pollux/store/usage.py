"""Watch the file system, and tell when the store becomes full or free again.

Two things make it full: the configured limit (max-disk-usage or min-disk-free, looked at every
disk-scan-period) and a file that could not be made or written for want of room. Several threads
find that out, each for itself: one that has room again says nothing about the others.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings

logger = logging.getLogger(__name__)


class Finder(Enum):
    """Who finds that there is no room."""

    WRITER = auto()
    POOL = auto()
    BINDINGS = auto()


class DiskUsage(Struct, frozen=True):
    """The file system the journal is on. Bytes."""

    total: int
    free: int
    full: bool
    reason: str | None = None
    #: The kind of reason, for those who need not know where anything is.
    cause: str = ""

    @property
    def percent(self) -> float:
        """How much of the disk is used, 0 to 100."""
        return 100.0 * (self.total - self.free) / self.total if self.total else 0.0


def over_limit(settings: StoreSettings, total: int, free: int) -> str | None:
    """Why the configured limit says the disk is full, None when it does not. Pure."""
    where = settings.journal_directory
    if settings.min_disk_free >= 0:
        if free < settings.min_disk_free:
            return f"{where}: {free} bytes free, min-disk-free is {settings.min_disk_free}"
        return None
    if settings.max_disk_usage < 0 or total == 0:
        return None
    used = 100.0 * (total - free) / total
    if used > settings.max_disk_usage:
        return f"{where}: the disk is {used:.1f}% full, max-disk-usage is {settings.max_disk_usage}"
    return None


class DiskWatch:
    """Polls usage and keeps the reasons for being full. For the loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[DiskUsage], None],
    ) -> None:
        self._settings = settings
        self._files = files
        self._loop = loop
        self._on_change = on_change
        self._limit_reason: str | None = None
        self._room_reasons: dict[Finder, str] = {}
        self._stall_reason: str | None = None
        self._total = 0
        self._free = 0
        #: Whether new messages are refused.
        self.full = False
        self._task: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str | None:
        """Why the store is full (or does not keep up); None when it takes messages."""
        return self.no_room_reason or self._limit_reason or self._stall_reason

    @property
    def cause(self) -> str:
        """The kind of that reason, without a path."""
        if self._room_reasons:
            return "a write found no room"
        if self._limit_reason is not None:
            return "min-disk-free" if self._settings.min_disk_free >= 0 else "max-disk-usage"
        return "what is to be written waits for the disk" if self._stall_reason is not None else ""

    @property
    def no_room_reason(self) -> str | None:
        """Why a write finds no room; None when nobody found that, whatever the limits say."""
        return next(iter(self._room_reasons.values()), None)

    def usage(self) -> DiskUsage:
        """Return the disk as last looked at."""
        return DiskUsage(self._total, self._free, self.full, self.reason, self.cause)

    def start(self) -> None:
        """Start the task that polls."""
        self._task = self._loop.create_task(self._poll())

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def stalled(self, reason: str | None) -> None:
        """The disk does not keep up (None: it does again)."""
        self._stall_reason = reason
        self._update()

    def no_room(self, finder: Finder, reason: str | None) -> None:
        """A write found no room (None: it works again for this finder)."""
        if reason is None:
            self._room_reasons.pop(finder, None)
        else:
            self._room_reasons[finder] = reason
        self._update()

    async def look(self) -> DiskUsage:
        """Look at the disk now. A file system that cannot be asked keeps its last figures."""
        try:
            self._total, self._free = await asyncio.to_thread(self._files.disk, self._settings.journal_directory)
        except OSError as error:
            logger.warning("the disk's usage cannot be read: %s", error)
        else:
            self._limit_reason = over_limit(self._settings, self._total, self._free)
            self._update()
        return self.usage()

    async def _poll(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(max(0.01, self._settings.disk_scan_period / 1000))

    def _update(self) -> None:
        full = self.reason is not None
        if full != self.full:
            self.full = full
            if full:
                logger.error("new messages are refused: %s", self.reason)
            else:
                logger.warning("there is room on the disk again, new messages are accepted")
            self._on_change(self.usage())
