"""Clients receive: outcomes, credit and drain, browsing, filters, subscriptions, what a delivery shows."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from msgspec.structs import replace

from harness.sessions.amqp import Broker, decode, message
from pollux.message import Encoding, Message
from pollux.wire.amqp.codec import encode_value

from .receivers import ACCEPTED, filled, filters, selector

MODIFIED = proton.Delivery.MODIFIED
RELEASED = proton.Delivery.RELEASED
REJECTED = proton.Delivery.REJECTED


def settle(delivery: proton.Delivery, state: int, **changes: Any) -> None:
    for name, value in changes.items():
        setattr(delivery.local, name, value)
    delivery.update(state)
    delivery.settle()


async def test_released_comes_again_unmarked(broker: Broker) -> None:
    client = await filled(broker, "q", "a")
    await client.receiver("q", credit=10)
    delivery, _ = await client.receive()
    settle(delivery, RELEASED)
    got = await client.get()
    assert (got.body, got.delivery_count) == ("a", 0)


async def test_modified_failed_counts(broker: Broker) -> None:
    client = await filled(broker, "q", "a")
    await client.receiver("q", credit=10)
    for count in range(2):
        delivery, data = await client.receive()
        assert decode(data).delivery_count == count
        settle(delivery, MODIFIED, failed=True)
    got = await client.get()
    assert (got.delivery_count, got.first_acquirer) == (2, False)


async def test_undeliverable_here_goes_to_another_link_and_not_back(broker: Broker) -> None:
    client = await filled(broker, "q", "a", "b")
    first = await client.receiver("q", "first", credit=2)
    delivery, _ = await client.receive()
    await client.receive()
    second = await client.receiver("q", "second")
    first.flow(10)
    delivery.local.undeliverable = True
    settle(delivery, MODIFIED, failed=False)
    await client.quiet()
    assert not client.received, "the link that said undeliverable-here got it again"
    second.flow(1)
    again, data = await client.receive()
    assert again.link == second
    assert decode(data).body == "a"


@pytest.mark.parametrize("presettled", [False, True])
async def test_messages_larger_than_the_receiver_takes_are_dead_letters(broker: Broker, presettled: bool) -> None:
    from pollux.config.model import AddressSetting, Configuration

    await broker.stop()
    broker.configuration = Configuration(address_settings=(AddressSetting("#", {"dead_letter_address": "DLA"}),))
    await broker.start()
    broker.post.address_manager.create_address("DLA", [])
    client = await filled(broker, "q", "a", "b" * 5000, "c", "d" * 300_000, "e")
    await client.receiver("DLA", "dead", capabilities=["queue"])

    def limited(link: Any) -> None:
        link.max_message_size = 4096
        if presettled:
            link.snd_settle_mode = proton.Link.SND_SETTLED

    await client.receiver("q", "small", credit=3, prepare=limited)
    assert [(await client.get()).body for _ in range(3)] == ["a", "c", "e"]
    await client.receiver("DLA", "dead again", capabilities=["queue"], credit=5)
    assert sorted([len((await client.get()).body) for _ in range(2)]) == [5000, 300_000]


async def test_modified_annotations_are_merged(broker: Broker) -> None:
    client = await filled(broker, "q", "a")
    await client.receiver("q", credit=10)
    delivery, _ = await client.receive()
    delivery.local.annotations = {proton.symbol("x-opt-note"): "seen"}
    settle(delivery, MODIFIED, failed=True)
    assert (await client.get()).annotations == {"x-opt-note": "seen"}


async def test_max_delivery_attempts_and_rejected_go_to_the_dead_letters(broker: Broker) -> None:
    broker.post.address_manager.create_address("DLQ", [])
    client = await filled(broker, "q", "again", "never")
    from pollux.config.model import AddressSetting, Configuration

    configuration = Configuration(address_settings=(AddressSetting("#", {"dead_letter_address": "DLA"}),))
    await broker.stop()
    broker.configuration = configuration
    await broker.start()
    client = await broker.client().opened()
    await client.receiver("DLA", "dead", capabilities=["queue"], credit=10)
    await client.receiver("q", credit=1)
    delivery, data = await client.receive()
    settle(delivery, REJECTED)
    delivery, data = await client.receive()
    dead = decode(data)
    assert dead.body == "again"
    assert dead.annotations is not None
    assert dead.annotations["x-opt-ORIG-ADDRESS"] == "q"
    assert dead.annotations["x-opt-ORIG-QUEUE"] == "q"


async def test_detached_consumer_gives_back_in_order(broker: Broker) -> None:
    client = await filled(broker, "q", *[str(i) for i in range(5)])
    link = await client.receiver("q", credit=5)
    await client.until(lambda: len(client.received) == 1)
    await client.quiet()
    link.close()
    await client.until(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)
    client.received.clear()
    await client.receiver("q", "again", credit=5)
    got = [await client.get() for _ in range(5)]
    assert [each.body for each in got] == [str(i) for i in range(5)]
    assert all(each.delivery_count == 1 for each in got)


async def test_lost_connection_gives_back(broker: Broker) -> None:
    client = await filled(broker, "q", "a", "b")
    taker = await broker.client("taker").opened()
    await taker.receiver("q", credit=5)
    await taker.quiet()
    taker.drop()
    await client.receiver("q", credit=5)
    assert [(await client.get()).body for _ in range(2)] == ["a", "b"]


async def test_credit_is_not_exceeded(broker: Broker) -> None:
    client = await filled(broker, "q", *range(10))
    link = await client.receiver("q", credit=3)
    await client.quiet()
    assert link.queued == 3
    link.flow(2)
    await client.quiet()
    assert link.queued == 5


async def test_credit_beyond_31_bits(broker: Broker) -> None:
    client = await filled(broker, "q", *range(10))
    link = await client.receiver("q")
    link.flow(2**31 - 1)
    await client.quiet()
    assert link.queued == 10


async def test_drain_of_an_empty_and_of_a_filled_queue(broker: Broker) -> None:
    client = await filled(broker, "q", *range(3))
    link = await client.receiver("q")
    link.drain(10)
    await client.until(lambda: link.queued == 3 and not link.draining())
    assert link.credit - link.queued == 0
    for _ in range(3):
        await client.get()
    link.drain(5)
    await client.until(lambda: not link.draining())
    assert link.credit == 0


async def test_a_drain_without_credit_is_answered_each_time_and_once(broker: Broker) -> None:
    """Section 2.6.7: the flow state is sent; clients that gave no credit, or used it up, wait for it."""
    client = await filled(broker, "q", *range(3))
    link = await client.receiver("q")

    def flows() -> int:
        return sum(name == "PN_LINK_FLOW" and context.is_receiver for name, context in client.events)

    for answered in (1, 2):
        link.drain(0)
        await client.until(lambda: flows() == answered)  # noqa: B023  (awaited before it changes)
        assert (link.credit, link.queued) == (0, 0)
    link.drain(2)
    await client.until(lambda: link.queued == 2 and flows() == 3)
    for _ in range(2):
        await client.get()
    await client.quiet()
    assert flows() == 3, "what messages cause is no question of the client"
    link.flow(5)
    await client.until(lambda: link.queued == 1)
    link.drain(0)
    await client.until(lambda: flows() == 4)
    assert link.credit - link.queued == 0


async def test_drain_waits_for_messages_on_disk(broker: Broker) -> None:
    await filled(broker, "q", *range(50))
    await broker.restart()
    client = await broker.client().opened()
    link = await client.receiver("q")
    link.drain(100)
    await client.until(lambda: not link.draining())
    assert link.queued == 50


async def test_presettled_consumer(broker: Broker) -> None:
    client = await filled(broker, "q", *range(10))
    link = await client.receiver(
        "q", prepare=lambda link: setattr(link, "snd_settle_mode", proton.Link.SND_SETTLED), credit=10
    )
    assert link.remote_snd_settle_mode == proton.Link.SND_SETTLED
    await client.until(lambda: link.queued == 10)
    delivery, _ = client.take()
    assert delivery.settled
    await broker.settle()
    assert broker.count("q") == 0


async def test_accepted_without_settling_is_settled_by_the_broker(broker: Broker) -> None:
    client = await filled(broker, "q", "a")
    await client.receiver("q", prepare=lambda link: setattr(link, "rcv_settle_mode", proton.Link.RCV_SECOND), credit=1)
    delivery, _ = await client.receive()
    delivery.update(ACCEPTED)
    await client.until(lambda: delivery.settled)
    assert delivery.remote_state == ACCEPTED
    assert broker.count("q") == 0
    delivery.settle()
    await client.quiet()


async def test_settled_without_outcome_uses_the_default(broker: Broker) -> None:
    client = await filled(broker, "q", "a")
    await client.receiver("q", credit=1)
    delivery, _ = await client.receive()
    delivery.settle()
    await client.quiet()
    assert broker.count("q") == 1


async def test_browsing_takes_nothing(broker: Broker) -> None:
    client = await filled(broker, "q", *range(4))

    def browse(link: proton.Receiver) -> None:
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY

    link = await client.receiver("q", "browser", prepare=browse)
    assert link.remote_source.distribution_mode == proton.Terminus.DIST_MODE_COPY
    link.drain(100)
    await client.until(lambda: not link.draining())
    assert [(await client.get()).body for _ in range(4)] == [0, 1, 2, 3]
    await client.quiet()
    await broker.settle()
    assert broker.count("q") == 4
    link.close()
    await client.receiver("q", "taker", credit=10)
    assert [(await client.get()).body for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("descriptor", ["apache.org:selector-filter:string", 0x0000468C00000004])
async def test_selector(broker: Broker, descriptor: Any) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message(i, properties={"n": i}) for i in range(6)])
    link = await client.receiver("q", prepare=selector("n > 3", descriptor), credit=10)
    assert [(await client.get()).body for _ in range(2)] == [4, 5]
    await client.quiet()
    assert not client.received
    link.remote_source.filter.rewind()
    assert link.remote_source.filter.next()


async def test_bad_selector(broker: Broker) -> None:
    client = await broker.client().opened()
    link = await client.receiver("q", capabilities=["queue"], prepare=selector("n >"))
    await client.until(lambda: link.remote_condition)
    assert link.remote_condition.name == "amqp:invalid-field"
    assert link.remote_source.type == proton.Terminus.UNSPECIFIED


async def test_unsupported_filters_are_left_out_of_the_answer(broker: Broker) -> None:
    client = await broker.client().opened()
    link = await client.receiver(
        "q",
        capabilities=["queue"],
        prepare=filters(x=("example:none", "?"), s=("apache.org:selector-filter:string", "a = 1")),
    )
    data = link.remote_source.filter
    data.rewind()
    data.next()
    assert set(data.get_dict()) == {"s"}


async def test_deleted_queue_detaches_its_consumers(broker: Broker) -> None:
    client = await filled(broker, "q", "a")
    link = await client.receiver("q", credit=1)
    await client.quiet()
    broker.post.delete_queue("q")
    await client.until(lambda: link.remote_condition)
    assert link.remote_condition.name == "amqp:resource-deleted"


async def test_no_permission_to_consume_or_browse(broker: Broker) -> None:
    await filled(broker, "q", "a")
    broker.security.denied |= {("consume", "q"), ("createAddress", "new")}
    client = await broker.client().opened()
    for address in ("q", "new"):
        link = await client.receiver(address, address, capabilities=["queue"])
        await client.until(lambda: link.remote_condition)  # noqa: B023  (awaited within the turn)
        assert link.remote_condition.name == "amqp:unauthorized-access"


async def test_ttl_left_and_priority_are_shown(broker: Broker) -> None:
    broker.wall = 1_700_000_000_000
    client = await filled(broker, "q", "a", ttl=60, priority=7)
    broker.wall += 20_000
    await client.receiver("q", credit=1)
    got = await client.get()
    assert (got.ttl, got.priority, got.durable) == (40.0, 7, True)


async def test_foreign_messages(broker: Broker) -> None:
    client = await broker.client().opened()
    await client.receiver("q", capabilities=["queue"], credit=10)
    from pollux.wire.content import Content

    for content in (
        Content(b"text", text=True, properties={"a": "b", "n": 1, "t": True}, correlation_id="c", subject="s"),
        Content(b"\x00\xff", content_type="image/png", reply_to="back"),
    ):
        foreign = Message(Encoding.STOMP, "q", b"\n\n", priority=6, timestamp=1_700_000_000_000)
        foreign.content = content
        broker.post.send(foreign)
    first, second = await client.get(), await client.get()
    assert (first.body, first.properties, first.correlation_id, first.subject) == (
        "text",
        {"a": "b", "n": 1, "t": True},
        "c",
        "s",
    )
    assert (first.priority, first.durable, first.address, first.creation_time) == (6, True, "q", 1_700_000_000)
    assert (bytes(second.body), second.content_type, second.reply_to) == (b"\x00\xff", "image/png", "back")
    assert second.inferred


async def test_slow_network_stops_deliveries(broker: Broker) -> None:
    client = await filled(broker, "q", *range(100))
    taker = await broker.client("taker").opened()
    link = await taker.receiver("q")
    taker.session.pause_writing()
    link.flow(100)
    await taker.quiet()
    assert link.queued == 0
    taker.session.resume_writing()
    await taker.until(lambda: link.queued == 100)
    assert client


async def test_consumer_priority(broker: Broker) -> None:
    client = await broker.client().opened()

    def priority(value: int) -> Any:
        return lambda link: setattr(link, "properties", {proton.symbol("priority"): proton.int32(value)})

    low = await client.receiver("q", "low", capabilities=["queue"], prepare=priority(-1), credit=10)
    high = await client.receiver("q", "high", capabilities=["queue"], prepare=priority(5), credit=10)
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message(i) for i in range(4)])
    await client.until(lambda: high.queued == 4)
    assert low.queued == 0


def test_numeric_encodings_are_what_the_tests_believe() -> None:
    assert encode_value(1) == b"\x55\x01"


async def test_unsettled_deliveries_are_bounded(broker: Broker) -> None:
    limits = replace(broker.configuration.limits, max_unsettled_per_connection=5)
    broker.configuration = replace(broker.configuration, limits=limits)
    client = await filled(broker, "q", *range(20))
    link = await client.receiver("q", credit=20)
    await client.until(lambda: link.queued == 5)
    await client.quiet()
    assert link.queued == 5
    assert [(await client.get()).body for _ in range(20)] == list(range(20))


async def test_refused_links_leave_nothing_behind(broker: Broker) -> None:
    client = await broker.client().opened()

    def dynamic(link: proton.Receiver) -> None:
        link.source.dynamic = True
        selector("n >")(link)

    link = await client.receiver(None, "dynamic", prepare=dynamic)
    await client.until(lambda: link.remote_condition)
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=selector("n >"))
    await client.until(lambda: link.remote_condition)
    assert not list(broker.post.space.queues)
    assert not list(broker.post.space.addresses)
