"""Scale-down between nodes in one process: everything goes, once, as it was; whatever breaks; and who may get it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.scaled import Scaled, contents, count, scaled
from broker.engine.conftest import Receiver, message
from pollux.cluster.connection.forwarded import to_send
from pollux.cluster.scale_down.drain import Drain
from pollux.cluster.scale_down.plan import Wanted
from pollux.cluster.scale_down.transfer import Emptying
from pollux.cluster.scale_down.ways import NodeWay
from pollux.config.address_settings import AddressFullPolicy
from pollux.errors import InvalidRequestError
from pollux.message import RoutingType

if TYPE_CHECKING:
    from broker.cluster.connection.nodes import Make
    from pollux.routing.queue import Queue

__all__ = ["scaled"]

pytestmark = pytest.mark.asyncio

HOUR = 3_600_000


async def test_a_backlog_goes_in_order_with_its_queue_as_it_was(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    one.office.queue("orders", selector="a IS NULL", max_consumers=0, exclusive=True, ring_size=5000, user="alice")
    for number in range(1000):
        one.post.send(message(str(number).encode(), priority=9 if number % 10 == 0 else 4, user="bob"))
    await one.office.stable()
    found.drain.begin()
    await found.done()
    assert found.drain.moved == 1000
    assert count(one, "orders") == 0
    queue = two.post.queue("orders")
    assert queue.spec == replace(one.post.queue("orders").spec, configuration_managed=False)
    queue.attributes.max_consumers = -1
    got = await contents(two, "orders")
    assert [int(each.data) for each in got] == [*range(0, 1000, 10), *(n for n in range(1000) if n % 10)]
    assert {each.user for each in got} == {"bob"}


async def test_every_kind_of_message_is_as_it_was(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    now = one.office.wall_ms()
    for name in ("plain", "scheduled", "delayed", "values"):
        one.office.queue(name, last_value=name == "values")
    one.post.send(message(b"p", "plain", expiration=now + HOUR, timestamp=7, group="g", group_sequence=3))
    one.post.send(message(b"s", "scheduled", deliver_at=now + HOUR))
    for number in range(3):
        one.post.send(message(str(number).encode(), "values", last_value="key"))
    one.post.send(message(b"again", "delayed"))
    writer = one.post.storage.large.create()
    writer.write(b"x" * 300_000)
    large = message(b"head", "plain")
    large.large = writer.finish()
    one.post.send(large)
    await one.office.stable()
    # Its delivery failed twice, and it is tried again in an hour.
    receiver = Receiver()
    one.post.attach(one.post.queue("delayed"), receiver)
    (failed,) = await receiver.wait(1)
    failed.delivery_count, failed.deliver_at = 2, now + HOUR
    queue: Queue = one.post.queue("delayed")
    queue.redelivery = replace_delay(queue.redelivery)
    one.post.release([failed], failed=True)
    one.post.detach(queue, receiver)
    assert queue.scheduled == 1
    found.drain.begin()
    await found.done()
    plain, body = await contents(two, "plain")
    assert (plain.expiration, plain.timestamp, plain.group, plain.group_sequence) == (now + HOUR, 7, "g", 3)
    assert body.large.size == 300_000
    assert [each.data for each in await contents(two, "values")] == [b"2"]
    for name, failures in (("scheduled", 0), ("delayed", 3)):
        there = two.post.queue(name)
        assert there.scheduled == 1, name
        (reference,) = there.iterate()
        assert reference.deliver_at > now + HOUR / 2
        assert reference.delivery_count == failures
    await found.reopen_other(two)
    await two.office.stable()
    _, ((_, due, failures),) = two.post.queue("delayed").scheduled_ids(5)
    assert due > now + HOUR / 2
    assert failures == 3


def replace_delay(policy: Any) -> Any:
    """The same policy with a delay of an hour, and more attempts than any test makes."""
    return replace(policy, base_delay=HOUR, max_delay=-1, max_attempts=100)


async def test_a_message_in_two_queues_whose_duplicate_id_is_known_arrives_in_both(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    for name in ("first", "second"):
        one.office.queue(name, "news", routing_type=RoutingType.MULTICAST)
    one.post.send(message(b"1", "news", duplicate_id=b"\xff\x00id"))
    await one.office.stable()
    found.drain.begin()
    await found.done()
    assert [count(two, name) for name in ("first", "second")] == [1, 1]
    two.post.send(message(b"sent again", "news", duplicate_id=b"\xff\x00id"))
    await two.office.stable()
    assert [count(two, name) for name in ("first", "second")] == [1, 1]
    await found.reopen_other(two)
    two.post.send(message(b"and again", "news", duplicate_id=b"\xff\x00id"))
    await two.office.stable()
    assert [count(two, name) for name in ("first", "second")] == [1, 1]


async def test_duplicate_ids_of_messages_that_are_gone_are_known_there(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    one.office.queue("orders")
    ids = [bytes([number % 256, number // 256, 255]) for number in range(1500)]
    for each in ids:
        one.post.send(message(b"x", duplicate_id=each))
    await one.office.stable()
    await contents(one, "orders")
    one.post.detach(one.post.queue("orders"), next(iter(one.post.queue("orders").consumers)))
    one.post.purge(one.post.queue("orders"))
    one.post.send(message(b"left"))
    await one.office.stable()
    found.drain.begin()
    await found.done()
    for each in ids:
        two.post.send(message(b"again", duplicate_id=each))
    await two.office.stable()
    assert count(two, "orders") == 1


async def test_what_is_paged_goes_too(nodes: Make) -> None:
    one, two = await nodes()
    one.office.settings("#", max_size_bytes=20_000, address_full_policy=AddressFullPolicy.PAGE, page_size_bytes=10_000)
    await one.reopen()
    found = Scaled(one, [two], Wanted())
    await found.join()
    await found.linked()
    one.office.queue("orders")
    for number in range(500):
        one.post.send(message(str(number).encode() + b" " * 500))
    await one.office.stable()
    assert one.post.pages.active
    found.drain.begin()
    await found.done()
    assert [int(each.data) for each in await contents(two, "orders")] == list(range(500))
    await found.drain.stop()


@pytest.mark.parametrize("kind", ["paused", "non_destructive", "consumers_before_dispatch"])
async def test_queues_that_hand_nothing_out_are_emptied_too(scaled: Any, kind: str) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    attributes: dict[str, Any] = {"paused": {}, "non_destructive": {kind: True}}.get(kind, {kind: 3})
    queue = one.office.queue("orders", **attributes)
    if kind == "paused":
        one.post.address_manager.pause_queue(queue, paused=True)
    for number in range(300):
        one.post.send(message(str(number).encode()))
    await one.office.stable()
    await found.reopen()  # all of it is on disk only
    await found.linked()
    found.drain.begin()
    await found.done()
    there = two.post.queue("orders")
    assert count(two, "orders") == 300
    assert (there.paused, there.non_destructive) == (kind == "paused", kind == "non_destructive")
    assert [int(reference.message.data) for reference in there.iterate()] == list(range(300))


async def test_consumers_are_served_meanwhile_and_a_subscriber_keeps_its_subscription(scaled: Any) -> None:
    found = await scaled(wanted=Wanted(enabled=True))
    one, (two,) = found.one, found.others
    one.office.queue("orders", max_consumers=1)
    one.office.queue("news", routing_type=RoutingType.MULTICAST)
    taker, subscriber = Receiver(credit=5), Receiver(credit=5)
    one.post.attach(one.post.queue("orders"), taker)
    one.post.attach(one.post.queue("news"), subscriber)
    for number in range(20):
        one.post.send(message(str(number).encode()))
        one.post.send(message(str(number).encode(), "news"))
    await taker.wait(5)
    found.drain.begin()
    await until(lambda: found.drain.look().state == "ready")
    assert "with consumers" in found.drain.look().reason
    assert (count(one, "orders"), count(two, "orders")) == (5, 15)
    assert (count(one, "news"), count(two, "news")) == (20, 0)
    one.post.detach(one.post.queue("orders"), taker)
    one.post.detach(one.post.queue("news"), subscriber)
    await found.done()
    assert (count(two, "orders"), count(two, "news")) == (20, 20)


async def test_it_is_not_ready_while_it_holds_what_goes_next(scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when that counts as being with consumers: for a moment nothing else was in the way."""
    found = await scaled(wanted=Wanted(enabled=True))
    said = []
    real = Emptying._hand_over

    def looked(emptying: Emptying) -> None:
        said.append(found.drain.look().state)
        real(emptying)

    monkeypatch.setattr(Emptying, "_hand_over", looked)
    found.one.office.queue("orders")
    for number in range(5):
        found.one.post.send(message(str(number).encode()))
    found.drain.begin()
    await found.done()
    assert set(said) == {"moving"}


async def test_at_the_end_everything_goes_and_a_new_start_is_an_ordinary_one(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    one.office.queue("orders")
    receiver = Receiver()
    one.post.attach(one.post.queue("orders"), receiver)
    one.post.send(message(b"1"))
    await receiver.wait(1)
    one.post.detach(one.post.queue("orders"), receiver)
    end = await found.drain.finish(5.0, asyncio.Event())
    assert end.state == "drained"
    assert count(two, "orders") == 1
    await found.reopen()
    assert not found.drain.running


async def test_with_nothing_to_hand_over_nobody_is_needed(nodes: Make) -> None:
    (one,) = await nodes(1)
    found = Scaled(one, [], Wanted())
    await found.join()
    assert (await found.drain.finish(30.0, asyncio.Event())).state == "drained"
    one.office.queue("orders")
    one.post.send(message(b"1"))
    await one.office.stable()
    end = await found.drain.finish(0.2, asyncio.Event())
    assert end.state == "waiting"
    assert "no other node is named" in end.reason
    await found.drain.stop()


@pytest.mark.parametrize("victim", ["source", "target", "link"])
async def test_a_scale_down_that_is_broken_again_and_again_loses_and_doubles_nothing(scaled: Any, victim: str) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    names = [f"queue{number}" for number in range(3)]
    for name in names:
        one.office.queue(name)
        for number in range(2000):
            one.post.send(message(str(number).encode(), name))
    await one.office.stable()
    found.drain.begin()
    for step in range(1, 5):
        enough = 1200 * step
        await until(lambda enough=enough: sum(count(two, name) for name in names) >= enough)  # type: ignore[misc]
        await until(lambda: one.cluster.peers.links[0].connected)
        if victim == "source":
            one.connectors[two.id].links[-1].cut()
            await found.reopen()
            assert found.drain.running
        elif victim == "target":
            one.connectors[two.id].allowed.clear()
            one.connectors[two.id].links[-1].cut()
            await found.reopen_other(two)
            one.connectors[two.id].allowed.set()
        else:
            one.connectors[two.id].links[-1].cut()
    await found.done()
    for name in names:
        got = [int(each.data) for each in await contents(two, name)]
        assert sorted(got) == list(range(2000)), name


async def test_a_queue_whose_node_is_gone_goes_on_to_another(scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollux.cluster.scale_down.assignment.PATIENCE", 0.05)
    found = await scaled(2)
    one, others = found.one, found.others
    one.office.queue("orders")
    for number in range(20_000):
        one.post.send(message(str(number).encode()))
    await one.office.stable()
    found.drain.begin()
    await until(lambda: any(count(other, "orders") > 100 for other in others))
    first = max(others, key=lambda other: count(other, "orders"))
    one.connectors[first.id].allowed.clear()
    one.connectors[first.id].links[-1].cut()
    await until(lambda: not count(one, "orders"))
    await until(lambda: found.drain.look().state == "waiting")
    assert f"wait for node {first.office.configuration.name}" in found.drain.look().reason
    one.connectors[first.id].allowed.set()
    await found.done()
    got = [int(each.data) for other in others for each in await contents(other, "orders")]
    assert sorted(got) == list(range(20_000))


@pytest.mark.parametrize("fault", ["restart", "away"])
async def test_a_queue_stays_with_its_node_whatever_breaks(scaled: Any, fault: str) -> None:
    """A part of it is there, and messages have an order; chosen anew after a restart it went to the other one."""
    found = await scaled(2)
    one, others = found.one, found.others
    for name, number in (("few", 10), ("many", 20_000)):
        one.office.queue(name)
        for each in range(number):
            one.post.send(message(str(each).encode(), name))
    await one.office.stable()
    found.drain.begin()
    await until(lambda: not count(one, "few") and any(count(other, "many") > 100 for other in others))
    first = max(others, key=lambda other: count(other, "many"))
    one.connectors[first.id].links[-1].cut()
    one.connectors[first.id].allowed.clear()
    if fault == "restart":
        await found.reopen(without=first)
    await until(lambda: found.drain.look().state == "waiting")
    name = first.cluster.node.hex() if fault == "restart" else first.office.configuration.name
    reason = f"node {name} may have a part of it, and is waited for: "
    assert found.drain.look().reason.startswith(f"queue 'many': {reason}")
    assert found.drain.describe()["queues"][0]["reason"].startswith(reason)
    one.connectors[first.id].allowed.set()
    await found.done()
    assert [count(other, "many") for other in others if other is not first] == [0]
    got = [int(each.data) for each in await contents(first, "many")]
    assert got == list(range(20_000))


async def test_who_gets_what_is_forgotten_with_the_scale_down(scaled: Any) -> None:
    found = await scaled(2)
    one = found.one
    one.office.queue("orders")
    one.post.send(message(b"x", "orders"))
    await one.office.stable()
    found.drain.begin()
    await until(lambda: not count(one, "orders"))
    await found.drain.finish(30.0, asyncio.Event())
    await found.drain.stop()
    await one.reopen()
    assert not [kind for kind, _ in one.post.recovered if kind.startswith("scale-down")]
    # Nor is anything left of a life that was killed between the end and this.
    one.post.storage.put("scale-down-target", "7", bytes(16))
    await one.reopen()
    assert ("scale-down-target", "7") in one.post.recovered
    await found.join()
    await found.drain.stop()
    await one.reopen()
    assert not [kind for kind, _ in one.post.recovered if kind.startswith("scale-down")]


async def test_cancelled_it_leaves_the_rest_here_and_others_send_here_again(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    two.reach(one)
    one.office.queue("orders")
    for number in range(30_000):
        one.post.send(message(str(number).encode()))
    await one.office.stable()
    await until(lambda: (one.id, "orders") in two.cluster.table.queues)
    found.drain.begin()
    await until(lambda: count(two, "orders") > 0 and (one.id, "orders") not in two.cluster.table.queues)
    found.drain.cancel()
    with pytest.raises(InvalidRequestError, match="nothing to cancel"):
        found.drain.cancel()
    left = count(one, "orders")
    assert left
    await until(lambda: (one.id, "orders") in two.cluster.table.queues)
    await until(lambda: not found.drain.sight().on_the_way)
    assert count(one, "orders") == left
    assert count(two, "orders") == 30_000 - left
    await found.reopen()
    assert not found.drain.running


async def test_what_another_node_still_has_for_this_one_is_waited_for(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    one.office.queue("orders")
    two.reach(one)
    await until(lambda: (one.id, "orders") in two.cluster.table.queues)
    two.connectors[one.id].links[-1].ends[0].cut = True  # nothing of it comes here
    two.post.send(message(b"late"))
    await two.office.stable()
    found.drain.begin()
    await until(lambda: found.drain.look().state == "waiting")
    assert found.drain.look().reason == "node node2 still has messages for this one"
    two.connectors[one.id].links[-1].cut()
    await found.done()
    await until(lambda: count(two, "orders") == 1)


async def test_who_may_not_get_anything_is_told_at_once(scaled: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Also to whoever only reads the log: a stop is no time to find out."""
    caplog.set_level(logging.INFO)
    found = await scaled(2, Wanted(group="blue"))
    one, (two, three) = found.one, found.others
    await until(lambda: "a stop would have nowhere to hand over to" in caplog.text)
    one.office.queue("orders")
    one.post.send(message(b"1"))
    with pytest.raises(InvalidRequestError, match="node2: it has no group-name, not 'blue'; node3: it has no group"):
        found.drain.begin()
    found.receive(two, group="green").start()
    found.receive(three, group="blue").start()
    await until(lambda: {peer.about.group for peer in found.drain.peers() if peer.about} == {"green", "blue"})
    await until(lambda: "a stop has somewhere to hand over to" in caplog.text)
    found.drain.begin()
    await found.done()
    assert caplog.text.count("nowhere to hand over to") == 1
    assert (count(two, "orders"), count(three, "orders")) == (0, 1)


async def test_a_queue_that_is_another_one_there_stays_until_that_is_gone(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    one.office.queue("orders")
    one.office.queue("others")
    two.office.queue("orders", "elsewhere")
    for name in ("orders", "others"):
        one.post.send(message(b"1", name))
    await one.office.stable()
    found.drain.begin()
    await until(lambda: count(two, "others") == 1)
    await until(lambda: found.drain.look().state == "waiting")
    assert "there is another queue 'orders', of address 'elsewhere' instead of 'orders'" in found.drain.look().reason
    assert count(one, "orders") == 1
    two.post.delete_queue("orders")
    await found.done()
    assert count(two, "orders") == 1


async def test_nothing_goes_to_a_node_that_is_scaled_down_itself(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    other = Scaled(two, [one], Wanted())
    Scaled.receive(one)
    found.drain = Drain([one.cluster], Wanted(), free=lambda: 1, host="here")
    await other.join()
    await other.linked()
    other.drain.begin()
    await until(lambda: any(peer.about and peer.about.draining for peer in found.drain.peers()))
    with pytest.raises(InvalidRequestError, match="it is being scaled down itself"):
        found.drain.begin()
    await other.drain.stop()


@pytest.mark.parametrize("what", ["queue", "duplicate-ids", "nonsense"])
async def test_a_request_that_cannot_be_read_is_answered_and_the_link_goes_on(scaled: Any, what: str) -> None:
    found = await scaled()
    link = found.one.cluster.peers.links[0]
    for content in (b"", b"\xc1junk", b"\x80", b"\x92\x01\x02"):
        assert await link.ask(what, content)
    assert link.connected
    found.one.connectors[found.others[0].id].allowed.clear()
    answer = asyncio.ensure_future(link.ask(what, b"junk"))
    await asyncio.sleep(0)
    found.one.connectors[found.others[0].id].links[-1].cut()
    with pytest.raises(ConnectionError):
        await answer
    with pytest.raises(ConnectionError):
        await link.ask(what, b"junk")


@pytest.mark.parametrize("kind", list(RoutingType))
async def test_what_goes_says_whether_it_is_for_a_subscription(scaled: Any, kind: RoutingType) -> None:
    """Breaks when a queue is made for what was in a subscription that is over when it arrives, or others get it."""
    found = await scaled()
    queue = found.one.office.queue("mine", "news", routing_type=kind)
    found.one.post.send(message(b"x", "news"))
    await found.one.office.stable()
    (reference,) = queue.iterate()
    way = NodeWay(found.one.cluster, found.one.cluster.peers.links[0], lambda _: {})
    sent = to_send(way.forward(reference, queue).message)
    assert sent is not None
    assert sent.subscriptions is (kind is RoutingType.MULTICAST)
