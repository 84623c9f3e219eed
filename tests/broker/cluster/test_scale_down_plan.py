"""Who gets what a broker has that is scaled down, and how far it is: decisions."""

from __future__ import annotations

import pytest

from pollux.cluster.scale_down.plan import (
    MOST_BYTES_ON_THE_WAY,
    MOST_ON_THE_WAY,
    About,
    Part,
    Peer,
    Progress,
    Shape,
    Sight,
    Wanted,
    choose,
    contradiction,
    nowhere,
    progress,
    room_for,
    targets,
)

HERE = "host1"
_ABOUT = About(free=100)


def peer(number: int, about: About | None = _ABOUT, *, connected: bool = True, reason: str = "") -> Peer:
    return Peer(f"n{number}", bytes([number]) * 16, f"node{number}", connected, about, reason)


TARGETS = {
    "every node that is connected": ([peer(1), peer(2)], Wanted(), ["node1", "node2"], ""),
    "only those named": ([peer(1), peer(2)], Wanted(connectors=("n2",)), ["node2"], ""),
    "none that is named": ([peer(1)], Wanted(connectors=("n9",)), [], "no other node is named"),
    "nobody else": ([], Wanted(), [], "no other node is named"),
    "not connected": (
        [peer(1, connected=False, reason="Connection refused")],
        Wanted(),
        [],
        "no node may take messages: node1: Connection refused",
    ),
    "not heard of yet": ([peer(1, None)], Wanted(), [], "node1: it has not told yet what it takes"),
    "draining itself": ([peer(1, About(draining=True))], Wanted(), [], "node1: it is being scaled down itself"),
    "of the group": (
        [peer(1, About(group="blue")), peer(2, About(group="green")), peer(3)],
        Wanted(group="blue"),
        ["node1"],
        "",
    ),
    "of another group": (
        [peer(1, About(group="green")), peer(2)],
        Wanted(group="blue"),
        [],
        "node1: its group-name is 'green', not 'blue'; node2: it has no group-name, not 'blue'",
    ),
    "whatever group": ([peer(1, About(group="green"))], Wanted(), ["node1"], ""),
}


@pytest.mark.parametrize("case", TARGETS)
def test_targets(case: str) -> None:
    peers, wanted, names, reason = TARGETS[case]
    found, why = targets(peers, wanted)
    assert [one.name for one in found] == names
    assert reason in why
    assert bool(why) is not bool(names)
    # What is not known yet is nothing to warn about before a stop.
    answered = bool(peers) and all(peer.connected and peer.about is not None for peer in peers)
    assert nowhere(peers, wanted) == (why if answered and case != "none that is named" else "")


def test_the_target_has_consumers_then_is_on_another_machine_then_has_most_room() -> None:
    small, large = peer(1, About(free=100, host="a")), peer(2, About(free=1000, host="b"))
    near = peer(3, About(free=10_000, host=HERE))
    full = peer(4, About(free=0, host="c"))
    everybody = [small, large, near, full]
    assert choose(everybody, {small.node}, {}, 10, HERE) is small
    assert choose(everybody, (), {}, 10, HERE) is large
    assert choose(everybody, (), {large.node: 950}, 10, HERE) is small
    assert choose([near, full], (), {}, 10, HERE) is near
    assert choose([full], (), {}, 10, HERE) is full
    one, two = peer(5), peer(6)
    assert choose([one, two], (), {}, 0, HERE) == choose([two, one], (), {}, 0, HERE)


PROGRESS = {
    "moving": (Sight((Part("q", 10, 3),)), "moving", "10 messages are left"),
    "on the way": (Sight(on_the_way=4), "moving", "4 messages are left, on the way: "),
    "sessions last": (Sight(states=2), "moving", "sessions and subscriptions are handed over"),
    "nobody": (Sight((Part("q", 1),), nobody="no node"), "waiting", "no node"),
    "sessions to nobody": (Sight(states=1, nobody="no node"), "waiting", "no node"),
    "nobody is needed": (Sight(nobody="no node"), "drained", ""),
    "refused": (Sight((Part("q", 1, refused="another"),)), "waiting", "queue 'q': another"),
    "a subscription refused": (Sight((Part("q", 0, refused="no"),), states=1), "waiting", "queue 'q': no"),
    "refused while others move": (Sight((Part("q", 1, refused="no"), Part("r", 1))), "moving", "2 messages are left"),
    "held": (Sight((Part("q", 2, 2), Part("r", 1, 1))), "waiting", "and 1 other queues are with consumers"),
    "held until the stop": (Sight((Part("q", 2, 2),), stops=True), "ready", "they go when the broker stops"),
    "node down": (
        Sight(unreached=(("node3", 5),)),
        "waiting",
        "5 messages wait for node node3, which is not connected",
    ),
    "not ready with a node down": (Sight((Part("q", 1, 1),), unreached=(("n", 1),), stops=True), "waiting", "n"),
    "coming": (Sight(coming=("node2",)), "waiting", "node node2 still has messages for this one"),
    "drained": (Sight(), "drained", ""),
}


@pytest.mark.parametrize("case", PROGRESS)
def test_progress(case: str) -> None:
    sight, state, reason = PROGRESS[case]
    found = progress(sight)
    assert found.state == state
    assert reason in found.reason
    assert (found == Progress("drained")) is (state == "drained")


def test_what_is_left_is_all_that_no_other_node_has() -> None:
    assert Sight((Part("q", 2, 1), Part("r", 3)), on_the_way=4, unreached=(("n", 5),)).left == 14


def test_no_more_is_written_for_a_node_than_may_be_on_the_way() -> None:
    assert room_for(0, 0) == MOST_ON_THE_WAY
    assert room_for(MOST_ON_THE_WAY - 1, MOST_BYTES_ON_THE_WAY) == 1
    assert room_for(MOST_ON_THE_WAY + 1, 0) == 0
    assert room_for(0, MOST_BYTES_ON_THE_WAY + 1) == 0


def test_a_queue_of_that_name_takes_messages_only_when_it_means_the_same() -> None:
    here = Shape("a", "ANYCAST", "none")
    assert contradiction("q", here, here) == ""
    for what, other, ours, theirs in (
        ("address", here._replace(address="b"), "a", "b"),
        ("routing type", here._replace(routing_type="MULTICAST"), "ANYCAST", "MULTICAST"),
        ("filter", here._replace(selector="x = 1"), "none", "x = 1"),
    ):
        said = f"there is another queue 'q', of {what} {ours!r} instead of {theirs!r}: delete one of them"
        assert contradiction("q", here, other) == said
