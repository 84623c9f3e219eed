"""When a playbook may go on, and with whom: what its gates make of what brokers said. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.modules import load

ROOT = Path(__file__).resolve().parents[2]


gates = load("filter_plugins/gates.py")


def refusals(
    host: str = "b",
    *,
    live: str = "live",
    backup: str = "stopped",
    sequence: int = 7,
    agreed: int | None = 7,
    policy: str = "replication",
    asked: str = "ab",
) -> str:
    """Why it is refused to set the copy of ``host`` aside in a pair of a and b."""
    topology = {
        "brokers": {name: {"group": "twins"} for name in "ab"},
        "groups": {"twins": {"members": ["a", "b"], "policy": policy}},
    }
    replication = {"sequence": sequence, "coordinated_sequence": agreed}
    said = {
        "a": {"answer": {"state": live, "status": {"activation": {"replication": replication}}}},
        "b": {"answer": {"state": backup}},
    }
    return "\n".join(gates.rebuild(topology, host, said, "answer", list(asked)))


@pytest.mark.parametrize("state", ["stopped", "ready", "catching_up", "failed"])
def test_a_backup_of_a_live_with_the_newest_data(state: str) -> None:
    assert refusals(backup=state) == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"host": ""}, "rebuild_confirm is not set"),
        ({"host": "c"}, "there is no broker 'c'"),
        ({"host": "a"}, "a is live, so its store may be the one that counts"),
        ({"backup": "activating"}, "b is activating, so its store may be the one that counts"),
        ({"backup": "unreachable"}, "b is unreachable, so its store may be the one that counts: stop it first"),
        ({"backup": "unknown"}, "b is unknown, so its store may be the one that counts: status.yml says why"),
        ({"backup": "live"}, "b is live"),
        ({"live": "stopped"}, "no other member of group twins is the one live (a is stopped, b is stopped)"),
        ({"live": "unreachable"}, "no other member of group twins is the one live"),
        ({"sequence": 6}, "a serves with sequence 6, and 7 was agreed on"),
        ({"agreed": None}, "a serves with sequence 7, and None was agreed on"),
        ({"sequence": 0, "agreed": 0}, "a serves with sequence 0"),
        ({"policy": "shared_store"}, "group twins has shared_store, so b has no copy of its own"),
        ({"asked": "b"}, "--limit leaves out a"),
    ],
)
def test_what_is_not_safe_is_refused(given: dict[str, Any], why: str) -> None:
    assert why in refusals(**given)


def test_what_the_inventory_refuses_is_refused_before_anybody_is_asked() -> None:
    topology = {
        "brokers": {name: {"group": "twins"} for name in "ab"},
        "groups": {"twins": {"members": ["a", "b"], "policy": "replication"}},
    }
    assert gates.rebuild_asked(topology, "b", ["a", "b"]) == []
    for host, asked in (("", "ab"), ("c", "ab"), ("b", "b")):
        assert len(gates.rebuild_asked(topology, host, list(asked))) == 1
    assert gates.rebuild_members(topology, "b") == ["a", "b"]
    assert gates.rebuild_members(topology, "c") == []


@pytest.mark.parametrize(
    ("state", "force", "needed"), [("ready", False, False), ("ready", True, True), ("x", False, True)]
)
def test_a_copy_in_sync_is_kept_unless_that_is_not_wanted(state: str, force: bool, needed: bool) -> None:
    topology = {"brokers": {name: {"group": "twins"} for name in "ab"}, "groups": {"twins": {"members": ["a", "b"]}}}
    plan = gates.rebuild_plan(topology, "b", answers(a="live", b=state), "answer", force)
    assert plan == {"live": "a", "needed": needed}


@pytest.mark.parametrize(
    ("backups", "why"),
    [
        ([{"name": "b", "state": "in sync"}], ""),
        ([{"name": "b", "state": "copying"}], "a says of its backups: [{'name': 'b', 'state': 'copying'}]"),
        ([{"name": "c", "state": "in sync"}], "a says of its backups"),
        ([], "a says of its backups: []"),
        (None, "nobody is live in the group of b"),
    ],
)
def test_a_new_copy_counts_when_the_live_says_so(backups: list[Any] | None, why: str) -> None:
    topology = {"brokers": {name: {"group": "twins"} for name in "ab"}, "groups": {"twins": {"members": ["a", "b"]}}}
    said = answers(a="ready" if backups is None else "live", b="ready")
    said["a"]["answer"]["status"] = {"activation": {"replication": {"backups": backups}}}
    found = gates.rebuild_refusal(topology, "b", said, "answer")
    assert found.startswith(why)
    assert bool(found) == bool(why)


def site(preferred: str = "live", members: int = 2) -> dict[str, Any]:
    """A group twins of a, which is preferred, b and so on, and a group of one broker, alone."""
    names = "abc"[:members]
    brokers = {name: {"group": "twins", "members": members, "preferred": "backup"} for name in names}
    brokers["a"]["preferred"] = preferred
    brokers["alone"] = {"group": "one", "members": 1, "preferred": ""}
    twins = {"members": list(names), "live": "a" if preferred else ""}
    return {"brokers": brokers, "groups": {"twins": twins, "one": {"members": ["alone"], "live": ""}}}


def answers(**states: str) -> dict[str, Any]:
    """The variables of hosts that said this."""
    return {host: {"answer": {"state": state}} for host, state in states.items()}


@pytest.mark.parametrize(
    ("states", "problems"),
    [
        ({"a": "live", "b": "ready"}, []),
        ({"a": "live"}, ["b of group twins cannot take over: it is not asked"]),
        ({"a": "live", "b": "live"}, ["group twins has 2 live brokers (a, b), expected one"]),
        ({"a": "ready", "b": "ready"}, ["group twins has 0 live brokers (none), expected one"]),
        ({"a": "live", "b": "unreachable"}, ["b of group twins cannot take over: it is unreachable"]),
    ],
)
def test_a_group_is_safe_with_one_live_and_all_others_ready(states: dict[str, str], problems: list[str]) -> None:
    assert gates.group_problems(site(), answers(**states), "answer", ["a", "b"]) == problems


def test_a_group_that_was_not_asked_as_a_whole_is_not_judged() -> None:
    assert gates.group_problems(site(), answers(b="stopped"), "answer", ["b"]) == []


def test_groups_are_asked_for_by_name_or_all_of_them() -> None:
    assert gates.switchover_groups(site(), "") == ["twins", "one"]
    assert gates.switchover_groups(site(), "one, twins") == ["one", "twins"]
    assert gates.switchover_refusal(site(), "one,twins") == gates.switchover_refusal(site(), "") == ""
    assert gates.switchover_refusal(site(), "x,one,y") == "switchover_groups names x, y; the groups are twins, one"


def test_a_live_hands_back_only_to_one_that_its_group_prefers() -> None:
    live, ready = {"state": "live"}, {"state": "ready"}
    assert gates.hands_back(site(), "b", live)
    assert not gates.hands_back(site(), "b", ready)
    assert not gates.hands_back(site(), "a", live), "it is the preferred one"
    assert not gates.hands_back(site(preferred=""), "b", live), "its group prefers nobody"


def test_with_two_backups_it_would_be_chance_who_takes_over() -> None:
    refused = gates.failback_refusal(site(members=3), "b", {"state": "live"})
    assert refused.startswith("group twins has 2 backups that wait")
    assert "stop the ones other than a" in refused
    assert gates.failback_refusal(site(members=3), "b", {"state": "ready"}) == ""
    assert gates.failback_refusal(site(), "b", {"state": "live"}) == ""
    managed = site(members=3)
    managed["groups"]["twins"]["cluster"] = {"manager": "pacemaker"}
    assert gates.failback_refusal(managed, "b", {"state": "live"}) == "", (
        "a resource manager moves it to whom it is told"
    )


def test_backups_come_before_lives_and_only_lives_with_a_backup_hand_over() -> None:
    found = answers(a="live", b="ready", alone="live")
    chosen = {host: {**found[host], "chosen": True} for host in found}
    order = gates.rolling_order(site(), chosen, "answer", "chosen", ["a", "alone", "b"])
    assert order == {"hosts": ["b", "a", "alone"], "handovers": 1}
    chosen["a"]["chosen"] = False
    order = gates.rolling_order(site(), chosen, "answer", "chosen", ["a", "alone", "b"])
    assert order == {"hosts": ["b", "alone"], "handovers": 0}


def test_under_a_resource_manager_two_backups_come_before_the_one_move() -> None:
    trio = {"brokers": {host: {"members": 3, "group": "trio"} for host in "abc"}}
    said = {host: {"answer": {"state": "live" if host == "a" else "ready"}, "chosen": True} for host in "abc"}
    assert gates.rolling_order(trio, said, "answer", "chosen", list("abc")) == {
        "hosts": ["b", "c", "a"],
        "handovers": 1,
    }
    said["a"]["chosen"] = False
    order = gates.rolling_order(trio, said, "answer", "chosen", list("abc"))
    assert order == {"hosts": ["b", "c"], "handovers": 0}, "a run that was broken off goes on without a second move"
