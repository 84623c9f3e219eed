"""The shared-store policy: pure decisions of one member of a group that shares a store.

``decide(snapshot, now)`` says what to do next and why; :mod:`pollux.ha.shared_store.node_manager` observes and carries
out. Times are seconds of one monotonic clock. The rules are explained for operators in docs/shared-store.md.
"""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pollux.ha.machine import STANDBY, Phase
from pollux.ha.node_state import StoreState

if TYPE_CHECKING:
    from pollux.ha.node_state import NodeState


#: Proofs within one lease, at least.
PROOFS = 4


class Role(StrEnum):
    """The part that broker.xml gives this member."""

    #: Preferred: asks for the store when another has it.
    LIVE = "live"
    BACKUP = "backup"
    #: One of several equals, none of them preferred.
    SYMMETRIC = "symmetric"


class Action(Enum):
    """The next step of a node manager."""

    #: Nothing; look again soon.
    WAIT = auto()
    #: Queue for the live lock.
    QUEUE = auto()
    #: Leave the queue for the live lock.
    LEAVE_QUEUE = auto()
    #: Hold the live lock, but do not serve yet.
    HOLD = auto()
    #: Let go of the live lock.
    RELEASE = auto()
    #: Ask the one that serves for the store.
    ANNOUNCE = auto()
    #: Put a new lock file in the place of one whose holder does not answer.
    BREAK = auto()
    ACTIVATE = auto()
    #: Serving: stop gracefully so that the preferred broker can go on.
    HAND_BACK = auto()
    #: Serving: tell the one that asked that it does not get the store.
    REFUSE = auto()
    #: Serving: stop at once, confirm nothing.
    FENCE = auto()
    #: Waiting: the time set for it is over.
    GIVE_UP = auto()


class Decision(NamedTuple):
    """An action and its reason, for the log and for ``pollux status``."""

    action: Action
    reason: str


class Settings(Struct, frozen=True):
    """Seconds, and what broker.xml says."""

    role: Role
    #: The live's lease: it acknowledges nothing that much after its last proof began.
    lease: float = 4.0
    #: What observers add to the lease before they call a holder silent.
    margin: float = 2.0
    #: Symmetric groups: wait between obtaining the lock and serving.
    keep_alive: float = 0.0
    allow_failback: bool = True
    #: How long a preferred broker that asked for the store may take to become live.
    failback_limit: float = 30.0
    #: Serving: the longest time between two proofs, however long the lease is.
    proof_limit: float = 2.0
    #: Waiting: how often the lock is tried besides waiting for it in the kernel; None where that is enough.
    poll: float | None = None
    #: How long to wait for the lock; None for ever.
    patience: float | None = None
    #: Serving: a failback is for the preferred broker alone, however many others wait: a colocated live that lost its
    #: host has got another backup meanwhile.
    among_several: bool = False

    @property
    def proof_period(self) -> float:
        """Time between two proofs of the right to serve."""
        return min(self.lease / PROOFS, self.proof_limit)

    @property
    def silence(self) -> float:
        """How long a holder's heartbeat must stand still until the holder counts as gone."""
        return self.lease + self.margin


class Snapshot(Struct, frozen=True):
    """The store and the others as a member sees them at one moment."""

    phase: Phase
    #: None: there is no state file.
    state: NodeState | None
    #: Why the state file cannot be used; empty when it can.
    problem: str = ""
    #: This member's id.
    me: str = ""
    #: Standby: the live lock is ours / we wait for it in the kernel.
    has_lock: bool = False
    queued: bool = False
    #: Standby: no other backup is before us in line.
    first: bool = True
    #: When the lock became ours.
    lock_since: float = 0.0
    #: Standby: since when it waits for the lock without interruption; None: it does not.
    waits_since: float | None = None
    #: Whether the lock file is the very one that the recorded holder had locked.
    lock_known: bool = False
    #: The recorded holder's process has certainly ended, or it has said that it stopped serving.
    holder_gone: bool = False
    #: When the holder's heartbeat was last seen to change.
    heartbeat_at: float = 0.0
    #: Whether the one that asked for the store is alive, since when it asks, and whether that is us.
    announcer_alive: bool = False
    announced_at: float = 0.0
    announced_by_me: bool = False
    #: Serving: why the last proof failed; empty when it did not. And the seconds left of the lease.
    lost: str = ""
    lease_left: float = 0.0
    #: Other members that wait for the store.
    waiting: int = 0


def decide(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
    """Return what this member does next, and why."""
    if snapshot.phase in STANDBY:
        if snapshot.has_lock:
            return _with_lock(snapshot, settings, now)
        return _without_lock(snapshot, settings, now)
    if snapshot.phase in (Phase.ACTIVATING, Phase.LIVE):
        return _serving(snapshot, settings)
    return Decision(Action.WAIT, f"the broker is {snapshot.phase}")


def _holder(state: NodeState) -> str:
    return state.holder.name if state.holder else "nobody"


def _without_lock(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
    state = snapshot.state
    since = snapshot.waits_since
    if settings.patience is not None and since is not None and now - since >= settings.patience:
        holder = _holder(state) if state is not None else "nobody"
        return Decision(
            Action.GIVE_UP,
            f"the store's lock was not free within journal-lock-acquisition-timeout ({settings.patience:g} s):"
            f" {holder} has it; stop that broker, or wait longer",
        )
    if snapshot.problem:
        return Decision(Action.LEAVE_QUEUE if snapshot.queued else Action.WAIT, snapshot.problem)
    backup = settings.role is Role.BACKUP
    if state is None or state.state is StoreState.NOT_STARTED:
        if backup:
            return Decision(
                Action.LEAVE_QUEUE if snapshot.queued else Action.WAIT, "the live has never been started on this store"
            )
        return Decision(Action.WAIT if snapshot.queued else Action.QUEUE, "the store is new")
    if state.state is StoreState.PAUSED and backup:
        return Decision(
            Action.LEAVE_QUEUE if snapshot.queued else Action.WAIT,
            f"{_holder(state)} was stopped on purpose (PAUSED): nobody takes over until it is started again",
        )
    if not snapshot.queued:
        return Decision(Action.QUEUE, f"{_holder(state)} has the store ({state.state})")
    if (
        state.state in (StoreState.LIVE, StoreState.FAILING_BACK)
        # Whoever is first in line breaks the lock; the others only where it does not.
        and now - snapshot.heartbeat_at >= settings.silence + (0.0 if snapshot.first else settings.margin)
        and state.holder is not None
        and state.holder.id != snapshot.me
    ):
        silent = now - snapshot.heartbeat_at
        return Decision(
            Action.BREAK,
            f"{_holder(state)} holds the lock but has given no sign of life for {silent:.1f} s"
            f" (its lease is {settings.lease:g} s)",
        )
    if (
        settings.role is Role.LIVE
        # FAILING_BACK without an announcer: left by a life of ours before, or by an attempt that failed half way.
        and state.state in (StoreState.LIVE, StoreState.FAILING_BACK)
        and not snapshot.announcer_alive
        and not state.stay
        and not state.refused
        and not snapshot.announced_by_me
        and state.holder is not None
        and state.holder.role != Role.LIVE
        and not snapshot.holder_gone
    ):
        return Decision(Action.ANNOUNCE, f"{_holder(state)} serves in my place: I ask for the store")
    if snapshot.announced_by_me and state.refused:
        return Decision(Action.WAIT, f"{_holder(state)} keeps the store: {state.refused}")
    return Decision(Action.WAIT, f"{_holder(state)} has the store ({state.state})")


def _with_lock(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
    state = snapshot.state
    if snapshot.problem:
        return Decision(Action.RELEASE, snapshot.problem)
    if settings.role is Role.BACKUP:
        if state is None or state.state is StoreState.NOT_STARTED:
            return Decision(Action.RELEASE, "the live has never been started on this store")
        if state.state is StoreState.PAUSED:
            return Decision(Action.RELEASE, f"{_holder(state)} was stopped on purpose (PAUSED)")
    if state is not None and state.was_lost and not snapshot.holder_gone:
        # The lock says nothing either: its file may have been lost together with the state, and be a new one.
        if now - snapshot.heartbeat_at < settings.silence:
            return Decision(
                Action.HOLD, "nothing tells who had the store last: waiting until that broker has certainly stopped"
            )
        return _keep_alive(snapshot, settings, now, "the state file was lost, and nobody gives a sign of life")
    if state is None or state.state is StoreState.NOT_STARTED:
        return _keep_alive(snapshot, settings, now, "first start on this store")
    mine = state.holder is not None and state.holder.id == snapshot.me
    if state.state is StoreState.PAUSED:
        return _keep_alive(snapshot, settings, now, f"{_holder(state)} was stopped on purpose and released the store")
    if state.state is StoreState.FAILING_BACK and not snapshot.announced_by_me and snapshot.announcer_alive:
        asked = now - snapshot.announced_at
        if asked < settings.failback_limit:
            return Decision(Action.RELEASE, "the store is for the preferred broker that asked for it")
    if not mine and not snapshot.holder_gone and not snapshot.lock_known:
        silent = now - snapshot.heartbeat_at
        if silent < settings.silence:
            return Decision(
                Action.HOLD,
                f"the lock file is not the one {_holder(state)} had locked: waiting until it certainly stopped",
            )
    return _keep_alive(snapshot, settings, now, _why(snapshot, state, settings, mine=mine))


def _why(snapshot: Snapshot, state: NodeState, settings: Settings, *, mine: bool) -> str:
    if mine:
        return "I was live before"
    if state.state is StoreState.FAILING_BACK:
        if snapshot.announced_by_me:
            return f"failback: {_holder(state)} released the store for me"
        return f"{_holder(state)} is gone and so is the preferred broker that asked for the store"
    if settings.role is Role.LIVE and state.stay:
        return f"{_holder(state)} handed the store over or died"
    return f"{_holder(state)} is gone: it does not hold the lock any more"


def _keep_alive(snapshot: Snapshot, settings: Settings, now: float, reason: str) -> Decision:
    held = now - snapshot.lock_since
    if settings.role is Role.SYMMETRIC and held < settings.keep_alive:
        return Decision(Action.HOLD, f"{reason}; one lock-keep-alive-period ({settings.keep_alive:g} s) has to pass")
    return Decision(Action.ACTIVATE, reason)


def _serving(snapshot: Snapshot, settings: Settings) -> Decision:
    if snapshot.lost:
        return Decision(Action.FENCE, snapshot.lost)
    if snapshot.lease_left <= 0:
        return Decision(
            Action.FENCE, f"the right to serve could not be proven for {settings.lease:g} s: the store does not answer"
        )
    state = snapshot.state
    if (
        snapshot.phase is Phase.LIVE
        and state is not None
        and state.state is StoreState.FAILING_BACK
        and snapshot.announcer_alive
        and not state.refused
    ):
        if not settings.allow_failback:
            return Decision(Action.REFUSE, "allow-failback is false")
        if settings.role is not Role.BACKUP:
            return Decision(Action.REFUSE, "this broker is no backup")
        if snapshot.waiting > 1 and not settings.among_several:
            return Decision(
                Action.REFUSE,
                f"failback is only for a pair, and {snapshot.waiting} brokers wait here; use pollux switchover",
            )
        return Decision(Action.HAND_BACK, "the preferred broker is back and asks for the store")
    return Decision(Action.WAIT, "serving")
