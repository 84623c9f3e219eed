"""The one activation state machine of all high availability policies, as a table; each transition is one log line.

So is each change of the reason for which a broker stays where it is, at a bounded rate.

Pure but for the log: the clocks are injected. Which transition is wanted is a policy's business (``decide`` in
:mod:`pollux.ha.shared_store.policy`), what a state means for clients is the process's.
"""

from __future__ import annotations

import logging
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pollux.errors import PolluxError
from pollux.logs import event
from pollux.transitions import IllegalTransitionError, follow

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("pollux.ha")


class Phase(StrEnum):
    """Where a broker is on its way to serving clients."""

    STOPPED = "stopped"
    #: Looks at the store: node id, state, who else is there.
    JOINING = "joining"
    #: Waits and reads the predecessor's data.
    CATCHING_UP = "catching_up"
    #: Waits with everything it needs to take over at once.
    READY = "ready"
    #: Has the right to serve and a new epoch; recovers.
    ACTIVATING = "activating"
    LIVE = "live"
    STOPPING = "stopping"
    #: Lost, or cannot prove any more, its right to serve: nothing leaves this broker.
    FENCED = "fenced"


#: What may follow what. FENCED ends the process, as STOPPING does.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.STOPPED: frozenset({Phase.JOINING}),
    Phase.JOINING: frozenset({Phase.CATCHING_UP, Phase.READY, Phase.ACTIVATING, Phase.STOPPING}),
    Phase.CATCHING_UP: frozenset({Phase.READY, Phase.JOINING, Phase.ACTIVATING, Phase.STOPPING}),
    Phase.READY: frozenset({Phase.CATCHING_UP, Phase.JOINING, Phase.ACTIVATING, Phase.STOPPING}),
    Phase.ACTIVATING: frozenset({Phase.LIVE, Phase.FENCED, Phase.STOPPING}),
    Phase.LIVE: frozenset({Phase.STOPPING, Phase.FENCED}),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.FENCED}),
    Phase.FENCED: frozenset({Phase.STOPPED}),
}
#: Changes of reason that are logged at once, and how often one is logged from then on, seconds.
REASONS, REASON_PERIOD = 8, 10.0
#: The phases of a broker that waits for its turn.
STANDBY = frozenset({Phase.JOINING, Phase.CATCHING_UP, Phase.READY})
#: Those of one that will do nothing more.
ENDING = frozenset({Phase.STOPPING, Phase.FENCED})


class EndedError(IllegalTransitionError, PolluxError):
    """The broker stops or was fenced while its policy was about to do something else, which it then lets be."""


class Position(NamedTuple):
    """The machine at one moment. ``since`` is in milliseconds since the Unix epoch."""

    phase: Phase
    reason: str
    epoch: int
    since: int


class Machine:
    """One broker's phase. Any thread may read ``position`` or ask for a transition."""

    def __init__(self, wall_ms: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._wall_ms = wall_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Position, Position], None]] = []
        self._reason_listeners: list[Callable[[Position], None]] = []
        self.position = Position(Phase.STOPPED, "not started", 0, wall_ms())
        #: The reason that was logged last, how many changes of it were not, and how many may be at once.
        self._logged = ""
        self._unlogged = 0
        self._allowed = float(REASONS)
        self._counted_at = clock()

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.position.phase

    def on_change(self, listener: Callable[[Position, Position], None]) -> None:
        """Call ``listener(before, after)`` after each transition, in the thread that made it."""
        self._listeners.append(listener)

    def on_reason(self, listener: Callable[[Position], None]) -> None:
        """Call ``listener(position)`` after each change of the reason alone that is logged, in the thread it is of."""
        self._reason_listeners.append(listener)

    def to(self, phase: Phase, reason: str, epoch: int | None = None) -> bool:
        """Go to ``phase`` and log it; False when the machine is there already, for another reason perhaps.

        ``epoch`` None keeps the last one. Raises IllegalTransitionError, and EndedError when the broker ends already:
        a stop is asked for in another thread, and may come between any look and what follows from it.
        """
        with self._lock:
            before = self.position
            # An epoch that went back would let what a fenced predecessor wrote count again.
            assert epoch is None or epoch >= before.epoch or before.phase in STANDBY  # noqa: S101
            if before.phase is phase:
                after = before._replace(reason=reason, epoch=before.epoch if epoch is None else epoch)
                self.position = after
                unlogged = self._fold(before.reason)
            else:
                after = self._go(before, phase, reason, epoch)
        if after.phase is before.phase:
            if unlogged is not None:
                self._tell_reason(after, unlogged)
            return False
        fields = {"from": before.phase.value, "to": phase.value, "reason": reason, "epoch": after.epoch}
        event(logger, logging.CRITICAL if phase is Phase.FENCED else logging.INFO, "activation", **fields)
        for listener in self._listeners:
            self._inform(listener, before, after)
        return True

    @staticmethod
    def _inform(listener: Callable[..., None], *positions: Position) -> None:
        """Tell a listener, which has no part in the change: what fails in it is logged."""
        try:
            listener(*positions)
        except Exception:
            logger.exception("a change of the activation could not be told")

    def _go(self, before: Position, phase: Phase, reason: str, epoch: int | None) -> Position:
        if before.phase in ENDING and phase not in TRANSITIONS[before.phase]:
            raise EndedError(f"a broker that is {before.phase} cannot become {phase} ({reason})")
        follow(TRANSITIONS, before.phase, phase)
        self.position = Position(phase, reason, before.epoch if epoch is None else epoch, self._wall_ms())
        self._logged, self._unlogged = reason, 0
        return self.position

    def _fold(self, before: str) -> int | None:
        """Whether the reason is to be logged now: how many changes of it were not; None: it is not."""
        reason = self.position.reason
        if reason != before:
            self._unlogged += 1
        if reason == self._logged:
            return None
        now = self._clock()
        self._allowed = min(REASONS, self._allowed + (now - self._counted_at) / REASON_PERIOD)
        self._counted_at = now
        if self._allowed < 1:
            return None
        self._allowed -= 1
        unlogged, self._logged, self._unlogged = self._unlogged - 1, reason, 0
        return max(0, unlogged)

    def _tell_reason(self, position: Position, unlogged: int) -> None:
        fields: dict[str, object] = {"state": position.phase.value, "reason": position.reason, "epoch": position.epoch}
        if unlogged:
            fields["unlogged"] = unlogged
        event(logger, logging.INFO, "activation reason", **fields)
        for listener in self._reason_listeners:
            self._inform(listener, position)

    def fence(self, reason: str) -> bool:
        """Go to FENCED from wherever clients may be served; False when there is nothing to fence."""
        try:
            return self.to(Phase.FENCED, reason)
        except IllegalTransitionError:
            return False
