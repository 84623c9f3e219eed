"""Members use the store step by step: real node managers on a real directory, held where it matters."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.ha.group import BACKUP, PATIENCE, PREFERRED, SYMMETRIC, Store, wait_until
from pollux.ha.lease import boot_clock
from pollux.ha.machine import Phase
from pollux.ha.members import HEARTBEAT, MEMBERS, Heartbeat
from pollux.ha.node_state import STATE_FILE, StateFileError, StoreState, read_state, write_state
from pollux.ha.shared_store import node_manager as manager_module
from pollux.ha.shared_store import observation, proof
from pollux.ha.shared_store.admission import admit
from pollux.ha.shared_store.policy import Action, Role, Settings, decide
from pollux.ha.store_layout import BACKUP_LOCK, FAILBACK_LOCK, LIVE_LOCK
from pollux.store.checkpoint import write_checkpoint
from pollux.store.files import FileOperations
from pollux.store.locks import LockFile, LockTimeoutError, LockWaiter, is_locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.ha.lease import Right
    from pollux.ha.node_state import NodeState
    from pollux.ha.shared_store.policy import Decision, Snapshot
    from pollux.store.port import Files


#: Sections of a checkpoint in which nothing is.
EMPTY = [(section, b"") for section in range(1, 8)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


@pytest.mark.parametrize("left", [StoreState.LIVE, StoreState.PAUSED])
def test_what_the_live_left_is_read_after_its_lock_was_obtained(
    store: Store, monkeypatch: pytest.MonkeyPatch, left: StoreState
) -> None:
    """A backup that has just read the state when the live leaves must not go by what it read."""
    live = store.member("a", PREFERRED).start().serve()
    backup = store.member("b", BACKUP).start().wait_for(Phase.READY)
    steps: list[str] = []

    def slow_read(directory: Path, *files: Files) -> NodeState | None:
        found = read_state(directory, *files)
        waiter = backup.node_manager._queue.waits_for_lock
        assert waiter is None or isinstance(waiter, LockWaiter)
        if not steps and found is not None and waiter is not None and live.machine.phase is Phase.LIVE:
            steps.append("read")
            # Between this read and the next thing the backup does, the live leaves and the lock comes.
            live.leave(left, stay=left is StoreState.LIVE)
            wait_until(lambda: waiter.lock is not None, "the lock came")
        return found

    def read(directory: Path, *files: Files) -> NodeState | None:
        mine = threading.current_thread() is backup.node_manager._thread
        return slow_read(directory, *files) if mine else read_state(directory, *files)

    monkeypatch.setattr(observation, "read_state", read)
    wait_until(lambda: steps, "the backup looks")
    if left is StoreState.PAUSED:
        wait_until(lambda: "PAUSED" in backup.machine.position.reason, "it knows that the live was stopped on purpose")
        assert not backup.rights
    else:
        backup.serve()
        assert store.state().stay, "an administrator's switchover is not forgotten"


def test_a_request_that_comes_while_a_backup_takes_over_is_not_overwritten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = store.member("a", PREFERRED).start().serve()
    backup = store.member("b", BACKUP).start().wait_for(Phase.READY)
    asked: list[LockFile] = []

    def late(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
        decision = decide(snapshot, settings, now)
        if decision.action is Action.ACTIVATE and snapshot.me == "b-id" and not asked:
            lock = LockFile.open(store.node / FAILBACK_LOCK)
            assert lock.try_lock()
            asked.append(lock)
            write_state(store.node, replace(store.state(), state=StoreState.FAILING_BACK))
        return decision

    monkeypatch.setattr(manager_module, "decide", late)
    live.leave(StoreState.LIVE)
    wait_until(lambda: asked and "preferred broker that asked" in backup.machine.position.reason, "it lets go")
    assert not backup.rights
    assert store.state().state is StoreState.FAILING_BACK
    asked[0].close()
    assert backup.granted_once.wait(PATIENCE), "the one that asked is gone: nobody is stranded"


def test_a_state_file_that_is_damaged_while_a_member_asks_for_the_store_is_looked_at_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Breaks when damage that the look before has not seen counts as a fault of ours: a traceback in the log."""
    store.member("a", PREFERRED).start().serve().leave(StoreState.LIVE)
    backup = store.member("b", BACKUP).start().serve()
    preferred = store.member("a", PREFERRED)
    damaged: list[str] = []

    def read(directory: Path, *files: Files) -> NodeState | None:
        caller = sys._getframe(1)
        changes = caller.f_code.co_name == "change" and caller.f_locals["self"] is preferred.node_manager._seen
        if not damaged and changes:
            damaged.append("once")
            raise StateFileError("damaged meanwhile")
        return read_state(directory, *files)

    monkeypatch.setattr(observation, "read_state", read)
    preferred.start()
    wait_until(lambda: backup.asked_back, "it asks again")
    assert damaged
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.message, record.fields["reason"]) for record in records] == [  # type: ignore[attr-defined]
        ("the store cannot be used now", "damaged meanwhile")
    ]


def test_a_stop_between_a_look_and_what_follows_from_it_is_no_failure(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Breaks when a standby that is stopped cannot become ready any more, and tells that with a traceback."""
    store.member("a", PREFERRED).start().serve()
    backup = store.member("b", BACKUP).start().wait_for(Phase.READY)
    stopped = threading.Event()

    def late(snapshot: Snapshot, settings: Settings, now: float) -> Decision:
        if snapshot.me == "b-id" and not stopped.is_set():
            backup.machine.to(Phase.STOPPING, "SIGTERM")
            stopped.set()
        return decide(snapshot, settings, now)

    monkeypatch.setattr(manager_module, "decide", late)
    assert stopped.wait(PATIENCE)
    backup.node_manager.submit(lambda: None).result(PATIENCE)  # its thread goes on
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_former_live_stays_a_standby_after_a_switchover_and_its_own_restarts(store: Store) -> None:
    """Maintenance on the former live restarts it several times; each time it waits until it is asked."""
    store.member("a", PREFERRED).start().serve().leave(StoreState.LIVE, stay=True)
    backup = store.member("b", BACKUP).start().serve()
    for _ in range(2):
        former = store.member("a", PREFERRED).start().wait_for(Phase.READY)
        # Each look would ask for the store; three of them are enough to see that it does not.
        looks = former.node_manager._seen.beat_at
        wait_until(
            lambda before=looks, seen=former.node_manager._seen: seen.beat_at > before,  # type: ignore[misc]
            "it looked and saw the live's sign",
        )
        assert store.state().state is StoreState.LIVE
        former.node_manager.close()
    assert not backup.asked_back
    preferred = store.member("a", PREFERRED).start().wait_for(Phase.READY)
    backup.node_manager.allow_failback().result(PATIENCE)
    wait_until(lambda: backup.asked_back, "asked by an administrator")
    backup.leave(StoreState.FAILING_BACK)
    preferred.serve()
    assert not store.state().stay


def test_a_switchover_does_not_keep_the_preferred_live_from_a_store_nobody_has(store: Store) -> None:
    store.member("a", PREFERRED).start().serve().leave(StoreState.LIVE, stay=True)
    backup = store.member("b", BACKUP).start().serve()
    preferred = store.member("a", PREFERRED).start().wait_for(Phase.READY)
    backup.node_manager.close()  # as the kernel does for a process that died
    preferred.serve()
    assert not store.state().stay, "from now on it is preferred again"


def test_a_member_gives_up_after_the_time_set_for_it(store: Store) -> None:
    live = store.member("a", PREFERRED).start().serve()
    other = store.member("b", replace(BACKUP, patience=0.3)).start()
    assert other.end.wait(PATIENCE)
    (error,) = other.refusals
    assert isinstance(error, LockTimeoutError)
    assert "journal-lock-acquisition-timeout (0.3 s): a has it" in str(error)
    assert live.machine.phase is Phase.LIVE
    assert not other.rights


def test_the_time_to_wait_does_not_run_while_the_store_is_paused(store: Store) -> None:
    """A backup that must not take over does not wait for the lock."""
    store.member("a", PREFERRED).start().serve().leave(StoreState.PAUSED)
    other = store.member("b", replace(BACKUP, patience=0.0)).start()
    wait_until(lambda: "PAUSED" in other.machine.position.reason, "it knows")
    assert other.machine.phase is Phase.JOINING
    assert not other.refusals


def test_a_checkpoint_alone_proves_the_node_id_when_the_state_file_is_lost(store: Store) -> None:
    """A clean stop leaves a checkpoint and no segment."""
    node = bytes(range(16))
    write_checkpoint(FileOperations(), store.path / "journal", node, (3, 3, 1), EMPTY)
    store.node.mkdir()
    (store.node / STATE_FILE).write_bytes(b"damaged")
    store.member("a", PREFERRED).start().serve()
    assert store.state().node_id == node
    assert store.state().epoch == 4


def test_backups_take_over_in_the_order_in_which_they_came(store: Store) -> None:
    live = store.member("a", PREFERRED).start().serve()
    backups = [store.member(name, BACKUP).start().wait_for(Phase.READY) for name in ("z", "b", "c")]
    assert [one.node_manager._queue.first for one in backups] == [True, False, False]
    for number, backup in enumerate(backups):
        live.node_manager.close()  # as the kernel does for a process that died
        backup.serve()
        assert not [other for other in backups[number + 1 :] if other.rights]
        live = backup
        for following in backups[number + 1 : number + 2]:
            wait_until(lambda one=following: one.node_manager._queue.first, "the next one moved up")  # type: ignore[misc]
    assert [one.holder for one in store.state().history] == ["a", "z", "b", "c"]


def test_a_first_in_line_that_stands_still_keeps_nobody_from_a_free_store(store: Store) -> None:
    live = store.member("a", PREFERRED).start().serve()
    frozen = LockFile.open(store.node / BACKUP_LOCK)
    assert frozen.try_lock()
    backup = store.member("b", replace(BACKUP, margin=0.5)).start().wait_for(Phase.READY)
    assert not backup.node_manager._queue.first
    live.node_manager.close()
    backup.serve()
    assert not backup.node_manager._queue.first
    frozen.close()


def test_a_preferred_live_does_not_stand_in_line(store: Store) -> None:
    store.member("a", PREFERRED).start().serve().leave(StoreState.LIVE, stay=True)
    backup = store.member("b", BACKUP).start().serve()
    other = store.member("c", BACKUP).start().wait_for(Phase.READY)
    preferred = store.member("a", PREFERRED).start().wait_for(Phase.READY)
    assert preferred.node_manager._queue.waits_for_lock is not None
    other.node_manager.close()
    backup.node_manager.close()
    preferred.serve()


def test_a_backup_that_leaves_the_line_lets_the_next_one_up(store: Store) -> None:
    store.member("a", PREFERRED).start().serve()
    first = store.member("b", BACKUP).start().wait_for(Phase.READY)
    second = store.member("c", BACKUP).start().wait_for(Phase.READY)
    assert not second.node_manager._queue.first
    first.node_manager.close()
    wait_until(lambda: second.node_manager._queue.waits_for_lock is not None, "it moved up, and waits for the lock")
    assert second.node_manager._queue.first


def test_of_equals_the_next_one_waits_one_keep_alive_period(store: Store) -> None:
    policy = replace(SYMMETRIC, keep_alive=0.4, proof_limit=0.1)
    first = store.member("a", policy).start().serve()
    second = store.member("b", policy).start().wait_for(Phase.READY)
    os.utime(store.node / LIVE_LOCK, (1, 1))
    assert first.end.wait(PATIENCE)
    assert "somebody else changed the lock file" in first.fences[0]
    first.node_manager.close()
    second.serve()
    entry = store.state().history[-1]
    assert "one lock-keep-alive-period" not in entry.reason
    assert entry.duration_ms >= 400
    returned = store.member("a", policy).start().wait_for(Phase.READY)
    assert not returned.rights
    assert store.state().state is StoreState.LIVE, "nobody asks for the store back"


@pytest.mark.parametrize("taken", [False, True])
def test_a_claim_that_took_longer_than_a_lease_is_proved_once_more(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, taken: bool
) -> None:
    """An NFS server calls back first what a dead member has. Breaks when the claim alone has to be enough."""
    store.member("a", PREFERRED).start().serve().leave(StoreState.LIVE)
    late = 0.0

    def clock() -> float:
        return boot_clock() + late

    def slow_write(directory: Path, state: NodeState, *files: Files) -> None:
        nonlocal late
        write_state(directory, state, *files)
        if not late:
            late = BACKUP.lease + 1
            if taken:
                LockFile.replace(store.node / LIVE_LOCK).close()

    backup = store.member("b", BACKUP)
    backup.node_manager._clock = backup.node_manager._seen._clock = backup.node_manager.lease._clock = clock
    monkeypatch.setattr(manager_module, "write_state", slow_write)
    backup.start()
    assert backup.granted_once.wait(PATIENCE)
    if taken:
        assert backup.end.wait(PATIENCE)
        assert "was deleted or replaced" in backup.fences[0]
        assert not backup.node_manager.lease.held()
    else:
        assert backup.node_manager.lease.held()
        assert not backup.fences
    assert late > BACKUP.lease


def test_a_live_that_takes_longer_to_stop_than_a_lease_keeps_its_right_until_it_gives_it_back(store: Store) -> None:
    """Its last writes are confirmed under the guard, too. Breaks when a clean stop that takes a while ends fenced."""
    live = store.member("a", replace(PREFERRED, proof_limit=0.05)).start().serve()
    live.machine.to(Phase.STOPPING, "the test says so")
    for _ in range(3):
        beat = live.node_manager._seen.heartbeat.read()
        wait_until(lambda before=beat: live.node_manager._seen.heartbeat.read() != before, "it gives a sign of life")  # type: ignore[misc]
    assert live.node_manager.lease.held()
    live.node_manager.release(StoreState.LIVE).result(PATIENCE)
    assert store.member("b", BACKUP).start().serve().machine.phase is Phase.LIVE
    live.node_manager.close()
    assert (live.fences, live.machine.phase) == ([], Phase.STOPPING)


def test_a_live_that_loses_the_store_while_it_stops_is_fenced(store: Store) -> None:
    live = store.member("a", replace(PREFERRED, proof_limit=0.05)).start().serve()
    live.machine.to(Phase.STOPPING, "the test says so")
    LockFile.replace(store.node / LIVE_LOCK).close()
    assert live.end.wait(PATIENCE)
    assert "was deleted or replaced" in live.fences[0]
    assert not live.node_manager.lease.held()


def test_a_job_whose_asker_went_away_is_not_the_end_of_the_node_manager(store: Store) -> None:
    """A client of the HTTP port closes its connection. Breaks when the right to serve is not proven any more then."""
    live = store.member("a", PREFERRED).start().serve()
    gate = threading.Event()
    first = live.node_manager.submit(lambda: (gate.wait(PATIENCE), None)[1])
    assert live.node_manager.submit(lambda: None).cancel()
    gate.set()
    first.result(PATIENCE)
    live.node_manager.submit(lambda: None).result(PATIENCE)


@pytest.mark.parametrize("times", [2, 1_000_000])
def test_a_server_that_cannot_be_told_is_told_again_or_it_is_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Breaks when a broker that has the right to serve, and proves it, never serves."""
    member = store.member("a", replace(PREFERRED, lease=0.5, proof_limit=0.02))
    granted, told = member.granted, iter(range(times))

    def deaf(right: Right) -> None:
        if next(told, None) is not None:
            raise RuntimeError("not now")
        granted(right)

    monkeypatch.setattr(member, "granted", deaf)
    member.start()
    if times == 2:
        member.serve()
    else:
        assert member.end.wait(PATIENCE)
        assert "could not be" in member.fences[0]
        assert not member.node_manager.lease.held()


def test_a_live_whose_state_file_names_another_one_is_fenced(store: Store) -> None:
    live = store.member("a", replace(PREFERRED, proof_limit=0.1)).start().serve()
    other = replace(store.state().holder, id="z-id", name="z")  # type: ignore[type-var]
    write_state(store.node, replace(store.state(), holder=other, epoch=9))
    assert live.end.wait(PATIENCE)
    assert live.fences == ["z took the store over in epoch 9"]
    assert not live.node_manager.lease.held()


def test_a_state_file_that_is_damaged_or_gone_is_written_anew_by_the_live(store: Store) -> None:
    live = store.member("a", replace(PREFERRED, proof_limit=0.05)).start().serve()
    expected = store.state()
    for damage in (b"", b"{}", None):
        path = store.node / STATE_FILE
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        wait_until(lambda one=path: one.exists() and b"crc32c" in one.read_bytes(), "it is written anew")  # type: ignore[misc]
        assert store.state() == expected
    assert live.machine.phase is Phase.LIVE


def test_what_another_member_writes_while_the_live_looks_is_not_written_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds no state file looks once more with the lock that those who change it have."""
    live = store.member("a", replace(PREFERRED, proof_limit=0.05)).start().serve()
    looks: list[NodeState | None] = []

    def missed(directory: Path, *files: Files) -> NodeState | None:
        looks.append(None if len(looks) == 0 else read_state(directory, *files))
        if len(looks) == 1:
            write_state(directory, replace(store.state(), stay=True))
        return looks[-1]

    monkeypatch.setattr(proof, "read_state", missed)
    wait_until(lambda: len(looks) > 2, "it has looked again")
    assert store.state().stay
    assert live.machine.phase is Phase.LIVE


#: Members whose lease is over soon.
HASTY = {role: Settings(role, lease=1.0, margin=0.25) for role in Role}


@pytest.mark.parametrize("damage", [None, b"damaged"])
@pytest.mark.parametrize("role", [Role.LIVE, Role.SYMMETRIC])
def test_who_finds_neither_state_nor_lock_waits_until_whoever_served_has_stopped(
    store: Store, role: Role, damage: bytes | None
) -> None:
    """A lock file that was made anew proves nothing: who serves holds another, and finds out with its next proof."""
    first = store.member("a", HASTY[role]).start().serve()
    write_checkpoint(FileOperations(), store.path / "journal", first.rights[0].node_id, (1, 1, 1), EMPTY)
    (store.node / LIVE_LOCK).unlink()
    if damage is None:
        (store.node / STATE_FILE).unlink()
    else:
        (store.node / STATE_FILE).write_bytes(damage)
    second = store.member("b", HASTY[role]).start()
    assert second.granted_once.wait(PATIENCE), second.machine.position
    assert not first.node_manager.lease.held(), "two may confirm at the same time"
    assert second.rights[0].epoch == 2


def test_whoever_said_that_it_stopped_is_not_waited_for_when_state_and_lock_are_lost(store: Store) -> None:
    first = store.member("a", PREFERRED).start().serve()
    write_checkpoint(FileOperations(), store.path / "journal", first.rights[0].node_id, (1, 1, 1), EMPTY)
    first.leave(StoreState.LIVE)
    (store.node / LIVE_LOCK).unlink()
    (store.node / STATE_FILE).unlink()
    second = store.member("b", replace(PREFERRED, lease=2 * PATIENCE)).start().serve()
    assert second.rights[0].epoch == 2


def test_a_sign_of_life_whose_file_was_deleted_is_written_anew(store: Store) -> None:
    """Who waits would see none, and take the store from somebody who serves."""
    live = store.member("a", replace(PREFERRED, proof_limit=0.05)).start().serve()
    (store.node / HEARTBEAT).unlink()
    wait_until((store.node / HEARTBEAT).exists, "it is there again")
    wait_until(lambda: Heartbeat(store.node).read() is not None, "it can be read")
    assert live.machine.phase is Phase.LIVE


def test_a_request_for_the_store_and_a_members_words_are_made_again_when_their_files_were_deleted(
    store: Store,
) -> None:
    """Breaks when the preferred broker waits for an answer to what nobody can see, or clients are not told of it."""
    store.member("a", PREFERRED).start().serve().node_manager.close()
    store.member("b", BACKUP).start().serve()
    store.member("a", PREFERRED).start()
    words = store.node / MEMBERS / "a-id.json"
    wait_until(lambda: is_locked(store.node / FAILBACK_LOCK) and words.exists(), "it asks")
    (store.node / FAILBACK_LOCK).unlink()
    words.unlink()
    wait_until(lambda: is_locked(store.node / FAILBACK_LOCK) and words.exists(), "it asks again")


@pytest.mark.parametrize(
    ("kind", "poll", "period"),
    [("ext4", None, 0.2), ("nfs4", None, 0.5), ("nfs4", 10.0, 0.5), ("nfs4", 0.3, 0.3), ("nfs4", 0.1, 0.2)],
)
def test_a_waiting_member_looks_less_often_where_each_look_is_many_questions_to_a_server(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str, poll: float | None, period: float
) -> None:
    monkeypatch.setattr(manager_module, "admit", lambda *given: admit(*given)._replace(kind=kind))
    store.member("a", PREFERRED).start().serve()
    node_manager = store.member("b", replace(BACKUP, poll=poll)).start().wait_for(Phase.READY).node_manager
    waits: list[float] = []
    node_manager.submit(lambda: waits.append(node_manager._turn())).result(PATIENCE)
    assert waits == [period]
