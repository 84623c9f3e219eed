"""Quorum votes: the arithmetic, what a member answers, who may ask. Histories are in test_pair_model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.cluster import vote_log
from pollux.cluster.sequence import Action, judge
from pollux.cluster.votes import HANDED_OVER, Answer, Candidacy, Register, Ruling, count, votes_needed
from pollux.ha.replication.coordination import CoordinationError, NotNewestError
from pollux.ha.replication.quorum import LostVoteError, QuorumCoordinator
from pollux.ha.replication.settings import Votes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NODE = "0a" * 16
VOTES = Votes(quorum_size=-1, retries=2, wait=5.0, answers=1.0, on_replication_failure=True, check_for_live=True)


def answer(voter: str, *, yes: bool = True, sequence: int = 0, size: int = 3, against: bool = False) -> Answer:
    return Answer(f"live of {voter}", voter, yes, against, "" if yes else "it serves", sequence, size)


# -- arithmetic


@pytest.mark.parametrize(("size", "needed"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (8, 5), (9, 5)])
def test_a_majority_of_the_pairs_without_the_one_that_asks(size: int, needed: int) -> None:
    assert votes_needed(size) == needed


@pytest.mark.parametrize("size", range(3, 40))
def test_two_majorities_share_a_voter(size: int) -> None:
    """Of the others, size - 1, two that contradict each other cannot both be convinced by different ones."""
    assert 2 * votes_needed(size) > size - 1


def test_three_pairs_survive_no_loss_of_a_pair_and_five_survive_one() -> None:
    """As the documentation of AMQ Broker counts (table 14.1)."""
    assert count([answer("b"), answer("c")], NODE, 3).won
    assert not count([answer("b")], NODE, 3).won
    assert count([answer("b"), answer("c"), answer("d")], NODE, 5).won
    assert not count([answer("b"), answer("c")], NODE, 5).won


def test_the_largest_topology_counts_whoever_saw_it() -> None:
    assert not count([answer("b", size=5), answer("c")], NODE, 3).won
    assert count([answer("b", size=5), answer("c")], NODE, 3, quorum_size=3).won, "quorum-size replaces it"
    assert not count([answer("b", size=2)], NODE, 2, quorum_size=5).won


def test_who_has_no_vote() -> None:
    """Members that wait, the own pair, and a pair that answers twice."""
    twice = [answer("b"), answer("b")]
    waiting = [Answer("pollux", "", True, False, "", 0, 3)]
    own = [answer(NODE)]
    assert count([*twice, *waiting, *own], NODE, 3).votes == 1
    result = count([answer("b"), answer("c", yes=False)], NODE, 3)
    assert (result.won, result.reason) == (False, "1 of 2 votes needed, 2 other lives answered; it serves")


def test_the_newest_number_of_a_yes_counts() -> None:
    found = [answer("b", sequence=-5), answer("c", sequence=4), answer("d", yes=False, sequence=9)]
    assert count(found, NODE, 4).sequence == -5


# -- what a member answers


def register(sequence: int = 0, **values: float) -> Register:
    return Register({NODE: sequence} if sequence else None, **values)


#: local and known sequence -> whether the right is promised.
TAKES = [
    *((4, 4, True), (4, -4, True), (4, -5, True), (4, 5, False), (4, -6, False), (4, 9, False)),
    # It knows less than the member: nothing is known against it.
    *((4, 0, True), (4, 3, True), (4, -3, True), (0, 0, True), (0, 1, False), (0, -1, True)),
]


@pytest.mark.parametrize(("local", "known", "yes"), TAKES)
def test_the_right_is_promised_to_the_newest_data_only(local: int, known: int, *, yes: bool) -> None:
    answered = register(known).take(NODE, "pollux", local, 0.0)
    assert (answered.yes, answered.against) == (yes, not yes)
    if abs(known) >= local:
        serves = judge(local, known).action in (Action.ACTIVATE, Action.REPAIR, Action.TAKE_OVER)
        assert serves == yes, "the votes and ZooKeeper mean the same"


def test_only_one_is_promised_the_right() -> None:
    one = register()
    assert one.serves(NODE, "castor", 4, "0b" * 16).yes
    assert one.largest == 2
    assert one.take(NODE, "pollux", 4, 0.0) == (False, True, "castor serves")
    one.gone(NODE, "pollux")
    assert not one.take(NODE, "pollux", 4, 0.0).yes
    one.gone(NODE, "castor")
    assert one.take(NODE, "pollux", 4, 0.0).yes
    assert one.take(NODE, "castor", 4, 0.0) == (False, True, "pollux was promised the right to serve")
    assert "holds the right" in one.serves(NODE, "castor", 4, "").reason
    assert one.record(NODE, "castor", -5) == (False, True, "pollux holds the right to serve")
    assert one.record(NODE, "pollux", -5).yes
    assert one.record(NODE, "pollux", 5).yes
    assert not one.record(NODE, "pollux", -5).yes, "what is finished is not claimed again"
    assert not one.record(NODE, "pollux", 4).yes
    one.gone(NODE, "pollux")
    assert one.sequences == {NODE: 5}
    assert not one.take(NODE, "castor", 4, 0.0).yes
    assert "newer data" in one.serves(NODE, "castor", 4, "").reason


def test_who_has_just_started_does_not_take_silence_for_death() -> None:
    young = register(young_until=3.0)
    assert young.take(NODE, "pollux", 4, 2.9) == (False, False, "nothing was heard of this node yet")
    assert young.take(NODE, "pollux", 4, 3.0).yes
    assert register(4, young_until=3.0).take(NODE, "pollux", 4, 1.0).yes, "it was remembered"


def test_the_largest_topology_is_never_forgotten() -> None:
    one = register()
    for number in range(4):
        one.serves(f"0{number}" * 16, "live", 1, "")
    assert one.largest == 4
    for number in range(4):
        one.gone(f"0{number}" * 16, "live")
    one.saw(2)
    assert one.largest == 4


def test_a_node_that_was_removed_is_counted_no_more() -> None:
    """Votes are lowered by it on each member that hears of it, and no lower where it was not counted."""
    one, two, later = register(), register(), register()
    nodes = [f"0{number}" * 16 for number in range(4)]
    for node in nodes:
        for each in (one, two):
            each.serves(node, "live", 1, "")
    assert votes_needed(one.largest) == 3
    one.removed.add(nodes[3])
    assert votes_needed(one.largest) == 2

    def said(by: Register) -> Answer:
        topology = tuple(by.topology - by.removed)
        return Answer("m", nodes[0], True, False, "", 1, by.largest, topology, tuple(by.removed))

    one.learn(said(two))
    assert one.largest == 3, "who has not heard of it yet raises it again no more"
    two.learn(said(one))
    assert two.largest == 3
    for node in nodes[:3]:
        later.serves(node, "live", 1, "")
    later.learn(said(one))
    assert later.largest == 3, "it was started since, and has never counted it"
    later.learn(Answer("old", nodes[0], True, False, "", 1, 4))
    assert later.largest == 4, "of a broker that tells the size alone it is taken as it is"


def test_sequences_are_remembered_over_a_restart(tmp_path: Path) -> None:
    assert vote_log.read(tmp_path) == {}
    vote_log.write(tmp_path, {NODE: -7})
    assert vote_log.read(tmp_path) == {NODE: -7}
    (tmp_path / vote_log.FILE).write_text("[nonsense")
    assert vote_log.read(tmp_path) == {}


# -- who may ask


def lost() -> list[Answer]:
    return [answer("b", yes=False)]


def judged(candidacy: Candidacy, answers: list[Answer], now: float = 0.0) -> bool:
    return candidacy.judge(count(answers, NODE, 3), answers, now)


def test_only_a_copy_that_was_in_sync_asks_and_not_for_ever() -> None:
    one = Candidacy(own=False, retries=2, wait=5.0)
    assert not one.may_ask(0.0)
    one.live_lost("failed", 1.0)
    assert not one.may_ask(1.0), "it was not complete"
    one.followed()
    one.synced()
    assert not one.may_ask(1.0), "its live is there"
    one.live_lost("failed", 10.0)
    for attempt in range(3):
        now = 10.0 + 5 * attempt
        assert one.may_ask(now)
        assert not judged(one, lost(), now)
        assert not one.may_ask(now + 4.9)
    assert not one.may_ask(1e9), "vote-retries are used up"
    assert "lost for good (0 of 2 votes needed, 1 other lives answered; it serves)" in one.reason
    assert "pollux journal compare" in one.reason
    one.followed()
    one.synced()
    one.live_lost("failed", 50.0)
    assert one.may_ask(50.0), "in sync anew"
    assert judged(one, [answer("b"), answer("c")], 50.0)


def test_a_vote_against_a_live_that_somebody_still_sees_is_repeated_soon() -> None:
    """Those who vote hear of its end at their own time: it must not cost a whole vote-retry-wait, nor a retry."""
    one = Candidacy(own=False, retries=0, wait=5.0)
    one.synced()
    one.live_lost("failed", 10.0)
    tenths = 100
    asked = []
    while one.asks():
        while not one.may_ask(tenths / 10):
            tenths += 1
        asked.append(tenths - 100)
        assert not judged(one, [answer("b", yes=False, against=True), answer("c")], tenths / 10)
    assert asked == [0, 2, 6, 14, 30, 62]
    now = 20.0
    one.followed()
    one.synced()
    one.live_lost("failed", now)
    assert not judged(one, [answer("b", yes=False, against=True)], now)
    assert one.may_ask(now + 0.2), "soon again, after another live was lost"


def test_a_live_that_comes_back_ends_the_candidacy() -> None:
    one = Candidacy(own=False, retries=2, wait=5.0)
    one.synced()
    one.live_lost("failed", 0.0)
    one.followed()
    assert not one.may_ask(100.0)


def test_what_was_handed_over_needs_no_vote() -> None:
    one = Candidacy(own=False, retries=0, wait=5.0)
    one.synced()
    one.live_lost(HANDED_OVER, 0.0)
    assert judged(one, [])


@pytest.mark.parametrize(("at_once", "attempts"), [(False, 3), (True, 1)], ids=["checks", "at once"])
def test_who_served_last_goes_on_alone_unless_somebody_knows_better(*, at_once: bool, attempts: int) -> None:
    """All pairs are started together: nobody lives who could vote."""
    one = Candidacy(own=True, retries=2, wait=5.0, at_once=at_once)
    for attempt in range(attempts):
        assert one.may_ask(attempt * 5.0)
        assert judged(one, [], attempt * 5.0) == (attempt == attempts - 1)
    other = Candidacy(own=True, retries=0, wait=5.0, at_once=at_once)
    for attempt in range(10):
        assert not judged(other, [answer("b", yes=False, against=True), answer("c"), answer("d")], attempt * 5.0)
        assert other.reason == "live of b: it serves"
        assert other.may_ask(attempt * 5.0 + 5.0), "it may be gone the next time"
    assert not judged(other, [], 100.0), "who knew better does not answer any more"
    assert other.reason == "live of b: it serves"
    assert judged(other, [answer("b"), answer("c")], 200.0), "a majority is enough"
    assert judged(Candidacy(own=True, retries=9, wait=5.0), [answer("b"), answer("c")]), "likewise"


def test_who_was_outvoted_goes_on_alone_only_where_nobody_else_can_have_a_majority() -> None:
    """Of three pairs two votes are one: with two members silent, those that have voted may be among them."""
    one = Candidacy(own=True, retries=1, wait=5.0, outvoted=True)
    for attempt, silent in enumerate((0, 5, 2)):
        assert not one.judge(count([], NODE, 3), [], attempt * 5.0, silent), "asked twice, then silent"
    assert one.reason.startswith("this broker was outvoted, and 2 others that may have voted are silent (0 of 2 votes")
    assert not one.judge(count([], NODE, 1, least=1), [], 15.0, 5), "it has seen nobody since its start"
    assert one.may_ask(20.0), "not for good: the network may come back"
    assert one.judge(count([], NODE, 3), [], 20.0, 1), "nobody serves there"
    other = Candidacy(own=True, retries=1, wait=5.0, outvoted=True)
    assert judged(other, [answer("b"), answer("c")]), "a majority is enough"


# -- the coordination service they make


class Voters:
    """Two lives of other pairs with registers; those in `cut` do not answer."""

    def __init__(self, size: int = 3) -> None:
        self.size = size
        self.registers = {name: Register() for name in ("b", "c")}
        self.cut: set[str] = set()
        self.name = "castor"
        self.asked = 0

    def _answers(self, ask: Callable[[Register], Ruling]) -> list[Answer]:
        self.asked += 1
        found = []
        for name, each in self.registers.items():
            if name not in self.cut:
                found.append(Answer(name, name, *ask(each), each.sequences.get(NODE, 0), self.size))
        return found

    def silent(self, answered: int) -> int:
        return len(self.registers) - answered

    def take(self, node_id: str, local: int, _enough: object) -> list[Answer]:
        return self._answers(lambda one: one.take(node_id, self.name, local, 0.0))

    def record(self, node_id: str, sequence: int, _enough: object) -> list[Answer]:
        return self._answers(lambda one: one.record(node_id, self.name, sequence))

    def leave(self, node_id: str) -> None:
        for one in self.registers.values():
            one.gone(node_id, self.name)


class Made:
    def __init__(self, local: int = 4, votes: Votes = VOTES, *, own: bool = False, size: int = 3) -> None:
        self.voters = Voters(size)
        self.candidacy = Candidacy(own=own, retries=votes.retries, wait=votes.wait)
        self.now = 0.0
        self.local = local
        self.waited: list[float] = []
        self.coordinator = QuorumCoordinator(
            NODE,
            self.voters,
            self.candidacy,
            votes,
            local=lambda: self.local,
            session=60.0,
            clock=lambda: self.now,
            wait=self.waited.append,
        )

    def lose_live(self) -> None:
        self.candidacy.synced()
        self.candidacy.live_lost("failed", self.now)


def test_who_was_outvoted_does_not_go_on_alone_while_those_who_voted_were_not_heard() -> None:
    """Breaks when members count that are connected by now, and were not when the vote was asked for.

    One that was cut off, and restarted, served for a moment beside the live when the network came back.
    """
    made = Made(own=True)
    made.candidacy = Candidacy(own=True, retries=0, wait=5.0, outvoted=True)
    made.coordinator._candidacy = made.candidacy
    made.voters.cut = {"b", "c"}
    for _ in range(3):
        with pytest.raises(CoordinationError, match="2 others that may have voted are silent"):
            made.coordinator.sequence()
        made.now += 5.0
    for each in made.voters.registers.values():
        each.serves(NODE, "pollux", 4, "")
    made.voters.cut = set()
    with pytest.raises(NotNewestError, match="pollux serves"):
        made.coordinator.sequence()


def test_a_backup_vote_that_is_won_becomes_the_lock_and_the_number() -> None:
    made = Made()
    made.candidacy.synced()
    assert made.coordinator.sequence() == 4
    assert not made.coordinator.acquire(), "the live is there"
    assert made.voters.asked == 0
    made.lose_live()
    assert made.coordinator.sequence() == 4
    assert made.coordinator.acquire()
    made.coordinator.prove()
    made.coordinator.change(4, -5)
    made.coordinator.change(-5, 5)
    assert [one.sequences for one in made.voters.registers.values()] == [{NODE: 5}, {NODE: 5}]
    with pytest.raises(CoordinationError, match="is 5, not 4"):
        made.coordinator.change(4, -5)
    made.coordinator.release()
    with pytest.raises(CoordinationError):
        made.coordinator.prove()
    assert made.voters.registers["b"].known[NODE].holder == ""


def test_a_backup_vote_that_is_lost_is_tried_again_when_it_is_time() -> None:
    made = Made()
    made.voters.cut = {"c"}
    made.lose_live()
    for _ in range(3):
        with pytest.raises(CoordinationError, match="1 of 2 votes needed, 1 other lives answered"):
            made.coordinator.sequence()
    assert made.voters.asked == 1
    assert made.voters.registers["b"].known[NODE].holder == "", "what was promised is given back"
    made.now, made.voters.cut = 5.0, set()
    assert made.coordinator.sequence() == 4
    assert made.coordinator.acquire()


def test_a_claim_that_was_not_finished_is_taken_over() -> None:
    made = Made()
    for one in made.voters.registers.values():
        assert one.record(NODE, "the dead live", -5).yes
    made.lose_live()
    assert made.coordinator.sequence() == -5
    assert judge(4, made.coordinator.sequence()).action is Action.TAKE_OVER


def test_a_single_pair_has_nobody_to_ask() -> None:
    made = Made(size=1)
    made.voters.registers = {}
    made.lose_live()
    assert made.coordinator.sequence() == 4
    assert made.coordinator.acquire()
    made.coordinator.change(4, -5)


@pytest.mark.parametrize("votes", [True, False], ids=["votes", "goes on"])
def test_a_live_vote(*, votes: bool) -> None:
    """vote-on-replication-failure: without the majority a live that lost its backup stops, or goes on."""
    made = Made(votes=VOTES._replace(on_replication_failure=votes), own=True)
    assert made.coordinator.sequence() == 4
    made.coordinator.change(4, -5)
    made.coordinator.change(-5, 5)
    made.coordinator.serves()
    made.voters.cut = {"b"}
    if not votes:
        made.coordinator.change(5, -6)
        assert made.waited == []
        return
    with pytest.raises(LostVoteError, match="1 of 2 votes needed"):
        made.coordinator.change(5, -6)
    assert made.waited == [5.0, 5.0], "vote-retries, vote-retry-wait"
    with pytest.raises(CoordinationError):
        made.coordinator.prove()
    assert not made.coordinator.acquire()


def test_a_live_vote_that_is_won_at_the_second_attempt() -> None:
    made = Made(own=True)
    made.coordinator.sequence()
    made.coordinator.serves()
    made.voters.cut = {"b"}
    heal = made.waited.append

    def wait(seconds: float) -> None:
        heal(seconds)
        made.voters.cut = set()

    made.coordinator._wait = wait
    made.coordinator.change(4, -5)
    assert made.waited == [5.0]
