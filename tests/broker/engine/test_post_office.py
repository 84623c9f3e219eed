"""The post office on a real store: visibility, restarts, transactions, duplicates, blocked addresses."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from broker.engine.conftest import Office, Receiver, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.engine.queue_records import decode_queue, encode_queue
from pollux.errors import AddressFullError, InvalidRequestError, NoSuchAddressError
from pollux.message import RoutingType
from pollux.routing.selector import SelectorError, parse


async def test_a_message_is_not_visible_before_it_is_stable(office: Office) -> None:
    post = await office.open()
    queue = office.queue()
    receiver = Receiver()
    post.attach(queue, receiver)
    confirmed: list[int] = []
    post.send(message(b"one"))
    assert queue.message_count == 0
    post.when_stable(lambda _: confirmed.append(queue.message_count))
    await receiver.wait(1)
    assert confirmed == [1], "the confirmation comes when the message is in its queue"


async def test_unacknowledged_messages_come_back_after_a_restart_in_order(office: Office) -> None:
    post = await office.open()
    queue = office.queue()
    await office.send(*(b"%d" % i for i in range(10)))
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(10)
    post.acknowledge(receiver.got[:4])
    await office.stable()
    post = await office.reopen()
    again = Receiver()
    post.attach(post.queue("orders"), again)
    await again.wait(6)
    assert again.bodies == [b"%d" % i for i in range(4, 10)]
    assert all(reference.redelivered for reference in again.got)


async def test_a_paused_queue_stays_paused_over_a_restart(office: Office) -> None:
    post = await office.open()
    post.address_manager.pause_queue(office.queue(), paused=True)
    await office.send(b"held")
    await office.stable()
    post = await office.reopen()
    queue = post.queue("orders")
    assert queue.paused
    receiver = Receiver()
    post.attach(queue, receiver)
    post.address_manager.pause_queue(queue, paused=False)
    await receiver.wait(1)
    await office.stable()
    post = await office.reopen()
    queue = post.queue("orders")
    assert not queue.paused
    post.address_manager.pause_queue(queue, paused=True)
    post.delete_queue("orders")
    office.queue()
    await office.stable()
    post = await office.reopen()
    assert not post.queue("orders").paused, "a new queue of the name of a deleted one"


async def test_new_messages_follow_recovered_ones(office: Office) -> None:
    await office.open()
    office.queue()
    await office.send(b"old")
    post = await office.reopen()
    await office.send(b"new")
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    await receiver.wait(2)
    assert receiver.bodies == [b"old", b"new"]


async def test_non_durable_messages_and_queues_end_with_the_broker(office: Office) -> None:
    await office.open()
    office.queue()
    office.queue("volatile", durable=False)
    await office.send(b"gone", durable=False)
    await office.send(b"kept")
    post = await office.reopen()
    assert post.space.queue("volatile") is None
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    await receiver.wait(1)
    assert receiver.bodies == [b"kept"]


async def test_a_multicast_message_is_kept_until_every_queue_has_acknowledged_it(office: Office) -> None:
    post = await office.open()
    one = office.queue("one", "news", routing_type=RoutingType.MULTICAST)
    office.queue("two", "news", routing_type=RoutingType.MULTICAST)
    await office.send(b"hello", address="news")
    receiver = Receiver()
    post.attach(one, receiver)
    await receiver.wait(1)
    post.acknowledge(receiver.got)
    assert post.accounts.get("news").gauge.messages == 1
    await office.stable()
    post = await office.reopen()
    assert post.queue("one").message_count == 0
    other = Receiver()
    post.attach(post.queue("two"), other)
    assert (await other.wait(1))[0].message.data == b"hello"
    post.acknowledge(other.got)
    assert post.accounts.get("news").gauge.messages == 0


async def test_a_committed_transaction_is_complete_after_a_restart(office: Office) -> None:
    post = await office.open()
    orders = office.queue()
    office.queue("invoices")
    await office.send(b"order")
    receiver = Receiver()
    post.attach(orders, receiver)
    await receiver.wait(1)
    tx = post.begin()
    post.acknowledge(receiver.got, tx)
    post.send(message(b"invoice", "invoices"), tx)
    await office.stable()
    assert post.queue("invoices").message_count == 0
    post.commit(tx)
    await office.stable()
    post = await office.reopen()
    assert post.queue("orders").message_count == 0
    assert post.queue("invoices").message_count == 1


async def test_a_transaction_without_commit_never_happened(office: Office) -> None:
    post = await office.open()
    orders = office.queue()
    await office.send(b"order")
    receiver = Receiver()
    post.attach(orders, receiver)
    await receiver.wait(1)
    tx = post.begin()
    post.acknowledge(receiver.got, tx)
    post.send(message(b"more"), tx)
    held = post.rollback(tx)
    assert held == receiver.got
    post.release(held, failed=True)
    await office.stable()
    post = await office.reopen()
    assert post.queue("orders").message_count == 1


async def test_scheduled_messages_wait_also_across_a_restart(office: Office) -> None:
    await office.open()
    office.queue()
    await office.send(b"later", deliver_at=office.wall_ms() + 300)
    await office.send(b"now")
    post = await office.reopen()
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    await receiver.wait(1)
    assert receiver.bodies == [b"now"]
    await receiver.wait(2)
    assert receiver.bodies == [b"now", b"later"]


async def test_duplicates_are_dropped_also_after_a_restart(office: Office) -> None:
    post = await office.open()
    office.queue()
    await office.send(b"one", b"again", duplicate_id=b"id-1")
    assert post.queue("orders").message_count == 1
    post = await office.reopen()
    await office.send(b"once more", duplicate_id=b"id-1")
    await office.send(b"two", duplicate_id=b"id-2")
    assert post.queue("orders").message_count == 2


async def test_duplicates_are_dropped_when_all_clients_were_gone_for_a_while(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when an automatically created address takes its duplicate ids with it as soon as nobody uses it: a network
    that fails cuts off consumers and producers at once, and the producers send again what was not confirmed.
    """
    office.now = 1000
    monkeypatch.setattr(office, "wall_ms", lambda: office.now)  # a millisecond of the real clock would be too much
    post = await office.open()
    manager = post.address_manager

    async def consume(count: int) -> list[bytes]:
        manager.ensure_sendable("orders", RoutingType.ANYCAST)
        receiver = Receiver()
        post.attach(post.queue("orders"), receiver)
        await office.send(b"one", duplicate_id=b"id-1")
        await office.send(b"end")
        await receiver.wait(count)
        post.acknowledge(receiver.got)
        post.detach(post.queue("orders"), receiver)
        assert post.space.queue("orders") is None  # unused, empty and automatically created
        return receiver.bodies

    assert await consume(2) == [b"one", b"end"]
    manager.reap()
    office.now += office.configuration.address_queue_scan_period - 1
    manager.reap()
    assert await consume(1) == [b"end"]
    # After that it is forgotten, with its address.
    manager.reap()
    office.now += office.configuration.address_queue_scan_period
    manager.reap()
    assert post.space.address("orders") is None
    assert await consume(2) == [b"one", b"end"]


async def test_a_refused_message_may_be_sent_again_with_its_duplicate_id(office: Office) -> None:
    office.settings("orders", max_size_bytes=500, address_full_policy=AddressFullPolicy.FAIL)
    post = await office.open()
    queue = office.queue()
    await office.send(b"x" * 200, duplicate_id=b"a")
    with pytest.raises(AddressFullError, match="address 'orders' is full"):
        post.send(message(b"y", duplicate_id=b"b"))
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(1)
    post.acknowledge(receiver.got)
    await office.send(b"y", duplicate_id=b"b")
    assert len(await receiver.wait(2)) == 2


async def test_a_blocked_address_opens_when_messages_are_consumed(office: Office) -> None:
    office.settings("orders", max_size_bytes=2000, address_full_policy=AddressFullPolicy.BLOCK)
    post = await office.open()
    queue = office.queue()
    await office.send(b"x" * 1000, b"x" * 1000)
    assert not post.writable("orders")
    opened = asyncio.Event()
    post.on_writable("orders", opened.set)
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(2)
    assert not opened.is_set(), "delivered is not consumed"
    post.acknowledge(receiver.got)
    assert opened.is_set()
    assert post.writable("orders")


async def test_who_waits_for_a_blocked_address_may_stop_waiting(office: Office) -> None:
    office.settings("orders", max_size_bytes=2000, address_full_policy=AddressFullPolicy.BLOCK)
    post = await office.open()
    queue = office.queue()
    await office.send(b"x" * 1000, b"x" * 1000)
    opened, other = asyncio.Event(), asyncio.Event()
    post.on_writable("orders", opened.set)
    post.on_writable("orders::orders", other.set)
    post.off_writable("orders", opened.set)
    assert list(post.accounts.get("orders").waiters) == [other.set]
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(2)
    post.acknowledge(receiver.got)
    assert other.is_set()
    assert not opened.is_set()
    post.off_writable("orders", other.set)  # too late, and harmless
    post.off_writable("nowhere", other.set)


async def test_dropping_addresses_drop_silently(office: Office) -> None:
    office.settings("orders", max_size_messages=1, address_full_policy=AddressFullPolicy.DROP)
    post = await office.open()
    queue = office.queue()
    await office.send(b"kept", b"dropped")
    assert post.writable("orders")
    assert queue.message_count == 1


async def test_addresses_are_not_created_where_settings_forbid_it(office: Office) -> None:
    office.settings("#", auto_create_addresses=False)
    post = await office.open()
    with pytest.raises(NoSuchAddressError, match="'nowhere'"):
        post.send(message(address="nowhere"))


async def test_an_auto_created_queue_goes_when_it_is_unused_and_its_messages_are_not_lost(office: Office) -> None:
    office.settings("#", default_address_routing_type=RoutingType.ANYCAST)
    post = await office.open()
    await office.send(b"x", address="auto")
    queue = post.queue("auto")
    receiver = Receiver()
    post.attach(queue, receiver)
    await receiver.wait(1)
    post.acknowledge(receiver.got)
    post.send(message(b"in flight", "auto"))  # written, not yet stable
    post.detach(queue, receiver)
    assert post.space.queue("auto") is queue
    await office.stable()
    again = Receiver()
    post.attach(queue, again)
    await again.wait(1)
    post.acknowledge(again.got)
    post.detach(queue, again)
    assert post.space.queue("auto") is None
    assert post.space.address("auto") is None
    post = await office.reopen()
    assert post.space.queue("auto") is None


async def test_a_purged_and_a_deleted_queue_stay_empty_after_a_restart(office: Office) -> None:
    post = await office.open()
    office.queue()
    office.queue("other")
    await office.send(b"1", b"2")
    await office.send(b"3", address="other")
    assert post.purge(post.queue("orders")) == 2
    post.delete_queue("other")
    await office.stable()
    post = await office.reopen()
    assert post.queue("orders").message_count == 0
    assert post.space.queue("other") is None
    office.queue("other")
    assert post.queue("other").message_count == 0


async def test_what_a_detached_consumer_held_goes_to_another(office: Office) -> None:
    post = await office.open()
    queue = office.queue()
    await office.send(b"1", b"2", b"3")
    first = Receiver(credit=2)
    post.attach(queue, first)
    await first.wait(2)
    second = Receiver()
    post.attach(queue, second)
    await second.wait(1)
    post.detach(queue, first)
    await second.wait(3)
    assert second.bodies == [b"3", b"1", b"2"]
    assert [reference.redelivered for reference in second.got] == [False, True, True]


async def test_a_transaction_that_is_open_for_too_long_cannot_be_committed(office: Office) -> None:
    post = await office.open()
    office.queue()
    tx = post.begin()
    post.send(message(b"late"), tx)
    tx.deadline = post.loop.time()
    post.expire_transactions()
    with pytest.raises(InvalidRequestError, match="transaction-timeout"):
        post.commit(tx)
    await office.stable()
    assert post.queue("orders").message_count == 0


@pytest.mark.parametrize("lost", ["nothing", "the bindings"])
async def test_whether_a_subscription_is_no_local_outlives_a_restart_as_it_was_last(office: Office, lost: str) -> None:
    """Breaks when a change is in no record, or in one of the two."""
    post = await office.open()
    office.queue("sub", "news", routing_type=RoutingType.MULTICAST)
    for origin in (7, 0, 8):
        post.address_manager.exclude_own(post.queue("sub"), origin)
        await office.stable()
        await office.close()
        if lost == "the bindings":
            for path in office.directory.glob("bindings/*.segment"):
                path.unlink()
        post = await office.open()
        queue = post.queue("sub")
        assert queue.spec.no_local is bool(origin)
        assert queue.no_local_origin == 0, "its number is another client's in this life"


async def test_a_binding_of_an_earlier_version_is_read_as_one_without_no_local(office: Office) -> None:
    await office.open()
    value = encode_queue(office.queue("sub", "news", routing_type=RoutingType.MULTICAST, no_local=True))
    assert decode_queue(value)[1].no_local
    kept = msgspec.msgpack.decode(value)
    del kept["spec"]["no_local"]
    kept["spec"] |= {"no_local_origin": 7, "of a later version": 1}
    _, spec = decode_queue(msgspec.msgpack.encode(kept))
    assert (spec.no_local, spec.no_local_origin) == (False, 0)


async def test_a_filter_that_is_no_longer_accepted_does_not_keep_a_broker_down(
    office: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions ordered strings, and the bindings journal may have a queue that does."""
    stored = "colour > 'blue' OR JMSPriority = 1"
    await office.open()
    with pytest.raises(SelectorError, match="> compares numbers"):
        office.queue("kept", selector=stored)
    with monkeypatch.context() as earlier:
        earlier.setattr("pollux.routing.queue.parse", lambda text, **_: parse(text, strict=False))
        office.queue("kept", selector=stored)
    await office.send(b"one", address="kept", priority=1)
    post = await office.reopen()
    assert "queue 'kept' keeps a filter that is no longer accepted" in caplog.text
    await office.send(b"two", address="kept", priority=1)
    await office.send(b"neither", address="kept", priority=2)
    receiver = Receiver()
    post.attach(post.queue("kept"), receiver)
    await receiver.wait(2)
    assert receiver.bodies == [b"one", b"two"]
    assert post.queue("kept").message_count == 2, "and no third one"


async def test_a_consumer_of_a_queue_that_is_gone_takes_no_other_one_of_its_name_along(office: Office) -> None:
    """Breaks when a queue that a consumer leaves is deleted by its name alone: with what its successor holds."""
    post = await office.open()
    gone = office.queue(auto_created=True, auto_delete=True)
    late = Receiver()
    post.delete_queue("orders")
    post.attach(gone, late)
    another = office.queue(auto_created=True, auto_delete=True)
    await office.send(b"kept")
    post.detach(gone, late)
    assert post.space.queue("orders") is another
    assert office.count("orders") == 1
