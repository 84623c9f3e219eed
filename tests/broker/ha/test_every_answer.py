"""A call of a replicated member fails, any one until it serves, once or for a while: it serves, or its process ends.

Whoever ends is started again, as a service manager does it. The calls are those on its own files and the lock's, and
the questions to the coordination service, which are carried out or not.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.ha.group import wait_until
from broker.ha.test_every_call import AT_A_TIME, BOUND, SPANS, often_enough
from harness import system_calls
from harness.system_calls import Faults
from pollux.cluster.votes import Answer, Candidacy
from pollux.config.manager import ZooKeeperTimes
from pollux.errors import PolluxError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.machine import Machine, Phase
from pollux.ha.replication import member as member_module
from pollux.ha.replication.coordination import CoordinationError, Coordinator, FileCoordinator
from pollux.ha.replication.member import Member
from pollux.ha.replication.quorum import QuorumCoordinator
from pollux.ha.replication.settings import Votes
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.zookeeper import ZooKeeperProcess
    from pollux.cluster.votes import Enough
    from pollux.ha.lease import Right

NODE = "0b" * 16
QUESTIONS = ("connect", "sequence", "catch_up", "acquire", "prove", "change", "register")


class Questions:
    """Counts what a coordinator is asked; the ``first`` and those within ``seconds`` after it fail."""

    def __init__(self, first: int | None, seconds: float, *, done: bool) -> None:
        """``done``: it was carried out, and only the answer is lost."""
        self.asked: list[str] = []
        self.first, self.seconds, self.done = first, seconds, done
        self.until = 0.0

    def count(self, name: str) -> bool:
        """Whether this one fails."""
        number, now = len(self.asked), time.monotonic()
        self.asked.append(name)
        if number == self.first:
            self.until = now + self.seconds
        return number == self.first or now < self.until


class Failing:
    """A coordinator whose answers fail."""

    def __init__(self, coordinator: Coordinator, questions: Questions) -> None:
        self._coordinator, self._questions = coordinator, questions

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._coordinator, name)
        if name not in QUESTIONS:
            return real

        def ask(*values: Any) -> Any:
            fails = self._questions.count(name)
            if fails and not self._questions.done:
                raise CoordinationError(f"no answer to {name}")
            found = real(*values)
            if fails:
                raise CoordinationError(f"no answer to {name}, which was carried out")
            return found

        return ask


class Life:
    """One process: it has ended when it was refused or fenced."""

    def __init__(self, journal: Path, make: Callable[[str], Coordinator], session: float) -> None:
        self.right: Right | None = None
        self.said: list[str] = []
        self.machine = Machine(lambda: 0)
        self.member = Member(
            journal,
            make,
            self.machine,
            self,
            identity="pair",
            equal=True,
            data_node_id=lambda: NODE,
            session=session,
            group="twins",
            name="castor",
        )
        self.member.start()

    def stop_following(self) -> None: ...

    def follow_again(self) -> None: ...

    def granted(self, right: Right) -> None:
        self.right = right

    def refused(self, error: PolluxError) -> None:
        self.said.append(str(error))

    def fenced(self, reason: str) -> None:
        self.said.append(reason)


class Supervised:
    """Lives one after the other, until one serves whose right was proved since."""

    def __init__(self, start: Callable[[], Life]) -> None:
        self._start = start
        self.lives = [start()]

    def serves(self) -> bool:
        life = self.lives[-1]
        if life.said:
            life.member.stop(release=False)
            self.lives.append(self._start())
            return False
        return life.right is not None and life.member.lease.held() and life.member._proved > life.right.began

    def look(self, about: object) -> None:
        try:
            wait_until(self.serves, "a live", BOUND)
        except AssertionError as error:
            life = self.lives[-1]
            raise AssertionError(f"nobody serves after the failure of {about}: {life.machine.position}") from error
        finally:
            self.lives[-1].member.stop(release=False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "_LOOK", 0.02)
    monkeypatch.setattr(member_module, "_PROOFS", 40)


def all_of(play: Callable[[int], object], numbers: list[int]) -> None:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        played = [pool.submit(play, number) for number in numbers]
        problems = [error for one in played if (error := one.exception()) is not None]
    assert not problems, f"{len(problems)} of {len(numbers)}: {problems[:5]}"


def prepare(directory: Path, sequence: int) -> Path:
    """A complete copy with this number."""
    (directory / "journal").mkdir(parents=True)
    local.write(directory / "journal", LocalState(NODE, sequence, 3, complete=True, replica=True))
    return directory / "journal"


@pytest.mark.parametrize("seconds", SPANS.values(), ids=SPANS)
def test_a_call_on_a_file_that_fails_is_not_the_end_of_a_pair(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member's own state, the lock file and the number."""
    system_calls.install(monkeypatch)

    def play(name: str, first: int | None) -> Faults:
        directory = tmp_path / name
        journal = prepare(directory, 3)
        # The live has claimed the next number, and died before the last step.
        (directory / "locks" / "pair").mkdir(parents=True)
        (directory / "locks" / "pair" / "activation-sequence").write_text("-4")
        with Faults(directory, first, seconds) as faults:
            faults.arm()
            # A lock that was not let go of would be held by this process, and with it by all lives in it.
            lives = Supervised(lambda: Life(journal, lambda _: FileCoordinator(directory / "locks", "pair", 2.0), 2.0))
            lives.look(faults.failed[:3])
        return faults

    calls = play("none", None).calls
    all_of(lambda number: play(str(number), number), often_enough(calls, seconds))


@pytest.mark.parametrize("done", [False, True], ids=["not asked", "not answered"])
@pytest.mark.parametrize("seconds", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("kind", ["file", "zookeeper"])
def test_an_answer_that_is_lost_is_not_the_end_of_a_pair(
    kind: str, seconds: float, tmp_path: Path, request: pytest.FixtureRequest, *, done: bool
) -> None:
    """Of the coordination service; what was asked may have been carried out."""
    server: ZooKeeperProcess | None = request.getfixturevalue("zookeeper") if kind == "zookeeper" else None
    session = 2.0

    def play(name: str, first: int | None) -> Questions:
        directory = tmp_path / name
        journal = prepare(directory, 0)
        questions = Questions(first, seconds, done=done)

        def make(_identity: str) -> Coordinator:
            if server is None:
                coordinator: Coordinator = FileCoordinator(directory / "locks", "pair", session)
            else:
                times = ZooKeeperTimes(session=session)
                coordinator = ZooKeeperCoordinator(
                    server.connect_string, "pair", namespace=f"{tmp_path.name}{name}", times=times
                )
            return Failing(coordinator, questions)

        Supervised(lambda: Life(journal, make, session)).look(first)
        return questions

    asked = play("none", None).asked
    all_of(lambda number: play(str(number), number), often_enough(asked, seconds))
    assert "zk_loop" not in str(threading.enumerate()), "a client of ZooKeeper that nobody ends"


def leave(life: Life) -> None:
    """As a server does that stops in order: what cannot be done is left, and the process ends."""
    life.machine.to(Phase.STOPPING, "the test says so")
    with suppress(PolluxError, OSError):
        life.member.hand_over(prefix=True, stay=True, seconds=0.2)
    life.member.stop(release=True)


@pytest.mark.parametrize("seconds", SPANS.values(), ids=SPANS)
def test_a_live_that_hands_over_while_calls_fail_is_not_the_end_of_a_pair(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup has a complete copy. One of both serves, whatever becomes of the end of the one that did."""
    system_calls.install(monkeypatch)

    def play(name: str, first: int | None) -> Faults:
        directory = tmp_path / name
        mine, copied = (prepare(directory / one, 0) for one in ("castor", "pollux"))

        def start(journal: Path) -> Callable[[], Life]:
            return lambda: Life(journal, lambda _: FileCoordinator(directory / "locks", "pair", 2.0), 2.0)

        with Faults(directory, first, seconds) as faults:
            live = Supervised(start(mine))
            wait_until(live.serves, "the first live", BOUND)
            state = local.read(mine)
            assert state is not None
            local.write(copied, replace(state, replica=True))
            backup = Supervised(start(copied))
            wait_until(lambda: backup.lives[-1].machine.phase is Phase.READY, "a backup", BOUND)
            faults.arm()
            leave(live.lives[-1])
            both = [backup, Supervised(start(mine))]
            try:
                # Both are looked at, each time: whoever has ended begins anew.
                wait_until(lambda: sum(one.serves() for one in both), "a live", BOUND)
            except AssertionError as error:
                where = [one.lives[-1].machine.position for one in both]
                raise AssertionError(f"nobody serves after the failure of {faults.failed[:3]}: {where}") from error
            finally:
                for one in both:
                    one.lives[-1].member.stop(release=False)
        return faults

    calls = play("none", None).calls
    all_of(lambda number: play(str(number), number), often_enough(calls, seconds))


class Voters:
    """Two other pairs that say yes, unless nobody hears them: an electorate of :mod:`pollux.ha.replication.quorum`."""

    size = 3

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    def silent(self, _answered: int) -> int:
        return 0

    def _answers(self, kind: str, sequence: int, enough: Enough) -> list[Answer]:
        if self._questions.count(kind):
            return []
        found = [Answer(name, name, yes=True, against=False, reason="", sequence=sequence, size=3) for name in "bc"]
        assert enough(found)
        return found

    def take(self, _node_id: str, _local: int, enough: Enough) -> list[Answer]:
        return self._answers("take", 0, enough)

    def record(self, _node_id: str, sequence: int, enough: Enough) -> list[Answer]:
        return self._answers("record", sequence, enough)

    def leave(self, _node_id: str) -> None: ...


@pytest.mark.parametrize("seconds", SPANS.values(), ids=SPANS)
def test_a_vote_that_nobody_hears_is_not_the_end_of_a_pair(seconds: float, tmp_path: Path) -> None:
    """A copy that was in sync asks as often as it may; it serves, or it ends and says so."""
    votes = Votes(-1, retries=100, wait=0.02, answers=1.0, on_replication_failure=True, check_for_live=True)

    def play(name: str, first: int | None) -> Questions:
        journal = prepare(tmp_path / name, 3)
        questions = Questions(first, seconds, done=False)

        def make(identity: str) -> Coordinator:
            candidacy = Candidacy(own=False, retries=100, wait=0.02)
            candidacy.synced()
            candidacy.live_lost("", time.monotonic())

            def sequence() -> int:
                state = local.read(journal)
                return state.sequence if state is not None else 0

            return QuorumCoordinator(identity, Voters(questions), candidacy, votes, local=sequence, session=2.0)

        Supervised(lambda: Life(journal, make, 2.0)).look(first)
        return questions

    asked = play("none", None).asked
    assert asked == ["take", "record", "record"]
    all_of(lambda number: play(str(number), number), often_enough(asked, seconds))
