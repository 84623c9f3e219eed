"""The pipeline finds in the queues at the end of a journal what the broker's own recovery finds there."""

from __future__ import annotations

import asyncio
import shutil
from random import Random
from typing import TYPE_CHECKING

from broker.store.test_pages import drain
from harness.journals import NODE, JournalFile
from harness.store import contents, message_of, opened, settings_in, stable
from pollux.formats import records
from pollux.formats.segments import Kind, SegmentHeader
from pollux_pipeline.jobs import state
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.sources.inputs import Inputs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pollux.store.settings import StoreSettings
    from pollux.store.storage import Storage

QUEUES = (1, 2, 3, 4)
PAGED = ("paged.one", "paged.two")
SMALL = {"journal_file_size": 8 << 10, "page_size_bytes": 2 << 10}


class Life:
    """One life of a broker's store, in which anything may happen to messages."""

    def __init__(self, storage: Storage, random: Random, held: dict[int, list[int]]) -> None:
        self.storage = storage
        self.random = random
        #: What the queues hold, by queue.
        self.held = held

    async def live(self, steps: int) -> None:
        """Make changes, each stable before the next; a last transaction is left open."""
        kinds = (*(self.send, self.acknowledge, self.page, self.acknowledge_pages) * 4, self.drop)
        for _ in range(steps):
            await self.random.choice(kinds)()
            await stable(self.storage)
        tx = self.storage.next_id()
        self.storage.pages.address(PAGED[0]).append(message_of(self.storage, address=PAGED[0]), [1], tx)
        self.storage.append_message(message_of(self.storage), [2], tx)
        await stable(self.storage)

    async def send(self) -> None:
        tx, outcome = self.transaction()
        for _ in range(self.random.randrange(1, 5)):
            message = message_of(self.storage, b"m" * 100)
            queues = self.random.sample(QUEUES, self.random.randrange(1, 4))
            self.storage.append_message(message, queues[:1], tx)
            if queues[1:]:
                self.storage.append_references(message.id, queues[1:], tx)
            if outcome != "rollback":
                for queue in queues:
                    self.held.setdefault(queue, []).append(message.id)
        self.end(tx, outcome)

    async def acknowledge(self) -> None:
        queue = self.random.choice(QUEUES)
        ids = self.held.get(queue, [])
        tx, outcome = self.transaction()
        if gone := self.random.sample(ids, min(len(ids), self.random.randrange(1, 4))):
            self.storage.append_acks(queue, gone, tx)
            if outcome != "rollback":
                self.held[queue] = [one for one in ids if one not in gone]
        self.end(tx, outcome)

    async def page(self) -> None:
        address = self.random.choice(PAGED)
        pages = self.storage.pages.address(address)
        tx = self.random.choice((0, self.storage.next_id()))
        for _ in range(self.random.randrange(1, 6)):
            queues = self.random.sample(QUEUES, self.random.randrange(1, 3))
            passing = self.random.choice(((), (99,)))  # a queue that is not durable gets it too
            pages.append(message_of(self.storage, b"p" * 150, address=address), queues, tx, volatile=passing)
        self.end(tx, "commit" if tx else "")
        if self.random.random() < 0.3:
            pages.close_page()

    async def acknowledge_pages(self) -> None:
        for pages in list(self.storage.pages.addresses().values()):
            queue = self.random.choice(QUEUES)
            if (number := pages.next_page(queue)) is not None:
                ids = [one.message.id for one in await pages.read(number) if queue in one.queue_ids]
                tx = self.random.choice((0, self.storage.next_id()))
                pages.acknowledge(queue, number, ids[: self.random.choice((1, len(ids)))], tx)
                self.end(tx, "commit" if tx else "")

    async def drop(self) -> None:
        queue = self.random.choice(QUEUES)
        self.storage.append_drop_queue(queue)
        for pages in list(self.storage.pages.addresses().values()):
            pages.drop_queue(queue)
        self.held.pop(queue, None)

    def transaction(self) -> tuple[int, str]:
        """Its number, 0 for none, and how it will end."""
        outcome = self.random.choice(("", "", "commit", "rollback"))
        return (self.storage.next_id() if outcome else 0), outcome

    def end(self, tx: int, outcome: str) -> None:
        if outcome == "commit":
            self.storage.append_commit(tx)
        elif outcome == "rollback":
            self.storage.append_rollback(tx)


async def recovered(settings: StoreSettings) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return what the broker finds in its queues, and what in its pages, by queue."""
    async with opened(settings, crash=True) as one:
        paged: dict[int, set[int]] = {}
        for pages in one.storage.pages.addresses().values():
            for queue in QUEUES:
                paged.setdefault(queue, set()).update(await drain(pages, queue))
        return {queue: set(ids) for queue, ids in contents(one.recovered).items() if ids}, paged


async def lived(settings: StoreSettings, random: Random, held: dict[int, list[int]], *, crash: bool) -> None:
    async with opened(settings, crash=crash) as one:
        await Life(one.storage, random, held).live(40)


def test_the_queues_are_what_recovery_finds(spark: SparkSession, tmp_path: Path) -> None:
    """Transactions, shared messages, dropped queues, pages, and checkpoints; a life that ends and one that crashes.

    Breaks when records of a rolled back or open transaction count, when those of a committed one are forgotten with a
    checkpoint, when a queue that was dropped or a page that is done still holds something, or when a checkpoint and
    what comes behind it are put together in another way.
    """
    random = Random(1)  # noqa: S311
    settings = settings_in(tmp_path / "data", **SMALL)
    held: dict[int, list[int]] = {}
    asyncio.run(lived(settings, random, held, crash=True))
    for crash in (False, True):
        asyncio.run(lived(settings, random, held, crash=crash))
        copy = tmp_path / "copy" / str(crash)
        shutil.copytree(tmp_path / "data", copy)
        run = Run(spark, Inputs((), ()), tmp_path / "out")
        rows = run.stage("rows", state.journal(spark, [str(copy)]))
        assert state.missing_pages(rows).collect() == [], "all are there"
        live = state.in_queues(rows, run.stage("effective", state.effective(rows))).filter("live")
        found: dict[bool, dict[int, set[int]]] = {True: {}, False: {}}
        for row in live.select("queue_id", "message_id", "added").collect():
            found[row.added is not None].setdefault(row.queue_id, set()).add(row.message_id)
        queues, paged = asyncio.run(recovered(settings_in(copy, **SMALL)))
        assert {queue: set(ids) for queue, ids in held.items() if ids} == queues, "the test knows what it did"
        assert found[True] == queues
        assert found[False] == {queue: ids for queue, ids in paged.items() if ids}
        assert queues
        assert any(paged.values())


def test_a_page_that_is_gone_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Its messages would read as lost. Breaks when only those files are looked at that are there, or when a page counts
    as gone that nobody needs any more or that a file of another store holds."""
    journal = JournalFile(tmp_path / "journal")
    for store, page in ((1, 5), (1, 6), (2, 5), (3, 7), (4, 8)):
        journal.add(records.page(store, page, f"address-{store}"))
    journal.add(records.page_done(1, 6))
    journal.add(records.page_done(3, 0))
    journal.close()
    for store, page in ((1, 5), (4, 9)):
        path = tmp_path / "paging" / str(store) / f"{page:010}.page"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = SegmentHeader(Kind.PAGE, 1, NODE, 1, page, 0)
        path.write_bytes(header.encode() + b"no record")
    bad = tmp_path / "paging" / "4" / "0000000008.page"
    bad.write_bytes(b"\1" * 4096)
    found = state.damage(state.journal(spark, [str(tmp_path)])).filter("kind = 'page'").collect()
    told = {(row.file.removeprefix(f"{tmp_path}/paging/"), row.damage) for row in found}
    missing = "2/0000000005.page"
    assert told == {(missing, "missing-page"), ("4/0000000008.page", "bad-header")} | {
        (f"{store}/{number:010}.page", "corrupt") for store, number in ((1, 5), (4, 9))
    }
    (row,) = (row for row in found if row.damage == "missing-page")
    assert (row.node_id, row.detail) == (NODE.hex(), "page 5 of address address-2 is missing; what it held is unknown")
