"""Unused queues and addresses are deleted a few in a turn of the loop, however many there are."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from typing import TYPE_CHECKING

from broker.engine.conftest import message
from pollux.engine.share import SLICE
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.engine.conftest import Office
    from pollux.engine.post_office import PostOffice

MANY = 300
PIECES = 4


def counted(post: PostOffice) -> None:
    """Have each look at the clock take a quarter of a slice; nothing waits for the disk."""
    looks = count()
    post.share.clock = post.share.effort = lambda: next(looks) * SLICE / PIECES
    post.share.disk = None


async def test_messages_that_are_due_in_many_queues_are_handed_out_bit_by_bit(office: Office) -> None:
    post = await office.open()
    queues = [office.queue(f"q{number}") for number in range(MANY)]
    due, later = office.wall_ms() + 100_000, office.wall_ms() + 1_000_000
    for queue in queues:
        post.send(message(address=queue.name, deliver_at=due))
    post.send(message(address="q0", deliver_at=later))
    office.queue("other")
    await office.stable()
    for _ in range(MANY):
        await asyncio.sleep(0)  # a slow machine enters so many queues in several turns
    counted(post)
    office.now += 200_000
    post.due.look()

    def left() -> int:
        return sum(queue.scheduled for queue in queues)

    found = [left()]
    assert MANY + 1 - found[0] <= PIECES + 1
    for _ in range(2 * MANY):
        await asyncio.sleep(0)
        found.append(left())
    assert max(before - after for before, after in pairwise(found)) <= PIECES + 1
    assert found[-1] == 1
    assert list(post.due._queues) == [queues[0]], "others, and those with nothing scheduled, are not looked at again"
    assert post.due._timer_at == later


async def test_what_is_unused_is_deleted_bit_by_bit(office: Office) -> None:
    post = await office.open()
    counted(post)
    for number in range(MANY):
        name = f"q{number}"
        post.create_queue(QueueSpec(name, name, routing_type=RoutingType.ANYCAST, auto_created=True, auto_delete=True))
        post.space.queue(name).used = True  # type: ignore[union-attr]
    office.now += 3 * office.configuration.address_queue_scan_period
    post.address_manager.reap()
    left = [len(post.space.queues)]
    assert MANY - left[0] <= PIECES + 1
    for _ in range(2 * MANY):
        await asyncio.sleep(0)
        left.append(len(post.space.queues))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= PIECES + 1
