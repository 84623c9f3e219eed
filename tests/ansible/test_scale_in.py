"""A node leaves its cluster by scale_in.yml: what is refused, how it is shown, and that all of it arrives elsewhere."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness import mqtt, stomp
from harness.bundle import MEMBERS, ROOT, Site, write_private
from harness.modules import load, results
from harness.renderer import Rendering, example
from harness.topology import broker, chain, cluster, model
from pollux.config import loads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.bundle import Run

scale_in = load("filter_plugins/scale_in.py")
LOGIN: Any = {"user": "demo", "password": "a-demo-password-0815"}


def said(state: str = "live", *, full: bool = False, noted: str = "", node: str = "11") -> dict[str, Any]:
    """Return the facts of a broker that was asked."""
    answer = {"state": state, "node_id": node, "status": {"store": {"full": full}}}
    return {"answer": answer, "noted": {"stage": noted, "node": node if noted else ""}}


def refusals(topology: Any, group: str, hostvars: Any, *, cancels: bool = False) -> str:
    """Why it is refused, in one text."""
    assert topology["problems"] == []
    lines = scale_in.asked(topology, group, list(topology["brokers"]))
    lines = lines or scale_in.problems(topology, group, hostvars, "answer", "noted", cancels=cancels)
    return "\n".join(lines)


def hosts(count: int = 3, **some: Any) -> dict[str, Any]:
    return {f"n{one}": some.get(f"n{one}", said()) for one in range(1, count + 1)}


def test_a_node_of_three_may_leave_and_its_plan_says_who_does_what() -> None:
    topology, found = cluster(3), hosts(3, n2=said(node="22"))
    assert refusals(topology, "g2", found) == ""
    assert scale_in.plan(topology, "g2", found, "answer", "noted") == {
        "stage": "",
        "node": "22",
        "live": "n2",
        "waiting": [],
        "teller": "n1",
    }
    assert scale_in.asked_members(topology, "g2", found, "noted") == ["n1", "n2", "n3"]


VOTING: dict[str, Any] = {
    f"{member}{pair}": broker(
        "live" if member == "a" else "backup",
        broker_group=f"p{pair}",
        broker_ha_policy="replication",
        broker_coordination="votes",
        broker_cluster="c",
        broker_start_timeout=300,
    )
    for pair in (1, 2, 3)
    for member in "ab"
}


@pytest.mark.parametrize(
    ("topology", "group", "found", "why"),
    [
        (cluster(3), "", hosts(), "scale_in_confirm is not set: name the group that is to leave"),
        (cluster(3), "n1", hosts(), "'n1' is no group: name the group that is to leave, -e scale_in_confirm=GROUP"),
        (cluster(2, n2={"broker_cluster": ""}), "g2", hosts(2), "group g2 is in no cluster"),
        (cluster(2, n2={"broker_cluster": ""}), "g1", hosts(2), "group g1 is the only one of cluster 'c'"),
        (cluster(3, **chain(3)), "g2", hosts(), "without group g2 no links lead from group g1 to g3"),
        (cluster(3, **chain(3)), "g3", hosts(), ""),
        (model(**VOTING), "p1", {}, "group p1 votes, and without it 2 groups do"),
        (cluster(3), "g1", hosts(n1=said("stopped")), "group g1 has 0 live brokers (n1 is stopped)"),
        (cluster(3), "g1", hosts(n3=said("unreachable")), "group g3 has 0 live brokers (n3 is unreachable)"),
        (cluster(3), "g1", hosts(n3={}), "group g3 has 0 live brokers (n3 is not asked)"),
        (
            cluster(3),
            "g1",
            hosts(n2=said(full=True), n3=said(full=True)),
            "the store of every broker that could have its messages is full: n2 of group g2, n3 of group g3",
        ),
        (cluster(3), "g1", hosts(n1=said(full=True), n2=said(full=True)), ""),
    ],
)
def test_what_could_lose_something_is_refused_by_name(topology: Any, group: str, found: Any, why: str) -> None:
    told = refusals(topology, group, found)
    assert why in told
    assert bool(why) is bool(told)


def test_a_run_that_leaves_out_a_node_of_the_cluster_is_refused() -> None:
    assert scale_in.asked(cluster(3), "g1", ["n1", "n2"]) == ["--limit leaves out n3, which must be asked"]


def test_a_run_that_was_broken_off_goes_on_where_it_was() -> None:
    topology = cluster(3)
    begun = hosts(n1=said("stopped", noted="begun"))
    assert "group g1 has 0 live brokers" in refusals(topology, "g1", begun), "it is started before this gate"
    for stage in ("handed over", "removed"):
        found = hosts(n1={"noted": {"stage": stage, "node": "ab"}})
        assert refusals(topology, "g1", found) == ""
        plan = scale_in.plan(topology, "g1", found, "answer", "noted")
        assert (plan["live"], plan["node"], plan["stage"], plan["teller"]) == ("", "ab", stage, "n2")
        assert scale_in.asked_members(topology, "g1", found, "noted") == ["n2", "n3"]
        assert "there is nothing to cancel" in refusals(topology, "g1", found, cancels=True)
    assert refusals(topology, "g1", hosts(n3=said("unreachable")), cancels=True) == ""
    assert "group g1 has 0 live" in refusals(topology, "g1", hosts(n1=said("stopped")), cancels=True)


def test_the_hint_names_what_names_the_group() -> None:
    router = {"name": "r", "policy": "ROUND_ROBIN", "groups": ["g1", "g2"]}
    topology = cluster(3, n3={"broker_connection_routers": [router]}, n1={"broker_links": ["g2", "g3"]})
    assert topology["problems"] == []
    assert scale_in.hint(topology, "g2")[1:4] == [
        "  take out n2 (site.yml with them still in it starts them again, and they are refused)",
        "  take g2 out of broker_links of others",
        "  take g2 out of broker_connection_routers of g3",
    ]


# -- what an inventory says of stops


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (cluster(2, everybody={"broker_scale_down": True}), ""),
        (cluster(2, everybody={"broker_scale_down": True, "broker_scale_down_group": "blue"}), ""),
        (
            cluster(3, n1={"broker_scale_down": True, "broker_scale_down_group": "blue"}),
            "n1: broker_scale_down_group: 'blue' is of no other broker that this one is linked to in the cluster 'c'",
        ),
        (cluster(1, everybody={"broker_scale_down": True}), "n1: broker_scale_down: is set, but no other group is"),
        (
            cluster(2, n1={"broker_scale_down": True, "broker_cluster": ""}),
            "n1: broker_scale_down: is set, but broker_cluster is not",
        ),
        (
            model(
                a=broker("live", broker_cluster="c", broker_scale_down_group="blue"),
                b=broker("backup", broker_cluster="c", broker_scale_down_group="blue"),
            ),
            "a, b: broker_scale_down_group: is set, but broker_ha_policy is shared_store",
        ),
    ],
)
def test_who_would_have_nobody_to_hand_over_to_is_refused(found: dict[str, Any], problem: str) -> None:
    told = found["problems"]
    assert any(line.startswith(problem) for line in told) if problem else told == []


@pytest.mark.parametrize(("group", "enabled"), [("", False), ("blue", False), ("", True)])
def test_the_broker_takes_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, *, enabled: bool
) -> None:
    monkeypatch.setenv("POLLUX_CLUSTER_PASSWORD", LOGIN["password"])
    inventory = example(tmp_path, "example-scale-down")
    variables = inventory / "group_vars" / "brokers"
    write_private(variables / "vault.yml", f"vault_cluster_password: {LOGIN['password']}\n")
    given = (f"broker_scale_down: {str(enabled).lower()}", f"broker_scale_down_group: '{group}'")
    (variables / "more.yml").write_text("\n".join(("---", *given, "")))
    rendering = Rendering(tmp_path, inventory)
    hosts = sorted(rendering.render("cluster"))
    assert hosts == [f"broker{number}.example.com" for number in (1, 2, 3)]
    for host in hosts:
        configuration = loads(rendering.files("cluster", host)["/opt/pollux/etc/broker.xml"])
        assert configuration.warnings == ()
        found = configuration.scale_down
        assert (found is not None) is bool(group or enabled)
        assert found is None or (found.enabled, found.group_name or "") == (enabled, group)


# -- the module and its action

SAYS = """#!/bin/sh
# Answers of `pollux cluster drain`, one after the other; the last one again and again.
case "$*" in *--status*) ;; *) echo "$*" >>{directory}/asked ;; esac
line=$(head -n 1 {directory}/answers)
[ "$(wc -l <{directory}/answers)" -gt 1 ] && sed -i 1d {directory}/answers
case "$line" in '{{'*) echo "$line" ;; *) echo "$line" >&2; exit 3 ;; esac
"""


def answer(state: str, left: int = 0, reason: str | None = None) -> str:
    queues = [{"name": "orders", "messages": left, "held": 1, "target": None, "reason": reason}] if left else []
    found = {"state": state, "reason": reason, "moved": 5, "left": left, "onTheWay": 2, "targets": [], "queues": queues}
    return json.dumps(found)


def drained(directory: Path, *answers: str, **arguments: Any) -> dict[str, Any]:
    """Run the action on a program that gives these answers."""
    program = directory / "pollux"
    program.write_text(SAYS.format(directory=directory))
    program.chmod(0o755)
    (directory / "answers").write_text("".join(f"{one}\n" for one in answers))
    given = json.dumps({"program": str(program), "look": 0.2, **arguments})
    found = results(
        directory / "ansible",
        *("ansible", "localhost", "-i", "localhost,", "-m", "pollux_drain", "-a", given),
        ANSIBLE_LIBRARY=str(ROOT / "roles" / "broker" / "library"),
        ANSIBLE_ACTION_PLUGINS=str(ROOT / "roles" / "broker" / "action_plugins"),
    )
    return found["localhost"]


def test_a_drain_is_shown_while_it_goes_on_and_a_broker_that_is_away_is_asked_again(tmp_path: Path) -> None:
    found = drained(
        tmp_path,
        answer("moving", 9),
        "no broker answers",
        answer("waiting", 4, "node b is not connected"),
        answer("ready", 1),
        state="seen",
        wait=60,
    )
    assert (found.get("failed", False), found["done"], found["changed"]) == (False, True, False)
    shown = [line.strip() for line in found["printed"].splitlines() if line.startswith("    localhost: ")]
    assert shown[0].startswith("localhost: ")
    assert "localhost: waiting, 5 handed over, 4 left, of these 2 on the way: node b is not connected" in shown


@pytest.mark.parametrize(
    ("said_last", "why"),
    [
        (answer("waiting", 4, "node b is not connected"), "queue orders: 4 messages, 1 with consumers: node b is not"),
        (answer("off", 4), "the drain was cancelled; what had not gone is still here"),
    ],
)
def test_what_is_left_is_named_when_its_time_is_over(tmp_path: Path, said_last: str, why: str) -> None:
    found = drained(tmp_path, said_last, state="seen", wait=1)
    assert found["failed"]
    assert why in "\n".join(found["msg"])


def test_it_is_begun_once_and_cancelled_once(tmp_path: Path) -> None:
    begun = drained(tmp_path, answer("off", 4), answer("moving", 4), state="begun")
    assert (begun["changed"], begun["drain"]["state"]) == (True, "moving")
    assert drained(tmp_path, answer("moving", 4), state="begun")["changed"] is False
    assert drained(tmp_path, answer("off", 4), state="cancelled")["changed"] is False
    assert (tmp_path / "asked").read_text().splitlines() == ["cluster drain --json"]


@pytest.mark.parametrize(
    ("log", "status"),
    [
        ("2026 INFO pollux.broker broker stopped exit=0\n", 0),
        ('{"message": "broker stopped", "exit": 13}\n', 13),
        ("2026 INFO pollux.broker broker stopped exit=0\n2026 INFO pollux.broker broker starts\n", -1),
        ("", -1),
    ],
)
def test_how_it_ended_is_what_its_log_says_last(tmp_path: Path, log: str, status: int) -> None:
    (tmp_path / "log").write_text(log)
    assert drained(tmp_path, answer("off"), state="ended", log=str(tmp_path / "log"))["exit"] == status


# -- brokers that run


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Site]:
    """The members of the local inventory as two brokers of their own that are one cluster."""
    found = Site(
        tmp_path,
        {
            "broker_group": "{{ inventory_hostname }}",
            "broker_ha_policy": "none",
            "broker_cluster": "nodes",
            "broker_cluster_settings": {"retry-interval": 100},
            "broker_stop_timeout": 120,
            "broker_addresses": [{"name": "orders", "anycast": ["orders"]}],
            "broker_users": [{"name": LOGIN["user"], "roles": ["amq", "admin"], "password": LOGIN["password"]}],
        },
    )
    inventory = found.inventory / "hosts.yml"
    inventory.write_text(re.sub(r"(?m)^ *broker_preferred: .*\n", "", inventory.read_text()))
    try:
        yield found
    finally:
        found.stop()


def reached(site: Site, number: int) -> Any:
    """Return a deployed broker as the clients of tests have to know it."""
    return SimpleNamespace(ports={"all": 61616 + site.offset + 100 * number})


def messages(site: Site, member: str) -> int:
    found: int = site.pollux(member, "status")["messages"]
    return found


def flat(run: Run) -> str:
    return " ".join(run.output.split())


@pytest.mark.timeout(1200)
@pytest.mark.processes
def test_a_node_leaves_with_all_it_has_once(nodes: Site) -> None:
    """Refused, tried in check mode, cancelled, begun again; and a run after it changes nothing."""
    nodes.run("site.yml").succeeded()
    castor, pollux = (reached(nodes, number) for number in range(2))
    with stomp.connect(castor, **LOGIN) as client:
        for number in range(500):
            client.raw.send("orders", str(number), headers={"persistent": "true"})
        client.send("orders", "500", persistent="true")
    options: Any = {
        "connecting": {"clean_start": True, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
    }
    with mqtt.connect(castor, "away", **LOGIN, **options) as session:
        session.subscribe("news", qos=1)
    with mqtt.connect(castor, **LOGIN) as sender:
        sender.publish("news", "1", qos=1)
    refused = nodes.run("scale_in.yml", "-e", "scale_in_confirm=twins")
    assert "'twins' is no group" in str(refused.failures[0].message)
    checked = nodes.run("scale_in.yml", "--check", "-e", "scale_in_confirm=castor").succeeded()
    assert "without --check castor would hand over what it has" in flat(checked)
    assert (messages(nodes, "castor"), messages(nodes, "pollux")) == (502, 0)
    assert nodes.pollux("castor", "cluster", "drain")["targets"] == ["pollux"]
    cancelled = nodes.run("scale_in.yml", "-e", "scale_in_confirm=castor", "-e", "scale_in_cancel=true").succeeded()
    assert "the drain of castor is cancelled" in flat(cancelled)
    done = nodes.run("scale_in.yml", "-e", "scale_in_confirm=castor").succeeded()
    assert "group castor has left cluster 'nodes'" in flat(done)
    assert {result.host for result in done.changed} == set(MEMBERS)
    left = nodes.pollux("pollux", "cluster", "status")
    assert (left["incoming"], left["routes"], [link["connected"] for link in left["links"]]) == ([], [], [False])
    with stomp.connect(pollux, **LOGIN) as client:
        client.subscribe("orders")
        assert sorted(int(client.message().body) for _ in range(501)) == list(range(501))
        client.silence()
    options["connecting"]["clean_start"] = False
    with mqtt.connect(pollux, "away", **LOGIN, **options) as session:
        assert session.connack[0].session_present
        assert session.message().payload == b"1"
    again = nodes.run("scale_in.yml", "-e", "scale_in_confirm=castor").succeeded()
    assert again.changed == []
