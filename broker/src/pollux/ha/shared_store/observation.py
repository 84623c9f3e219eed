"""The store and its holder as a waiting or serving member sees them: state file, sign of life, who asks for the store.

For the node manager's thread. Decides nothing, and takes no lock but the state's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.ha import members
from pollux.ha.members import Heartbeat
from pollux.ha.node_state import ForeignStateError, StateFileError, StoreState, read_state, write_state
from pollux.ha.shared_store.proof import STATE_LOCK_SECONDS
from pollux.ha.store_layout import FAILBACK_LOCK, STATE_LOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.ha.members import Beat
    from pollux.ha.node_state import NodeState
    from pollux.store.port import Files, NodeLocks


class Observation:
    """The node directory as it was seen last, and when."""

    def __init__(self, directory: Path, files: Files, locks: NodeLocks, clock: Callable[[], float]) -> None:
        #: The state as last read or written; None before the first look and on a new store.
        self.state: NodeState | None = None
        #: Why the state file cannot be used; empty when it can.
        self.problem = ""
        self.heartbeat = Heartbeat(directory, files)
        #: The holder's sign of life, and when it was last seen to change.
        self.beat: Beat | None = None
        self.beat_at = 0.0
        #: Since when the store is asked for; 0.0: it is not.
        self.announced_at = 0.0
        self._directory = directory
        self._files = files
        self._locks = locks
        self._clock = clock

    def look(self) -> None:
        """Read the state file and the sign of life. Raises OSError."""
        self.read_state()
        beat = self.heartbeat.read()
        if beat != self.beat:
            self.beat = beat
            self.beat_at = self._clock()

    def read_state(self) -> None:
        """Read the state file; a damaged one is a :attr:`problem` unless the state was seen before. Raises OSError."""
        try:
            state = read_state(self._directory, self._files)
        except StateFileError as error:
            if self.state is None or isinstance(error, ForeignStateError):
                self.problem = str(error)
            # A state seen in this life is as good as the file: whoever gets the lock writes it anew.
            return
        if state is not None:
            self.state = state
        self.problem = ""

    def unchanged(self) -> NodeState | None:
        """Return the state if it and the sign of life are those of the last look, else None; the state lock is held."""
        state = read_state(self._directory, self._files)
        return state if self.heartbeat.read() == self.beat and state == self.state else None

    def change(self, change: Callable[[NodeState], NodeState], *, ours: bool) -> None:
        """Read, change and write the state under its lock. ``ours``: a damaged one is written anew.

        Raises OSError, LockTimeoutError, StateFileError.
        """
        with self._locks.briefly(STATE_LOCK, STATE_LOCK_SECONDS):
            try:
                state = read_state(self._directory, self._files) or self.state
            except StateFileError:
                if not ours:
                    raise  # whoever has the store writes it anew
                state = self.state
            if state is None:
                return
            after = change(state)
            if after != state:
                write_state(self._directory, after, self._files)
            self.state = after

    def announcer_alive(self, *, ourselves: bool) -> bool:
        """Return whether another member asks for the store, and lives; note since when it is asked for."""
        failing_back = self.state is not None and self.state.state is StoreState.FAILING_BACK
        if not failing_back:
            self.announced_at = 0.0
        elif not self.announced_at:
            self.announced_at = self._clock()
        asks = self._locks.probe(FAILBACK_LOCK) if failing_back and not ourselves else None
        return asks is not None and asks.locked

    def holder_gone(self) -> bool:
        """Whether the recorded holder's process has certainly ended, or has said that it stopped serving."""
        state, beat = self.state, self.beat
        if state is None or (state.holder is None and not state.was_lost):
            return True
        holder = state.holder
        if (
            beat is not None
            and beat.ended
            and beat.epoch == state.epoch
            and (holder is None or beat.holder == holder.id)
        ):
            return True
        return holder is not None and members.has_ended(self._locks, holder.id, holder.lock)
