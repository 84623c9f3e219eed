"""Histories of a replicated pair: crashes, pauses, partitions, restarts and lost answers, in any order (hypothesis).

What decides is the product; see :mod:`broker.ha.pair_model`. A history that breaks something is shrunk and printed as
the steps that lead to it. The same checker must find what is wrong when a rule is taken out of the product.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from broker.ha.pair_model import FAULTS, BrokenError, Fault, Node, World, raise_without_claim
from broker.ha.service_model import ServiceWorld
from broker.ha.voters_model import VOTERS, VotesWorld
from pollux.cluster.sequence import judge
from pollux.cluster.votes import Candidacy
from pollux.ha.copies import local
from pollux.ha.lease import Lease
from pollux.ha.replication import member as module
from pollux.ha.replication import policy, sequence_steps

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(600)
#: Histories in which nothing may break, of each kind of pair, and the most that may be needed to find a missing rule.
HISTORIES = 1000
SEARCH = 2000
STEPS = 25

ROLES = LIVE, OTHER, THIRD = "live", "other", "third"
nodes = st.sampled_from(ROLES)
#: Nothing, a turn, longer than a lease, longer than a session; seconds.
times = st.sampled_from((0.0, 1.0, 5.0, 9.0))
voters = st.sampled_from(VOTERS)


class Pair(RuleBasedStateMachine):
    """Does all that can happen to any pair. ``totals``: what did happen, over all histories.

    Time passes after each step, while everything that still runs does what it does.
    """

    world: World

    def __init__(self, without: str, totals: Counter[str], members: int = 2) -> None:
        super().__init__()
        self.without = without
        self.totals = totals
        self.members = members

    def begin(self, world: World, then: float) -> None:
        self.world = world
        for node in self.world.nodes.values():
            node.start()
        self.world.pass_time(then)

    def node(self, role: str) -> Node:
        """Who serves (or would, if nobody does), and the others."""
        found = sorted(self.world.nodes.values(), key=lambda node: not node.live)
        return found[min(ROLES.index(role), len(found) - 1)]

    @rule(who=nodes, then=times)
    def start(self, who: str, then: float) -> None:
        self.node(who).start()
        self.world.pass_time(then)

    @rule(who=nodes, then=times)
    def kill(self, who: str, then: float) -> None:
        self.node(who).end()
        self.world.pass_time(then)

    @rule(then=times)
    def hand_over(self, then: float) -> None:
        """The live is stopped in order."""
        self.node(LIVE).hand_over()
        self.world.pass_time(then)

    @rule(who=nodes, then=times)
    def pause(self, who: str, then: float) -> None:
        self.node(who).paused = self.node(who).member is not None
        self.world.pass_time(then)

    @rule(then=times)
    def resume(self, then: float) -> None:
        """Who stands still goes on."""
        for node in self.world.nodes.values():
            node.wake()
        self.world.pass_time(then)

    @rule(who=nodes, then=times)
    def part(self, who: str, then: float) -> None:
        """Cut a member off from the others."""
        self.world.parted.add(self.node(who).name)
        self.world.pass_time(then)

    @rule(then=times)
    def join(self, then: float) -> None:
        self.world.parted.clear()
        self.world.pass_time(then)

    @rule(who=nodes, number=st.integers(0, 8), kind=st.sampled_from(FAULTS), then=times)
    def strike(self, who: str, number: int, kind: str, then: float) -> None:
        """A later question of this member goes wrong."""
        self.node(who).fault = Fault(number, kind)
        self.world.pass_time(then)

    @rule(who=nodes, then=times)
    def copy_a_part(self, who: str, then: float) -> None:
        """The copy is begun, and broken off."""
        self.node(who).copy(whole=False)
        self.world.pass_time(then)

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Whatever happened, when all is well again one of them serves, with everything that was confirmed."""
        world = self.world
        self.totals.update(
            histories=1, activations=world.activations, confirmed=len(world.confirmed), fenced=world.fenced
        )
        if world.broken or world.stranded or self.without:
            return
        world.recover()
        if sum(node.confirms for node in world.nodes.values()) != 1:
            raise BrokenError("nobody serves although nothing is broken any more")


class PairWithService(Pair):
    """Two equals and a coordination service."""

    world: ServiceWorld

    @initialize(then=times)
    def begin_with_service(self, then: float) -> None:
        self.begin(ServiceWorld(self.without, self.members), then)

    @rule(who=nodes, then=times)
    def cut(self, who: str, then: float) -> None:
        """Cut a member off from the coordination service."""
        self.world.members[self.node(who).name].reaches = False
        self.world.pass_time(then)

    @rule(then=times)
    def heal(self, then: float) -> None:
        self.world.heal()
        self.world.pass_time(then)


class PairWithVotes(Pair):
    """A primary and a backup among the lives of two other pairs."""

    world: VotesWorld

    @initialize(then=times)
    def begin_with_votes(self, then: float) -> None:
        self.begin(VotesWorld(self.without, self.members), then)

    @rule(who=nodes, voter=voters, then=times)
    def cut(self, who: str, voter: str, then: float) -> None:
        """Cut a member off from this voter."""
        self.world.members[self.node(who).name].cut.add(voter)
        self.world.pass_time(then)

    @rule(who=nodes, then=times)
    def heal(self, who: str, then: float) -> None:
        self.world.members[self.node(who).name].cut.clear()
        self.world.pass_time(then)

    @rule(who=nodes, voter=voters, then=times)
    def drop(self, who: str, voter: str, then: float) -> None:
        """The voter believes that a connection is broken; the member finds out later."""
        self.world.voters[voter].drop(self.world.members[self.node(who).name].me)
        self.world.pass_time(then)

    @rule(voter=voters, then=times)
    def restart(self, voter: str, then: float) -> None:
        self.world.voters[voter].restart()
        self.world.pass_time(then)


PAIRS = {"service": PairWithService, "votes": PairWithVotes}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Clock and disks are the model's; take a rule out of the product."""
    monkeypatch.setattr(module, "boot_clock", lambda: World.current.now)
    monkeypatch.setattr(local, "read", lambda disk: World.current.disks.get(disk))  # noqa: PLW0108  (another one each time)
    monkeypatch.setattr(local, "write", lambda disk, state: World.current.disks.update({disk: state}))
    monkeypatch.setattr(logging.getLogger("pollux.ha"), "disabled", True)

    def take_out(without: str) -> None:
        if without == "claims":
            monkeypatch.setattr(sequence_steps, "raise_sequence", raise_without_claim)
        if without == "sequence":
            for each in (policy, sequence_steps):
                monkeypatch.setattr(each, "judge", lambda mine, _: judge(mine, mine))
        if without == "whose claim":
            monkeypatch.setattr(sequence_steps, "number", lambda coordinator: coordinator.sequence())
        if without == "began":
            extend = Lease.extend
            monkeypatch.setattr(Lease, "extend", lambda self, _: extend(self, World.current.now))

    return take_out


@pytest.fixture
def explore(simulated: Callable[[str], None]) -> Callable[..., Counter[str]]:
    """Try histories of one kind of pair."""

    def run(kind: str, without: str = "", *, members: int = 2, histories: int = HISTORIES, **more: Any) -> Counter[str]:
        simulated(without)
        totals: Counter[str] = Counter()
        run_state_machine_as_test(
            lambda: PAIRS[kind](without, totals, members),  # type: ignore[arg-type]  # whatever makes one
            settings=settings(
                max_examples=histories, stateful_step_count=STEPS, database=None, report_multiple_bugs=False, **more
            ),
        )
        return totals

    return run


@pytest.mark.parametrize("kind", PAIRS)
def test_no_history_of_two_backups_breaks_an_invariant(explore: Callable[..., Counter[str]], kind: str) -> None:
    """Nor does another backup."""
    totals = explore(kind, members=3, histories=HISTORIES // 4)
    assert totals["activations"] > HISTORIES / 4
    assert totals["confirmed"] > HISTORIES / 4


@pytest.mark.parametrize("kind", PAIRS)
def test_no_history_breaks_an_invariant(explore: Callable[..., Counter[str]], kind: str) -> None:
    """Never two lives, an activation with old data or a confirmed message lost; and a lot happens."""
    totals = explore(kind)
    assert totals["histories"] >= HISTORIES
    assert totals["activations"] > HISTORIES
    assert totals["confirmed"] > HISTORIES
    assert totals["fenced"] > HISTORIES / 20


@pytest.mark.parametrize(
    ("kind", "without"),
    [*(("service", rule) for rule in ("fencing", "sequence", "order")), ("votes", "majority")],
)
def test_the_checker_finds_a_missing_rule(explore: Callable[..., Counter[str]], kind: str, without: str) -> None:
    """The same histories and the same checker; shrinking only costs time here.

    Of 500 histories at least one needs each of these rules. What hypothesis tries is another choice whenever the code's
    constants are, so that a rule which few need is not among them.
    """
    with pytest.raises(BrokenError):
        explore(kind, without, histories=SEARCH, phases=(Phase.generate,), derandomize=True)


# -- rules that are needed so rarely that searching takes long: a history for each of them


def without_began(pair: PairWithService) -> None:
    """The answer to a proof comes late, then none: the lease counts from when it was asked for."""
    pair.strike(LIVE, 0, "is slow after", 1.0)
    pair.cut(LIVE, 9.0)


def without_fencing(pair: PairWithVotes) -> None:
    """The live is cut off from everybody, and goes on although it lost the vote."""
    pair.cut(LIVE, "b", 0.0)
    pair.cut(LIVE, "c", 0.0)
    pair.part(LIVE, 9.0)
    pair.start(OTHER, 9.0)


def without_silence(pair: PairWithVotes) -> None:
    """The live that has lost the vote is started again, and still hears nobody."""
    without_fencing(pair)


def without_claims(pair: Pair) -> None:
    """The live dies when it is about to tell others of a step towards serving alone, and comes back late.

    The voters of its first one; a coordination service of the one after it has raised its own number.
    """
    pair.strike(LIVE, 2 if isinstance(pair, PairWithService) else 0, "dies before", 0.0)
    pair.part(LIVE, 9.0)
    pair.kill(LIVE, 0.0)
    pair.start(LIVE, 9.0)


def without_memory(pair: PairWithVotes) -> None:
    """The live goes on alone and dies; the voters start anew before the copy left behind asks them."""
    pair.part(LIVE, 5.0)
    pair.kill(LIVE, 0.0)
    pair.restart("b", 0.0)
    pair.restart("c", 5.0)


@pytest.mark.parametrize(
    ("kind", "history"),
    [
        *(("service", one) for one in (without_began, without_claims)),
        *(("votes", one) for one in (without_fencing, without_silence, without_claims, without_memory)),
    ],
)
def test_a_history_that_needs_a_rule(
    simulated: Callable[[str], None], kind: str, history: Callable[[Pair], None]
) -> None:
    def live(without: str) -> None:
        pair = PAIRS[kind](without, Counter())
        pair.begin(VotesWorld(without) if kind == "votes" else ServiceWorld(without), 5.0)
        assert pair.world.pollux in pair.world.castor.in_sync
        history(pair)
        pair.teardown()

    live("")
    rule = history.__name__.removeprefix("without_")
    simulated(rule)
    with pytest.raises(BrokenError):
        live(rule)


def test_a_live_that_wakes_while_another_one_claims_does_not_take_that_for_its_own(
    simulated: Callable[[str], None],
) -> None:
    """It stands still until its session is over, and wakes at each of the questions of whoever takes over."""

    def wakes_at_each(without: str) -> None:
        simulated(without)
        for number in range(12):
            pair = PairWithService(without, Counter())
            pair.begin(ServiceWorld(without), 5.0)
            pair.pause(LIVE, 5.0)
            pair.strike(OTHER, number, "other wakes after", 5.0)
            pair.kill(LIVE, 0.0)
            pair.world.castor.start()
            pair.world.pass_time(9.0)
            pair.teardown()

    wakes_at_each("")
    with pytest.raises(BrokenError, match="serves without"):
        wakes_at_each("whose claim")


def test_who_stood_still_while_its_connection_was_ended_is_not_heard_by_it(simulated: Callable[[str], None]) -> None:
    """A vote that is asked for on a connection which the voter has ended reaches nobody, so nobody remembers it.

    It is the model's to be right about: the pair would wait for ever for a right that no connection holds.
    """
    simulated("")
    for number in range(6):
        pair = PairWithVotes("", Counter())
        pair.begin(VotesWorld(""), 0.0)
        pair.strike(OTHER, number, "stands still before", 0.0)
        pair.copy_a_part(LIVE, 1.0)
        pair.hand_over(1.0)
        pair.cut(LIVE, "b", 0.0)
        pair.hand_over(0.0)
        pair.teardown()


def test_who_was_told_of_newer_data_never_goes_on_alone(simulated: Callable[[str], None]) -> None:
    """A live of old is told so by the one voter that it reaches, until that does not answer in time; the next life too.

    Breaks when only the last answers count: then it serves without what was confirmed since.
    """
    for lives in (1, 2):
        simulated("")
        pair = PairWithVotes("", Counter())
        pair.begin_with_votes(then=5.0)
        castor, pollux = pair.world.members["castor"], pair.world.pollux
        assert pollux in castor.in_sync
        assert castor.member is not None
        castor.member.served()
        pair.kill(LIVE, 9.0)
        assert pollux.confirms
        pollux.end()
        pair.cut(LIVE, "b", 0.0)  # castor is the first of them again
        castor.start()
        castor.candidacy = Candidacy(own=True, retries=2, wait=1.0)
        pair.world.pass_time(2.0)
        if lives == 2:
            castor.end()
            pair.cut(LIVE, "c", 0.0)
            castor.start()
            assert castor.candidacy._outvoted
        castor.fault = Fault(0, "stands still before")
        pair.world.pass_time(30.0)
        assert castor.member is not None
        assert not castor.live
        pair.teardown()


def test_who_finished_anothers_claim_and_died_is_not_stranded(simulated: Callable[[str], None]) -> None:
    """The live claimed a number and lost its vote; its backup made that its own, and died before it served.

    Breaks when the number is noted and not whose data it is: then the one has older data, and the other does not ask.
    """
    simulated("")
    pair = PairWithVotes("", Counter())
    pair.begin_with_votes(then=0.0)
    pair.hand_over(then=1.0)
    pair.part(who=LIVE, then=0.0)
    pair.cut(who=LIVE, voter="b", then=0.0)
    pair.strike(who=OTHER, kind="dies before", number=3, then=0.0)
    pair.resume(then=9.0)
    assert all(node.member is None for node in pair.world.nodes.values())
    pair.teardown()
