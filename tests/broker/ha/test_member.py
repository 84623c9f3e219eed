"""One member of a replicated pair with a coordination service that loses answers: what it may believe afterwards."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.ha.group import wait_until
from pollux.errors import StoreRefusedError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.machine import Machine, Phase
from pollux.ha.replication import member as member_module
from pollux.ha.replication.coordination import CoordinationError, FileCoordinator, NotNewestError
from pollux.ha.replication.member import Member
from pollux.ha.replication.policy import Decision, Snapshot, decide
from pollux.process.exits import EXIT_STORE
from pollux.process.failures import exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pollux.errors import PolluxError
    from pollux.ha.lease import Right

#: Generous: a machine under load.
TIMEOUT = 60.0
NODE = "0b" * 16


class Forgetful(FileCoordinator):
    """Carries changes out, but the answer to those in ``lost`` never comes."""

    lost: tuple[int, ...] = ()
    asked = 0

    def change(self, expected: int, new: int) -> None:
        super().change(expected, new)
        self.asked += 1
        if self.asked in self.lost:
            raise CoordinationError("no answer")


class Listener:
    """Notes all that the member says."""

    def __init__(self) -> None:
        self.said = threading.Event()
        self.right: Right | None = None
        self.error: PolluxError | None = None
        self.following = True
        #: Why it was fenced; None: it must not be.
        self.fences: list[str] | None = None

    def stop_following(self) -> None:
        self.following = False

    def follow_again(self) -> None:
        self.following = True

    def granted(self, right: Right) -> None:
        self.right = right
        self.said.set()

    def refused(self, error: PolluxError) -> None:
        self.error = error
        self.said.set()

    def fenced(self, reason: str) -> None:
        assert self.fences is not None, reason
        self.fences.append(reason)


class One:
    """A member on its own disk."""

    def __init__(self, directory: Path, *, newest: int = 0, part: float = 2 / 3) -> None:
        self.journal = directory / "journal"
        self.journal.mkdir(exist_ok=True)
        self.listener = Listener()
        self.coordinator = Forgetful(directory / "locks", "pair", TIMEOUT)
        self.machine = Machine(lambda: 0)
        self.member = Member(
            self.journal,
            lambda _: self.coordinator,
            self.machine,
            self.listener,
            identity="pair",
            equal=True,
            data_node_id=lambda: NODE,
            session=TIMEOUT,
            part=part,
            name="castor",
            newest_epoch=lambda: newest,
        )

    def serve(self) -> Right:
        self.member.start()
        assert self.listener.said.wait(TIMEOUT)
        assert self.listener.right is not None, self.listener.error
        return self.listener.right

    @property
    def state(self) -> LocalState:
        found = local.read(self.journal)
        assert found is not None
        return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., One]]:
    made: list[One] = []

    def one(**values: Any) -> One:
        made.append(One(tmp_path, **values))
        return made[-1]

    yield one
    for each in made:
        each.member.stop(release=False)


@pytest.mark.parametrize("lost", [(3,), (4,), (3, 4)], ids=["claim", "raised", "both"])
def test_raising_goes_on_where_an_answer_was_lost(make: Callable[..., One], lost: tuple[int, ...]) -> None:
    """The first two changes are those of the activation."""
    one = make()
    assert one.serve().epoch == 1
    one.coordinator.lost = lost
    for _ in lost:
        with pytest.raises(CoordinationError, match="no answer"):
            one.member.raise_sequence()
    assert one.member.raise_sequence() == 2
    assert (one.coordinator.sequence(), one.state.sequence, one.member.coordinated) == (2, 2, 2)
    assert one.member.raise_sequence() == 3


def test_a_disk_that_fails_at_a_takeover_is_told_as_one(
    make: Callable[..., One], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Breaks when the broker ends as if it had been broken itself (exit code 1, a traceback)."""

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    one = make()
    monkeypatch.setattr(local, "write", fails)
    one.member.start()
    assert one.listener.said.wait(TIMEOUT)
    assert one.listener.error is not None
    assert exit_code(one.listener.error) == EXIT_STORE
    assert str(one.listener.error).startswith(f"{one.journal}: the store cannot be used:")
    assert not any(record.exc_info for record in caplog.records)


def test_a_stop_between_a_look_and_what_follows_from_it_is_no_failure(
    make: Callable[..., One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a member that is stopped as it is about to serve takes that for a reason to be refused."""
    one = make()
    looked = threading.Event()

    def late(snapshot: Snapshot) -> Decision:
        found = decide(snapshot)
        if not looked.is_set():
            one.machine.to(Phase.JOINING, "started")
            one.machine.to(Phase.STOPPING, "SIGTERM")
            looked.set()
        return found

    monkeypatch.setattr(member_module, "decide", late)
    one.member.start()
    assert looked.wait(TIMEOUT)
    one.member.stop(release=True)
    assert not one.listener.said.is_set(), one.listener.error


def test_a_number_that_somebody_else_raised_is_not_taken_for_ours(make: Callable[..., One], tmp_path: Path) -> None:
    one = make()
    one.serve()
    (tmp_path / "locks" / "pair" / "lock").unlink()
    other = FileCoordinator(tmp_path / "locks", "pair")
    other.connect(lambda: None)
    assert other.acquire()
    other.change(1, 2)
    with pytest.raises(CoordinationError, match="not the file that was locked"):
        one.member.raise_sequence()
    other.close()
    assert one.state.sequence == 1


def take_away(one: One, tmp_path: Path) -> FileCoordinator:
    """Somebody else has got the lock, as after a session that ended while its holder stood still."""
    (tmp_path / "locks" / "pair" / "lock").unlink()
    other = FileCoordinator(tmp_path / "locks", "pair")
    other.connect(lambda: None)
    assert other.acquire()
    return other


def test_a_claim_of_somebody_else_is_not_gone_on_with(make: Callable[..., One], tmp_path: Path) -> None:
    """The one that lost the lock and the one that has it raise from the same number.

    Breaks when the claim that is found is taken for an own one: both have the newest number then, and when the other
    has served with it and is gone, this one's data counts as the newest.
    """
    one = make()
    one.serve()
    other = take_away(one, tmp_path)
    other.change(1, -2)
    with pytest.raises(CoordinationError, match="not the file that was locked"):
        one.member.raise_sequence()
    other.close()
    assert one.state.sequence == 1


def test_a_claim_that_another_lock_holder_has_just_made_is_not_taken_over(
    make: Callable[..., One], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is lost between the last proof and the look at the number. Breaks as above."""
    one = make()
    local.write(one.journal, LocalState(NODE, 1, 1, complete=True, replica=True))
    one.coordinator.connect(lambda: None)
    assert one.coordinator.acquire()
    one.coordinator.change(0, 1)
    to = one.machine.to
    others: list[FileCoordinator] = []

    def late(phase: Phase, reason: str, epoch: int = 0) -> None:
        if phase is Phase.ACTIVATING and not others:
            others.append(take_away(one, tmp_path))
            others[0].change(1, -2)
        to(phase, reason, epoch)

    monkeypatch.setattr(one.machine, "to", late)
    one.member._look()
    others[0].close()
    assert one.state.sequence == 1


class Contradicting(FileCoordinator):
    """Somebody knows of newer data; ``meanwhile`` happens while it is asked."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def sequence(self) -> int:
        self.meanwhile()
        raise NotNewestError("newer data exists")


@pytest.mark.parametrize("copied", [False, True], ids=["waits", "is copied"])
def test_what_somebody_knows_is_noted_and_nothing_else(
    make: Callable[..., One], tmp_path: Path, *, copied: bool
) -> None:
    """Breaks when what a live has begun to write meanwhile is noted as a whole copy, as it was before."""
    one = make()
    known = LocalState(NODE, 1, 1, complete=True, replica=False)
    begun = replace(known, complete=False, replica=True)
    local.write(one.journal, known)
    coordinator = Contradicting(tmp_path / "locks", "pair")
    one.member._make_coordinator = lambda _: coordinator
    if copied:
        coordinator.meanwhile = lambda: local.write(one.journal, begun)
    one.member._look()
    assert one.state == (begun if copied else replace(known, outvoted=True))
    assert one.listener.following


def test_data_that_was_there_before_keeps_its_epochs(make: Callable[..., One]) -> None:
    one = make(newest=41)
    assert one.serve().epoch == 42
    assert (one.state.sequence, one.state.epoch) == (1, 42)


def test_a_lost_vote_is_remembered_until_the_broker_serves_again(make: Callable[..., One]) -> None:
    one = make()
    one.serve()
    one.listener.fences = []
    one.member.outvoted("0 of 2 votes needed")
    # The member's own thread may have noticed first, and be about to say so.
    wait_until(lambda: one.listener.fences, "it stops")
    assert one.listener.fences == ["0 of 2 votes needed"]
    assert not one.member.lease.held()
    assert one.state.outvoted
    one.member.stop(release=True)
    other = make()
    other.serve()
    assert other.state.outvoted, "it may die before it has served anybody"
    other.member.served()
    assert not other.state.outvoted


def test_a_disk_that_takes_nothing_does_not_keep_an_outvoted_live_alive(
    make: Callable[..., One], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()
    one.serve()
    one.listener.fences = []

    def full(directory: Path, state: LocalState) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local, "write", full)
    one.member.outvoted("0 of 2 votes needed")
    wait_until(lambda: one.listener.fences, "it stops")


def test_what_is_handed_over_can_be_completed_later(make: Callable[..., One], tmp_path: Path) -> None:
    one = make()
    one.serve()
    one.member.served()
    assert one.state.history[0].duration_ms >= 0
    assert not one.state.replica
    assert not one.member.hand_over(prefix=True, stay=True, seconds=0.0)
    assert (one.state.replica, one.state.stay, one.state.complete) == (True, True, True)
    other = FileCoordinator(tmp_path / "locks", "pair")
    other.connect(lambda: None)
    assert other.acquire()
    other.close()


def test_whoever_takes_over_is_noticed(make: Callable[..., One], tmp_path: Path) -> None:
    one = make()
    one.serve()
    other = FileCoordinator(tmp_path / "locks", "pair")
    other.connect(lambda: None)

    def take() -> None:
        while not other.acquire():
            threading.Event().wait(0.01)
        other.change(1, -2)

    thread = threading.Thread(target=take)
    thread.start()
    assert one.member.hand_over(prefix=False, stay=False, seconds=TIMEOUT)
    thread.join()
    other.close()
    assert not one.state.replica


def test_a_contradiction_is_left_to_an_operator(make: Callable[..., One]) -> None:
    one = make()
    local.write(one.journal, LocalState(NODE, 7, 7, complete=True, replica=False))
    one.member.start()
    assert one.listener.said.wait(TIMEOUT)
    assert isinstance(one.listener.error, StoreRefusedError)
    assert "pollux activation set --remote 7" in str(one.listener.error)
    assert one.machine.phase is not Phase.ACTIVATING


def test_a_number_that_is_not_known_everywhere_yet_is_no_contradiction(
    make: Callable[..., One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers with what was once true. Breaks when a member ends for what one read says."""
    one = make()
    one.coordinator.connect(lambda: None)
    assert one.coordinator.acquire()
    one.coordinator.change(0, 7)
    one.coordinator.release()
    local.write(one.journal, LocalState(NODE, 7, 7, complete=True, replica=False))
    knows: list[str] = []
    newest = one.coordinator.sequence
    monkeypatch.setattr(one.coordinator, "sequence", lambda: newest() if knows else 6)
    monkeypatch.setattr(one.coordinator, "catch_up", lambda: knows.append("now"))
    assert one.serve().epoch == 8
    assert one.coordinator.sequence() == 8


def test_a_lock_that_is_certainly_lost_ends_the_life_at_once(make: Callable[..., One], tmp_path: Path) -> None:
    """Not only when the lease is over, which here takes 40 s."""
    one = make()
    one.serve()
    one.listener.fences = []
    (tmp_path / "locks" / "pair" / "lock").unlink()
    one.member.wake()
    wait_until(lambda: one.listener.fences, "it stops")
    assert not one.member.lease.held()


def test_a_proof_counts_from_the_one_before_where_that_is_long_ago(
    make: Callable[..., One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its servers' leader may not have been told of this one yet: the session is counted from the one before."""
    one = make(part=0.5)
    now = 100.0
    monkeypatch.setattr("pollux.ha.replication.member.boot_clock", lambda: now)
    one.member.lease._clock = lambda: now
    one.member._proved = now
    assert one.member._extend(one.coordinator, now)
    assert one.member.lease.left() == TIMEOUT / 2
    now += TIMEOUT * 0.45
    assert one.member._extend(one.coordinator, now)
    assert one.member.lease.left() == TIMEOUT / 2, "the usual: what is told late is within the margin"
    now += TIMEOUT * 0.2
    one.member._proved -= TIMEOUT * 0.4
    assert one.member._extend(one.coordinator, now)
    assert one.member.lease.left() == pytest.approx(TIMEOUT * 0.4)


def test_a_copy_that_became_older_meanwhile_follows_again(make: Callable[..., One], tmp_path: Path) -> None:
    """Between the look and the lock somebody else has served: the lock is given back, and a live is looked for."""
    one = make()
    newer = LocalState(NODE, 3, 3, complete=True, replica=True)
    local.write(one.journal, newer)
    (tmp_path / "locks" / "pair").mkdir(parents=True)
    (tmp_path / "locks" / "pair" / "activation-sequence").write_text("3")
    followed = threading.Event()

    def stop_following() -> None:
        one.listener.following = False
        local.write(one.journal, replace(newer, sequence=2))

    def follow_again() -> None:
        followed.set()

    one.listener.stop_following = stop_following  # type: ignore[method-assign]
    one.listener.follow_again = follow_again  # type: ignore[method-assign]
    one.member.start()
    assert followed.wait(TIMEOUT)
    other = FileCoordinator(tmp_path / "locks", "pair")
    other.connect(lambda: None)
    assert other.acquire()
    other.close()
    assert one.listener.right is None


def test_an_epoch_is_newer_than_that_of_the_state_file(make: Callable[..., One]) -> None:
    """The journal's files may tell less: they may be gone, or not all of them copied."""
    one = make(newest=4)
    local.write(one.journal, LocalState(NODE, 0, 7, complete=True, replica=False))
    assert one.serve().epoch == 8
