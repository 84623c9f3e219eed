"""Each message that the broker moves is in one of the two places, whenever the power is cut."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

from broker.engine.conftest import Office, Receiver, message
from broker.engine.test_orphans import crash, opened_on
from harness.lossy_disk import LossyDisk, lay_out, torn
from pollux.config.address_settings import AddressFullPolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

#: Messages, in pages but for a few; how many move at once; power cuts, of a long life and of a short one.
MESSAGES, MOVED, CUTS, FEW = 60, 7, 150, 60


def an_office(directory: Path) -> Office:
    office = Office(directory)
    office.settings(
        "#",
        max_size_bytes=4000,
        page_size_bytes=5000,
        max_read_page_bytes=8000,
        address_full_policy=AddressFullPolicy.PAGE,
        auto_delete_queues=False,
        auto_delete_addresses=False,
        dead_letter_address="dead",
    )
    return office


async def everything(office: Office) -> Counter[bytes]:
    """Take all that the queues of a broker hold."""
    found: Counter[bytes] = Counter()
    for queue in list(office.post.space.queues):
        receiver = Receiver()
        count = office.post.message_count(queue)
        office.post.attach(queue, receiver)
        while len(receiver.got) < count:
            seen = len(receiver.got)
            await receiver.wait(seen + 1)
            office.post.acknowledge(receiver.got[seen:])
        found.update(receiver.bodies)
    return found


@asynccontextmanager
async def on_a_disk(root: Path) -> AsyncIterator[tuple[Office, LossyDisk]]:
    """An open office on a disk that says what a power cut leaves of it; killed at the end."""
    for name in ("journal", "bindings", "large", "paging"):
        (root / name).mkdir(parents=True)
    disk = LossyDisk(root)
    office = an_office(root)
    await opened_on(office, disk)
    yield office, disk
    await crash(office)


async def cut(disk: LossyDisk, left: Path, cuts: int, check: Callable[[Office], Awaitable[None]]) -> None:
    """Cut the power so often since something was noted, and ``check`` the broker that starts on what is left."""
    for what in torn(disk, Random(9), cuts):  # noqa: S311  (a reproducible test, no secret)
        lay_out(what, left)
        office = an_office(left)
        await office.open()
        await check(office)
        await crash(office)


async def test_a_power_cut_while_messages_move_from_pages_to_pages(tmp_path: Path) -> None:
    """Breaks when what leaves is on disk before the page that it goes to."""
    bodies = [b"%05d" % number + b"x" * 500 for number in range(MESSAGES)]
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        queue = office.queue("orders")
        office.queue("elsewhere")
        await office.send(*bodies)
        disk.note("sent")
        post = office.post
        while post.message_count(queue):
            await post.pages.bring(queue)
            ids = [reference.message.id for reference in queue.iterate()][:MOVED]
            references, _ = queue.remove(set(ids))
            assert post.dead_letters.move(queue, references, "elsewhere") == len(references)
            await office.stable()
        assert post.accounts.get("elsewhere").pages.active

    async def check(again: Office) -> None:
        assert await everything(again) == Counter(bodies)

    await cut(disk, tmp_path / "left", CUTS, check)


async def test_a_power_cut_while_a_dead_letter_is_made_of_what_no_node_takes(tmp_path: Path) -> None:
    """Breaks when that it left its queue is on record by itself."""
    body = b"forwarded" + b"x" * 2000
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        queue = office.queue("forwarding")
        office.queue("dead")
        await office.send(body, address="forwarding")
        receiver = Receiver()
        office.post.attach(queue, receiver)
        await receiver.wait(1)
        disk.note("sent")
        (held,) = receiver.got
        office.post.dead_letters.bury(held, message(body, "orders"))
        await office.stable()
        assert office.post.message_count(office.post.queue("dead")) == 1

    async def check(again: Office) -> None:
        assert await everything(again) == Counter([body])

    await cut(disk, tmp_path / "left", FEW, check)


async def test_a_power_cut_while_a_queue_is_deleted_whose_messages_have_just_moved(tmp_path: Path) -> None:
    """Breaks when it is on record that the queue is gone before the transaction that moved its messages."""
    bodies = [b"%05d" % number for number in range(5)]
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        queue = office.queue("orders")
        office.queue("elsewhere")
        await office.send(*bodies)
        disk.note("sent")
        references, _ = queue.remove({reference.message.id for reference in queue.iterate()})
        assert office.post.dead_letters.move(queue, references, "elsewhere") == len(bodies)
        office.post.delete_queue("orders")
        await office.stable()

    async def check(again: Office) -> None:
        assert await everything(again) == Counter(bodies)

    await cut(disk, tmp_path / "left", FEW, check)
