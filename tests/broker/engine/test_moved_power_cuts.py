"""Each message that the broker moves from pages to pages is in one of the two, whenever the power is cut."""

from __future__ import annotations

import shutil
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from broker.engine.conftest import Office, Receiver
from broker.engine.test_orphans import crash, opened_on
from harness.disk_account import Account, materialise
from harness.lossy_disk import LossyDisk
from pollux.config.address_settings import AddressFullPolicy

if TYPE_CHECKING:
    from pathlib import Path

#: Messages, in pages but for a few; how many move at once; power cuts, spread over the life.
MESSAGES, MOVED, CUTS = 60, 7, 150


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


async def test_a_power_cut_while_messages_move_from_pages_to_pages(tmp_path: Path) -> None:
    """Breaks when what leaves is on disk before the page that it goes to."""
    root = tmp_path / "disk"
    for name in ("journal", "bindings", "large", "paging"):
        (root / name).mkdir(parents=True)
    disk = LossyDisk(root)
    office = an_office(root)
    await opened_on(office, disk)
    queue = office.queue("orders")
    office.queue("elsewhere")
    bodies = [b"%05d" % number + b"x" * 500 for number in range(MESSAGES)]
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
    await crash(office)
    draw = Random(9)  # noqa: S311  (a reproducible test, no secret)
    sent = next(number for number, event in enumerate(disk.events) if event.kind == "note")
    after = range(sent, len(disk.events))
    cuts = {*draw.sample(after, min(CUTS, len(after))), after[-1]}
    account = Account()
    for number, event in enumerate(disk.events):
        account.apply(event)
        if number not in cuts:
            continue
        left = tmp_path / "left"
        left.mkdir()
        materialise(account.left(draw), left)
        again = an_office(left)
        await again.open()
        assert await everything(again) == Counter(bodies), number
        await crash(again)
        shutil.rmtree(left)
