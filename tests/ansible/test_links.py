"""Clusters as playbooks see them: the gate on links, and the lines of the report. Pure: no broker runs here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from harness.modules import load
from harness.topology import chain, cluster

if TYPE_CHECKING:
    from pathlib import Path


links = load("roles/broker/library/pollux_links.py")
report = load("filter_plugins/report.py")
GROUPS = {"pair2": ["a2", "b2"], "pair3": ["a3", "b3"]}


def link(node: str, *, connected: bool = True, waits: int = 0, arrived: int = 0, reason: str = "") -> dict[str, Any]:
    found = {
        "node": node,
        "connector": node,
        "nodeId": f"id of {node}",
        "connected": connected,
        "reason": reason or None,
    }
    return {**found, "waiting": waits, "confirmed": arrived}


def said(*found: dict[str, Any], incoming: tuple[str, ...] = ("a2", "b3")) -> dict[str, Any]:
    return {"name": "c", "links": list(found), "incoming": [{"node": one} for one in incoming], "routes": [{}]}


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        (said(link("a2"), link("b2", connected=False, reason="it waits"), link("b3")), []),
        (said(link("a2"), link("a3", connected=False, reason="refused")), ["pair3 is not reached (refused)"]),
        (said(link("a2")), ["pair3 is not reached"]),
        (
            said(link("a2"), {**link("a3", connected=False, reason="refused"), "node": None}),
            ["pair3 is not reached (refused)"],
        ),
        (said(link("a2"), link("a3"), incoming=("a2",)), ["pair3 has not reached this one"]),
        (said(), ["pair2 is not reached", "pair3 is not reached"]),
    ],
)
def test_any_member_of_a_group_will_do_in_both_directions(found: dict[str, Any], problems: list[str]) -> None:
    assert links.unreached(found, GROUPS) == problems


def test_what_waited_at_first_has_to_arrive_and_what_comes_later_does_not() -> None:
    drain = links.Drain()
    assert drain.left(said(link("a2", waits=5, arrived=100), link("a3"))) == 5
    assert drain.left(said(link("a2", waits=9, arrived=103), link("a3", waits=2))) == 2
    assert drain.left(said(link("a2", waits=400, arrived=105), link("a3", waits=2))) == 0
    # Nobody takes anything, and then the other broker of the pair counts from nothing.
    assert drain.left(said(link("a2", waits=400, arrived=105))) == 0
    assert drain.left(said(link("a2", waits=7, arrived=0))) == 7
    assert drain.left(said(link("a2", waits=0, arrived=0))) == 0


NOT_LIVE = "echo 'pollux: not-live: broker is backup' >&2; exit 3"


@pytest.mark.parametrize(
    ("of_cluster", "status", "answer", "reason"),
    [
        (NOT_LIVE, {"activation": {"state": "ready"}}, links.NO_NODE, ""),
        (NOT_LIVE, {"activation": {"state": "activating"}}, None, "pollux: not-live: broker is backup"),
        (NOT_LIVE, {"activation": None}, None, "pollux: not-live: broker is backup"),
        (NOT_LIVE, None, None, "pollux: not-live: broker is backup"),
        ("exit 2", {"activation": {"state": "live"}}, None, "pollux cluster status ended with 2"),
        ("echo '[]'", {"activation": {"state": "ready"}}, None, "it says nothing of a cluster"),
        (f"echo '{json.dumps(said(link('a2')))}'", None, said(link("a2")), ""),
    ],
)
def test_a_backup_that_waits_has_nothing_to_prove_and_nobody_else_is_let_off(
    tmp_path: Path, of_cluster: str, status: Any, answer: Any, reason: str
) -> None:
    """The broker answers "not-live" while it does not serve, whether it can take over or is about to serve."""
    program = tmp_path / "pollux"
    told = f"printf '%s' '{json.dumps(status)}'" if status is not None else "exit 4"
    program.write_text(f'#!/bin/sh\n[ "$1" = status ] && {{ {told}; exit; }}\n{of_cluster}\n')
    program.chmod(0o755)
    assert links.ask(str(program), 20.0) == (answer, reason)


def test_a_group_of_which_no_member_serves_passes_no_gate() -> None:
    model = cluster(3)
    answers = [{"item": "n1", "serves": True}, {"item": "n2", "serves": False}, {"item": "n3"}]
    assert report.unserved(model, "c", answers, None) == [
        "no member of group g2 serves as a node of cluster c",
        "no member of group g3 serves as a node of cluster c",
    ]
    assert report.unserved(model, "c", [{"item": f"n{one}", "serves": True} for one in (1, 2, 3)], None) == []
    # Who was none when a restart began needs to be none: the restart may make one of it.
    assert report.unserved(model, "c", answers, {"n1": {}}) == []
    assert report.unserved(model, "c", answers, {"n1": {}, "n3": {}}) == [
        "no member of group g3 serves as a node of cluster c"
    ]


def test_of_a_restart_no_more_is_asked_than_what_stood_in_both_directions() -> None:
    """Of a pair what its live said counts for both, as the other one serves next."""
    two = {"broker_ha_policy": "shared_store", "broker_group": "g1", "shared_store_path": "/srv"}
    hosts = {
        "n1": {**two, "broker_preferred": "live"},
        "b1": {**two, "broker_preferred": "backup", "broker_cluster": "c"},
    }
    model = cluster(4, **hosts)
    assert model["problems"] == []
    half = said(link("n2"), link("n3"), link("n4", connected=False), incoming=("n2", "n4"))
    answers: dict[str, Any] = {
        "n1": {"links": {"serves": True, "status": half}},
        "b1": {},
        "n2": {"links": {"serves": True, "status": said(link("b1"), link("n4"), incoming=("b1", "n3"))}},
        "n3": {"links": {"serves": False}},
    }
    to_two = {"g2": ["n2"]}
    assert report.links_that_stood(model, answers, "links") == {"n1": to_two, "b1": to_two, "n2": {"g1": ["n1", "b1"]}}


def test_a_link_to_a_colocated_backup_is_one_to_its_node() -> None:
    """Breaks when a node that is served elsewhere counts as one that was never reached: nobody waits for it then."""
    model = cluster(2)
    answers = {
        "n1": {"links": {"serves": True, "status": said(link("n2@n1"), incoming=("n2@n1",))}},
        "n2": {"links": {"serves": False}},
    }
    assert report.links_that_stood(model, answers, "links") == {"n1": {"g2": ["n2"]}}


def test_the_report_shows_each_node_and_whom_it_does_not_reach() -> None:
    model = cluster(3, **chain(3))
    answers: dict[str, Any] = {
        "n1": {"links": {"serves": True, "status": said(link("n2")), "waiting": 0, "problems": []}},
        "n2": {"links": {"serves": True, "status": said(link("n1")), "waiting": 4, "problems": ["g3 is not reached"]}},
        "n3": {"links": {"serves": False}},
    }
    assert report.cluster_report(model, answers, "links") == [
        "cluster c: 3 nodes",
        "  g1 (n1): 1 of 1 links stand, 0 messages wait for others, 1 queues of others are known",
        "  g2 (n2): 1 of 2 links stand, 4 messages wait for others, 1 queues of others are known",
        "    g3 is not reached",
    ]
    assert report.plan(model)[-4:] == [
        "cluster c (static connectors, max-hops 2)",
        "  g1 - g2",
        "  g2 - g1, g3",
        "  g3 - g2",
    ]
