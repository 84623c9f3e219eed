"""Statuses, the judgement of a promotion, and what a member does next: tables, case by case."""

from __future__ import annotations

from itertools import product

import pytest

from pollux.ha.active_passive.grant import Grant, Word
from pollux.ha.active_passive.policy import (
    FOR_EVER,
    Action,
    Decision,
    PrimarySnapshot,
    PromotedSnapshot,
    StandbySnapshot,
    decide,
)
from pollux.ha.active_passive.promotion import (
    Answer,
    Candidate,
    Number,
    Proof,
    Record,
    Why,
    judge,
    judge_demotion,
)
from pollux.ha.active_passive.ready import MARGIN, Granted, ReadyLease
from pollux.ha.active_passive.statuses import CHANGES, ESTABLISHED, PRIMARY, Cause, IllegalChangeError, Status, change

NODE = "0a" * 16
A, B, C = "a:5672", "b:5672", "c:5672"


def record(epoch: int = 1, sequence: int = 1, *, heirs: str = "ab", complete: bool = True, node: str = NODE) -> Record:
    """Data with which b served last."""
    return Record(node, Number(epoch, sequence), complete, B, frozenset(f"{one}:5672" for one in heirs))


def candidate(mine: Record | None, *, status: Status = Status.READY, ready: bool = True, least: int = 0) -> Candidate:
    return Candidate(A, status, mine, ready, least)


DEAD = Answer(B, absent=True)
SILENT = Answer(B)


def test_the_words_are_qpids() -> None:
    assert [*Status] == ["standalone", "joining", "catchup", "ready", "recovering", "active"]
    assert sorted(PRIMARY) == ["active", "recovering"]
    assert sorted(ESTABLISHED - PRIMARY) == ["catchup", "ready"]


@pytest.mark.parametrize(("before", "after"), [*product(Status, Status)])
def test_a_change_is_in_the_table_or_ends_the_process(before: Status, after: Status) -> None:
    if (before, after) in CHANGES:
        assert change(before, after) is CHANGES[before, after]
    else:
        with pytest.raises(IllegalChangeError, match=f"{before} cannot become {after}"):
            change(before, after)


def test_nothing_leads_away_from_active_and_only_promote_makes_a_primary() -> None:
    assert not [after for before, after in CHANGES if before is Status.ACTIVE]
    assert {CHANGES[pair] for pair in CHANGES if pair[1] is Status.RECOVERING} == {Cause.PROMOTE}
    assert {before for before, after in CHANGES if after is Status.RECOVERING} == {Status.JOINING, Status.READY}


@pytest.mark.parametrize(
    ("mine", "answers", "proof", "why", "says"),
    [
        # The first primary of a cluster: nobody has any data, and everybody says so.
        (None, [Answer(B, Status.JOINING)], Proof(), Why.PROMOTED, "nobody has any data"),
        (None, [], Proof(), Why.PROMOTED, "nobody has any data"),
        (None, [SILENT], Proof(), Why.UNKNOWN, "b:5672 may have newer data"),
        (None, [DEAD], Proof(), Why.UNKNOWN, "--discard b:5672"),
        (None, [DEAD], Proof(discarded=frozenset({B})), Why.PROMOTED, ""),
        (None, [Answer(B, Status.JOINING, record())], Proof(), Why.NEWER_EXISTS, "has no data, and b:5672 has"),
        # Fail-over.
        (record(), [DEAD], Proof(), Why.PROMOTED, "its data is the newest (1:1)"),
        (record(), [SILENT], Proof(), Why.PROMOTED, ""),
        (record(), [DEAD, Answer(C)], Proof(), Why.PROMOTED, ""),
        (record(heirs="ac"), [DEAD, Answer(C)], Proof(), Why.UNKNOWN, "c:5672 may have newer data"),
        (record(heirs="ac"), [DEAD, Answer(C)], Proof(fenced=frozenset({C})), Why.PROMOTED, ""),
        (record(heirs="ac"), [DEAD, Answer(C, absent=True)], Proof(), Why.PROMOTED, ""),
        (record(heirs="ac"), [DEAD, Answer(C, Status.READY, record(heirs="ac"))], Proof(), Why.PROMOTED, ""),
        # Somebody serves, or knows better.
        (record(), [Answer(B, Status.ACTIVE, record())], Proof(), Why.ANOTHER_SERVES, "b:5672 is active"),
        (record(), [Answer(B, Status.RECOVERING, record())], Proof(), Why.ANOTHER_SERVES, "b:5672 is recovering"),
        (
            record(),
            [DEAD, Answer(C, Status.READY, record(1, 2))],
            Proof(),
            Why.NEWER_EXISTS,
            "c:5672 has newer data (1:2",
        ),
        (
            record(1, 9),
            [DEAD, Answer(C, Status.JOINING, record(2, 2))],
            Proof(),
            Why.NEWER_EXISTS,
            "(2:2, here it is 1:9)",
        ),
        # A copy that was begun tells of a later life, too.
        (
            record(),
            [Answer(C, Status.CATCHUP, record(2, 1, complete=False))],
            Proof(),
            Why.NEWER_EXISTS,
            "c:5672 has newer data",
        ),
        (record(), [DEAD, Answer(C, Status.READY, record(1, 2))], Proof(discarded=frozenset({C})), Why.PROMOTED, ""),
        (record(), [Answer(B, Status.JOINING, record(node="0b" * 16))], Proof(), Why.OTHER_DATA, "two clusters"),
    ],
)
def test_a_promotion_is_judged(mine: Record | None, answers: list[Answer], proof: Proof, why: Why, says: str) -> None:
    found = judge(candidate(mine, status=Status.READY if mine else Status.JOINING), answers, proof)
    assert found.why is why, found
    assert says in found.reason


def test_a_backup_that_is_catching_up_is_refused_whatever_is_vouched_for() -> None:
    proof = Proof(frozenset({B}), frozenset({B}), Number(1, 1))
    for mine, status in ((record(), Status.CATCHUP), (record(complete=False), Status.JOINING)):
        found = judge(candidate(mine, status=status), [DEAD], proof)
        assert (found.why, found.promoted) == (Why.CATCHING_UP, False)


@pytest.mark.parametrize(
    ("mine", "told", "proof", "why"),
    [
        (record(2), {C: 3}, Proof(), Why.ANOTHER_SERVES),
        (record(2), {B: 2, C: 3}, Proof(fenced=frozenset({C})), Why.ANOTHER_SERVES),
        (None, {C: 1}, Proof(), Why.ANOTHER_SERVES),
        (record(2), {C: 3}, Proof(discarded=frozenset({C})), Why.PROMOTED),
        # That is who served with this data, and is gone, or who served before it.
        (record(2), {B: 2}, Proof(), Why.PROMOTED),
        (record(2), {C: 1}, Proof(), Why.PROMOTED),
    ],
)
def test_who_serves_since_the_others_were_asked_counts(
    mine: Record | None, told: dict[str, int], proof: Proof, why: Why
) -> None:
    given = candidate(mine, status=Status.READY if mine else Status.JOINING)._replace(told=told)
    found = judge(given, [DEAD] if mine else [Answer(B, Status.JOINING)], proof)
    assert found.why is why, found


@pytest.mark.parametrize("status", [Status.RECOVERING, Status.ACTIVE])
def test_a_primary_is_promoted_once(status: Status) -> None:
    found = judge(candidate(record(), status=status), [SILENT], Proof())
    assert (found.why, found.promoted) == (Why.ALREADY, True)


def test_a_lease_that_has_run_out_is_no_proof() -> None:
    """Nor is the death of the primary: it may have gone on alone before."""
    lapsed = candidate(record(), status=Status.JOINING, ready=False)
    for proof in (Proof(), Proof(fenced=frozenset({B})), Proof(recorded=Number(1, 1))):
        assert judge(lapsed, [DEAD], proof).why is Why.UNKNOWN
    both = Proof(fenced=frozenset({B}), recorded=Number(1, 1))
    assert judge(lapsed, [SILENT], both).promoted
    assert judge(lapsed, [SILENT], both._replace(recorded=Number(1, 2))).why is Why.UNKNOWN
    assert judge(lapsed, [Answer(B, Status.JOINING, record())], Proof()).promoted, "b is back, with nothing newer"


def test_a_primary_that_served_alone_is_promoted_without_asking() -> None:
    """Its durable set of heirs is empty: nobody can have gone on without it."""
    alone = Candidate(B, Status.JOINING, record(heirs=""), ready=False)
    assert judge(alone, [Answer(A), Answer(C)], Proof()).promoted
    with_heirs = Candidate(B, Status.JOINING, record(heirs="ac"), ready=False)
    found = judge(with_heirs, [Answer(A), Answer(C, absent=True)], Proof())
    assert found.why is Why.UNKNOWN
    assert "a:5672, c:5672 may have newer data" in found.reason


def test_with_a_least_number_of_copies_the_heirs_together_know_everything() -> None:
    mine = record(heirs="ac")
    for least, why in ((0, Why.UNKNOWN), (1, Why.PROMOTED)):
        lapsed = candidate(mine, status=Status.JOINING, ready=False, least=least)
        assert judge(lapsed, [SILENT, Answer(C, Status.JOINING, mine)], Proof()).why is why
        assert judge(lapsed, [SILENT, Answer(C)], Proof()).why is Why.UNKNOWN
    # Who was no heir then may be one since.
    only = candidate(record(heirs="a"), status=Status.JOINING, ready=False, least=1)
    assert judge(only, [SILENT, Answer(C)], Proof()).why is Why.UNKNOWN
    assert judge(only, [SILENT, Answer(C, Status.JOINING)], Proof()).promoted


def test_the_new_primary_waits_for_the_heirs_and_has_an_epoch_of_its_own() -> None:
    mine = record(3, 1, heirs="abc")
    answers = [DEAD, Answer(C, Status.READY, record(3, 1, heirs="abc"))]
    found = judge(candidate(mine), answers, Proof(fenced=frozenset({B})))
    assert found.expected == {C}
    assert found.epoch == 4


def test_only_a_primary_is_demoted() -> None:
    assert [one for one in Status if judge_demotion(one).why is Why.PROMOTED] == [Status.RECOVERING, Status.ACTIVE]


@pytest.mark.parametrize(
    ("member", "becomes"),
    [
        (StandbySnapshot(Status.JOINING, follows=False, complete=True, ready=False), None),
        (StandbySnapshot(Status.JOINING, follows=True, complete=False, ready=False), Status.CATCHUP),
        (StandbySnapshot(Status.CATCHUP, follows=True, complete=False, ready=False), None),
        (StandbySnapshot(Status.CATCHUP, follows=True, complete=True, ready=False), None),
        (StandbySnapshot(Status.CATCHUP, follows=True, complete=True, ready=True), Status.READY),
        (StandbySnapshot(Status.CATCHUP, follows=False, complete=False, ready=False), Status.JOINING),
        (StandbySnapshot(Status.READY, follows=True, complete=True, ready=True), None),
        (StandbySnapshot(Status.READY, follows=False, complete=True, ready=True), None),
        (StandbySnapshot(Status.READY, follows=False, complete=True, ready=False), Status.CATCHUP),
        (StandbySnapshot(Status.READY, follows=True, complete=False, ready=True), Status.CATCHUP),
    ],
)
def test_a_waiting_member_goes_on(member: StandbySnapshot, becomes: Status | None) -> None:
    found = decide(member, 0.0)
    assert found.status is becomes
    if becomes is not None:
        change(member.status, becomes)


def test_recovering_ends_by_progress_and_not_by_connection() -> None:
    """Qpid's never ends with a backup that is connected and slow (test_expected_backup_timeout)."""
    seen = {A: 100.0, C: 104.0}
    member = PrimarySnapshot(Status.RECOVERING, seen, 10.0)
    assert decide(member, 109.0).action is Action.NOTHING
    found = decide(member, 110.0)
    assert found.action is Action.GIVE_UP
    assert found.members == {A}
    assert "a:5672 came no nearer for 10 s" in found.reason
    assert decide(PrimarySnapshot(Status.RECOVERING, {}, 10.0), 110.0).status is Status.ACTIVE
    assert decide(PrimarySnapshot(Status.ACTIVE, {}, 10.0), 110.0) == Decision(Action.NOTHING)


@pytest.mark.parametrize("status", sorted(PRIMARY))
def test_a_primary_that_lost_its_grant_fences_itself(status: Status) -> None:
    member = PrimarySnapshot(status, {A: 100.0}, 10.0, Word(100.0, 105.0))
    assert decide(member, 104.9).action is Action.NOTHING
    assert decide(member, 105.0).action is Action.FENCE


def test_an_expected_backup_is_given_up_by_a_word_of_later_than_it_could_be_promoted() -> None:
    late = PrimarySnapshot(Status.RECOVERING, {A: 100.0}, 10.0, Word(109.0, 115.0))
    assert decide(late, 112.0).action is Action.NOTHING
    assert decide(late._replace(word=Word(110.0, 116.0)), 112.0).action is Action.GIVE_UP


def test_a_promoted_one_serves_when_no_older_grant_can_be_left() -> None:
    """Then only if it is still wanted; whom nobody wants for long gives up."""
    member = PromotedSnapshot(100.0, 10.0, Word(95.0, 98.0))
    assert decide(member._replace(word=Word(99.0, 103.0)), 99.9).action is Action.NOTHING
    assert decide(member._replace(word=Word(99.0, 103.0)), 100.0).action is Action.OPEN
    assert decide(member._replace(word=FOR_EVER), 100.0).action is Action.OPEN
    assert decide(member, 109.9).action is Action.NOTHING
    assert decide(member, 110.0).action is Action.FENCE


def test_a_word_counts_from_when_it_was_asked_for() -> None:
    grant = Grant(3.0)
    assert grant.given(10.0, 12.0)
    assert grant.word == Word(10.0, 13.0)
    assert grant.given(9.5, 12.0), "one that was overtaken"
    assert grant.left(12.0) == 1.0
    assert not grant.given(9.0, 12.0), "it is over already"
    assert not grant.given(12.1, 12.0), "it is of another clock"
    assert grant.word == Word(10.0, 13.0)
    assert grant.renewed_since(10.0)
    assert not grant.renewed_since(10.1)
    assert grant.outlasts > 3.0
    for_ever = Grant(0.0)
    assert for_ever.given(1.0, 100.0)
    assert (for_ever.word, for_ever.left(100.0), for_ever.renewed_since(99.0)) == (FOR_EVER, None, True)


def test_who_may_still_serve_by_an_older_grant_is_named() -> None:
    """Nobody that answers, is fenced, or whose machine says that nothing runs there."""
    silent = judge(candidate(record()), [SILENT, Answer(C)], Proof())
    assert silent.why is Why.PROMOTED
    assert silent.unfenced == {B}
    for answer, proof in ((DEAD, Proof()), (SILENT, Proof(fenced=frozenset({B})))):
        assert not judge(candidate(record()), [answer], proof).unfenced
    assert judge(candidate(None, status=Status.JOINING), [SILENT], Proof(discarded=frozenset({B}))).unfenced == {B}


def test_ready_lasts_from_when_it_was_asked_for() -> None:
    lease = ReadyLease(2.0)
    assert not lease.held(0.0)
    lease.answered(10.0)
    assert lease.held(11.9)
    assert not lease.held(12.0)
    lease.answered(9.0)  # an answer that comes late
    assert lease.left(11.0) == 1.0
    lease.drop()
    assert not lease.held(11.0)


def test_the_end_of_the_primary_keeps_a_lease_that_holds_and_no_other() -> None:
    lease = ReadyLease(2.0)
    lease.answered(10.0)
    lease.primary_ended(12.0, 10.0)
    assert not lease.held(12.0)
    lease.answered(20.0)
    lease.primary_ended(21.0, 10.0)
    assert lease.held(29.9)
    assert not lease.held(30.0), "who was promoted after the last answer waits no longer"
    lease.handed_over(29.0, 10.0)
    assert lease.held(38.9), "it served until then"
    assert not lease.held(39.0)


def test_a_primary_waits_longer_than_any_lease_it_has_answered() -> None:
    granted = Granted(2.0)
    assert granted.left(A, 5.0) == 0.0
    granted.answer(A, 10.0)
    assert granted.left(A, 10.0) == pytest.approx(2.0 * MARGIN)
    assert granted.left(B, 10.0) == 0.0
    granted.ended(A)
    assert granted.left(A, 10.0) == 0.0
