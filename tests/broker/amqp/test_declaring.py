"""Queues that come and go with links: no client is told before that is on disk, for a kill would take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import proton
import pytest_asyncio
from msgspec.structs import replace

from harness.held_disk import HeldDisk
from harness.sessions.amqp import Broker, message

from .receivers import durable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest_asyncio.fixture
async def held(tmp_path: Path) -> AsyncIterator[tuple[Broker, HeldDisk]]:
    disk = HeldDisk()
    broker = Broker(tmp_path, files=disk)
    await broker.start()
    yield broker, disk
    await broker.stop()


def answered(link: proton.Link) -> bool:
    return bool(link.state & (proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED))


async def test_a_link_is_answered_when_its_queue_is_on_disk(held: tuple[Broker, HeldDisk]) -> None:
    """Also the link of another client, which finds the queue that is on its way there."""
    broker, disk = held
    client, other = await broker.client("one").opened(), await broker.client("two").opened()
    with disk.still:
        link = await client.sender("new", capabilities=["queue"], wait=False)
        await client.quiet()
        second = await other.sender("new", capabilities=["queue"], wait=False)
        await other.quiet()
        assert broker.post.space.queue("new") is not None
        assert not answered(link)
        assert not answered(second)
    await client.until(lambda: link.credit > 0)
    await other.until(lambda: second.credit > 0)


async def test_the_end_of_a_subscription_is_answered_when_it_is_on_disk(held: tuple[Broker, HeldDisk]) -> None:
    broker, disk = held
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=durable)
    ending = await client.receiver("news", "other", capabilities=["topic"], prepare=durable)
    with disk.still:
        link.close()
        ending.close()
        await client.quiet()
        assert broker.post.space.queue("me.sub") is None
        assert link.state & proton.Endpoint.REMOTE_ACTIVE
        # A session that ends meanwhile takes the link with it.
        ending.session.close()
        await client.quiet()
    await client.until(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)


async def test_what_waits_for_an_answer_comes_behind_it(held: tuple[Broker, HeldDisk]) -> None:
    """Messages for a link, and its end, while another queue of its address is on its way to the disk."""
    broker, disk = held
    client = await broker.client().opened()
    await client.send_all(await client.sender("a::one", capabilities=["queue"]), [message("first"), message("second")])
    with disk.still:
        await client.sender("a::two", "other", capabilities=["queue"], wait=False)
        link, ended = client.begin().receiver("taking"), client.begin().sender("ended")
        link.source.address, ended.target.address = "a::one", "a::two"
        link.open()
        link.flow(2)
        ended.open()
        await client.quiet()
        assert broker.post.queue("one").consumer_count == 1
        assert not answered(link)
        assert not client.received
        # Some clients take the answer to their last attach for that to all, and send with what they have then.
        last = await client.sender("elsewhere", "last", wait=False)
        await client.quiet()
        assert not answered(last)
        ended.close()
        await client.until(lambda: ended.state & proton.Endpoint.REMOTE_CLOSED)
    assert [(await client.get()).body for _ in range(2)] == ["first", "second"]
    assert answered(link)


async def test_answers_that_wait_are_bounded(held: tuple[Broker, HeldDisk]) -> None:
    """A client that attaches and detaches again and again while nothing gets to the disk."""
    broker, disk = held
    limits = replace(broker.configuration.limits, max_consumers_per_connection=5)
    broker.configuration = replace(broker.configuration, limits=limits)
    client = await broker.client("me").opened()
    with disk.still:
        for number in range(20):
            link = await client.sender("new", str(number), capabilities=["queue"], wait=False)
            await client.quiet(2)
            link.close()
            await client.until(lambda link=link: link.state & proton.Endpoint.REMOTE_CLOSED)  # type: ignore[misc]
        assert len(client.session._unanswered) == 5
        assert link.remote_condition.name == "amqp:resource-limit-exceeded"
