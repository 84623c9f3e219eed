"""Locks on files: two descriptions of one file exclude each other, in one process as between hosts."""

from __future__ import annotations

import fcntl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from broker.ha.group import PATIENCE, wait_until
from pollux.store import locks
from pollux.store.locks import LockFile, LockTimeoutError, LockWaiter, ShortLock, is_locked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.lock"


def test_one_holds_it_and_proves_it_by_taking_it_again(path: Path) -> None:
    one, other = LockFile.open(path), LockFile.open(path)
    assert one.nonce == other.nonce != ""
    assert one.try_lock()
    assert one.try_lock()
    assert not other.try_lock()
    assert is_locked(path)
    other.close()
    assert not LockFile.open(path).try_lock(), "closing another description of the file releases nothing"
    one.close()
    assert not is_locked(path)


def test_a_replaced_file_is_locked_by_whoever_replaced_it(path: Path) -> None:
    one = LockFile.open(path)
    assert one.try_lock()
    two = LockFile.replace(path)
    assert not one.is_current()
    assert two.is_current()
    assert two.nonce != one.nonce
    assert not LockFile.open(path).try_lock()


def test_a_waiter_gets_the_lock_when_it_is_released(path: Path) -> None:
    holder = LockFile.open(path)
    assert holder.try_lock()
    woken = threading.Event()
    waiter = LockWaiter(path, woken.set)
    assert not waiter.poll()
    holder.close()
    assert woken.wait(PATIENCE)
    lock = waiter.take()
    assert lock is not None
    assert not LockFile.open(path).try_lock()
    lock.close()


def test_an_abandoned_waiter_lets_go_of_what_it_gets(path: Path) -> None:
    holder = LockFile.open(path)
    assert holder.try_lock()
    waiter = LockWaiter(path, lambda: None)
    wait_until(lambda: waiter.waits_on is not None, "it waits")
    waiter.abandon()
    holder.close()
    waiter._thread.join(PATIENCE)
    assert waiter.take() is None
    assert not is_locked(path)


def test_a_waiter_whom_the_kernel_does_not_wake_gets_the_lock_by_polling(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client asks its server again only after up to 30 s."""
    answers = threading.Event()
    real = fcntl.fcntl

    def sleepy(descriptor: int, command: int, argument: Any) -> Any:
        if command == locks.F_OFD_SETLKW:
            answers.wait(PATIENCE)
        return real(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", sleepy)
    holder = LockFile.open(path)
    assert holder.try_lock()
    waiter = LockWaiter(path, lambda: None)
    assert not waiter.poll()
    holder.close()
    assert waiter.poll()
    lock = waiter.take()
    assert lock is not None
    assert not LockFile.open(path).try_lock()
    # The kernel's answer comes much later, when this member has let go: nothing is held that nobody asked for.
    lock.close()
    answers.set()
    waiter._thread.join(PATIENCE)
    assert waiter.take() is None
    assert not is_locked(path)


def test_a_short_lock_is_not_waited_for_for_ever(path: Path) -> None:
    with (
        ShortLock(path, 1.0),
        pytest.raises(LockTimeoutError, match=r"has held this lock for 0\.05 s"),
        ShortLock(path, 0.05),
    ):
        pass
    with ShortLock(path, 1.0):
        pass
