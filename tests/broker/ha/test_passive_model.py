"""No history of an active-passive cluster loses what was confirmed, whomever its resource manager promotes."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pollux.ha.active_passive import promotion
from pollux.ha.active_passive.promotion import Number, Proof, Why
from pollux.ha.active_passive.statuses import Status

from .passive_model import BACKUP_TIMEOUT, GRANT, LEASE, MANAGER, NAMES, BrokenError, World

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORIES, SEARCH, STEPS = 150, 3000, 25
names = st.sampled_from(NAMES)
times = st.sampled_from((0.0, 0.5, 1.5, 3.0, 6.0))


class Cluster(RuleBasedStateMachine):
    """Whatever may happen to three members."""

    def __init__(self, without: str, totals: Counter[str], min_in_sync: int = 0, grant: float = 0.0) -> None:
        super().__init__()
        self.world = World(without, min_in_sync=min_in_sync, grant=grant)
        self.totals = totals

    @initialize()
    def begin(self) -> None:
        for name in NAMES:
            self.world.members[name].start()
        self.world.promote("a")
        self.world.pass_time(3.0)

    @rule(who=names, then=times)
    def start(self, who: str, then: float) -> None:
        self.world.members[who].start()
        self.world.pass_time(then)

    @rule(who=names, then=times)
    def kill(self, who: str, then: float) -> None:
        self.world.members[who].kill()
        self.world.pass_time(then)

    @rule(who=names, then=times)
    def pause(self, who: str, then: float) -> None:
        self.world.members[who].paused = self.world.members[who].alive
        self.world.pass_time(then)

    @rule(then=times)
    def resume(self, then: float) -> None:
        for member in self.world.members.values():
            member.paused = False
        self.world.pass_time(then)

    @rule(one=names, other=names, then=times)
    def cut(self, one: str, other: str, then: float) -> None:
        if one != other:
            self.world.cut.add(frozenset((one, other)))
        self.world.pass_time(then)

    @precondition(lambda self: self.world.grant)
    @rule(who=names, then=times)
    def cut_from_the_manager(self, who: str, then: float) -> None:
        self.world.cut.add(frozenset((who, MANAGER)))
        self.world.pass_time(then)

    @rule(one=names, other=names, then=times)
    def heal_one(self, one: str, other: str, then: float) -> None:
        self.world.cut.discard(frozenset((one, other)))
        self.world.pass_time(then)

    @rule(then=times)
    def heal(self, then: float) -> None:
        self.world.cut.clear()
        self.world.pass_time(then)

    @rule(who=names, then=times)
    def promote(self, who: str, then: float) -> None:
        self.world.promote(who)
        self.world.pass_time(then)

    @rule(who=names, then=times)
    def promote_after_fencing(self, who: str, then: float) -> None:
        """The others are gone for certain; nobody knows with what."""
        gone = {name for name, one in self.world.members.items() if not one.alive and name != who}
        self.world.promote(who, Proof(fenced=frozenset(gone)))
        self.world.pass_time(then)

    @invariant()
    def one_is_primary_where_the_old_one_is_gone(self) -> None:
        assert self.world.grant or len(self.world.primaries) <= 1

    def teardown(self) -> None:
        world = self.world
        self.totals.update(histories=1, promoted=world.promoted, refused=world.refused, evicted=world.evicted)
        self.totals.update(confirmed=len(world.confirmed))
        if not world.without and world.recover() is None:
            raise BrokenError("nobody can be promoted although everybody is back")


@pytest.fixture
def explore(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counter[str]]:
    """Try histories; ``without`` a rule of the product."""

    def run(
        without: str = "", *, histories: int = HISTORIES, min_in_sync: int = 0, grant: float = 0.0, **more: object
    ) -> Counter[str]:
        take_out(monkeypatch, without)
        totals: Counter[str] = Counter()
        run_state_machine_as_test(
            lambda: Cluster(without, totals, min_in_sync, grant),  # type: ignore[arg-type]  # whatever makes one
            settings=settings(
                max_examples=histories,
                stateful_step_count=STEPS,
                database=None,
                report_multiple_bugs=False,
                **more,  # type: ignore[arg-type]
            ),
        )
        return totals

    return run


def take_out(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    """The rules of the judgement; what is left is taken out by the model."""
    if without == "epochs":
        monkeypatch.setattr(promotion, "_older", lambda _mine, _heard: None)
    if without == "silence":
        monkeypatch.setattr(promotion, "_unaccounted", lambda *_: frozenset())


@pytest.mark.parametrize(("min_in_sync", "grant"), [(0, 0.0), (1, 0.0), (0, GRANT)])
def test_no_history_loses_what_was_confirmed(
    explore: Callable[..., Counter[str]], min_in_sync: int, grant: float
) -> None:
    """A lot happens: promotions that are refused and such that are not, with and without a copy, and two at a time.

    Of each there is some, in every draw: how much is luck (14 to 290 are refused in 150 histories). The first primary
    of a history is promoted too; with grants that cut-off primaries wait for, few others are.
    """
    totals = explore(min_in_sync=min_in_sync, grant=grant)
    assert totals["histories"] >= HISTORIES
    assert totals["promoted"] >= totals["histories"] * (1 if grant else 1.1)
    assert totals["refused"]
    assert totals["evicted"]
    assert totals["confirmed"] > HISTORIES


@pytest.mark.parametrize("without", ["lease", "silence"])
def test_the_checker_finds_a_missing_rule(explore: Callable[..., Counter[str]], without: str) -> None:
    """The same histories and the same checker; shrinking only costs time here."""
    with pytest.raises(BrokenError):
        explore(without, histories=SEARCH, phases=(Phase.generate,), derandomize=True)


def begun(without: str = "", grant: float = 0.0) -> Cluster:
    cluster = Cluster(without, Counter(), grant=grant)
    cluster.begin()
    assert [one.status for one in cluster.world.members.values()] == [Status.ACTIVE, Status.READY, Status.READY]
    return cluster


def without_lease(cluster: Cluster) -> None:
    """A backup is cut off from its primary, which goes on without it and dies (Qpid's ``ready`` lasts for ever)."""
    cluster.cut("a", "b", LEASE + 4.0)
    cluster.kill("c", LEASE + 4.0)
    cluster.kill("a", 0.0)
    cluster.heal(0.0)
    cluster.promote_after_fencing("b", 0.0)


def without_wait(cluster: Cluster) -> None:
    """The same, and the primary is killed before the backup can have noticed."""
    cluster.kill("c", 6.0)
    cluster.cut("a", "b", 1.5)
    cluster.kill("a", 0.0)
    cluster.promote_after_fencing("b", 0.0)


def without_expected(cluster: Cluster) -> None:
    """One of two heirs is promoted, confirms at once what the other does not have, and dies."""
    cluster.cut("b", "c", 0.0)
    cluster.kill("a", 0.5)
    cluster.promote_after_fencing("b", 0.5)
    assert cluster.world.primary is not cluster.world.members["b"], "an heir that is silent is not taken for consent"
    cluster.heal(0.0)
    cluster.promote("b", 0.0)
    cluster.cut("b", "c", 0.5)
    cluster.kill("b", 0.0)
    cluster.promote_after_fencing("c", 0.0)


def without_last_answer(cluster: Cluster) -> None:
    """One of two heirs sees late that the primary is gone, and not that the other one was promoted before."""
    cluster.cut("a", "c", 0.25)
    cluster.kill("a", 0.0)
    cluster.promote("b", 0.0)
    cluster.cut("b", "c", 1.0)
    cluster.heal_one("a", "c", 3.5)
    assert cluster.world.members["b"].status is Status.ACTIVE, "it has given up the other heir"
    cluster.kill("b", 0.0)
    cluster.promote_after_fencing("c", 0.0)


def test_who_was_fenced_by_nobody_ends_itself() -> None:
    """A primary that is cut off from everybody, and is not fenced, beside one that was promoted in its place."""
    cut_off(cluster := begun(grant=GRANT), LEASE + 2 * GRANT)
    a, b, _ = cluster.world.members.values()
    assert (a.alive, b.status, b.serves) == (False, Status.ACTIVE, True)


def cut_off(cluster: Cluster, then: float) -> None:
    for other in ("b", "c"):
        cluster.cut("a", other, 0.0)
    cluster.cut_from_the_manager("a", 0.0)
    cluster.promote("b", then)


@pytest.mark.parametrize("rule", ["grant", "word", "outlasting"])
def test_each_rule_of_the_grant_is_needed(rule: str) -> None:
    """The old primary serves for ever; goes on alone as long as it is granted; the new one serves beside it."""
    with pytest.raises(BrokenError, match="two lives" if rule == "outlasting" else "two lives|was promoted later"):
        cut_off(begun(rule, GRANT), LEASE + 2 * GRANT)


def asked_before_another_was_promoted(cluster: Cluster) -> promotion.Verdict:
    """The resource manager gives up the promotion of c, which waits for a silent machine, and promotes b."""
    world = cluster.world
    cluster.kill("a", 0.5)
    world.ask_slowly("c")
    world.pass_time(0.5)
    verdict = world.promote("b")
    assert verdict is not None
    assert verdict.promoted
    world.pass_time(0.5)
    return world.members["c"].promote(Proof())


def test_who_is_told_of_a_new_primary_while_it_is_judged_is_refused_and_follows_it() -> None:
    """Breaks when it is judged by what the others were when they were asked: both would serve."""
    cluster = begun(grant=GRANT)
    verdict = asked_before_another_was_promoted(cluster)
    assert (verdict.why, verdict.reason) == (
        Why.ANOTHER_SERVES,
        "b says that it serves since epoch 2: demote or fence it first",
    )
    cluster.world.pass_time(LEASE)
    assert [one.status for one in cluster.world.members.values()][1:] == [Status.ACTIVE, Status.READY]


def test_who_is_not_told_of_a_new_primary_serves_beside_it() -> None:
    cluster = begun("told", GRANT)
    assert asked_before_another_was_promoted(cluster).promoted
    with pytest.raises(BrokenError, match="two lives: b, c"):
        cluster.world.pass_time(0.5)


def without_epochs(cluster: Cluster) -> None:
    """After an outage of all the one is promoted that was given up long before."""
    cluster.kill("c", 6.0)
    for name in NAMES:
        cluster.kill(name, 0.0)
    for name in NAMES:
        cluster.start(name, 0.0)
    cluster.promote("c", 0.0)


def without_durable_set(cluster: Cluster) -> None:
    """That a backup was given up is on no disk: it is promoted beside the restarted primary, with equal numbers."""
    cluster.kill("c", 6.0)
    cluster.cut("a", "b", LEASE + 4.0)
    cluster.kill("a", 0.0)
    cluster.heal(0.0)
    for name in ("a", "c"):
        cluster.start(name, 0.0)
    cluster.promote("b", 0.0)


@pytest.mark.parametrize(
    "history",
    [
        without_lease,
        without_wait,
        without_expected,
        without_last_answer,
        without_epochs,
        without_durable_set,
    ],
)
def test_a_history_that_needs_a_rule(history: Callable[[Cluster], None], monkeypatch: pytest.MonkeyPatch) -> None:
    history(begun())
    take_out(monkeypatch, history.__name__.removeprefix("without_"))
    with pytest.raises(BrokenError):
        history(begun(history.__name__.removeprefix("without_").replace("_", " ")))


def test_a_restarted_primary_is_no_better_than_its_heirs() -> None:
    """It is refused while another one may have newer data, and promoted if all say that they have not.

    In Qpid it is refused while a ready one lives, and promoted over one that stands still (test_join_ready_cluster):
    there the data of whoever answers wins.
    """
    cluster = begun()
    world = cluster.world
    cluster.kill("a", 0.0)
    cluster.start("a", 0.0)
    cluster.pause("b", 0.0)
    refused = world.promote("a")
    assert refused is not None
    assert (refused.why, "b may have newer data" in refused.reason) == (Why.UNKNOWN, True)
    cluster.resume(0.0)
    verdict = world.promote("a")
    assert verdict is not None
    assert verdict.promoted, "its data is as new as theirs"
    world.pass_time(LEASE)
    assert world.members["a"].status is Status.ACTIVE


def test_with_a_least_number_of_copies_another_one_may_have_become_an_heir() -> None:
    """The only heir dies; the primary confirms nothing until another one is there, and goes on with that one."""
    cluster = Cluster("", Counter(), min_in_sync=1)
    cluster.begin()
    world = cluster.world
    cluster.pause("b", 3.0)
    cluster.kill("c", 0.0)
    cluster.resume(3.0)
    assert world.confirmed <= world.members["b"].data
    assert not world.confirmed <= world.members["c"].data
    cluster.kill("a", 0.0)
    cluster.kill("b", 0.0)
    cluster.start("c", 0.0)
    refused = world.promote("c")
    assert refused is not None
    assert refused.why is Why.UNKNOWN


def test_with_a_least_number_of_copies_who_lost_all_may_have_been_replaced() -> None:
    """A primary that is cut off has no heir any more; the other two know that it has confirmed nothing since.

    One of them is promoted without it. Breaks when an empty set of heirs is proof enough that nobody has newer data:
    the old one would be promoted, alone, without what the two have confirmed.
    """
    cluster = Cluster("", Counter(), min_in_sync=1)
    cluster.begin()
    world = cluster.world
    cluster.cut("a", "c", 0.0)
    cluster.cut("a", "b", 3.0)
    assert world.members["a"].record is not None
    assert not world.members["a"].record.heirs
    verdict = world.promote("b")
    assert verdict is not None
    assert verdict.promoted
    world.pass_time(1.0)
    assert not world.confirmed <= world.members["a"].data
    cluster.start("a", 0.0)
    refused = world.promote("a")
    assert refused is not None
    assert (refused.why, "b, c may have newer data" in refused.reason) == (Why.UNKNOWN, True)
    cluster.heal_one("a", "c", 0.0)
    refused = world.promote("a")
    assert refused is not None
    assert (refused.why, "c has newer data" in refused.reason) == (Why.NEWER_EXISTS, True)


def test_after_a_total_outage_the_newest_is_promoted_and_not_the_first() -> None:
    cluster = begun()
    world = cluster.world
    cluster.kill("c", 6.0)  # a goes on with b alone
    for name in ("a", "b"):
        cluster.kill(name, 0.0)
    for name in NAMES:
        cluster.start(name, 0.0)
    verdict = world.promote("c")
    assert verdict is not None
    assert verdict.why is Why.NEWER_EXISTS
    assert "promote it, or discard what it has" in verdict.reason
    verdict = world.promote("b")
    assert verdict is not None
    assert verdict.promoted


@pytest.mark.parametrize("order", list(permutations(NAMES)), ids="".join)
@pytest.mark.parametrize("newest", [{"a"}, {"a", "b"}], ids=["one newest", "two newest"])
def test_in_whatever_order_all_start_after_an_outage_a_newest_is_promoted(
    order: tuple[str, ...], newest: set[str]
) -> None:
    """Whoever is there is asked after each start: nobody older ever serves, and one with everything does at last."""
    cluster = begun()
    world = cluster.world
    for name in sorted(set(NAMES) - newest, reverse=True):
        cluster.kill(name, 6.0)
    assert not any(world.confirmed <= world.members[name].data for name in set(NAMES) - newest)
    for name in sorted(newest, reverse=True):
        cluster.kill(name, 0.0)
    started: set[str] = set()
    for name in order:
        cluster.start(name, 0.0)
        started.add(name)
        for older in sorted(started - newest):
            refused = world.promote(older)
            assert refused is not None
            assert not refused.promoted
        # Of two that have everything none knows that before it has asked the other one.
        if newest <= started:
            break
        assert not any(verdict.promoted for one in started & newest if (verdict := world.promote(one)) is not None)
    chosen = min(newest & started)
    verdict = world.promote(chosen)
    assert verdict is not None
    assert verdict.promoted
    assert world.confirmed <= world.members[chosen].data


def test_a_store_is_promoted_by_force_and_by_name_alone() -> None:
    """The newest is lost for good: whoever promotes says whose data is discarded."""
    cluster = begun()
    world = cluster.world
    cluster.kill("b", 6.0)
    cluster.kill("c", 6.0)
    cluster.kill("a", 20.0)
    cluster.start("b", 0.0)
    for proof in (Proof(), Proof(fenced=frozenset("ac")), Proof(discarded=frozenset("c"))):
        refused = world.promote("b", proof)
        assert refused is not None
        assert refused.why is Why.UNKNOWN
        assert "a may have newer data and cannot be asked" in refused.reason or "a, c may" in refused.reason
    world.confirmed.clear()  # it is lost, on purpose
    verdict = world.promote("b", Proof(discarded=frozenset("ac")))
    assert verdict is not None
    assert verdict.promoted


def test_the_number_on_the_resource_managers_record_is_a_proof() -> None:
    """A power cut: the machine of the primary does not say that nobody listens there."""
    cluster = begun()
    world = cluster.world
    record = world.members["b"].record
    assert record is not None
    world.cut |= {frozenset("ab"), frozenset("ac")}
    cluster.kill("a", LEASE + BACKUP_TIMEOUT)
    refused = world.promote("b", Proof(fenced=frozenset("a")))
    assert refused is not None
    assert refused.why is Why.UNKNOWN
    newer = Number(record.number.epoch, record.number.sequence + 1)
    refused = world.promote("b", Proof(fenced=frozenset("a"), recorded=newer))
    assert refused is not None
    assert refused.why is Why.UNKNOWN
    verdict = world.promote("b", Proof(fenced=frozenset("a"), recorded=record.number))
    assert verdict is not None
    assert verdict.promoted
