"""A waiting member's way to the live lock: first a place in the line of backups, then the lock itself.

Only the first in line (it holds ``backup.lock``) waits for ``live.lock``; when it has taken over, or ends, the next one
moves up. So several backups take turns in the order in which they came, and a lock that becomes free wakes
one of them. The line is for fairness and never for safety: where the first in line stands still and leaves a free store
alone, the others go past it. A preferred live does not stand in line. Decides nothing about serving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.ha.store_layout import BACKUP_LOCK, LIVE_LOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.port import LockWait, NodeLock, NodeLocks


class LockQueue:
    """The place in line and the lock. ``wake`` is called, from another thread, when something was obtained."""

    def __init__(
        self,
        locks: NodeLocks,
        wake: Callable[[], None],
        clock: Callable[[], float],
        *,
        in_line: bool,
        patience: float,
        poll: float | None,
    ) -> None:
        """``patience``: seconds a store must be free before a member goes past the first in line.

        ``poll``: how often, in seconds, the live lock is tried besides waiting for it in the kernel; None: never.
        """
        self._locks = locks
        self._wake = wake
        self._clock = clock
        self._in_line = in_line
        self._patience = patience
        self.poll = poll
        #: The live lock, when it is ours, and since when.
        self.lock: NodeLock | None = None
        self.lock_since = 0.0
        #: Since when this member waits without interruption; None: it does not.
        self.waits_since: float | None = None
        self._polled = 0.0
        self._free_since: float | None = None
        self._place: NodeLock | None = None
        self._place_waiter: LockWait | None = None
        self._waiter: LockWait | None = None

    @property
    def waiting(self) -> bool:
        """Whether this member waits, in line or for the lock."""
        return self._waiter is not None or self._place_waiter is not None

    @property
    def first(self) -> bool:
        """Whether nobody is before this member."""
        return self._place is not None or not self._in_line

    @property
    def waits_for_lock(self) -> LockWait | None:
        """Return what waits for the live lock."""
        return self._waiter

    def enter(self) -> None:
        """Wait from now on, in line or for the lock. Raises OSError."""
        self.waits_since = self._clock()
        if self._in_line and self._place is None:
            place = self._locks.open(BACKUP_LOCK)
            try:
                if place.try_lock():
                    self._place = place
            finally:
                if self._place is None:
                    place.close()
            if self._place is None:
                self._place_waiter = self._locks.wait(BACKUP_LOCK, self._wake)
                return
        self._wait_for_lock()

    def _wait_for_lock(self) -> None:
        self._free_since = None
        self._waiter = self._locks.wait(LIVE_LOCK, self._wake)

    def look(self) -> None:
        """Take what was obtained, and leave what became worthless. Raises OSError."""
        if self.lock is None:
            self._look_at_place()
            self._look_at_lock()
        if self.lock is not None and not self.lock.is_current():
            self.lock.close()
            self.lock = None

    def _look_at_place(self) -> None:
        waiter = self._place_waiter
        if waiter is None:
            return
        if waiter.error is not None:
            self._place_waiter = None
            raise OSError(f"the backup lock cannot be waited for: {waiter.error}")
        self._place = waiter.take()
        if self._place is not None:
            self._place_waiter = None
            if self._waiter is None:
                self._wait_for_lock()
            return
        if _is_stale(waiter):
            waiter.abandon()
            self._place_waiter = self._locks.wait(BACKUP_LOCK, self._wake)
        if self._waiter is None:
            live = self._locks.probe(LIVE_LOCK)
            if live is not None and live.locked:
                self._free_since = None
            elif self._free_since is None:
                self._free_since = self._clock()
            elif self._clock() - self._free_since >= self._patience:
                self._wait_for_lock()  # whoever is first does not take it: it stands still, or must not

    def _look_at_lock(self) -> None:
        waiter = self._waiter
        if waiter is None:
            return
        if waiter.error is not None:
            self._waiter = None
            raise OSError(f"the live lock cannot be waited for: {waiter.error}")
        if self.poll is not None and self._clock() - self._polled >= self.poll:
            self._polled = self._clock()
            waiter.poll()
        lock = waiter.take()
        if lock is not None:
            self.take(lock)
        elif _is_stale(waiter):
            # The lock file was deleted or replaced: the path's new one counts.
            waiter.abandon()
            self._wait_for_lock()

    def take(self, lock: NodeLock) -> None:
        """Keep the live lock, which is ours: by waiting, or by having broken it."""
        if self._waiter is not None:
            self._waiter.abandon()
            self._waiter = None
        self.lock = lock
        self.lock_since = self._clock()

    def served(self) -> None:
        """Leave the line: this member is the holder now, the next one moves up."""
        self._leave_line()
        self.waits_since = None

    def leave(self) -> None:
        """Wait no longer, in line or for the lock."""
        if self._waiter is not None:
            self._waiter.abandon()
            self._waiter = None
        self._leave_line()
        self.waits_since = None

    def _leave_line(self) -> None:
        if self._place_waiter is not None:
            self._place_waiter.abandon()
            self._place_waiter = None
        if self._place is not None:
            self._place.close()
            self._place = None

    def release(self) -> None:
        """Let go of the live lock and of everything else."""
        self.leave()
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def _is_stale(waiter: LockWait) -> bool:
    try:
        return waiter.is_stale()
    except OSError:
        return True
