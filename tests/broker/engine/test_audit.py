"""The audit trail has each step of messages, for the addresses that ask for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.engine.conftest import Office, Receiver, message
from pollux.audit import Trail
from pollux.config.extensions import Audit
from pollux.errors import PolluxError
from pollux.formats.audit import Event, Flag, Lifecycle, Messages, read
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pathlib import Path


class Audited(Office):
    """An office whose audit trail can be read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory / "audit"
        self.trail = Trail(Audit(directory=self.directory), "castor", "1", lambda address: address != "quiet")

    async def events(self) -> tuple[list[tuple[str, str, int]], list[Lifecycle]]:
        """End the trail; return (event, queue, message id) of each message event, and the lifecycle events."""
        assert self.trail is not None
        self.trail.start(asyncio.get_running_loop())
        await self.trail.stop()
        found = [each for path in self.files() for each in read(path.read_bytes(), path.name)]
        self.runs = [run for each in found if isinstance(each, Messages) for run in each.runs]
        return (
            [
                (Event(run.event).name, run.queue, number)
                for each in found
                if isinstance(each, Messages)
                for run, number, _, _ in each.each()
            ],
            [each for each in found if isinstance(each, Lifecycle)],
        )

    def files(self) -> list[Path]:
        return sorted(self.directory.iterdir())


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    return Audited(tmp_path)


async def test_the_life_of_a_message(audited: Audited) -> None:
    audited.settings("orders", dead_letter_address="DLA", max_delivery_attempts=2)
    post = await audited.open()
    queue = audited.queue()
    audited.queue("DLA")
    audited.queue("quiet")
    receiver = Receiver(origin=42)
    post.attach(queue, receiver)
    await audited.send(b"good", b"bad")
    await audited.send(b"nobody shall know", address="quiet")
    good, bad = await receiver.wait(2)
    numbers = (good.message.id, bad.message.id)
    post.acknowledge([good])
    post.release([bad], failed=True)
    again = (await receiver.wait(3))[2]
    assert again is bad
    post.release([bad], failed=True)
    await audited.stable()
    found, lifecycle = await audited.events()
    await audited.close()
    in_orders = [(event, numbers.index(number)) for event, queue, number in found if queue == "orders"]
    assert in_orders == [
        ("ACCEPTED", 0),
        ("ACCEPTED", 1),
        ("DELIVERED", 0),
        ("DELIVERED", 1),
        ("ACKNOWLEDGED", 0),
        ("RELEASED", 1),
        ("DELIVERED", 1),
        ("RELEASED", 1),
        ("DEAD_LETTERED", 1),
    ]
    assert [event for event, queue, _ in found if queue == "DLA"] == ["ACCEPTED"]
    assert {queue for _, queue, _ in found} == {"orders", "DLA"}
    assert {run.consumer for run in audited.runs if run.event == Event.DELIVERED} == {42}
    assert [run.target for run in audited.runs if run.event == Event.DEAD_LETTERED] == ["DLA"]
    assert [run.flags for run in audited.runs if run.event == Event.RELEASED] == [Flag.FAILED, Flag.FAILED]
    assert [each.event for each in lifecycle if each.fields.get("queue") == "orders"] == ["queue-created"]


async def test_transactions_count_at_their_commit(audited: Audited) -> None:
    post = await audited.open()
    queue = audited.queue()
    audited.queue("other")
    receiver = Receiver()
    await audited.send(b"in")
    post.attach(queue, receiver)
    (got,) = await receiver.wait(1)
    given_up = post.begin()
    post.send(message(b"never"), given_up)
    post.acknowledge([got], given_up)
    post.rollback(given_up)
    tx = post.begin()
    post.send(message(b"out", "other"), tx)
    post.acknowledge([got], tx)
    post.commit(tx)
    await audited.stable()
    found, _ = await audited.events()
    await audited.close()
    assert [(event, queue) for event, queue, _ in found] == [
        ("ACCEPTED", "orders"),
        ("DELIVERED", "orders"),
        ("ACKNOWLEDGED", "orders"),
        ("ACCEPTED", "other"),
    ]


async def test_messages_that_nobody_consumed_are_accounted_for(audited: Audited) -> None:
    audited.settings("pages", max_size_bytes=1000, page_size_bytes=4096)
    post = await audited.open()
    ring = audited.queue("ring", ring_size=1)
    purged = audited.queue("purged")
    audited.queue("pages")
    await audited.send(b"old", b"new", address="ring")
    await audited.send(b"one", b"two", address="purged")
    await audited.send(*[b"x" * 400] * 4, address="pages")
    post.purge(purged)
    post.ensure_address("nowhere", RoutingType.MULTICAST)
    await audited.send(b"lost", address="nowhere", routing_type=RoutingType.MULTICAST)
    with pytest.raises(PolluxError):
        post.queue("missing")
    await audited.stable()
    found, lifecycle = await audited.events()
    await audited.close()
    assert ring.message_count == 1
    counts: dict[tuple[str, str], int] = {}
    for event, queue, _ in found:
        counts[queue, event] = counts.get((queue, event), 0) + 1
    assert counts == {
        ("ring", "ACCEPTED"): 2,
        ("ring", "REMOVED"): 1,
        ("purged", "ACCEPTED"): 2,
        ("purged", "REMOVED"): 2,
        ("pages", "ACCEPTED"): 4,
        ("nowhere", "UNROUTED"): 1,
    }
    assert Flag.PAGED in {run.flags for run in audited.runs if run.queue == "pages"}
    assert [each.fields for each in lifecycle if each.event == "queue-purged"] == [
        {"queue": "purged", "address": "purged", "messages": 2}
    ]
