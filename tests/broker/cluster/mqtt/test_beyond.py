"""MQTT clients of nodes that reach each other by way of others: chains and rings, as far as max-hops says.

What has to be the same next to each other and behind others is here too, with both.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import nodes, until
from broker.cluster.connection.known import distance
from broker.cluster.mqtt.test_neighbours import Served, bodies
from harness.sessions.broker import PASSWORD
from pollux.cluster.mqtt.beyond import Beyond, _bounded
from pollux.cluster.mqtt.words import Passed, Take, Words, encode
from pollux.cluster.once import Once
from pollux.wire.core.frames import CoreError
from pollux.wire.mqtt.packets import Disconnect
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.mqtt.test_neighbours import Make

__all__ = ["nodes"]
pytestmark = pytest.mark.asyncio


async def row(make: Make, count: int, *, ring: bool = False, hops: int | None = None) -> list[Served]:
    """Nodes each of which reaches its neighbours alone."""
    served = [Served(node) for node in await make(count, max_hops=hops or count - 1)]
    for at, one in enumerate(served if ring else served[:-1]):
        await linked(one.node, served[(at + 1) % count].node)
    for at, one in enumerate(served):
        ends = 2 if ring or 0 < at < count - 1 else 1
        await until(lambda one=one, ends=ends: len(one.neighbours._reached()) == len(one.node.cluster.incoming) == ends)  # type: ignore[misc]
    return served


async def linked(one: Node, other: Node) -> None:
    for link in (one.reach(other), other.reach(one)):
        await until(lambda link=link: link.connected)  # type: ignore[misc]


def cut(one: Node, other: Node) -> None:
    for node, far in ((one, other), (other, one)):
        node.connector_to(far).allowed.clear()
        node.connector_to(far).links[-1].cut()


def mend(one: Node, other: Node) -> None:
    for node, far in ((one, other), (other, one)):
        node.connector_to(far).allowed.set()


@pytest.mark.parametrize("ring", [False, True])
async def test_a_client_finds_its_session_and_its_messages_behind_other_nodes(nodes: Make, ring: bool) -> None:
    """Breaks when only neighbours are asked, when they do not say on that it is here, or a ring answers itself."""
    served = await row(nodes, 4, ring=ring, hops=4)
    home, away = served[0], served[2 if ring else 3]
    first = home.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t/+", "u")
    await first.leave()
    sender = home.client()
    await sender.connect("sender")
    for number in range(5):
        await sender.publish("t/x", str(number).encode())
    again = away.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    assert sorted(await bodies(again, 5)) == [b"0", b"1", b"2", b"3", b"4"]
    await until(lambda: "c" not in home.sessions.sessions)
    await until(lambda: home.queues() == set())
    await sender.publish("u", b"later")
    assert await bodies(again, 1) == [b"later"]
    await again.ping()
    assert away.sessions.sessions["c"].connection is not None, "who came by the other way did not end it"
    assert away.queues() == {"c.t.*", "c.u"}


async def test_a_session_is_not_looked_for_further_than_messages_go(nodes: Make) -> None:
    one, _, three = await row(nodes, 3, hops=1)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    again = three.client()
    assert not (await again.connect("c", clean=False, expiry=1000)).session_present
    await first.ping()


async def test_a_client_takes_its_place_from_itself_behind_other_nodes(nodes: Make) -> None:
    one, _, three = await row(nodes, 3)
    first = one.client()
    await first.connect("same")
    second = three.client()
    await second.connect("same")
    (goodbye,) = await first.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.SESSION_TAKEN_OVER
    await second.ping()


@pytest.mark.parametrize("count", [2, 3])
async def test_a_clean_start_ends_the_session_wherever_it_is(nodes: Make, count: int) -> None:
    home, *_, away = await row(nodes, count)
    first = home.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await first.leave()
    second = away.client()
    assert not (await second.connect("c", clean=True, expiry=1000)).session_present
    assert home.sessions.sessions == {}
    await until(lambda: home.queues() == set())


@pytest.mark.parametrize("count", [2, 3])
async def test_another_users_session_is_not_given(nodes: Make, count: int) -> None:
    home, *_, away = await row(nodes, count)
    first = home.client()
    await first.connect("c", clean=False, expiry=1000, user="ann", password=PASSWORD.encode())
    for clean in (True, False):
        thief = away.client()
        answer = await thief.connect("c", clean=clean, expiry=1000, user="bob", password=PASSWORD.encode())
        assert answer.reason == ReasonCode.NOT_AUTHORIZED
    await first.ping()
    assert home.sessions.sessions["c"].user == "ann"


@pytest.mark.parametrize("ring", [False, True])
async def test_what_is_retained_is_at_every_node(nodes: Make, ring: bool) -> None:
    served = await row(nodes, 4, ring=ring)
    sender = served[0].client()
    await sender.connect("sender")
    for body in (b"on", b"off"):
        await sender.publish("state", body, retain=True)
        for one in served:
            await until(
                lambda one=one, body=body: (  # type: ignore[misc]
                    (found := one.sessions.retained.store.get("state")) is not None and body in found.data
                )
            )
    await sender.publish("state", b"", retain=True)
    for one in served:
        await until(lambda one=one: one.sessions.retained.store.get("state") is None)  # type: ignore[misc]


@pytest.mark.parametrize("count", [2, 4])
async def test_a_message_published_elsewhere_after_suback_is_not_missed(nodes: Make, count: int) -> None:
    one, *_, other = await row(nodes, count)
    sender, receiver = other.client(), one.client()
    await sender.connect("s")
    await receiver.connect("r")
    for number in range(20):
        await receiver.subscribe(f"t/{number}")
        await sender.publish(f"t/{number}", str(number).encode())
        assert await bodies(receiver, 1) == [str(number).encode()]


async def test_suback_waits_until_nodes_behind_others_have_heard(nodes: Make) -> None:
    one, two, three = await row(nodes, 3)
    receiver = one.client()
    await receiver.connect("r")
    (link,) = three.node.connector_to(two.node).links
    held: list[bytes] = []
    told = link.ends[1]
    told.write = held.append  # type: ignore[assignment]
    subscribing = asyncio.create_task(receiver.subscribe("t"))
    await until(lambda: distance(two.node, one.node, "r.t") and held)
    await asyncio.sleep(0.1)  # it would have come meanwhile
    assert not subscribing.done()
    del told.write
    for data in held:
        told.write(data)
    await subscribing
    assert distance(three.node, one.node, "r.t") == 2


async def test_a_session_comes_when_its_node_is_reached_again_by_way_of_another(nodes: Make) -> None:
    """Breaks when only the node that is next to it asks."""
    one, two, three = await row(nodes, 3)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await first.leave()
    sender = one.client()
    await sender.connect("sender")
    await sender.publish("t", b"waits")
    cut(one.node, two.node)
    again = three.client()
    assert not (await again.connect("c", clean=False, expiry=1000)).session_present
    await again.subscribe("t")
    mend(one.node, two.node)
    assert await bodies(again, 1) == [b"waits"]
    await until(lambda: "c" not in one.sessions.sessions)


async def test_a_node_behind_that_hangs_does_not_hide_the_session_of_the_one_before_it(nodes: Make) -> None:
    """Breaks when who passes something on waits as long as who asked: it answers too late."""
    one, two, three = await row(nodes, 3)
    first = two.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.leave()
    (link,) = two.node.connector_to(one.node).links
    link.ends[0].write = lambda _: None  # type: ignore[assignment]  # nothing that it is asked arrives
    again = three.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present


async def test_what_a_node_says_of_how_far_something_goes_is_bounded() -> None:
    """Breaks when names take any memory, waits any time, or what has no name goes round a ring for ever."""
    words = Words()
    (payload,) = encode(Take(1, "c", None, clean=False, passed=Passed(2, 1.0, b"123456789")), 1000)
    with pytest.raises(CoreError, match="cannot be read"):
        words.decode(payload)
    assert [_bounded(within) for within in (1.5, 1e9, -1.0, math.nan)] == [1.5, 5.0, 5.0, 5.0]
    nobody: Any = None
    beyond = Beyond(nobody, list, list)
    assert [beyond.is_new(Passed(3)) for _ in range(2)] == [True, False]
    assert [beyond.is_new(Passed()) for _ in range(2)] == [True, True]


async def test_a_node_of_a_ring_does_not_take_a_client_from_itself(nodes: Make) -> None:
    """Breaks when what it asks comes round, and is answered."""
    one, two, three, _ = await row(nodes, 4, ring=True, hops=4)
    client = three.client()
    await client.connect("c", clean=False, expiry=1000)
    takeovers = three.sessions.counters.takeovers
    cut(one.node, two.node)
    await until(lambda: len(two.neighbours._reached()) == 1)
    mend(one.node, two.node)
    await until(lambda: len(two.neighbours._reached()) == 2)
    first = one.client()
    await first.connect("asks all", clean=False, expiry=1000)
    await client.ping()
    assert three.sessions.counters.takeovers == takeovers


async def test_an_empty_queue_does_not_end_while_messages_are_on_their_way_to_it_by_way_of_others(
    nodes: Make,
) -> None:
    """Breaks when only the neighbour is asked what waits: what waits behind it was for this queue."""
    one, two, three = await row(nodes, 3)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await until(lambda: distance(three.node, one.node, "c.t") == 2)
    (asked,) = two.neighbours._reached()[:1]
    passed = Passed(2, 0.5, b"12345678")
    assert await two.neighbours.synced(passed, asked) == 0
    cut(two.node, three.node)
    sender = three.client()
    await sender.connect("sender")
    await sender.publish("t", b"1")
    await until(lambda: not two.node.cluster.complete())
    assert await two.neighbours.synced(passed._replace(what=b"87654321"), asked) == -1
    mend(two.node, three.node)
    assert await bodies(first, 1) == [b"1"]


async def test_what_is_passed_on_waits_less_and_less_and_counts_once_unless_it_came_by_a_longer_way() -> None:
    passed = Passed(3, 1.0, b"a")
    assert passed.on() == Passed(2, 0.75, b"a")
    once = Once(100)
    assert [once.first(b"a", hops) for hops in (1, 1, 2, 1, 2)] == [True, False, True, False, False]
    for number in range(1000):
        once.first(number.to_bytes(2), 1)
    assert once.first(b"a", 2), "what came long ago is forgotten"
    await asyncio.sleep(0)
