"""A prepared transaction that goes to another node is at one of the two, whole, whenever the power of one is cut.

Beside cuts drawn sector by sector, every one is looked at in the writes of the journal: at each byte, and with any of
their records missing, as sectors get to a disk in any order.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random
from typing import TYPE_CHECKING

import pytest

from broker.engine.conftest import message
from broker.engine.test_orphans import crash, opened_on
from broker.engine.test_power_cuts import cut, everything, on_a_disk
from harness import in_memory
from harness.disk_account import Account, materialise
from pollux.engine.prepared import ORIGIN
from pollux.errors import InvalidRequestError
from pollux.formats.segments import MARKER_BYTES
from pollux.store.bindings import Bindings
from pollux.store.files import FileOperations
from pollux.store.journal_reader import read_journal
from pollux.store.recovered import recovered_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from broker.engine.conftest import Office
    from harness.lossy_disk import LossyDisk
    from pollux.store.recovered import Recovered

XID, ELSEWHERE, NODE = b"\x00\xffxid", f"{'ab' * 16}/7", b"t" * 16
#: Messages that one acknowledges: in records of several sectors, and few enough to lose any of their records.
MANY, FEW = 60, 3
#: What one sends: several sectors before the messages that it acknowledges.
SENT = b"s" * 3000
#: Cuts that are drawn.
CUTS = 40


def journals(disk: LossyDisk) -> Iterator[tuple[Account, str, int, bytes]]:
    """Yield each write of the journal since something was noted: the disk before it, its file and place, what it is.

    The disk goes on when the next one is asked for.
    """
    account, noted = Account(), False
    for one in disk.events:
        noted = noted or one.kind == "note"
        if noted and one.kind == "write" and one.data.startswith(MARKER_BYTES):
            for directory, names in account.directories.items():
                for name, inode in names.items():
                    if inode == one.file and name.startswith("pollux-"):
                        assert directory
                        yield account, f"journal/{name}", one.offset, one.data
        account.apply(one)


def parts(data: bytes) -> Iterator[bytes]:
    """Yield all that may be there of a write: up to each byte, and any of its records."""
    for end in range(len(data) + 1):
        yield data[:end]
    records, start = [], 0
    while start < len(data):
        end = start + int.from_bytes(data[start + 4 : start + 8], "little")
        records.append(data[start:end])
        start = end
    assert len(records) < 17, "few enough for all their subsets"
    for kept in product((False, True), repeat=len(records)):
        yield b"".join(each if there else bytes(len(each)) for each, there in zip(records, kept, strict=True))


def every_cut(disk: LossyDisk, check: Callable[[Recovered], None]) -> int:
    """Have ``check`` look at what is recovered after each cut in the journal's writes since the note; how many."""
    target, count = in_memory.directory("pollux-cuts-"), 0
    draw = Random(1)  # noqa: S311  (a reproducible test, no secret)
    for account, name, offset, data in journals(disk):
        root = target / str(count)
        root.mkdir()
        materialise(account.left(draw), root)
        bindings = Bindings(root / "bindings", FileOperations(), node_id=b"n" * 16, epoch=1 << 16, salt=1)
        values, _ = bindings.load(b"n" * 16, expected=True, check=lambda _: None)
        bindings.close()
        with (root / name).open("r+b", buffering=0) as file:
            for part in parts(data):
                file.seek(offset)
                file.write(part.ljust(len(data), b"\0"))
                found = read_journal(root / "journal", b"n" * 16)
                recovered = recovered_of(found.state, found.damage)
                assert {one.kind for one in found.damage} <= {"torn-tail"}
                recovered.bindings = values
                check(recovered)
                count += 1
    return count


def in_queues(recovered: Recovered) -> Counter[int]:
    """Return the messages that consumers get of what was recovered: none that a prepared transaction acknowledges."""
    for one in recovered.prepared:
        recovered.withhold(one.acknowledgements)
    return Counter(
        message_id for priorities in recovered.queues.values() for ids in priorities.values() for message_id in ids
    )


# -- the node that gives it away


async def given_away(office: Office, disk: LossyDisk, acknowledges: int) -> tuple[int, int]:
    """Have one go to another node, which has it on its disk when the disk is noted; its number, and what stays here."""
    first, second = office.queue("first"), office.queue("second")
    await office.send(b"stays", address="first")
    (stays,) = [reference.message.id for reference in first.iterate()]
    had = [(message(b"had %d" % number, "first"), [first], 0) for number in range(acknowledges)]
    await office.post.prepared.take(XID, ELSEWHERE, [(message(b"sent", "first"), [first, second])], had)
    await office.stable()
    (one,) = office.post.prepared
    office.post.prepared.ask(one, NODE)
    await office.stable()
    disk.note("it is there")
    await office.post.prepared.give_away(one, await office.post.prepared.messages(one))
    await office.stable()
    assert (len(office.post.prepared), office.count("first")) == (0, 1)
    return one.tx, stays


async def test_wherever_the_journal_is_cut_nothing_of_what_went_is_here(tmp_path: Path) -> None:
    """Breaks when that it is forgotten is in one write with what it acknowledges."""
    seen: set[tuple[int, int]] = set()
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        tx, stays = await given_away(office, disk, FEW)

    def check(recovered: Recovered) -> None:
        left = [(len(one.messages), len(one.acknowledgements)) for one in recovered.prepared]
        assert left in ([(2, FEW)], [])
        # Who decides here as long as it is known here is refused.
        assert not left or recovered.bindings["prepared-transaction", str(tx)] == NODE
        held = sum(len(ids) for priorities in recovered.queues.values() for ids in priorities.values()) - 1
        assert in_queues(recovered) == Counter([stays])
        seen.add((len(left), held))

    assert every_cut(disk, check) > 100
    assert seen == {(1, FEW), (1, 0), (0, 0)}


async def test_a_power_cut_while_one_is_given_away(tmp_path: Path) -> None:
    """Breaks when it could be decided here: what is left of it is away, and goes on."""
    left: Counter[bool] = Counter()
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        await given_away(office, disk, MANY)

    async def check(again: Office) -> None:
        for one in again.post.prepared:
            assert one.away == NODE.hex()
            with pytest.raises(InvalidRequestError, match="may be on node"):
                await again.post.prepared.resolve(XID, commit=True)
            await again.post.prepared.give_away(one, await again.post.prepared.messages(one))
            left[True] += 1
        left[False] += 1
        assert await everything(again) == Counter([b"stays"])
        await again.settle()
        await again.reopen()
        assert len(again.post.prepared) == 0
        assert await everything(again) == Counter()
        assert not any(kind == "prepared-transaction" for kind, _ in again.post.recovered)

    await cut(disk, tmp_path / "left", CUTS, check)
    assert left[True]


# -- the node that takes it


async def take(office: Office, body: bytes = b"sent") -> None:
    """Take one of another node that sends ``body`` to two queues."""
    first, second = office.post.queue("first"), office.post.queue("second")
    had = [(message(b"had %d" % number, "first"), [first], 2) for number in range(FEW)]
    await office.post.prepared.take(XID, ELSEWHERE, [(message(body, "first"), [first, second])], had)
    await office.stable()


async def about_to_take(office: Office, disk: LossyDisk) -> int:
    """Have queues, and in one what is not concerned; note the disk. Return what that is."""
    first = office.queue("first")
    office.queue("second")
    await office.send(b"stays", address="first")
    disk.note("it comes")
    (stays,) = [reference.message.id for reference in first.iterate()]
    return stays


async def test_wherever_the_journal_is_cut_one_that_is_known_is_whole(tmp_path: Path) -> None:
    """Breaks when that it was taken is on disk before all of it: it would not be taken when it comes again."""
    seen: set[tuple[bool, int]] = set()
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        stays = await about_to_take(office, disk)
        await take(office)

    def check(recovered: Recovered) -> None:
        held = sum(len(ids) for priorities in recovered.queues.values() for ids in priorities.values()) - 1
        known = ORIGIN + ELSEWHERE in recovered.links
        if known:
            (one,) = recovered.prepared
            assert (len(one.messages), len(one.acknowledgements), held) == (2, FEW, FEW)
        assert in_queues(recovered) == Counter([stays])
        seen.add((known, len(recovered.prepared)))

    assert every_cut(disk, check) > 100
    assert seen == {(False, 0), (False, 1), (True, 1)}


@pytest.mark.parametrize("commit", [True, False])
async def test_a_power_cut_while_one_is_taken(tmp_path: Path, *, commit: bool) -> None:
    """It comes again, as nobody confirmed it, and is there once and whole."""
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        await about_to_take(office, disk)
        await take(office, SENT)

    async def check(again: Office) -> None:
        await take(again, SENT)
        await again.reopen()
        (view,) = again.post.prepared.views()
        assert (view["sends"], view["acknowledges"]) == (1, FEW)
        assert again.count("first") == 1, "nobody gets what it acknowledges"
        await again.post.prepared.resolve(XID, commit=commit)
        await again.stable()
        await take(again, SENT)
        await again.reopen()
        assert len(again.post.prepared) == 0
        had = [] if commit else [b"had %d" % number for number in range(FEW)]
        assert await everything(again) == Counter([b"stays", *([SENT] * 2 if commit else had)])

    await cut(disk, tmp_path / "left", CUTS // 2, check)


async def test_a_power_cut_while_one_comes_again_whose_writing_was_cut_off(tmp_path: Path) -> None:
    """Breaks when that it was taken may be there beside an earlier half of it, which would be taken for all of it."""
    async with on_a_disk(tmp_path / "disk") as (office, disk):
        stays = await about_to_take(office, disk)
        queue, one = office.post.queue("first"), office.storage
        tx = one.next_id()
        half = message(b"sent", "first")
        half.id = one.next_id()
        one.append_message(half, [queue.id], tx)
        one.append_link(ORIGIN + ELSEWHERE, bytes(8), 1, tx)
        one.append_prepare(tx, XID)
        await office.stable()
        await crash(office)
        await opened_on(office, disk)
        await take(office)

    def check(recovered: Recovered) -> None:
        if ORIGIN + ELSEWHERE in recovered.links:
            (whole,) = recovered.prepared
            assert len(whole.acknowledgements) == FEW
        assert in_queues(recovered) == Counter([stays])

    assert every_cut(disk, check) > 100
