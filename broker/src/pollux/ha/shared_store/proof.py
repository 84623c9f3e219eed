"""A live's proof, repeated within each lease, that the store answers and is still its own.

Each proof looks at the lock file (still there, still locked by us, in a symmetric group also with our modification
time), at the state file (names us and our epoch) and writes the heartbeat. What fails without telling, a store that
does not answer, extends nothing: the lease runs out. Runs in the node manager's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.ha.node_state import StateFileError, read_state, write_state
from pollux.ha.store_layout import STATE_LOCK
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.ha.lease import Lease
    from pollux.ha.members import Heartbeat
    from pollux.ha.node_state import NodeState
    from pollux.store.port import Files, NodeLock, NodeLocks

logger = logging.getLogger("pollux.ha")

#: How long the state lock is waited for, seconds.
STATE_LOCK_SECONDS = 4.0


class Proof:
    """The proofs of one activation; ``lost`` says why the right is gone, empty while it is not."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        locks: NodeLocks,
        lock: NodeLock,
        *,
        epoch: int,
        me: str,
        heartbeat: Heartbeat,
        lease: Lease,
        clock: Callable[[], float],
        touched: int | None,
    ) -> None:
        """``touched``: the lock file's modification time as we set it, ns; None: it is not looked at."""
        self._directory = directory
        self._files = files
        self._locks = locks
        self._lock = lock
        self._epoch = epoch
        self._me = me
        self._heartbeat = heartbeat
        self._lease = lease
        self._clock = clock
        self._touched = touched
        self._last_error = ""
        self.lost = ""

    def make(self, state: NodeState | None) -> NodeState | None:
        """One proof. ``state``: as last seen; it is written anew where the file is damaged. Returns the state now."""
        if self.lost:
            return state  # a right that was lost never comes back
        began = self._clock()
        try:
            self.lost = self._look_at_lock()
            if self.lost:
                return state
            state = self._look_at_state(state)
            if self.lost:
                return state
            if self._touched is not None:
                self._touched = self._lock.touch()
            self._heartbeat.write(self._epoch, self._me)
        except OSError as error:
            text = str(error)
            if text != self._last_error:
                event(logger, logging.WARNING, "the right to serve could not be proven", reason=text)
            self._last_error = text
            return state
        self._last_error = ""
        if not self._lease.extend(began):
            self.lost = (
                f"the last proof of the right to serve came too late (the lease of {self._lease.seconds:g} s was over):"
                " this process or its store stood still"
            )
        return state

    def _look_at_lock(self) -> str:
        lock = self._lock
        if lock.closed:
            return "the live lock was released"
        if not lock.is_current():
            return f"the lock file {lock} was deleted or replaced"
        if not lock.try_lock():
            return f"another broker holds the lock of {lock}"
        if self._touched is not None and lock.touched() != self._touched:
            return f"somebody else changed the lock file {lock}"
        return ""

    def _look_at_state(self, mine: NodeState | None) -> NodeState | None:
        state, _ = self._read()
        if state is None and mine is not None:
            with self._locks.briefly(STATE_LOCK, STATE_LOCK_SECONDS):
                # Whoever changes it has this lock: what was not there may have been on its way.
                state, reason = self._read()
                if state is None:
                    event(logger, logging.WARNING, "state file written anew", reason=reason, epoch=self._epoch)
                    write_state(self._directory, mine, self._files)
        if state is None:
            return mine
        if state.epoch != self._epoch or state.holder is None or state.holder.id != self._me:
            holder = state.holder.name if state.holder else "nobody"
            self.lost = f"{holder} took the store over in epoch {state.epoch}"
            return mine
        return state

    def _read(self) -> tuple[NodeState | None, str]:
        """Return the state, or why there is none."""
        try:
            return read_state(self._directory, self._files), "the state file is missing"
        except StateFileError as error:
            return None, str(error)
