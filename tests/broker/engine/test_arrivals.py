"""One message for very many queues holds up nobody else's confirm; each queue's order stays."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from broker.engine.conftest import Office, Receiver, message
from pollux.engine.arrivals import MANY, LateArrivals
from pollux.engine.share import AT_ONCE, SLICE, Share
from pollux.message import RoutingType
from pollux.routing.reference import MessageReference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.routing.queue import Queue


class Way:
    """Queues and their messages by name; each entry takes an eighth of a slice of the share's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.share = Share(asyncio.get_running_loop(), lambda: self.now, lambda: self.now)
        #: The names of queues and messages stand for them.
        self.late: Any = LateArrivals(self.share, self._enter)
        self.entered: list[tuple[str, str]] = []
        self.broken: set[str] = set()

    def _enter(self, queue: Queue, references: list[MessageReference]) -> None:
        self.now += SLICE / 8
        if str(queue) in self.broken:
            raise RuntimeError("broken")
        self.entered += [(str(queue), str(reference)) for reference in references]

    def take(self, queues: Iterable[str], *messages: str) -> None:
        self.late.take({queue: list(messages) for queue in queues})

    async def all_turns(self) -> None:
        """Give the loop more turns than everything takes; slices are short after some of them."""
        for _ in range(4 * AT_ONCE):
            await asyncio.sleep(0)

    def of(self, queue: str) -> list[str]:
        return [message for name, message in self.entered if name == queue]


@pytest.fixture
async def way() -> Way:
    return Way()


def queues(count: int) -> list[str]:
    return [f"q{number}" for number in range(count)]


async def test_few_queues_are_entered_at_once(way: Way) -> None:
    way.take(queues(AT_ONCE), "one", "two")
    assert len(way.entered) == 2 * AT_ONCE
    assert not way.late.crowded


async def test_of_many_queues_a_slice_is_entered_in_each_turn(way: Way) -> None:
    way.take(queues(AT_ONCE + 20), "one")
    assert way.entered == []
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert len(way.entered) == 8 * turn
    await way.all_turns()
    assert [name for name, _ in way.entered] == queues(AT_ONCE + 20)


async def test_later_messages_wait_behind_earlier_ones_and_other_queues_do_not(way: Way) -> None:
    """Breaks when what comes later is entered at once while earlier messages of its queue wait."""
    way.take(queues(AT_ONCE + 20), "early")
    way.take([f"q{AT_ONCE + 10}", "other"], "late")
    assert way.of("other") == ["late"]
    assert way.of(f"q{AT_ONCE + 10}") == []
    await way.all_turns()
    assert way.of(f"q{AT_ONCE + 10}") == ["early", "late"]


async def test_who_asks_for_a_queue_finds_its_messages_in_it(way: Way) -> None:
    way.take(queues(AT_ONCE + 20), "one")
    last = f"q{AT_ONCE + 19}"
    assert last in way.late
    way.late.finish(last)
    assert way.of(last) == ["one"]
    await way.all_turns()
    assert way.of(last) == ["one"], "once"


async def test_one_queue_that_fails_keeps_no_other_out(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    way.broken = {f"q{AT_ONCE + 3}"}
    way.late.take({Name(queue): ["one"] for queue in queues(AT_ONCE + 20)})
    await way.all_turns()
    assert len(way.entered) == AT_ONCE + 19
    assert f"messages could not enter q{AT_ONCE + 3}" in caplog.text


class Name(str):
    """A queue with a name, as far as the log is concerned."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)


class Disk:
    """A disk that keeps up; whether much has come back from it is for ``late`` to say."""

    behind = False

    def __init__(self, late: LateArrivals) -> None:
        self._late = late

    @property
    def crowded(self) -> bool:
        return self._late.crowded

    def when_stable(self, callback: object) -> None:
        """Take the callback, and never call it."""


async def test_nobody_sends_more_while_very_many_queues_wait(way: Way) -> None:
    """Breaks when a client is read while what it sent before waits: then that grows without a bound."""
    way.share.disk = Disk(way.late)
    read = 0

    def more() -> bool:
        nonlocal read
        read += 1
        way.now += SLICE
        return True

    way.share.add(more)
    way.take(queues(MANY + 16), "one")
    assert way.late.crowded
    assert not way.share.room
    await asyncio.sleep(0)
    assert read == 0
    for _ in range(3):
        await asyncio.sleep(0)
    assert not way.late.crowded
    for _ in range(4):
        await asyncio.sleep(0)
    assert read, "it goes on by itself"
    assert len(way.entered) < MANY, "in turns with the rest"


SUBSCRIBERS = 20 * AT_ONCE


async def test_a_confirm_does_not_wait_for_anothers_thousand_queues(office: Office) -> None:
    """Breaks when all queues of a message are entered in one step."""
    post = await office.open()
    wide = [office.queue(f"wide.{n}", "wide", routing_type=RoutingType.MULTICAST) for n in range(SUBSCRIBERS)]
    office.queue()
    confirmed: list[int] = []
    done = asyncio.Event()
    for turn in range(3):
        post.send(message(b"%d" % turn, address="wide", routing_type=RoutingType.MULTICAST))
        post.when_stable(lambda _: None)

    def confirm(_error: Exception | None) -> None:
        confirmed.append(sum(queue.message_count for queue in wide))
        done.set()

    post.send(message(b"honest"))
    post.when_stable(confirm)
    async with asyncio.timeout(20):
        await done.wait()
    assert confirmed[0] < SUBSCRIBERS, "most of the work is still to be done"
    assert post.queue("orders").message_count == 1
    assert all(post.in_flight(queue) for queue in wide if not queue.message_count), "they are not taken for empty"
    receiver = Receiver()
    post.attach(post.queue(wide[-1].name), receiver)
    await receiver.wait(3)
    assert receiver.bodies == [b"0", b"1", b"2"]
    assert {post.queue(queue.name).message_count for queue in wide[:-1]} == {3}


async def test_what_comes_out_of_pages_is_behind_what_waits_to_enter(office: Office) -> None:
    """Breaks when messages that are read from pages enter a queue before those that were written before them."""
    post = await office.open()
    wide = [office.queue(f"wide.{n}", "wide", routing_type=RoutingType.MULTICAST) for n in range(SUBSCRIBERS)]
    last = wide[-1]
    looks = count()
    post.share.clock = lambda: next(looks) * SLICE  # one in each turn, on a fast machine too
    post.send(message(b"early", address="wide", routing_type=RoutingType.MULTICAST))
    await office.stable()
    assert post.in_flight(last), "it waits"
    post.arrive(last, [MessageReference(message(b"from a page", address="wide"), last)])
    receiver = Receiver()
    post.attach(last, receiver)
    await receiver.wait(2)
    assert receiver.bodies == [b"early", b"from a page"]
