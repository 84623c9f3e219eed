"""Both coordination services keep the same promises: one lock, one number, and nothing for whoever lost either."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from pollux.ha.replication.coordination import CoordinationError, Coordinator, FileCoordinator
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator
from support.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Generous: a machine under load.
TIMEOUT = 60.0
#: Requests are given up after a third of it; nothing here waits for its end.
SESSION = 16.0


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield process.start()
    finally:
        process.stop()


@pytest.fixture(params=["file", "zookeeper"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Coordinator]]:
    made: list[Coordinator] = []

    def one() -> Coordinator:
        coordinator: Coordinator
        if request.param == "file":
            coordinator = FileCoordinator(tmp_path, "pair", SESSION)
        else:
            server = request.getfixturevalue("zookeeper")
            coordinator = ZooKeeperCoordinator(
                server.connect_string, "pair", namespace=tmp_path.name, session=SESSION, holder="castor"
            )
        coordinator.connect(lambda: None)
        made.append(coordinator)
        wait(lambda: answers(coordinator))
        return coordinator

    yield one
    for coordinator in made:
        coordinator.close()


def answers(coordinator: Coordinator) -> bool:
    try:
        coordinator.sequence()
    except CoordinationError:
        return False
    return True


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_holds_the_lock(make: Callable[[], Coordinator]) -> None:
    castor, pollux = make(), make()
    assert castor.acquire()
    assert castor.acquire()
    assert not pollux.acquire()
    castor.prove()
    with pytest.raises(CoordinationError, match="not"):
        pollux.prove()
    castor.release()
    with pytest.raises(CoordinationError):
        castor.prove()
    assert pollux.acquire()
    pollux.prove()


def test_the_lock_goes_with_its_holder(make: Callable[[], Coordinator]) -> None:
    castor, pollux = make(), make()
    assert castor.acquire()
    castor.close()
    wait(pollux.acquire)


def test_only_the_holder_sets_the_number_and_only_from_what_it_is(make: Callable[[], Coordinator]) -> None:
    castor, pollux = make(), make()
    assert castor.sequence() == 0
    with pytest.raises(CoordinationError):
        castor.change(0, -1)
    assert castor.acquire()
    castor.change(0, -1)
    castor.change(-1, 1)
    assert pollux.sequence() == 1
    with pytest.raises(CoordinationError, match="is 1, not 0"):
        castor.change(0, 5)
    with pytest.raises(CoordinationError):
        pollux.change(1, -2)
    castor.release()
    assert pollux.acquire()
    pollux.change(1, -2)
    with pytest.raises(CoordinationError):
        castor.change(-2, 2)
    assert pollux.sequence() == -2


def test_waiting_members_are_told_when_the_lock_is_free(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    told = threading.Event()
    castor, pollux = (
        ZooKeeperCoordinator(zookeeper.connect_string, "pair", namespace=tmp_path.name, session=SESSION) for _ in "ab"
    )
    try:
        castor.connect(lambda: None)
        pollux.connect(told.set)
        wait(lambda: answers(castor) and answers(pollux))
        assert castor.acquire()
        assert not pollux.acquire()
        told.clear()
        castor.release()
        assert told.wait(TIMEOUT)
        assert pollux.acquire()
    finally:
        castor.close()
        pollux.close()


def test_a_session_that_ended_changes_nothing(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    """The service ends a session while its owner does not know: the owner can prove nothing, and writes nothing."""
    castor, pollux = (
        ZooKeeperCoordinator(zookeeper.connect_string, "pair", namespace=tmp_path.name, session=SESSION) for _ in "ab"
    )
    try:
        castor.connect(lambda: None)
        pollux.connect(lambda: None)
        wait(lambda: answers(castor) and answers(pollux))
        assert castor.acquire()
        castor.change(0, 1)
        held = castor._held
        # Somebody else closes the session: the recipe of ZooKeeper's own tests.
        twin = KazooClient(zookeeper.connect_string, client_id=castor._client.client_id)
        twin.start(TIMEOUT)
        twin.stop()
        twin.close()
        wait(pollux.acquire)
        pollux.change(1, 2)
        castor._held = held  # it has not noticed
        for call in (castor.prove, lambda: castor.change(2, 3)):
            with pytest.raises(CoordinationError):
                call()
        castor._held = held
        with pytest.raises(CoordinationError):
            castor.change(2, 3)
        assert pollux.sequence() == 2
        pollux.prove()
    finally:
        castor.close()
        pollux.close()


def test_what_a_user_made_is_nobody_elses(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    castor, pollux, wrong, stranger = (
        ZooKeeperCoordinator(
            zookeeper.connect_string, "pair", namespace=tmp_path.name, session=SESSION, credentials=credentials
        )
        for credentials in (("brokers", "theirs"), ("brokers", "theirs"), ("brokers", "guessed"), None)
    )
    try:
        for one in (castor, pollux, wrong, stranger):
            one.connect(lambda: None)
            wait(lambda one=one: answers(one))  # type: ignore[misc]
        assert castor.acquire()
        castor.change(0, 1)
        assert pollux.sequence() == 1
        for one in (wrong, stranger):
            with pytest.raises(CoordinationError, match="zookeeper-password"):
                one.sequence()
        client = KazooClient(zookeeper.connect_string)
        client.start(TIMEOUT)
        for path in (castor._lock, castor._number, f"{castor._held}"):
            with pytest.raises(NoAuthError):
                client.set(path, b"mine")
        client.stop()
        client.close()
        castor.release()
        assert not any(one.acquire() for one in (wrong, stranger))
        assert pollux.acquire()
    finally:
        for one in (castor, pollux, wrong, stranger):
            one.close()


def test_a_service_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    server = ZooKeeperProcess(tmp_path / "zookeeper").start()
    castor = ZooKeeperCoordinator(server.connect_string, "pair", session=SESSION)
    try:
        castor.connect(lambda: None)
        wait(lambda: answers(castor))
        assert castor.acquire()
        server.signal(signal.SIGSTOP)
        with pytest.raises(CoordinationError):
            castor.prove()
    finally:
        server.stop()
        castor.close()


def test_a_service_that_is_not_there_is_said_and_never_waited_for_long(tmp_path: Path) -> None:
    nobody = ZooKeeperCoordinator("127.0.0.1:1", "pair", session=1.0)
    nobody.connect(lambda: None)
    try:
        for call in (nobody.sequence, nobody.acquire, nobody.prove):
            with pytest.raises(CoordinationError, match="ZooKeeper"):
                call()
    finally:
        nobody.close()
    coordinator = FileCoordinator(tmp_path, "pair")
    coordinator.connect(lambda: None)
    (tmp_path / "pair" / "activation-sequence").write_text("nonsense")
    with pytest.raises(CoordinationError, match="activation-sequence"):
        coordinator.sequence()
