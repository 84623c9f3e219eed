"""Paging end to end: order, restarts, memory, page files that go away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.engine.conftest import Office, Receiver, files_under, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.clusters import HaPolicy, SharedStore, SharedStorePrimary
from pollux.errors import AddressFullError
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue


def page_files(office: Office) -> list[Path]:
    return files_under(office.configuration.paging_directory, ".page")


def paging_office(office: Office) -> None:
    office.settings(
        "#",
        max_size_bytes=20_000,
        page_size_bytes=10_000,
        max_read_page_bytes=20_000,
        address_full_policy=AddressFullPolicy.PAGE,
    )


async def test_a_full_address_pages_and_everything_comes_back_in_order(office: Office) -> None:
    paging_office(office)
    post = await office.open()
    queue = office.queue()
    bodies = [b"%05d" % i + b"x" * 500 for i in range(500)]
    await office.send(*bodies)
    assert page_files(office)
    assert post.message_count(queue) == 500
    assert queue.message_count < 50
    receiver = Receiver()
    post.attach(queue, receiver)
    while len(receiver.got) < 500:
        seen = len(receiver.got)
        await receiver.wait(seen + 1)
        assert post.accounts.get("orders").gauge.bytes < 100_000, "memory is bounded while pages are read"
        post.acknowledge(receiver.got[seen:])
    assert receiver.bodies == bodies
    await office.stable()
    assert post.message_count(queue) == 0
    assert not post.pages.active
    await office.send(b"after")
    await receiver.wait(501)
    await office.close()
    assert page_files(office) == []
    await office.open()


async def test_pages_survive_a_restart_with_what_was_acknowledged_of_them(office: Office) -> None:
    paging_office(office)
    post = await office.open()
    queue = office.queue()
    bodies = [b"%05d" % i + b"x" * 500 for i in range(200)]
    await office.send(*bodies)
    receiver = Receiver()
    post.attach(queue, receiver)
    taken = 0
    while taken < 100:
        await receiver.wait(taken + 1)
        part = receiver.got[taken:100]
        post.acknowledge(part)
        taken += len(part)
        if len(receiver.got) > 100:
            break
    await office.stable()
    post = await office.reopen()
    await office.send(b"new")
    again = Receiver()
    post.attach(post.queue("orders"), again)
    while len(again.got) < 101:
        seen = len(again.got)
        await again.wait(seen + 1)
        post.acknowledge(again.got[seen:])
    assert again.bodies == [*bodies[100:], b"new"]
    assert again.got[0].redelivered


async def test_queues_read_pages_at_their_own_pace(office: Office) -> None:
    paging_office(office)
    post = await office.open()
    fast = office.queue("fast", "news", routing_type=RoutingType.MULTICAST)
    slow = office.queue("slow", "news", routing_type=RoutingType.MULTICAST)
    bodies = [b"%05d" % i + b"x" * 500 for i in range(200)]
    await office.send(*bodies, address="news")
    receiver = Receiver()
    post.attach(fast, receiver)
    while len(receiver.got) < 200:
        seen = len(receiver.got)
        await receiver.wait(seen + 1)
        post.acknowledge(receiver.got[seen:])
    assert receiver.bodies == bodies
    assert post.message_count(slow) == 200
    assert slow.message_count < 50, "the slow queue's messages stay in the pages"
    assert post.purge(slow) == 200
    assert post.message_count(slow) == 0
    assert not post.pages.active


async def consumed_while_paging(office: Office) -> tuple[PostOffice, Queue, Receiver]:
    """A queue with 100 messages, most of them in pages, and a consumer that has acknowledged none."""
    paging_office(office)
    post = await office.open()
    queue = office.queue()
    await office.send(*(b"%05d" % i + b"x" * 500 for i in range(100)))
    receiver = Receiver()
    post.attach(queue, receiver)
    return post, queue, receiver


async def test_what_is_sent_after_a_purge_while_a_page_is_read_is_there(office: Office) -> None:
    """The address goes on paging until the read is over; its old pages are all done, and their directory goes."""
    post, queue, receiver = await consumed_while_paging(office)
    taken = 0
    while not list(post.pages.tasks()):
        await receiver.wait(taken + 1)
        taken, part = len(receiver.got), receiver.got[taken:]
        post.acknowledge(part)
    post.detach(queue, receiver)
    post.purge(queue)
    assert post.pages.active
    for number in range(3):
        await office.send(b"after %d" % number)
    post = await office.reopen()
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    await receiver.wait(3)
    assert receiver.bodies == [b"after 0", b"after 1", b"after 2"]
    post.acknowledge(receiver.got)
    await office.stable()
    await office.close()
    assert page_files(office) == []


async def test_what_is_acknowledged_late_after_a_purge_is_not_counted_against_new_pages(office: Office) -> None:
    """Breaks when an address that pages anew gives its pages the numbers of those whose messages are still out."""
    post, queue, receiver = await consumed_while_paging(office)
    post.acknowledge(list(await receiver.wait(1)))
    while reads := list(post.pages.tasks()):  # until as much as may be is with the consumer
        await asyncio.wait(reads)
    late = [reference for reference in receiver.got if reference.page]
    post.purge(queue)
    assert not post.pages.active
    bodies = [b"after %03d" % i + b"x" * 500 for i in range(100)]
    await office.send(*bodies)
    post.acknowledge(late)
    await office.stable()
    post = await office.reopen()
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    while len(receiver.got) < 100:
        seen = len(receiver.got)
        await receiver.wait(seen + 1)
        post.acknowledge(receiver.got[seen:])
    assert receiver.bodies == bodies


async def test_a_deleted_queue_lets_go_of_its_pages(office: Office) -> None:
    paging_office(office)
    post = await office.open()
    office.queue()
    await office.send(*(b"x" * 500 for _ in range(100)))
    post.delete_queue("orders")
    await office.stable()
    await office.close()
    assert page_files(office) == []
    await office.open()


async def test_paging_begins_again_while_a_paged_message_is_unacknowledged(office: Office) -> None:
    """Breaks when the second paging reads the pages of the first: what is with a consumer would be delivered twice."""
    paging_office(office)
    post = await office.open()
    queue = office.queue()
    bodies = [b"%05d" % i + b"x" * 500 for i in range(200)]
    await office.send(*bodies[:100])
    receiver = Receiver()
    post.attach(queue, receiver)
    kept = None
    seen = 0
    for number in (100, 200):
        while seen < number:
            await receiver.wait(seen + 1)
            arrived, seen = receiver.got[seen:], len(receiver.got)
            if seen == 100:
                kept = arrived.pop()
                assert kept.page
            post.acknowledge(arrived)
        await office.stable()
        assert not post.pages.active, "all pages are read"
        if number == 100:
            await office.send(*bodies[100:])
    assert kept is not None
    post.acknowledge([kept])
    assert receiver.bodies == bodies
    await office.stable()
    await office.close()
    assert page_files(office) == []
    await office.open()


def sharing(office: Office, **settings: object) -> None:
    """The post office of a pair that should not hold more than 10 MiB in memory."""
    office.settings("#", page_size_bytes=1 << 20, **settings)
    office.configuration = replace(
        office.configuration,
        ha_policy=HaPolicy(shared_store=SharedStore(primary=SharedStorePrimary())),
        high_availability=replace(office.configuration.high_availability, page_above=10 << 20),
    )


async def test_a_backlog_in_a_pair_pages_before_a_takeover_waits_for_its_memory(office: Office) -> None:
    """And another address, whose messages are taken, does not."""
    sharing(office)
    post = await office.open()
    office.queue("backlog")
    taken = office.queue("taken")
    receiver = Receiver()
    post.attach(taken, receiver)
    bodies = [b"%05d" % i + b"x" * (100 << 10) for i in range(300)]
    for start in range(0, 300, 50):
        await office.send(*bodies[start : start + 50], address="backlog")
        await office.send(*bodies[start : start + 50], address="taken")
        post.acknowledge((await receiver.wait(start + 50))[start:])
    total = post.accounts.total.bytes
    assert total < 15 << 20, "what waits for nobody is in pages"
    assert list(post.pages.active) == ["backlog"]
    receiver = Receiver()
    post.attach(post.queue("backlog"), receiver)
    while len(receiver.got) < 300:
        seen = len(receiver.got)
        await receiver.wait(seen + 1)
        post.acknowledge(receiver.got[seen:])
    assert receiver.bodies == bodies


async def test_an_address_that_does_not_page_keeps_its_messages_in_memory(office: Office) -> None:
    sharing(office, address_full_policy=AddressFullPolicy.BLOCK)
    post = await office.open()
    office.queue()
    for _ in range(6):
        await office.send(*(b"x" * (100 << 10) for _ in range(50)))
    assert not post.pages.active
    assert post.accounts.writable("orders"), "the bound holds nobody back"


async def test_a_broker_alone_pages_by_its_limits_only(office: Office) -> None:
    sharing(office)
    office.configuration = replace(office.configuration, ha_policy=None)
    post = await office.open()
    office.queue()
    for _ in range(6):
        await office.send(*(b"x" * (100 << 10) for _ in range(50)))
    assert not post.pages.active


async def restarted(office: Office, name: str) -> list[bytes]:
    """Take everything out of a queue after a restart."""
    post = await office.reopen()
    receiver = Receiver()
    queue = post.queue(name)
    count = post.message_count(queue)
    post.attach(queue, receiver)
    while len(receiver.got) < count:
        seen = len(receiver.got)
        await receiver.wait(seen + 1)
        post.acknowledge(receiver.got[seen:])
    return receiver.bodies


@pytest.mark.parametrize("what", ["expired", "moved"])
async def test_what_the_broker_moves_goes_to_pages_beyond_the_limit_of_its_place(office: Office, what: str) -> None:
    """Breaks when a backlog that comes out of its pages to expire, or for an operator, fills the memory elsewhere."""
    paging_office(office)
    office.settings("orders", expiry_address="elsewhere")
    post = await office.open()
    queue = office.queue()
    office.queue("elsewhere")
    bodies = [b"%05d" % i + b"x" * 500 for i in range(500)]
    for body in bodies:
        post.send(message(body, expiration=post.wall_ms() + 3_600_000))
    await office.stable()
    if what == "expired":
        office.now = 3_700_000
    while post.message_count(queue):
        await post.pages.bring(queue)
        if what == "expired":
            post.dead_letters.scan()
        else:
            references, _ = queue.remove({reference.message.id for reference in queue.iterate()})
            post.dead_letters.move(queue, references, "elsewhere")
        await office.stable()
        assert post.accounts.of("elsewhere").gauge.bytes < 100_000
    await office.stable()
    assert post.message_count(post.queue("elsewhere")) == 500
    assert await restarted(office, "elsewhere") == bodies


async def test_what_other_nodes_had_accepted_goes_to_pages_where_what_is_sent_is_dropped(office: Office) -> None:
    """Breaks when it fills the memory of a full address, or comes before, or when producers may send on behind it."""
    office.settings("#", max_size_bytes=20_000, page_size_bytes=10_000, address_full_policy=AddressFullPolicy.DROP)
    post = await office.open()
    queue = office.queue()
    full = [b"%05d" % i + b"x" * 500 for i in range(100)]
    await office.send(*full)
    here = post.message_count(queue)
    assert here < 100
    moved = [b"%05d" % i + b"y" * 500 for i in range(300)]
    for body in moved:
        assert post.take(message(body), [queue], 0, moved=True)
    assert post.accounts.get("orders").gauge.bytes < 30_000
    await office.send(*full)
    await office.stable()
    assert post.message_count(queue) == here + 300
    assert await restarted(office, "orders") == full[:here] + moved
    await office.send(b"there is room")
    await office.stable()
    assert office.post.message_count(office.post.queue("orders")) == 1


async def expired_elsewhere(office: Office, full: AddressFullPolicy) -> tuple[list[bytes], int]:
    """Have a backlog in pages expire into a full address of that policy; it, and the most there was in memory."""
    paging_office(office)
    office.settings("orders", expiry_address="elsewhere")
    office.settings("elsewhere", address_full_policy=full)
    office.configuration = replace(office.configuration, global_max_size=100_000)
    post = await office.open()
    queue = office.queue()
    office.queue("elsewhere")
    bodies = [b"%05d" % i + b"x" * 500 for i in range(500)]
    for body in bodies:
        post.send(message(body, expiration=post.wall_ms() + 3_600_000))
    await office.stable()
    office.now = 3_700_000
    most = post.accounts.total.bytes
    while post.message_count(queue):
        await post.pages.bring(queue)
        post.dead_letters.scan()
        await office.stable()
        most = max(most, post.accounts.total.bytes)
    assert post.message_count(post.queue("elsewhere")) == 500
    return bodies, most


@pytest.mark.parametrize("full", [AddressFullPolicy.BLOCK, AddressFullPolicy.FAIL])
async def test_a_backlog_in_pages_does_not_fill_the_memory_where_who_sends_is_held_back(
    office: Office, full: AddressFullPolicy
) -> None:
    """Breaks when all that was in pages is in memory at its new place, or who sends there may fill pages of it."""
    bodies, most = await expired_elsewhere(office, full)
    post = office.post
    assert post.accounts.of("elsewhere").gauge.bytes > 30_000, "it has more than its limit, while there is memory"
    assert most < 150_000
    called: list[int] = []
    if full is AddressFullPolicy.FAIL:
        with pytest.raises(AddressFullError):
            post.send(message(b"refused", "elsewhere"))
    else:
        assert not post.writable("elsewhere")
        post.on_writable("elsewhere", lambda: called.append(post.message_count(post.queue("elsewhere"))))
        post.send(message(b"last", "elsewhere"))
        bodies.append(b"last")
    receiver = Receiver()
    post.attach(post.queue("elsewhere"), receiver)
    while len(receiver.got) < len(bodies):
        seen = len(receiver.got)
        await receiver.wait(seen + 1)
        assert bool(called) <= (post.message_count(post.queue("elsewhere")) < 100)
        post.acknowledge(receiver.got[seen:])
    assert receiver.bodies == bodies
    await office.stable()
    assert not post.pages.active
    assert post.writable("elsewhere")
    assert len(called) == (full is AddressFullPolicy.BLOCK)
    await office.send(b"there is room", address="elsewhere")
    await receiver.wait(len(bodies) + 1)


@pytest.mark.parametrize("what", ["purged", "moved"])
async def test_who_is_held_back_by_what_is_in_pages_goes_on_when_that_is_gone(office: Office, what: str) -> None:
    await expired_elsewhere(office, AddressFullPolicy.BLOCK)
    post = office.post
    queue = post.queue("elsewhere")
    called: list[bool] = []
    post.on_writable("elsewhere", lambda: called.append(post.writable("elsewhere")))
    if what == "purged":
        assert post.purge(queue) == 500
    else:
        office.queue("third")
        while post.message_count(queue):
            await post.pages.bring(queue)
            references, _ = queue.remove({reference.message.id for reference in queue.iterate()})
            post.dead_letters.move(queue, references, "third")
            await office.stable()
        assert post.message_count(post.queue("third")) == 500
    assert called == [True]


async def test_what_no_queue_takes_does_not_fill_the_memory_where_who_sends_is_held_back(office: Office) -> None:
    """Who sends it is not held back: its own address pages, and has nothing."""
    paging_office(office)
    office.settings("lost", send_to_dla_on_no_route=True, dead_letter_address="elsewhere")
    office.settings("elsewhere", address_full_policy=AddressFullPolicy.BLOCK)
    office.configuration = replace(office.configuration, global_max_size=100_000)
    post = await office.open()
    office.queue("elsewhere")
    bodies = [b"%05d" % i + b"x" * 500 for i in range(500)]
    await office.send(*bodies, address="lost", routing_type=RoutingType.MULTICAST)
    assert post.accounts.total.bytes < 150_000
    assert await restarted(office, "elsewhere") == bodies
