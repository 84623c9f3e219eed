"""The shared-store policy: its decisions one by one, and a model of a group under random faults."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from harness.strategies import records
from harness.transitions import assert_whole
from pollux.ha.machine import ENDING, STANDBY, TRANSITIONS, EndedError, Machine, Phase
from pollux.ha.node_state import Holder, NodeState, StoreState
from pollux.ha.shared_store.policy import Action, Role, Settings, Snapshot, decide
from pollux.transitions import IllegalTransitionError

NODE = bytes(range(16))
LIVE = Holder("a", "a", "host", 1, Role.LIVE.value)
SPARE = Holder("b", "b", "host", 2, Role.BACKUP.value)
PREFERRED, BACKUP = Settings(Role.LIVE), Settings(Role.BACKUP)
SYMMETRIC = Settings(Role.SYMMETRIC, keep_alive=5.0)


def state(which: StoreState = StoreState.LIVE, holder: Holder | None = LIVE, **more: object) -> NodeState:
    """A state file's content."""
    return replace(NodeState(NODE, which, 7, holder, "nonce"), **more)


def standby(found: NodeState | None, **more: object) -> Snapshot:
    """A member that waits, at time 100, whose holder gave a sign of life at 99."""
    values: dict[str, object] = {"me": "b", "queued": True, "heartbeat_at": 99.0, **more}
    return Snapshot(Phase.READY, found, **values)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("snapshot", "policy", "expected"),
    [
        # waiting
        (standby(None, queued=False), BACKUP, Action.WAIT),
        (standby(None, queued=False), PREFERRED, Action.QUEUE),
        (standby(state(StoreState.NOT_STARTED), queued=True), BACKUP, Action.LEAVE_QUEUE),
        (standby(state(), queued=False), BACKUP, Action.QUEUE),
        (standby(state()), BACKUP, Action.WAIT),
        (standby(state(StoreState.PAUSED)), BACKUP, Action.LEAVE_QUEUE),
        (standby(state(StoreState.PAUSED), queued=False), PREFERRED, Action.QUEUE),
        (standby(state(), problem="damaged"), BACKUP, Action.LEAVE_QUEUE),
        # a holder that gives no sign of life
        (standby(state(), heartbeat_at=93.9), BACKUP, Action.BREAK),
        (standby(state(), heartbeat_at=94.1), BACKUP, Action.WAIT),
        (standby(state(), heartbeat_at=93.9, first=False), BACKUP, Action.WAIT),
        (standby(state(), heartbeat_at=91.9, first=False), BACKUP, Action.BREAK),
        (standby(state(StoreState.PAUSED), heartbeat_at=0.0), PREFERRED, Action.WAIT),
        # failback
        (standby(state(holder=SPARE), me="a"), PREFERRED, Action.ANNOUNCE),
        (standby(state(holder=SPARE, stay=True), me="a"), PREFERRED, Action.WAIT),
        (standby(state(holder=SPARE, refused="no"), me="a"), PREFERRED, Action.WAIT),
        (standby(state(holder=SPARE), me="a", announced_by_me=True), PREFERRED, Action.WAIT),
        # with the lock
        (standby(state(), has_lock=True, lock_known=True), BACKUP, Action.ACTIVATE),
        (standby(state(), has_lock=True, lock_known=False), BACKUP, Action.HOLD),
        (standby(state(), has_lock=True, lock_known=False, holder_gone=True), BACKUP, Action.ACTIVATE),
        (standby(state(), has_lock=True, lock_known=False, heartbeat_at=93.0), BACKUP, Action.ACTIVATE),
        (standby(state(StoreState.PAUSED), has_lock=True, lock_known=True), BACKUP, Action.RELEASE),
        (standby(state(StoreState.PAUSED), has_lock=True, lock_known=True), PREFERRED, Action.ACTIVATE),
        (standby(state(StoreState.NOT_STARTED, None, epoch=0), has_lock=True), PREFERRED, Action.ACTIVATE),
        (standby(state(StoreState.NOT_STARTED, None), has_lock=True), BACKUP, Action.RELEASE),
        # the state file was lost: whoever had the store last is not known, and neither is the lock file
        (standby(state(StoreState.NOT_STARTED, None), has_lock=True), PREFERRED, Action.HOLD),
        (standby(state(StoreState.NOT_STARTED, None), has_lock=True), SYMMETRIC, Action.HOLD),
        (standby(state(StoreState.PAUSED, None), has_lock=True), PREFERRED, Action.HOLD),
        (standby(state(StoreState.PAUSED, None), has_lock=True, heartbeat_at=94.0), PREFERRED, Action.ACTIVATE),
        (standby(state(StoreState.NOT_STARTED, None), has_lock=True, holder_gone=True), PREFERRED, Action.ACTIVATE),
        (standby(state(), has_lock=True, lock_known=True, problem="damaged"), BACKUP, Action.RELEASE),
        # a failback half way: the one that asked is alive, dead, or too slow
        (
            standby(
                state(StoreState.FAILING_BACK), has_lock=True, lock_known=True, announcer_alive=True, announced_at=99.0
            ),
            BACKUP,
            Action.RELEASE,
        ),
        (
            standby(state(StoreState.FAILING_BACK), has_lock=True, lock_known=True, announced_at=99.0),
            BACKUP,
            Action.ACTIVATE,
        ),
        (
            standby(
                state(StoreState.FAILING_BACK), has_lock=True, lock_known=True, announcer_alive=True, announced_at=60.0
            ),
            BACKUP,
            Action.ACTIVATE,
        ),
        # journal-lock-acquisition-timeout
        (standby(state(), waits_since=40.1), replace(BACKUP, patience=60.0), Action.WAIT),
        (standby(state(), waits_since=40.0), replace(BACKUP, patience=60.0), Action.GIVE_UP),
        (standby(state(), waits_since=None), replace(BACKUP, patience=60.0), Action.WAIT),
        (
            standby(state(), waits_since=0.0, has_lock=True, lock_known=True),
            replace(BACKUP, patience=60.0),
            Action.ACTIVATE,
        ),
        # symmetric: one keep-alive period between lock and service
        (standby(state(), has_lock=True, lock_known=True, lock_since=96.0), SYMMETRIC, Action.HOLD),
        (standby(state(), has_lock=True, lock_known=True, lock_since=95.0), SYMMETRIC, Action.ACTIVATE),
        (
            standby(state(StoreState.NOT_STARTED, None, epoch=0), has_lock=True, lock_since=90.0),
            SYMMETRIC,
            Action.ACTIVATE,
        ),
    ],
)
def test_waiting(snapshot: Snapshot, policy: Settings, expected: Action) -> None:
    action, reason = decide(snapshot, policy, 100.0)
    assert action is expected, reason
    assert reason


def serving(found: NodeState, **more: object) -> Snapshot:
    """A live broker with time left."""
    values: dict[str, object] = {"lease_left": 3.0, "me": "b", **more}
    return Snapshot(Phase.LIVE, found, **values)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("snapshot", "policy", "expected"),
    [
        (serving(state(holder=SPARE)), BACKUP, Action.WAIT),
        (serving(state(holder=SPARE), lost="deleted"), BACKUP, Action.FENCE),
        (serving(state(holder=SPARE), lease_left=0.0), BACKUP, Action.FENCE),
        (serving(state(StoreState.FAILING_BACK, SPARE), announcer_alive=True, waiting=1), BACKUP, Action.HAND_BACK),
        (serving(state(StoreState.FAILING_BACK, SPARE), announcer_alive=False), BACKUP, Action.WAIT),
        (serving(state(StoreState.FAILING_BACK, SPARE), announcer_alive=True, waiting=2), BACKUP, Action.REFUSE),
        (
            serving(state(StoreState.FAILING_BACK, SPARE), announcer_alive=True, waiting=2),
            replace(BACKUP, among_several=True),
            Action.HAND_BACK,
        ),
        (
            serving(state(StoreState.FAILING_BACK, SPARE), announcer_alive=True, waiting=1),
            replace(BACKUP, allow_failback=False),
            Action.REFUSE,
        ),
        (serving(state(StoreState.FAILING_BACK, LIVE), announcer_alive=True, waiting=1), PREFERRED, Action.REFUSE),
    ],
)
def test_serving(snapshot: Snapshot, policy: Settings, expected: Action) -> None:
    assert decide(snapshot, policy, 100.0).action is expected


@given(
    records(
        Snapshot,
        st.sampled_from(Phase),
        st.none()
        | records(
            NodeState,
            st.just(NODE),
            st.sampled_from(StoreState),
            st.integers(0, 5),
            st.none() | st.sampled_from((LIVE, SPARE)),
        ),
        problem=st.sampled_from(("", "damaged")),
        me=st.sampled_from(("a", "b")),
        has_lock=st.booleans(),
        queued=st.booleans(),
        lock_since=st.floats(0, 100),
        lock_known=st.booleans(),
        holder_gone=st.booleans(),
        heartbeat_at=st.floats(0, 100),
        announcer_alive=st.booleans(),
        announced_at=st.floats(0, 100),
        announced_by_me=st.booleans(),
        lost=st.sampled_from(("", "lost")),
        lease_left=st.floats(0, 4),
        waiting=st.integers(0, 3),
    ),
    st.sampled_from((PREFERRED, BACKUP, SYMMETRIC)),
)
@settings(max_examples=400)
def test_no_snapshot_leads_to_a_forbidden_decision(snapshot: Snapshot, policy: Settings) -> None:
    action, reason = decide(snapshot, policy, 100.0)
    assert reason
    if action is Action.ACTIVATE:
        assert snapshot.has_lock
        assert snapshot.phase in STANDBY
        assert not snapshot.problem
        silent = 100.0 - snapshot.heartbeat_at >= policy.silence
        if snapshot.state is not None and snapshot.state.was_lost:
            assert snapshot.holder_gone or silent
        if policy.role is Role.BACKUP:
            assert snapshot.state is not None
            assert snapshot.state.state in (StoreState.LIVE, StoreState.FAILING_BACK)
    if action is Action.BREAK:
        assert 100.0 - snapshot.heartbeat_at >= policy.lease + policy.margin
    if snapshot.phase is Phase.LIVE and (snapshot.lost or snapshot.lease_left <= 0):
        assert action is Action.FENCE
    if action in (Action.HAND_BACK, Action.REFUSE, Action.FENCE):
        assert snapshot.phase in (Phase.LIVE, Phase.ACTIVATING)


def test_the_machine_goes_only_where_the_table_allows() -> None:
    for before in Phase:
        for after in Phase:
            machine = Machine(lambda: 1)
            machine.position = machine.position._replace(phase=before)
            if after is before:
                assert not machine.to(after, "again")
            elif after in TRANSITIONS[before]:
                assert machine.to(after, "because", 3)
                assert machine.position == (after, "because", 3, 1)
            else:
                with pytest.raises(IllegalTransitionError) as caught:
                    machine.to(after, "because")
                assert isinstance(caught.value, EndedError) == (before in ENDING)
    assert_whole(TRANSITIONS, Phase.STOPPED)


class Process:
    """A broker of the model: what it believes, and whether it runs."""

    def __init__(self, name: str, role: Role) -> None:
        self.holder = Holder(name, name, "host", 1, role.value)
        self.settings = Settings(role)
        self.reset(0.0)
        self.running = self.paused = False

    def reset(self, now: float) -> None:
        """As after a start."""
        self.phase = Phase.JOINING
        self.lock: int | None = None
        self.queued = False
        self.lease_until = 0.0
        self.epoch = 0
        self.beat_seen = (-1, now)
        self.lock_since = now


class GroupModel(RuleBasedStateMachine):
    """Two brokers, one store, time: kill, pause, wake, lock file deleted. Never do two acknowledge at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lock_file = 1
        #: Which process holds the lock of which lock file.
        self.locks: dict[int, Process] = {}
        self.state = NodeState(NODE)
        self.beat = 0
        self.members = [Process("a", Role.LIVE), Process("b", Role.BACKUP)]
        for member in self.members:
            member.running = True

    def free(self, member: Process) -> None:
        """The kernel releases what a process held."""
        self.locks = {number: one for number, one in self.locks.items() if one is not member}

    @rule(which=st.integers(0, 1))
    def kill(self, which: int) -> None:
        member = self.members[which]
        member.running = member.paused = False
        self.free(member)

    @rule(which=st.integers(0, 1))
    def start(self, which: int) -> None:
        member = self.members[which]
        if not member.running:
            member.running = True
            member.reset(self.now)

    @rule(which=st.integers(0, 1))
    def pause(self, which: int) -> None:
        self.members[which].paused = self.members[which].running

    @rule(which=st.integers(0, 1))
    def wake(self, which: int) -> None:
        self.members[which].paused = False

    @rule()
    def delete_lock_file(self) -> None:
        self.lock_file += 1

    @rule(seconds=st.sampled_from((0.2, 0.2, 0.2, 1.0, 3.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: any(one.running and not one.paused for one in self.members))
    @rule(which=st.integers(0, 1))
    def turn(self, which: int) -> None:
        member = self.members[which]
        if not member.running or member.paused:
            return
        if member.phase is Phase.LIVE:
            self.serve(member)
            return
        if member.lock is None and member.queued and self.lock_file not in self.locks:
            self.locks[self.lock_file] = member
            member.lock, member.lock_since = self.lock_file, self.now
        if member.lock is not None and member.lock != self.lock_file:
            self.free(member)
            member.lock = None
        if member.beat_seen[0] != self.beat:
            member.beat_seen = (self.beat, self.now)
        holder = next((one for one in self.members if one.holder == self.state.holder), None)
        snapshot = Snapshot(
            member.phase,
            self.state,
            me=member.holder.id,
            has_lock=member.lock is not None,
            queued=member.queued,
            lock_since=member.lock_since,
            lock_known=member.lock is not None and str(member.lock) == self.state.lock,
            holder_gone=holder is None or not holder.running,
            heartbeat_at=member.beat_seen[1],
            announced_by_me=True,
        )
        action = decide(snapshot, member.settings, self.now).action
        if action is Action.QUEUE:
            member.queued = True
        elif action is Action.LEAVE_QUEUE:
            member.queued = False
        elif action is Action.RELEASE:
            self.free(member)
            member.lock = None
        elif action is Action.BREAK:
            self.lock_file += 1
            self.locks[self.lock_file] = member
            member.lock, member.lock_since = self.lock_file, self.now
        elif action is Action.ACTIVATE:
            self.beat += 1
            member.epoch = self.state.epoch + 1
            self.state = replace(
                self.state,
                state=StoreState.LIVE,
                epoch=member.epoch,
                holder=member.holder,
                lock=str(member.lock),
            )
            member.phase = Phase.LIVE
            member.lease_until = self.now + member.settings.lease

    def serve(self, member: Process) -> None:
        """One proof, as the node manager makes it."""
        lost = ""
        if member.lock != self.lock_file or self.locks.get(self.lock_file) is not member:
            lost = "lock"
        elif self.state.epoch != member.epoch:
            lost = "epoch"
        elif self.now < member.lease_until:
            self.beat += 1
            member.lease_until = self.now + member.settings.lease
        snapshot = Snapshot(Phase.LIVE, self.state, lost=lost, lease_left=member.lease_until - self.now)
        if decide(snapshot, member.settings, self.now).action is Action.FENCE:
            member.running = False
            self.free(member)

    @invariant()
    def at_most_one_may_acknowledge(self) -> None:
        able = [
            one.holder.name
            for one in self.members
            if one.running and one.phase is Phase.LIVE and self.now < one.lease_until
        ]
        assert len(able) <= 1, f"{able} at {self.now}"


GroupModel.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestGroup = GroupModel.TestCase
