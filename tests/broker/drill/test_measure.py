"""Figures that a ledger gives beyond the verdict, on histories written by hand."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from pollux.client.url import Wire, parse_url
from pollux.drill import measure
from pollux.drill.faults import Fault as Kind
from pollux.drill.flows import Flow
from pollux.drill.flows import Kind as FlowKind
from pollux.drill.page import render
from pollux.drill.report import build
from pollux.drill.run import Outcome, Plan
from pollux.formats.html import nice
from pollux.formats.ledger import Confirmed, Entry, Fault, Received, Sent

if TYPE_CHECKING:
    from collections.abc import Iterable


def steady(*confirmed: float, producer: str = "amqp", before: float = 1.0) -> list[Entry]:
    """A producer whose messages are sent `before` milliseconds before they are confirmed."""
    entries: list[Entry] = []
    for number, time in enumerate(confirmed):
        name = f"{producer}-{number}"
        entries += [Sent(time - before, name, producer, "g", number), Confirmed(time, name, "n", "castor", 1)]
    return entries


def gap(entries: Iterable[Entry], until: float | None = None) -> float | None:
    """The interruption of AMQP."""
    return measure.interruption(entries, {"amqp"}, until)


def test_a_kill_is_felt_from_the_fault_on() -> None:
    entries = [*steady(100, 110, 120), Sent(122, "x", "amqp"), Fault(125, "kill"), Sent(130, "y", "amqp")]
    assert gap([*entries, Confirmed(400, "x"), Confirmed(401, "y")]) == 275


def test_an_orderly_stop_is_felt_as_the_gap_behind_it() -> None:
    """The old live went on confirming for a while: the first confirm says nothing."""
    entries = [Fault(100, "switchover"), *steady(*range(105, 200, 5), 440, 445)]
    assert gap(entries) == pytest.approx(1.0)  # nothing was under way while nobody served
    waiting: list[Entry] = [Sent(196, "w", "amqp"), Confirmed(441, "w")]
    assert gap([*entries, *waiting]) == pytest.approx(440 - 196)


def test_with_nothing_to_answer_nobody_waits() -> None:
    assert gap([Fault(0, "kill"), *steady(1000, 2000, 3000, before=7)]) == 7


def test_what_begins_after_the_recovery_is_another_matter() -> None:
    entries: list[Entry] = [Fault(100, "kill"), Sent(101, "a", "amqp"), Confirmed(200, "a")]
    entries += [Sent(300, "b", "amqp"), Confirmed(900, "b")]
    assert gap(entries) == 600
    assert gap(entries, until=210.0) == 99


def test_none_without_a_fault_and_none_without_a_recovery() -> None:
    assert gap(steady(1, 2, 3)) is None
    assert gap([Sent(1, "a", "amqp"), Fault(2, "kill"), Sent(3, "b", "amqp"), Confirmed(4, "a")]) is None
    assert measure.interruption([Fault(0, "f"), *steady(5, producer="stomp")], {"amqp"}) is None


def test_lives_are_spans_of_confirms() -> None:
    entries = [Confirmed(5, "a", "n", "castor", 1), Confirmed(1, "b", "n", "castor", 1), Confirmed(9, "c", "n", "p", 2)]
    found = measure.lives([*entries, Confirmed(7, "d", "n", "p", None)])
    assert [(each["broker"], each["epoch"], each["from_ms"], each["to_ms"], each["confirmed"]) for each in found] == [
        ("castor", 1, 1, 5, 2),
        ("p", 2, 9, 9, 1),
    ]


def test_the_backlog_is_counted_apart() -> None:
    entries = [*steady(10, producer="amqp.backlog"), *steady(150, 250, producer="amqp.transactions"), *steady(151)]
    assert measure.standing(entries, [("amqp.backlog-0", "")]) == {"confirmed": 1, "received": 0, "lost": 1}
    found = measure.throughput(entries, 100, 300)
    assert found == {"bucket_ms": 100, "confirmed": {"amqp": [2, 1, 0]}, "received": [0, 0, 0]}


@pytest.mark.parametrize(("value", "expected"), [(0, 1), (1, 1), (3, 4), (4.5, 5), (6, 10), (99, 100), (0.03, 0.04)])
def test_round_numbers(value: float, expected: float) -> None:
    assert nice(value) == pytest.approx(expected)


def outcome(*, lose: bool = False) -> tuple[Plan, Outcome]:
    """A drill of a pair, one second long; `lose` one message, and somebody with a strange name."""
    entries = [*steady(*range(100, 400, 10)), Fault(1400, "SIGKILL of castor & <b>"), Sent(1401, "z", "amqp")]
    entries += [Confirmed(1800, "z", "n", "pollux", 2)]
    received = [Received(entry.time + 1, entry.id) for entry in entries if isinstance(entry, Confirmed)]
    entries += received[1:] if lose else received
    states = [(0.0, "castor", "live", 1), (1400.0, "castor", "down", None), (1500.0, "<i>pollux", "live", 2)]
    out = Outcome(entries, datetime.now(UTC), 100.0, 2100.0, states=[*states], recovered=1800.0)
    out.flows = (Flow("run", Wire.AMQP, FlowKind.STEADY),)
    out.notes = [(1400.0, "SIGKILL of castor & <b>")]
    target = parse_url("(tcp://a,tcp://b)?user=drill&password=canary-1f7a")
    return Plan(target, (Wire.AMQP,), Kind.KILL, backlog=0), out


class Page(HTMLParser):
    """Collects what a browser would fetch, and sees that what was opened is closed."""

    VOID = ("meta", "link", "line", "rect", "polygon", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.add(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href") and value != "data:,"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Match it."""
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("lose", [False, True])
def test_the_page_needs_nothing_else_and_holds_no_secret(*, lose: bool) -> None:
    report = build(*outcome(lose=lose))
    assert report["result"] == ("broken" if lose else "clean"), report["problems"]
    assert report["rto_ms"] == {"amqp": 399.0}
    page = render(report)
    parser = Page()
    parser.feed(page)
    assert parser.open == []
    assert parser.fetched == []
    assert not re.search(r"https?:|url\(|@import", page)
    assert parser.tags & {"script", "iframe", "img", "b>", "i>"} == set()
    assert "SIGKILL of castor &amp; &lt;b&gt;" in page
    assert "&lt;i&gt;pollux" in page
    assert ("amqp-0" in page) == lose
    assert "prefers-color-scheme:dark" in page
    assert "canary-1f7a" not in page + json.dumps(report)


def test_a_long_drill_is_shown_around_the_fault_too() -> None:
    plan, out = outcome()
    assert render(build(plan, out)).count("<svg") == 2
    out.ended = 100_000.0
    assert render(build(plan, out)).count("<svg") == 4
