"""The ledger's checker against histories that must pass and histories that must fail."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.formats.ledger import (
    HEADER,
    Confirmed,
    Entry,
    Fault,
    LedgerError,
    Received,
    Sent,
    Verdict,
    check,
    decode,
    encode,
)


def entries_of(*entries: Entry) -> list[Entry]:
    return list(entries)


def history(*ids: str) -> list[Entry]:
    """A good history: each id sent, confirmed and received once."""
    entries: list[Entry] = []
    for number, name in enumerate(ids):
        entries += [Sent(number, name), Confirmed(number + 0.1, name), Received(number + 0.2, name)]
    return entries


def test_a_good_history_passes() -> None:
    verdict = check(history("a", "b", "c"))
    assert verdict.ok
    assert (verdict.sent, verdict.confirmed, verdict.received) == (3, 3, 3)


def test_the_empty_history_passes() -> None:
    assert check([]) == Verdict(0, 0, 0, (), (), (), (), (), ())


def test_a_confirm_is_of_the_last_attempt_before_it() -> None:
    """Breaks when a message that was sent again is taken to have been sent only then."""
    entries = entries_of(Sent(0, "a"), Fault(5, "kill"), Confirmed(6, "a"), Sent(10, "a"), Confirmed(12, "a"))
    assert check([*entries, Received(13, "a")]).rto_ms == (7,)
    assert check([*entries[:3], Received(13, "a"), Sent(10, "a")]).rto_ms == (None,)


def test_a_confirmed_message_that_never_arrives_is_lost() -> None:
    verdict = check([*history("a"), Sent(5, "b"), Confirmed(6, "b")])
    assert verdict.lost == (("b", ""),)
    assert not verdict.ok


def test_an_unconfirmed_message_may_vanish_or_arrive() -> None:
    assert check([*history("a"), Sent(5, "b")]).ok
    assert check([*history("a"), Sent(5, "b"), Received(6, "b")]).ok


def test_each_expected_queue_must_have_had_the_message() -> None:
    entries = entries_of(Sent(0, "a"), Confirmed(1, "a"), Received(2, "a", "x"))
    assert check(entries, queues=("x",)).ok
    assert check(entries, queues=("x", "y")).lost == (("a", "y"),)


def test_a_second_reception_without_the_flag_is_a_duplicate() -> None:
    assert check([*history("a"), Received(9, "a")]).duplicated == (("a", ""),)


def test_a_second_reception_with_the_flag_is_not() -> None:
    assert check([*history("a"), Received(9, "a", redelivered=True)]).ok


def test_a_flagged_first_reception_does_not_excuse_an_unflagged_second() -> None:
    entries = entries_of(Sent(0, "a"), Received(1, "a", redelivered=True), Received(2, "a"))
    assert check(entries).duplicated == (("a", ""),)


def test_the_same_message_from_two_queues_is_no_duplicate() -> None:
    assert check([Sent(0, "a"), Received(1, "a", "x"), Received(1, "a", "y")], queues=()).ok


@pytest.mark.parametrize("entry", [Received(9, "ghost"), Confirmed(9, "ghost")])
def test_what_nobody_sent_is_a_phantom(entry: Entry) -> None:
    verdict = check([*history("a"), entry])
    assert verdict.phantom == ("ghost",)
    assert not verdict.ok


def lives(*spans: tuple[str, int, float, float]) -> list[Entry]:
    """Confirmations of one node: (broker, epoch, first, last)."""
    entries: list[Entry] = []
    for broker, epoch, *times in spans:
        for time in times:
            name = f"{broker}-{epoch}-{time}"
            entries += [Sent(0, name), Confirmed(time, name, "node", broker, epoch), Received(99, name)]
    return entries


def test_one_life_after_the_other_passes() -> None:
    assert check(lives(("A", 1, 1, 2), ("B", 2, 3, 4), ("A", 3, 5, 6))).ok


@pytest.mark.parametrize(
    "spans",
    [
        [("A", 1, 1, 3), ("B", 2, 2, 4)],  # they overlap
        [("A", 1, 1, 9), ("B", 2, 3, 4)],  # a zombie confirms before and after the other's whole life
        [("A", 1, 1, 2), ("B", 1, 3, 4)],  # two brokers, one epoch
        [("A", 2, 1, 2), ("B", 1, 3, 4)],  # an older epoch confirms after a newer one
        [("A", 1, 1, 3), ("A", 2, 2, 4)],  # two processes of one broker
    ],
)
def test_two_lives(spans: list[tuple[str, int, float, float]]) -> None:
    verdict = check(lives(*spans))
    assert len(verdict.two_lives) == 1
    assert not verdict.ok


def test_two_nodes_may_live_at_once() -> None:
    entries: list[Entry] = [
        *(Sent(0, "a"), Confirmed(1, "a", "n1", "A", 1), Confirmed(3, "a", "n1", "A", 1)),
        *(Sent(0, "b"), Confirmed(2, "b", "n2", "B", 1), Confirmed(4, "b", "n2", "B", 1)),
        *(Received(9, "a"), Received(9, "b")),
    ]
    assert check(entries).ok


def ordered(*order: int, redelivered: frozenset[int] = frozenset()) -> list[Entry]:
    entries: list[Entry] = [Sent(number, f"m{number}", "p", "g", number) for number in range(10)]
    return [
        *entries,
        *(Received(20 + at, f"m{number}", redelivered=number in redelivered) for at, number in enumerate(order)),
    ]


def test_order_within_a_group() -> None:
    assert check(ordered(0, 1, 2, 5)).ok
    assert check(ordered(0, 2, 1, 3)).order_violations == (("m2", "m1"),)


def test_a_redelivered_message_may_come_late() -> None:
    assert check(ordered(0, 2, 1, 3, redelivered=frozenset({1}))).ok


def test_order_is_not_judged_without_a_group_or_across_producers() -> None:
    entries = entries_of(Sent(0, "a", "p", "", 1), Sent(0, "b", "p", "", 2), Received(1, "b"), Received(2, "a"))
    assert check(entries).ok
    entries = entries_of(Sent(0, "a", "p", "g", 1), Sent(0, "b", "q", "g", 2), Received(1, "b"), Received(2, "a"))
    assert check(entries).ok


def test_recovery_time_counts_only_sends_after_the_fault() -> None:
    entries = entries_of(
        *(Sent(0, "before"), Fault(10, "kill -9"), Confirmed(11, "before")),
        *(Sent(50, "after"), Confirmed(110, "after"), Fault(200, "again")),
        *(Received(300, "before"), Received(300, "after")),
    )
    verdict = check(entries)
    assert verdict.rto_ms == (100, None)
    assert "no confirmed send after 1 fault" in str(verdict)


def test_the_verdict_in_words_names_an_example() -> None:
    assert "lost 1 (first: ('b', ''))" in str(check([Sent(5, "b"), Confirmed(6, "b")]))


text = st.text(st.characters(codec="utf-8", exclude_characters="\t\n"), max_size=8)
time = st.floats(0, 1e12)
epoch = st.none() | st.integers(0, 2**62)
entries_strategy = st.one_of(
    st.builds(Sent, time, text, text, text, st.integers()),
    st.builds(Confirmed, time, text, text, text, epoch),
    st.builds(Received, time, text, text, st.booleans(), text, text, epoch),
    st.builds(Fault, time, text),
)


@given(st.lists(entries_strategy))
def test_what_is_written_is_read(entries: list[Entry]) -> None:
    assert list(decode(HEADER + "".join(map(encode, entries)))) == entries


@given(st.lists(entries_strategy, min_size=1), st.data())
def test_a_torn_last_line_is_ignored(entries: list[Entry], data: st.DataObject) -> None:
    written = HEADER + "".join(map(encode, entries))
    start = len(written) - len(encode(entries[-1]))
    cut = data.draw(st.integers(start, len(written) - 1))
    assert list(decode(written[:cut])) == entries[:-1]


@pytest.mark.parametrize("torn", [HEADER[:0], HEADER[:5]])
def test_a_torn_header_is_an_empty_ledger(torn: str) -> None:
    assert list(decode(torn)) == []


@pytest.mark.parametrize("bad", ["S\tx\n", "Q\t1\ta\n", "\n", "R\t1\ta\tq\t2\tc\tb\t1\n", "C\tnoon\ta\t\t\t\n"])
def test_a_bad_line_is_named(bad: str) -> None:
    with pytest.raises(LedgerError, match="line 3"):
        list(decode(HEADER + encode(Fault(1, "x")) + bad))


def test_another_file_is_refused() -> None:
    with pytest.raises(LedgerError, match="line 1"):
        list(decode("something else\n"))


def test_a_text_with_a_tab_cannot_be_written() -> None:
    with pytest.raises(LedgerError):
        encode(Fault(1, "a\tb"))


@given(st.lists(st.sampled_from("abc"), unique=True), st.lists(st.sampled_from("abc"), unique=True))
def test_lost_is_what_was_confirmed_minus_what_was_received(confirmed: list[str], received: list[str]) -> None:
    entries: list[Entry] = [Sent(0, name) for name in "abc"]
    entries += [Confirmed(1, name) for name in confirmed]
    entries += [Received(2, name) for name in received]
    assert {name for name, _ in check(entries).lost} == set(confirmed) - set(received)


def test_a_ledger_of_0_1_0_gets_the_verdict_that_0_1_0_gave_it() -> None:
    """Its last line is torn; ``tests/data/0.1.0/README.md`` says how it was made."""
    directory = Path(__file__).resolve().parents[1] / "data/0.1.0"
    verdict = check(decode((directory / "ledger.txt").read_text()))
    assert verdict == msgspec.json.decode((directory / "verdict.json").read_bytes(), type=Verdict)
    assert (verdict.sent, verdict.confirmed, verdict.received) == (620, 504, 590)
    assert not verdict.ok
