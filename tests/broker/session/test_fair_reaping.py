"""Unused queues and addresses are deleted a few in a turn of the loop, however many there are."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from typing import TYPE_CHECKING

from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec
from pollux.session.share import SLICE

if TYPE_CHECKING:
    from broker.session.conftest import Office

MANY = 300
PIECES = 4


async def test_what_is_unused_is_deleted_bit_by_bit(office: Office) -> None:
    post = await office.open()
    looks = count()
    post.share.clock = lambda: next(looks) * SLICE / PIECES
    post.share.disk = None  # whom it need not wait for
    for number in range(MANY):
        name = f"q{number}"
        post.create_queue(QueueSpec(name, name, routing_type=RoutingType.ANYCAST, auto_created=True, auto_delete=True))
        post.space.queue(name).used = True  # type: ignore[union-attr]
    office.now += 3 * office.configuration.address_queue_scan_period
    post.registry.reap()
    left = [len(post.space.queues)]
    assert MANY - left[0] <= PIECES + 1
    for _ in range(2 * MANY):
        await asyncio.sleep(0)
        left.append(len(post.space.queues))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= PIECES + 1
