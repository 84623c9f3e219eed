"""Bindings that are damaged, cut or gone: no confirmed message is lost for it (docs/journal-format.md, "Orphans").

A store that a real life made is damaged in every place of its bindings. What was confirmed must then be in its queue,
or be an orphan that was reported; and all of it in its queue again once the good file is back.
"""

from __future__ import annotations

import asyncio
import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest

from broker.engine.conftest import Office, Receiver, files_under, message
from harness.disk_account import Account, materialise
from harness.lossy_disk import LossyDisk
from harness.store import abandon, without_names
from pollux.config.address_settings import AddressFullPolicy
from pollux.errors import InvalidRequestError, NoSuchQueueError
from pollux.formats.segments import HEADER_SIZE, DamagedRange, decode_header
from pollux.formats.segments import records as scan
from pollux.message import RoutingType
from pollux.store.bindings import newest_file
from pollux.store.compare.side import read_side
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage
from pollux.store.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MULTICAST = RoutingType.MULTICAST
#: What was confirmed, by queue.
Ledger = dict[str, list[bytes]]


def an_office(directory: Path) -> Office:
    office = Office(directory)
    office.settings("#", auto_delete_queues=False, auto_delete_addresses=False)
    for address in ("paged", "feed"):
        office.settings(address, max_size_bytes=4000, page_size_bytes=5000, address_full_policy=AddressFullPolicy.PAGE)
    return office


async def crash(office: Office) -> None:
    """End as a killed process does: no checkpoint, nothing tidied."""
    await office.post.close()
    await abandon(office.storage)
    assert office.failures == []


async def a_life(office: Office) -> Ledger:
    """Queues of every kind with messages of every kind, and some that rightly do not outlive it."""
    post = await office.open()
    office.queue("orders")
    office.queue("other", "orders")
    for name in ("news.a", "news.b"):
        office.queue(name, "news", routing_type=MULTICAST)
    office.queue("news.volatile", "news", routing_type=MULTICAST, durable=False)
    office.queue("paged")
    office.queue("feed.kept", "feed", routing_type=MULTICAST)
    office.queue("feed.temporary", "feed", routing_type=MULTICAST, durable=False, temporary=True)
    office.queue("scratch")
    office.queue("large")
    ledger: Ledger = {"orders": [], "other": [b"one other"], "large": [b"L" * 100]}
    for number in range(6):
        ledger["orders"].append(b"order %d" % number)
        await office.send(ledger["orders"][-1], address="orders::orders", priority=number)
    await office.send(b"one other", address="orders::other")
    ledger["news.a"] = ledger["news.b"] = [b"news", b"more news"]
    await office.send(*ledger["news.a"], address="news")
    for address, queue in (("paged", "paged"), ("feed", "feed.kept")):
        ledger[queue] = [b"%s %3d " % (address.encode(), number) + b"." * 600 for number in range(20)]
        await office.send(*ledger[queue], address=address)
    await office.send(b"gone with its queue", address="scratch")
    post.delete_queue("scratch")
    post.address_manager.pause_queue(post.queue("other"), paused=True)
    for paused in (True, False):
        post.address_manager.pause_queue(post.queue("orders"), paused=paused)
    tx = post.begin()
    for body in (b"in a transaction", b"and another"):
        post.send(message(body, "orders::orders"), tx)
        ledger["orders"].append(body)
    post.commit(tx)
    writer = office.storage.large.create()
    writer.write(b"L" * 300_000)
    post.send(message(b"L" * 100, "large", large=writer.finish()))
    await office.stable()
    return ledger


async def drained(office: Office) -> Ledger:
    """Return what all queues hand out, sorted."""
    found: Ledger = {}
    for queue in list(office.post.space.queues):
        receiver = Receiver()
        if queue.paused:
            office.post.address_manager.pause_queue(queue, paused=False)
        office.post.attach(queue, receiver)
        count = office.post.message_count(queue)
        while len(receiver.got) < count:
            seen = len(receiver.got)
            await receiver.wait(seen + 1)
            office.post.acknowledge(receiver.got[seen:])
        await office.stable()
        if receiver.got:
            found[queue.name] = sorted(receiver.bodies)
    return found


def expected(ledger: Ledger) -> Ledger:
    return {name: sorted(bodies) for name, bodies in ledger.items()}


def kept(office: Office) -> int:
    """Count the messages that are in a queue or known as orphans."""
    return sum(office.post.message_count(queue) for queue in office.post.space.queues) + office.post.orphans.messages


def left_over(directory: Path) -> list[Path]:
    """Return the files of pages and large messages that are left."""
    return files_under(directory, ".page", ".msg")


def bindings_of(office: Office) -> Path:
    path = newest_file(office.configuration.bindings_directory)
    assert path is not None
    return path


class Faults:
    """Every damage to a bindings file, as names and what is left of it; None: nothing is."""

    def __init__(self, good: bytes) -> None:
        header = decode_header(good, "good")
        self.records = [entry for entry in scan(good, header.salt) if not isinstance(entry, DamagedRange)]
        self._good = good

    def __iter__(self) -> Iterator[tuple[str, bytes | None]]:
        good = self._good
        yield "deleted", None
        yield "emptied", b""
        yield "zeros", bytes(len(good))
        yield "header", bytes(HEADER_SIZE) + good[HEADER_SIZE:]
        yield "first copy of the header", bytes(64) + good[64:]
        for number, (offset, length) in enumerate(self.records):
            place = offset + (number * 7) % length
            yield f"bit {place}", good[:place] + bytes((good[place] ^ 1 << number % 8,)) + good[place + 1 :]
            yield f"cut at {offset}", good[:offset]
            if number % 4 == 0:
                yield f"cut in {offset}", good[: offset + length // 2]
                yield f"nothing from {offset}", good[:offset] + bytes(len(good) - offset)


@pytest.mark.parametrize("names", ["in the journal", "in the bindings only"])
async def test_no_damage_to_the_bindings_loses_a_message(tmp_path: Path, names: str) -> None:
    """Breaks where a queue without a binding is taken for one that was deleted."""
    made = an_office(tmp_path / "made")
    ledger = await a_life(made)
    await crash(made)
    if names != "in the journal":
        without_names(made.configuration.journal_directory)
    good = bindings_of(made)
    content = good.read_bytes()
    total = sum(len(bodies) for bodies in ledger.values())
    for number, (name, left) in enumerate(Faults(content)):
        directory = tmp_path / "work"
        shutil.copytree(tmp_path / "made", directory)
        office = an_office(directory)
        path = office.configuration.bindings_directory / good.name
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        sound = verify(directory).sound
        post = await office.open()
        assert kept(office) == total, name
        assert not (sound and post.problems), name
        orphans = post.orphans.messages
        if names == "in the journal":
            assert orphans == 0, name
            assert post.queue("other").paused, name
        if orphans or len(post.space.queues) < len(ledger):
            assert post.problems, name
        for queue in post.space.queues:
            # One that was deleted can be there again, but not what was in it.
            assert queue.name in ledger or not post.message_count(queue), name
        await crash(office)
        # The operator puts the good file back: in the place of what is there now, or beside it.
        beside = number % 2
        if not beside:
            shutil.rmtree(path.parent)
            path.parent.mkdir()
        path.write_bytes(content)
        office = an_office(directory)
        post = await office.open()
        assert await drained(office) == expected(ledger), name
        assert (post.orphans.messages, post.problems) == (0, []), name
        await crash(office)
        shutil.rmtree(directory)


async def test_a_queue_that_was_made_again_meanwhile_is_one_queue_in_the_end(tmp_path: Path) -> None:
    """As broker.xml makes the queues it declares, on a store whose journal did not know them."""
    office = an_office(tmp_path)
    ledger = await a_life(office)
    await crash(office)
    without_names(office.configuration.journal_directory)
    path = bindings_of(office)
    good = path.read_bytes()
    path.unlink()
    office = an_office(tmp_path)
    await office.open()
    office.queue("orders")
    await office.send(b"meanwhile", address="orders::orders", priority=9)
    await crash(office)
    path.write_bytes(good)
    for _ in range(2):
        office = an_office(tmp_path)
        post = await office.open()
        assert (post.orphans.messages, post.problems) == (0, [])
        assert post.message_count(post.queue("orders")) == len(ledger["orders"]) + 1
        await crash(office)
    office = an_office(tmp_path)
    await office.open()
    ledger["orders"].append(b"meanwhile")
    assert await drained(office) == expected(ledger)
    await crash(office)


async def test_a_comparison_names_queues_that_the_bindings_lost(tmp_path: Path) -> None:
    office = an_office(tmp_path)
    ledger = await a_life(office)
    await crash(office)
    bindings_of(office).write_bytes(b"")
    side = read_side(tmp_path)
    assert {side.name(queue_id): len(ids) for queue_id, ids in side.queues.items()} == {
        name: len(bodies) for name, bodies in ledger.items()
    }
    assert side.unsound


# -- what an operator does with orphans


async def orphaned(directory: Path) -> tuple[Office, Ledger]:
    """A store of a version that named queues in the bindings only, whose bindings are gone; opened."""
    office = an_office(directory)
    ledger = await a_life(office)
    await crash(office)
    without_names(office.configuration.journal_directory)
    bindings_of(office).unlink()
    office = an_office(directory)
    await office.open()
    return office, ledger


async def test_orphans_are_restored_under_a_name_with_pages_and_large_messages(tmp_path: Path) -> None:
    office, ledger = await orphaned(tmp_path)
    found = {view["id"]: view for view in await office.post.orphans.views()}
    assert sum(view["messages"] for view in found.values()) == sum(map(len, ledger.values()))
    for number, view in found.items():
        alike = [name for name in ledger if name.startswith(("other", view["address"])) or name == "orders"]
        free = [name for name in alike if office.post.space.queue(name) is None]
        name = next(name for name in free if len(ledger[name]) == view["messages"])
        office.post.orphans.restore(number, name=name, address=view["address"], routing=MULTICAST)
        if name == "orders":  # while it waits, the queue takes new messages too
            await office.send(b"new", address="orders::orders")
            ledger["orders"].append(b"new")
    await office.stable()
    assert len(office.post.orphans) == 0
    with pytest.raises(NoSuchQueueError, match="no orphans of queue"):
        office.post.orphans.restore(next(iter(found)), name="again")
    await crash(office)
    # What was restored is an ordinary queue: in the bindings, in the journal, after a crash and a checkpoint.
    for _ in range(2):
        office = an_office(tmp_path)
        post = await office.open()
        assert post.problems == []
        assert {queue.name: post.message_count(queue) for queue in post.space.queues} == {
            name: len(bodies) for name, bodies in ledger.items()
        }
        await office.close()
    office = an_office(tmp_path)
    await office.open()
    assert await drained(office) == expected(ledger)
    await office.close()
    assert left_over(tmp_path) == []


async def test_orphans_are_discarded_for_good_with_their_files(tmp_path: Path) -> None:
    office, ledger = await orphaned(tmp_path)
    count = sum(office.post.orphans.discard(orphan.id) for orphan in list(office.post.orphans))
    assert count == sum(map(len, ledger.values()))
    await office.stable()
    await crash(office)
    office = an_office(tmp_path)
    post = await office.open()
    assert (kept(office), post.problems) == (0, [])
    await office.close()
    assert left_over(tmp_path) == []


async def test_checkpoints_keep_orphans(tmp_path: Path) -> None:
    office, ledger = await orphaned(tmp_path)
    number = office.post.orphans.messages
    for _ in range(3):
        await office.send(b"new", address="elsewhere")
        await office.close()  # writes a checkpoint
        assert list(office.configuration.journal_directory.glob("*.checkpoint"))
        office = an_office(tmp_path)
        await office.open()
        assert office.post.orphans.messages == number == sum(map(len, ledger.values()))
    await office.close()


async def test_an_orphan_without_a_name_needs_one_that_is_free(tmp_path: Path) -> None:
    office, _ = await orphaned(tmp_path)
    number = next(iter(office.post.orphans)).id
    with pytest.raises(InvalidRequestError, match="give it a name"):
        office.post.orphans.restore(number)
    office.queue("taken")
    with pytest.raises(InvalidRequestError, match="exists already"):
        office.post.orphans.restore(number, name="taken")
    assert office.post.orphans.get(number).messages
    await office.stable()
    await crash(office)


# -- a deletion is on record, whenever the power is cut

#: Power cuts of the recorded life, spread over it.
CUTS = 200


async def test_a_power_cut_during_a_deletion_makes_no_orphan_and_brings_nothing_back(tmp_path: Path) -> None:
    """Breaks when the binding goes before the deletion is on record: its messages would be taken for orphans."""
    root = tmp_path / "disk"
    for name in ("journal", "bindings", "large", "paging"):
        (root / name).mkdir(parents=True)
    disk = LossyDisk(root)
    office = an_office(root)
    await opened_on(office, disk)
    present: set[str] = set()
    for number in range(8):
        name = f"queue {number}"
        office.queue(name)
        disk.note(("began", name))
        await office.send(b"message", address=name)
        disk.note(("made", name))
        present.add(name)
        if number % 2:
            disk.note(("deleting", name))
            office.post.delete_queue(name)
            if number == 5:
                office.queue(name)  # made again before the deletion is on disk
                disk.note(("again", name))
            await office.stable()
            disk.note(("deleted", name))
        if number == 6:
            office.post.address_manager.reap()
            await office.stable()
    await crash(office)
    draw = Random(4)  # noqa: S311  (a reproducible test, no secret)
    account = Account()
    told: dict[str, list[str]] = {}
    cuts = set(draw.sample(range(len(disk.events)), min(CUTS, len(disk.events))))
    for number, event in enumerate(disk.events):
        account.apply(event)
        if event.kind == "note":
            told.setdefault(event.value[1], []).append(event.value[0])
        if number not in cuts or not told:
            continue
        left = tmp_path / "left"
        left.mkdir()
        materialise(account.left(draw), left)
        again = an_office(left)
        post = await again.open()
        assert len(post.orphans) == 0, number
        assert post.problems == [], number
        for name, words in told.items():
            queue = post.space.queue(name)
            if words[-1] == "made":
                assert queue is not None, (number, name)
                assert post.message_count(queue) == 1, (number, name)
            elif words[-1] == "deleted" and "again" not in words:
                assert queue is None, (number, name)
        await crash(again)
        shutil.rmtree(left)


async def opened_on(office: Office, files: LossyDisk) -> None:
    loop = asyncio.get_running_loop()
    settings = StoreSettings.from_configuration(office.configuration, b"n" * 16)
    office.storage = await Storage.open(settings, loop=loop, on_failure=office.failures.append, files=files)
    office.attach(await office.storage.recover())
