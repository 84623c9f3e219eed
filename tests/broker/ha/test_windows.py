"""The store is never given to two: a member must not take a missing sign for the end of the one that serves.

The node manager's own turns on a real directory, one by one and without its thread; time is a number.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from pollux.ha.machine import Machine, Phase
from pollux.ha.members import Beat, Heartbeat, MemberFile
from pollux.ha.node_state import Activation, Holder, NodeState, with_holder, write_state
from pollux.ha.shared_store.node_manager import NodeManager
from pollux.ha.shared_store.policy import Role, Settings
from pollux.ha.store_layout import LIVE_LOCK, SharedStoreLayout
from pollux.store.locks import LockFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.errors import PolluxError
    from pollux.ha.lease import Right

NODE = bytes(range(16))
EPOCH = 5


class Clock:
    """Time, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Silent:
    """A listener that only remembers."""

    def __init__(self) -> None:
        self.rights: list[Right] = []
        self.errors: list[PolluxError] = []

    def granted(self, right: Right) -> None:
        self.rights.append(right)

    def hand_back(self, reason: str) -> None:
        raise AssertionError(reason)

    def fenced(self, reason: str) -> None:
        raise AssertionError(reason)

    def refused(self, error: PolluxError) -> None:
        self.errors.append(error)


class Serving:
    """Another process that serves: its locks and its signs of life."""

    def __init__(self, base: Path) -> None:
        self.node = base / "node"
        self.node.mkdir()
        self.file = MemberFile(self.node, "a")
        self.me = Holder("a", "a", "host", 1, Role.LIVE.value, self.file.lock())
        self.lock = LockFile.open(self.node / LIVE_LOCK)
        assert self.lock.try_lock()
        entry = Activation(EPOCH, "", "a", "first", 0)
        write_state(self.node, with_holder(NodeState(NODE), self.me, EPOCH, self.lock.nonce, entry))
        self.heartbeat = Heartbeat(self.node)
        self.beat()

    def beat(self) -> None:
        """Give a sign of life."""
        self.heartbeat.write(EPOCH, self.me.id)

    def die(self) -> None:
        """The process ends: the kernel closes its files."""
        self.lock.close()
        self.file.close()
        self.heartbeat.close()


class Waiting:
    """A backup whose turns the test takes."""

    def __init__(self, base: Path) -> None:
        self.clock, self.listener = Clock(), Silent()
        self.machine = Machine(lambda: 0)
        self.node_manager = NodeManager(
            Settings(Role.BACKUP),
            SharedStoreLayout(base, base / "journal", base / "bindings"),
            Holder("b", "b", "host", 2, Role.BACKUP.value),
            self.machine,
            self.listener,
            wall_ms=lambda: 0,
            clock=self.clock,
        )
        self.node_manager._join()

    def turns(self, count: int = 5, seconds: float = 0.2) -> None:
        """Take turns, a moment apart."""
        for _ in range(count):
            self.node_manager._turn()
            self.clock.now += seconds

    @property
    def holds(self) -> bool:
        """Whether it has the live lock and does not serve."""
        return self.node_manager._lock is not None and not self.listener.rights


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Serving]:
    """Somebody serves."""
    found = Serving(tmp_path)
    yield found
    found.die()


@pytest.fixture
def backup(tmp_path: Path, live: Serving) -> Iterator[Waiting]:
    """Somebody waits."""
    found = Waiting(tmp_path)
    found.turns()
    assert found.machine.phase is Phase.READY
    yield found
    found.node_manager.close()


def until_it_holds(backup: Waiting, live: Serving) -> None:
    """The backup finds the new lock file free."""
    for _ in range(100):
        live.beat()
        backup.turns(1)
        if backup.node_manager._lock is not None:
            break
    assert backup.holds


def test_the_holders_end_is_enough(backup: Waiting, live: Serving) -> None:
    """A lock file was deleted and made again: as soon as the holder's process has ended nothing is waited for."""
    (live.node / LIVE_LOCK).unlink()
    until_it_holds(backup, live)
    live.die()
    backup.turns(1)
    assert [right.epoch for right in backup.listener.rights] == [EPOCH + 1]


def test_a_deleted_member_lock_does_not_prove_the_holders_end(backup: Waiting, live: Serving) -> None:
    """Somebody cleans up all lock files: the one that serves confirms until it looks, a second later."""
    (live.node / LIVE_LOCK).unlink()
    shutil.rmtree(live.node / "members")
    (live.node / "members").mkdir()
    until_it_holds(backup, live)
    backup.turns(20)
    assert backup.holds, "silence of lease and margin has to pass"
    backup.turns(20)
    assert backup.listener.rights


def test_a_member_lock_that_was_made_again_proves_nothing(backup: Waiting, live: Serving) -> None:
    (live.node / LIVE_LOCK).unlink()
    path = live.file.path.with_suffix(".lock")
    path.unlink()
    LockFile.open(path).close()
    until_it_holds(backup, live)
    backup.turns(10)
    assert backup.holds


def test_a_copy_of_the_lock_file_is_another_one(backup: Waiting, live: Serving) -> None:
    """A restored backup of the directory: the same content, another file, and nobody holds its lock."""
    path = live.node / LIVE_LOCK
    shutil.copy2(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)
    until_it_holds(backup, live)
    backup.turns(10)
    assert backup.holds


def test_a_backup_that_stood_still_reads_the_heartbeat_before_it_counts_silence(
    backup: Waiting, live: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still after the look: what the holder wrote meanwhile is not silence."""
    (live.node / LIVE_LOCK).unlink()
    until_it_holds(backup, live)
    read = Heartbeat.read

    def then_stand_still(heartbeat: Heartbeat) -> Beat | None:
        found = read(heartbeat)
        backup.clock.now += 10.0
        live.beat()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Heartbeat, "read", then_stand_still)
        backup.turns(1)
    assert backup.holds
    backup.turns(1)
    assert backup.holds
    backup.turns(40)
    assert backup.listener.rights, "real silence counts"
