"""Fair share: what one client asks for by the thousand is done a few pieces in a turn, and others get on meanwhile."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import pytest

from harness.sessions.mqtt import publish
from pollux.engine.departures import BIT
from pollux.engine.share import SLICE
from pollux.wire.mqtt.packets import (
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Filter,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.sessions.mqtt import Broker

MANY = 400
#: Seconds.
PATIENCE = 60
FILTERS = [f"t/{number}" for number in range(MANY)]
#: Pieces in one turn (one more where their sum is not exact), by a clock of which each look takes a quarter of a slice.
PIECES = 4


@pytest.fixture(autouse=True)
def _counted(broker: Broker) -> None:
    looks = count()
    share = broker.post.share
    share.clock = share.effort = lambda: next(looks) * SLICE / PIECES


async def turns(done: Callable[[], int], wanted: int) -> list[int]:
    """Return how much ``done`` grew in each turn of the loop, until it is ``wanted``.

    Not every turn has its piece: some wait until those before are on disk, as long as that takes.
    """
    grown = []
    before = done()
    async with asyncio.timeout(PATIENCE):
        while before != wanted:
            await asyncio.sleep(0)
            now = done()
            if now != before:
                grown.append(abs(now - before))
            before = now
    return grown


def queues(broker: Broker) -> int:
    return len(broker.post.space.queues)


async def test_the_filters_of_one_subscribe(broker: Broker) -> None:
    client, other = broker.client(), broker.client()
    await client.connect("c")
    await other.connect("d")
    await other.subscribe("other")
    client.write(Subscribe(1, [Filter(each, 1) for each in FILTERS]), publish("t/399", b"behind", 1, 7))
    assert queues(broker) <= 1 + PIECES + 1
    assert not client.transport.reading, "what comes behind it waits"
    other.write(publish("other", b"x"))
    grown = await turns(lambda: queues(broker), 1 + MANY)
    assert max(grown) <= PIECES + 1
    assert (await other.message()).payload == b"x"
    answer = await client.receive(SubAck)
    assert len(answer.reasons) == MANY
    assert set(answer.reasons) == {1}
    assert client.transport.reading
    assert (await client.message()).payload == b"behind", "sent behind the SUBSCRIBE, so it is there for it"


async def test_the_filters_of_one_unsubscribe(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(*FILTERS)
    client.write(Unsubscribe(2, list(FILTERS)))
    assert MANY - queues(broker) <= PIECES + 1
    assert max(await turns(lambda: queues(broker), 0)) <= PIECES + 1
    assert len((await client.receive(UnsubAck)).reasons) == MANY


async def test_a_client_that_is_gone_in_the_middle_of_a_subscribe(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    client.write(Subscribe(1, [Filter(each, 1) for each in FILTERS]))
    await asyncio.sleep(0)
    client.lose()
    await turns(lambda: queues(broker), 0)
    await turns(lambda: len(client.session.mqtt_sessions.sessions), 0)


async def test_the_subscriptions_of_a_client_that_is_gone(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(*FILTERS)
    client.lose()
    assert MANY - queues(broker) <= PIECES + 1
    assert max(await turns(lambda: queues(broker), 0)) <= PIECES + 1
    await turns(lambda: len(client.session.mqtt_sessions.sessions), 0)


async def test_the_messages_of_a_client_that_is_gone(broker: Broker) -> None:
    """A subscription's queue may hold very many: they leave it a few in a turn, too."""
    client, other = broker.client(), broker.client()
    await client.connect("c", expiry=1000)
    await client.subscribe("t")
    client.lose()
    await other.connect("d")
    for _ in range(PIECES * 3):
        other.write(*[publish("t", b"x", 1, number) for number in range(1, BIT + 1)])
        for _ in range(BIT):
            await other.receive(Ack)
    (queue,) = broker.post.space.queues
    assert queue.waiting == PIECES * 3 * BIT
    again = broker.client()
    again.write(Connect("c"))
    grown = await turns(lambda: queue.waiting, 0)
    assert max(grown) <= (PIECES + 1) * BIT
    assert len(grown) >= 3
    await turns(lambda: queues(broker), 0)
    assert (await again.receive(ConnAck)).reason == 0


async def test_who_comes_back_waits_for_the_end_of_the_session_before(broker: Broker) -> None:
    """Queues are named for the client: those of the new session are not the ones that are about to be deleted."""
    client, again = broker.client(), broker.client()
    await client.connect("c")
    await client.subscribe(*FILTERS)
    client.lose()
    again.write(Connect("c"))
    await asyncio.sleep(0)
    assert not again.taken()
    answer = await again.receive(ConnAck)
    assert (answer.reason, answer.session_present) == (0, False)
    assert queues(broker) == 0
    await again.subscribe("t/399")
    await again.publish("t/399", b"x")
    assert (await again.message()).payload == b"x"


async def test_who_takes_over_begins_anew_when_it_wants_to(broker: Broker) -> None:
    client, again = broker.client(), broker.client()
    await client.connect("c", expiry=1000)
    await client.subscribe(*FILTERS)
    answer = await again.connect("c", clean=True)
    assert (answer.reason, answer.session_present) == (0, False)
    assert queues(broker) == 0
    assert any(isinstance(packet, Disconnect) for packet in await client.closed())


async def test_two_who_want_to_come_back_at_the_same_time(broker: Broker) -> None:
    client, second, third = broker.client(), broker.client(), broker.client()
    await client.connect("c")
    await client.subscribe(*FILTERS)
    client.lose()
    second.write(Connect("c"))
    third.write(Connect("c"))
    assert (await second.receive(ConnAck)).reason == 0
    assert (await third.receive(ConnAck)).reason == 0
    assert any(isinstance(packet, Disconnect) for packet in await second.closed())
    await third.ping()


async def test_retained_messages_that_expired(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    for each in FILTERS:
        await client.publish(each, b"kept", 0, retain=True, message_expiry_interval=10)
    await client.publish("t/0", b"kept", 0, retain=True)
    retained = client.session.mqtt_sessions.retained.store
    assert retained.count == MANY
    broker.wall += 20_000
    client.session.mqtt_sessions.retained.sweep()
    assert MANY - retained.count <= PIECES + 1
    assert max(await turns(lambda: retained.count, 1)) <= PIECES + 1


async def test_retained_messages_for_a_new_subscription(broker: Broker) -> None:
    client, new = broker.client(), broker.client()
    await client.connect("c")
    for each in FILTERS:
        await client.publish(each, b"kept", 0, retain=True)
    await new.connect("d")
    before = broker.post.routed_total
    new.write(Subscribe(1, [Filter("t/#", 0)]))
    await new.receive(SubAck)
    assert broker.post.routed_total - before <= PIECES + 1
    assert max(await turns(lambda: broker.post.routed_total, before + MANY)) <= PIECES + 1
    for _ in range(MANY):
        await asyncio.sleep(0)
    assert {packet.topic for packet in new.taken() if isinstance(packet, Publish)} == set(FILTERS)


async def test_queues_that_one_message_woke(broker: Broker) -> None:
    """Of more than a few queues one is served after the other; a queue that is woken alone does not wait for them."""
    client, other = broker.client(), broker.client()
    await client.connect("c")
    for number in range(100):
        bits = "/".join("+" if number >> bit & 1 else "x" for bit in range(7))
        await client.subscribe(Filter(bits, 0))
    await other.connect("d")
    await other.subscribe("other")
    other.write(publish("/".join("x" * 7), b"many"))
    await asyncio.sleep(0)
    other.write(publish("other", b"one"))
    got: list[int] = []
    for _ in range(10):
        await asyncio.sleep(0)
        got.append(sum(isinstance(packet, Publish) for packet in client.taken()))
        if any(isinstance(packet, Publish) for packet in other.taken()):
            break
    else:
        raise AssertionError("the other's message did not come")
    assert sum(got) < 100
    assert max(got) <= PIECES + 1
    for _ in range(100):
        await asyncio.sleep(0)
        got.append(sum(isinstance(packet, Publish) for packet in client.taken()))
    assert sum(got) == 100
