"""Whose data may be given up when an active-passive group has no primary. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.modules import load

ROOT = Path(__file__).resolve().parents[2]


discard = load("filter_plugins/discard.py")
NODES = [{"name": name, "broker": f"10.0.0.{number}:1"} for number, name in enumerate("abc", 1)]
TOPOLOGY = {
    "brokers": {name: {"group": "trio"} for name in "abc"} | {"x": {"group": "alone"}},
    "groups": {
        "trio": {"name": "trio", "members": ["a", "b", "c"], "cluster": {"manager": "pacemaker", "nodes": NODES}},
        "alone": {"name": "alone", "members": ["x"], "cluster": {}},
    },
}


def said(**numbers: str | None) -> dict[str, Any]:
    """The answers of brokers by their numbers; None has no data, a word is a state."""
    found: dict[str, Any] = {}
    for name, number in numbers.items():
        if number is not None and ":" not in number:
            found[name] = {"answer": {"state": number}}
            continue
        activation = {"active_passive": {"number": number}}
        found[name] = {"answer": {"state": "joining", "status": {"activation": activation}}}
    return found


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("", ""),
        ("a", ""),
        ("a, b", ""),
        ("z", "names z; the brokers are"),
        ("a,b,c", "names every member of trio"),
        ("a,x", "brokers of the groups alone, trio: one group at a time"),
        ("x", "group alone is not under pacemaker"),
    ],
)
def test_by_the_inventory_alone(asked: str, why: str) -> None:
    found = discard.refusal(TOPOLOGY, asked)
    assert found.find(why) >= 0
    assert bool(found) == bool(why)


@pytest.mark.parametrize(
    ("asked", "answers", "why"),
    [
        ("a", said(a="unreachable", b="2:3", c="2:3"), ""),
        ("a", said(a="2:2", b="2:3", c="stopped"), ""),
        ("a", said(a="unreachable", b="live", c="2:3"), "b of group trio serves: nothing has to be given up"),
        ("a", said(a="2:3", b="2:3", c="2:2"), "a answers, and has newer data than all others"),
        ("a", said(a="unreachable", b=None, c="stopped"), "none of the others answers and has data"),
    ],
)
def test_by_what_the_brokers_say(asked: str, answers: dict[str, Any], why: str) -> None:
    problems = discard.problems(TOPOLOGY, answers, "answer", asked)
    assert any(why in line for line in problems) if why else problems == []


def test_who_is_given_up_and_who_tells_it() -> None:
    answers = said(a="unreachable", b=None, c="2:3")
    assert discard.addresses(TOPOLOGY, "a,b") == "10.0.0.1:1,10.0.0.2:1"
    assert discard.speaker(TOPOLOGY, answers, "answer", "a") == "c"
    assert discard.report(TOPOLOGY, answers, "answer") == [
        "group trio",
        "  a: unreachable, no data that it tells of",
        "  b: joining, no data that it tells of",
        "  c: joining, data 2:3",
    ]
