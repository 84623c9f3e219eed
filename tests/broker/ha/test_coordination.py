"""Both coordination services keep the same promises: one lock, one number, and nothing for whoever lost either."""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError

from harness.zookeeper import ZooKeeperProcess
from pollux.config.manager import ZooKeeperTimes
from pollux.ha.replication.coordination import CoordinationError, Coordinator, FileCoordinator
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Generous: a machine under load.
TIMEOUT = 60.0
#: Requests are given up after a third of it; nothing here waits for its end.
SESSION = 16.0
TIMES = ZooKeeperTimes(session=SESSION)


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
                server.connect_string, "pair", namespace=tmp_path.name, times=TIMES, holder="castor"
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


def test_a_lock_that_is_lost_within_a_change_does_not_undo_the_next_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the proof and what it allows are two steps for others."""
    castor, pollux = (FileCoordinator(tmp_path, "pair") for _ in range(2))
    for one in (castor, pollux):
        one.connect(lambda: None)
    assert castor.acquire()
    refused: list[str] = []

    def look() -> int:
        (tmp_path / "pair" / "lock").unlink()
        assert pollux.acquire()
        try:
            pollux.change(0, -1)
        except CoordinationError as error:
            refused.append(str(error))
        return 0

    monkeypatch.setattr(castor, "sequence", look)
    castor.change(0, 1)
    assert [one.rpartition(" is ")[2] for one in refused] == ["being changed by another member"]
    with pytest.raises(CoordinationError, match="is 1, not 0"):
        pollux.change(0, -1)
    pollux.change(1, -2)
    for one in (castor, pollux):
        one.close()


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


def test_a_group_has_the_data_of_whoever_registers_first(make: Callable[[], Coordinator]) -> None:
    castor, pollux = make(), make()
    for group in ("twins", "pair", "with spaces/and dots..", ".."):
        assert castor.register(group, "0a" * 16) == "0a" * 16
        assert pollux.register(group, "0b" * 16) == "0a" * 16
        assert castor.register(group, "0a" * 16) == "0a" * 16
    assert castor.acquire(), "the name of a group may be that of a pair"


def test_waiting_members_are_told_when_the_lock_is_free(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    told = threading.Event()
    castor, pollux = (
        ZooKeeperCoordinator(zookeeper.connect_string, "pair", namespace=tmp_path.name, times=TIMES) for _ in "ab"
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
        ZooKeeperCoordinator(zookeeper.connect_string, "pair", namespace=tmp_path.name, times=TIMES) for _ in "ab"
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
            zookeeper.connect_string, "pair", namespace=tmp_path.name, times=TIMES, credentials=credentials
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


def test_the_first_question_waits_for_the_connection(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    """Breaks when each start begins with an error that means nothing, and hides why a member waits."""
    one = ZooKeeperCoordinator(zookeeper.connect_string, "pair", namespace=tmp_path.name, times=TIMES)
    try:
        one.connect(lambda: None)
        assert one.sequence() == 0
    finally:
        one.close()


@pytest.mark.processes
def test_a_service_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    server = ZooKeeperProcess(tmp_path / "zookeeper").start()
    castor = ZooKeeperCoordinator(server.connect_string, "pair", times=TIMES)
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


@pytest.mark.processes
def test_a_service_that_was_wiped_is_asked_again(tmp_path: Path) -> None:
    """Its servers drop whoever has seen more than they have: a member that waits must learn that the number is gone."""
    server = ZooKeeperProcess(tmp_path / "zookeeper").start()
    times = ZooKeeperTimes(session=1.0)
    coordinator = ZooKeeperCoordinator(server.connect_string, "pair", namespace="here", times=times, holder="castor")
    try:
        coordinator.connect(lambda: None)
        wait(lambda: answers(coordinator))
        assert coordinator.acquire()
        coordinator.change(0, 1)
        coordinator.release()
        server.wipe()
        wait(lambda: answers(coordinator))
        assert coordinator.sequence() == 0
    finally:
        coordinator.close()
        server.stop()


def test_a_session_that_is_granted_shorter_is_what_counts(
    zookeeper: ZooKeeperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The server gives an hour at most and 200 ms at least."""
    day, blink = (ZooKeeperTimes(session=seconds, part=0.001 if seconds > 1 else 0.66) for seconds in (86_400, 0.1))
    asked = [ZooKeeperCoordinator(zookeeper.connect_string, "pair", times=times) for times in (day, blink)]
    try:
        for one in asked:
            one.connect(lambda: None)
            wait(lambda one=one: answers(one))  # type: ignore[misc]
        assert [one.session for one in asked] == [3600, 0.1]
        assert [line.message for line in caplog.records if "shorter session" in line.message] == [
            "ZooKeeper grants a shorter session than session-ms: the live stops earlier without contact"
        ]
    finally:
        for one in asked:
            one.close()


def test_a_server_that_says_nothing_is_left_for_the_next_one() -> None:
    """It accepts connections; without connection-ms the one that was made would be held for a session."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        times = ZooKeeperTimes(session=3600, connection=0.05)
        coordinator = ZooKeeperCoordinator(f"127.0.0.1:{server.getsockname()[1]}", "pair", times=times)
        coordinator.connect(lambda: None)
        try:
            with server.accept()[0], server.accept()[0], server.accept()[0]:
                pass
        finally:
            coordinator.close()


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (1, 2), (2, 3)])
def test_questions_are_asked_again_and_changes_are_not(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, calls: int
) -> None:
    """Two answers are lost with their connection."""
    times = ZooKeeperTimes(session=SESSION, retries=retries, pause=0.01)
    one = ZooKeeperCoordinator(zookeeper.connect_string, "pair", namespace=tmp_path.name, times=times)
    made: list[str] = []
    left = 2

    def breaking(name: str) -> None:
        call = getattr(one._client, name)

        def broken(*values: object, **more: object) -> object:
            nonlocal left
            made.append(name)
            result = call(*values, **more)
            if left == 0:
                return result
            left -= 1
            answer = one._client.handler.async_result()
            answer.set_exception(ConnectionLoss())
            return answer

        monkeypatch.setattr(one._client, name, broken)

    try:
        one.connect(lambda: None)
        wait(lambda: answers(one))
        assert one.acquire()
        breaking("get_async")
        if retries == 2:
            assert one.sequence() == 0
        else:
            with pytest.raises(CoordinationError, match="reading the sequence failed: ConnectionLoss"):
                one.sequence()
        assert made == ["get_async"] * calls
        left = 0
        transaction = one._client.transaction()
        monkeypatch.setattr(one._client, "transaction", lambda: transaction)
        commits: list[int] = []

        def commit() -> object:
            commits.append(1)
            answer = one._client.handler.async_result()
            answer.set_exception(ConnectionLoss())
            return answer

        monkeypatch.setattr(transaction, "commit_async", commit)
        with pytest.raises(CoordinationError, match="setting the sequence failed: ConnectionLoss"):
            one.change(0, 1)
        assert commits == [1]
    finally:
        one.close()


def test_a_service_that_is_not_there_is_said_and_never_waited_for_long(tmp_path: Path) -> None:
    nobody = ZooKeeperCoordinator("127.0.0.1:1", "pair", times=ZooKeeperTimes(session=1.0))
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
