"""Messages that nobody gets: failed too often, expired, for no queue; where they go, and when they stay."""

from __future__ import annotations

import pytest

from broker.engine.conftest import Office, Receiver
from pollux.engine.dead_letters import STAY
from pollux.message import RoutingType


async def test_failed_deliveries_end_in_the_dead_letter_address(office: Office) -> None:
    office.settings("orders", dead_letter_address="DLA", max_delivery_attempts=2)
    post = await office.open()
    queue = office.queue()
    office.queue("DLA")
    await office.send(b"poison")
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(1)
    post.release([receiver.got[0]], failed=True)
    await receiver.wait(2)
    assert receiver.got[1].delivery_count == 1
    post.release([receiver.got[1]], failed=True)
    await office.stable()
    assert queue.message_count == 0
    post = await office.reopen()
    assert post.queue("orders").message_count == 0
    dead = Receiver()
    post.attach(post.queue("DLA"), dead)
    await dead.wait(1)
    assert dead.got[0].message.annotations is not None
    assert dead.got[0].message.annotations["_AMQ_ORIG_ADDRESS"] == "orders"
    assert dead.got[0].message.annotations["_AMQ_ORIG_QUEUE"] == "orders"


async def test_the_delivery_count_survives_a_restart(office: Office) -> None:
    office.settings("orders", max_delivery_attempts=3)
    post = await office.open()
    queue = office.queue()
    await office.send(b"x")
    receiver = Receiver(credit=1)
    post.attach(queue, receiver)
    await receiver.wait(1)
    post.release(receiver.got, failed=True)
    await office.stable()
    post = await office.reopen()
    again = Receiver()
    post.attach(post.queue("orders"), again)
    assert (await again.wait(1))[0].delivery_count == 1


async def test_expired_messages_go_to_the_expiry_address(office: Office) -> None:
    office.settings("orders", expiry_address="EXP", auto_create_expiry_resources=True)
    post = await office.open()
    queue = office.queue()
    await office.send(b"late", expiration=office.wall_ms() + 1000)
    office.now = 2000
    post.dead_letters.scan()
    await office.stable()
    assert queue.message_count == 0
    assert queue.counters.expired == 1
    kept = Receiver()
    post.attach(post.queue("EXP.orders"), kept)
    found = (await kept.wait(1))[0].message
    assert found.expiration == 0, "it must not expire again"
    assert found.annotations is not None
    expired_at = found.annotations["_AMQ_ACTUAL_EXPIRY"]
    assert isinstance(expired_at, int)
    assert expired_at >= office.wall_ms() - 1000


@pytest.mark.parametrize("kind", [None, RoutingType.ANYCAST, RoutingType.MULTICAST])
async def test_dead_letters_get_a_queue_where_their_address_has_none(office: Office, kind: RoutingType | None) -> None:
    """Also when a monitor listens to every address: what only it would get is gone with it."""
    office.settings("orders", dead_letter_address="DLA", expiry_address="EXP", max_delivery_attempts=1)
    post = await office.open()
    queue = office.queue()
    monitor = office.queue("monitor", "#", routing_type=RoutingType.MULTICAST, durable=False, temporary=True)
    if kind is not None:
        post.address_manager.create_address("DLA", (kind,))
    await office.send(b"poison")
    await office.send(b"late", expiration=office.wall_ms() + 1000)
    receiver = Receiver(credit=1)
    post.attach(queue, receiver)
    await receiver.wait(1)
    post.release(receiver.got, failed=True)
    office.now = 2000
    post.dead_letters.scan()
    await office.stable()
    assert (queue.message_count, monitor.message_count) == (0, 3), "its own copy of what is late expired"
    post = await office.reopen()
    assert (post.queue("orders").message_count, post.queue("DLA").message_count) == (0, 1)
    assert post.queue("EXP").message_count == 1
    assert post.queue("DLA").routing_type is (RoutingType.ANYCAST if kind is None else kind)
    assert post.dead_letters.dropped == post.dead_letters.stayed == 0


@pytest.mark.parametrize("monitored", [False, True])
async def test_messages_stay_where_no_queue_may_be_made_for_them(office: Office, *, monitored: bool) -> None:
    office.settings("#", auto_create_queues=False)
    office.settings("orders", dead_letter_address="DLA", expiry_address="EXP", max_delivery_attempts=1)
    post = await office.open()
    queue = office.queue()
    if monitored:
        office.queue("monitor", "#", routing_type=RoutingType.MULTICAST, durable=False, temporary=True)
    await office.send(b"poison", b"refused")
    await office.send(b"late", expiration=office.wall_ms() + 1000)
    receiver = Receiver(credit=2)
    post.attach(queue, receiver)
    await receiver.wait(2)
    post.release(receiver.got[:1], failed=True)
    post.reject(receiver.got[1:])
    office.now = 2000
    post.dead_letters.scan()
    await office.stable()
    assert (queue.message_count, queue.scheduled, post.dead_letters.stayed) == (3, 3, 3)
    assert len(receiver.got) == 2, "not again at once"
    post = await office.reopen()
    queue = post.queue("orders")
    assert queue.message_count == 3
    office.queue("DLA")
    office.queue("EXP")
    again = Receiver()
    post.attach(queue, again)
    await again.wait(2)
    post.reject(again.got)
    post.dead_letters.scan()
    await office.stable()
    assert (queue.message_count, post.queue("DLA").message_count, post.queue("EXP").message_count) == (0, 2, 1)


async def test_what_stayed_moves_when_there_is_a_queue_for_it(office: Office) -> None:
    office.settings("#", auto_create_queues=False)
    office.settings("orders", dead_letter_address="DLA")
    post = await office.open()
    queue = office.queue()
    await office.send(b"poison")
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(1)
    post.reject(receiver.got)
    await office.stable()
    office.queue("DLA")
    office.now = STAY
    queue.due(office.wall_ms())
    post.wake(queue)
    await receiver.wait(2)
    post.reject(receiver.got[1:])
    await office.stable()
    assert (queue.message_count, post.queue("DLA").message_count) == (0, 1)


async def test_a_dead_letter_goes_back_to_its_queue_that_is_gone_and_stays_when_its_subscription_is(
    office: Office,
) -> None:
    office.settings("#", dead_letter_address="DLA", max_delivery_attempts=1)
    post = await office.open()
    office.queue("DLA")
    for name, kind in (("orders", RoutingType.ANYCAST), ("news", RoutingType.MULTICAST)):
        queue = office.queue(name, routing_type=kind)
        await office.send(b"x", address=name)
        receiver = Receiver()
        post.attach(queue, receiver)
        await receiver.wait(1)
        post.reject(receiver.got)
        await office.stable()
        post.detach(queue, receiver)
        post.delete_queue(name)
    dead = post.queue("DLA")
    found = list(dead.iterate())
    assert len(found) == 2
    takes = [
        post.dead_letters.takes(dead, each.message, str((each.message.annotations or {})["_AMQ_ORIG_ADDRESS"]))
        for each in found
    ]
    assert takes == [True, False]
    assert post.queue("orders").routing_type is RoutingType.ANYCAST
    assert not post.dead_letters.takes(dead, found[0].message, "news::orders"), "orders is a queue of another address"


async def test_messages_for_nobody_are_confirmed_or_go_to_the_dead_letter_address(office: Office) -> None:
    office.settings("lost", send_to_dla_on_no_route=True, dead_letter_address="DLA")
    post = await office.open()
    office.queue("DLA")
    await office.send(b"x", address="void", routing_type=RoutingType.MULTICAST)
    address = post.space.address("void")
    assert address is not None
    assert address.unrouted == 1
    await office.send(b"y", address="lost", routing_type=RoutingType.MULTICAST)
    assert post.queue("DLA").message_count == 1
