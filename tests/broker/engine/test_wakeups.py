"""Queues that were woken together: a slice of what they have is handed out in a turn, the rest in later ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pollux.engine.share import AT_ONCE, SLICE, Share
from pollux.engine.wakeups import Wakeups

if TYPE_CHECKING:
    from pollux.routing.queue import Queue


class Post:
    """Hands out what queues have (``taken``, in order); each takes ``cost`` seconds, of the processor too."""

    def __init__(self, cost: float) -> None:
        self.now = self.effort = 0.0
        self.cost = cost
        self.taken: list[str] = []
        loop = asyncio.get_running_loop()
        self.share = Share(loop, lambda: self.now, lambda: self.effort)
        self.wakeups = Wakeups(loop, self.share, lambda: 0, self.hand_out)

    def hand_out(self, queue: Queue, _now: int) -> None:
        self.now += self.cost
        self.effort += self.cost
        self.taken.append(str(queue))

    def wake(self, count: int) -> list[str]:
        names = [f"q{number}" for number in range(count)]
        for name in names:
            self.wakeups.wake(cast("Queue", name))
        return names


async def test_few_queues_with_much_each_do_not_keep_the_loop() -> None:
    """Breaks when sixty queues that have a millisecond's work each are one step: everybody else waited 25 ms for it."""
    post = Post(SLICE / 4)
    names = post.wake(40)
    await asyncio.sleep(0)
    assert post.taken == names[:5], "a slice, and the queue that used it up"
    for _ in range(3):
        before = len(post.taken)
        await asyncio.sleep(0)
        assert 0 < len(post.taken) - before <= 5
    for _ in range(20):
        await asyncio.sleep(0)
    assert post.taken == names, "each once, in order"


async def test_few_queues_with_little_are_handed_out_at_once() -> None:
    post = Post(SLICE / AT_ONCE / 2)
    names = post.wake(AT_ONCE)
    await asyncio.sleep(0)
    assert post.taken == names


async def test_a_busy_machine_makes_nobody_late() -> None:
    """Breaks when a thread that was kept from running is taken for one that did much."""
    post = Post(0.0)
    names = post.wake(10)
    post.share.clock = iter(range(100)).__next__
    await asyncio.sleep(0)
    assert post.taken == names


async def test_a_queue_that_is_woken_again_while_it_waits_goes_on() -> None:
    post = Post(SLICE / 4)
    post.wake(AT_ONCE + 10)
    for _ in range(2 * AT_ONCE):
        await asyncio.sleep(0)
        post.wakeups.wake(cast("Queue", "busy"))
    assert {*post.taken} == {*(f"q{number}" for number in range(AT_ONCE + 10)), "busy"}
