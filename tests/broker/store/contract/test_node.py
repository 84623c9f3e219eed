"""The contracts of :class:`pollux.store.port.NodeLocks` and ``StateRecord``, which each implementation must pass."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from harness.databases import DATABASES
from harness.memory_node import MemoryLocks, MemoryNode, MemoryRecord
from pollux.ha.shared_store.lock_queue import LockQueue
from pollux.ha.store_layout import BACKUP_LOCK, LIVE_LOCK
from pollux.store.locks import FileLocks, LockTimeoutError, StateFile
from pollux.store.sql.files import SqlFiles
from pollux.store.sql.locks import Session, SqlLocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.store.port import NodeLocks, StateRecord

#: For what comes by itself, seconds.
SOON = 30


@pytest.fixture(params=["files", "memory", "postgresql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[NodeLocks, NodeLocks]]:
    """The locks of one node as two processes have them."""
    if request.param == "files":
        yield FileLocks(tmp_path), FileLocks(tmp_path)
    elif request.param == "memory":
        node = MemoryNode()
        yield MemoryLocks(node), MemoryLocks(node)
    else:
        connect = request.getfixturevalue("databases")
        first = connect("postgresql")
        both = (first, connect(first.target))
        sessions = [Session(one) for one in both]
        mine, theirs = (SqlLocks(one, session, SOON) for one, session in zip(both, sessions, strict=True))
        yield mine, theirs
        for session in sessions:
            session.close()


@pytest.fixture(params=["file", "memory", *DATABASES])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> StateRecord:
    if request.param in DATABASES:
        files = SqlFiles(request.getfixturevalue("databases")(request.param), tmp_path)
        files.make_directory(tmp_path / "node")  # where every member writes, without a life
        return StateFile(tmp_path / "node" / "state", files)
    return StateFile(tmp_path / "state") if request.param == "file" else MemoryRecord()


def test_a_lock_is_held_by_one_and_by_nobody_after_it_is_closed(two: tuple[NodeLocks, NodeLocks]) -> None:
    mine, theirs = (locks.open("a") for locks in two)
    assert mine.nonce == theirs.nonce
    assert mine.try_lock()
    assert mine.try_lock()
    assert not theirs.try_lock()
    assert mine.is_current()
    mine.close()
    mine.close()
    assert mine.closed
    assert not theirs.closed
    assert theirs.try_lock()
    theirs.close()


def test_a_look_tells_of_a_lock_and_takes_nothing(two: tuple[NodeLocks, NodeLocks]) -> None:
    assert two[0].probe("a") is None
    lock = two[0].open("a")
    for held in (False, True):
        assert two[1].probe("a") == (lock.nonce, held)
        assert lock.try_lock()
    lock.close()
    assert two[1].probe("a") == (lock.nonce, False)


def test_a_lock_that_was_replaced_is_not_current_and_the_new_one_is_held(two: tuple[NodeLocks, NodeLocks]) -> None:
    old = two[0].open("a")
    assert old.try_lock()
    new = two[1].replace("a")
    assert new.nonce != old.nonce
    assert new.try_lock()
    assert new.is_current()
    assert not old.is_current()
    assert two[0].probe("a") == (new.nonce, True)
    old.close()
    assert not two[0].open("a").try_lock()
    new.close()


def test_a_touch_is_seen_by_others(two: tuple[NodeLocks, NodeLocks]) -> None:
    mine, theirs = (locks.open("a") for locks in two)
    first = mine.touch()
    assert mine.touched() == theirs.touched() == first
    changed = theirs.touch()
    assert mine.touched() == changed
    mine.close()
    theirs.close()


def test_who_waits_gets_the_lock_when_it_is_free(two: tuple[NodeLocks, NodeLocks]) -> None:
    held = two[0].open("a")
    assert held.try_lock()
    woken = threading.Event()
    wait = two[1].wait("a", woken.set)
    assert not wait.poll()
    assert wait.take() is None
    held.close()
    assert woken.wait(SOON)
    assert wait.error is None
    lock = wait.take()
    assert lock is not None
    assert lock.try_lock()
    assert wait.take() is None
    assert not two[0].open("a").try_lock()
    lock.close()


def test_who_waits_no_longer_leaves_the_lock_to_others(two: tuple[NodeLocks, NodeLocks]) -> None:
    held = two[0].open("a")
    assert held.try_lock()
    woken = threading.Event()
    gone, other = two[1].wait("a", lambda: None), two[1].wait("a", woken.set)
    gone.abandon()
    held.close()
    assert woken.wait(SOON)
    assert gone.take() is None
    lock = other.take()
    assert lock is not None
    lock.close()


def test_who_waits_for_a_lock_that_was_replaced_is_told(two: tuple[NodeLocks, NodeLocks]) -> None:
    held = [two[0].replace("a")]
    wait = two[1].wait("a", lambda: None)
    deadline = time.monotonic() + SOON
    while not wait.is_stale():  # it may only just begin to wait
        assert time.monotonic() < deadline
        held.append(two[0].replace("a"))
    later = two[1].wait("a", lambda: None)
    assert not later.is_stale()
    later.abandon()
    wait.abandon()
    for lock in held:
        lock.close()


def test_a_lock_for_a_moment_is_waited_for_so_long(two: tuple[NodeLocks, NodeLocks]) -> None:
    with two[0].briefly("a", SOON):
        with pytest.raises(LockTimeoutError), two[1].briefly("a", 0.0):
            pass
        assert not two[1].open("a").try_lock()
    with two[1].briefly("a", 0.0):
        pass


def test_a_record_is_replaced_whole(record: StateRecord) -> None:
    assert record.read() is None
    for data in (b"a longer one", b"short", b""):
        record.write(data)
        assert record.read() == data


def test_a_queue_for_the_live_lock_needs_only_this(two: tuple[NodeLocks, NodeLocks]) -> None:
    """Who holds the live lock is replaced by the first in line, and the next one moves up."""
    woken = threading.Event()
    first, second = (LockQueue(locks, woken.set, lambda: 0.0, in_line=True, patience=5.0, poll=None) for locks in two)
    live = two[0].open(LIVE_LOCK)
    assert live.try_lock()
    first.enter()
    second.enter()
    assert first.first
    assert not second.first
    live.close()
    assert woken.wait(SOON)
    woken.clear()
    first.look()
    assert first.lock is not None
    first.served()
    assert woken.wait(SOON)
    second.look()
    assert second.first
    assert second.lock is None
    backup = two[0].probe(BACKUP_LOCK)
    assert backup is not None
    assert backup.locked
    first.release()
    second.release()
