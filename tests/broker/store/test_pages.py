"""Paging: what is paged survives, is read in order, and its files go when every queue is done."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.store import FaultyFiles, files_below, message_of, opened, settings_in, stable, until
from pollux.errors import DiskFullError
from pollux.formats import records
from pollux.formats.segments import FRAME_SIZE, frame

if TYPE_CHECKING:
    from pollux.store.address_pages import AddressPages


async def drain(pages: AddressPages, queue_id: int) -> list[int]:
    """Everything a queue has, without acknowledging."""
    found: list[int] = []
    number = 0
    while (following := pages.next_page(queue_id, number)) is not None:
        number = following
        found += [one.message.id for one in await pages.read(number) if queue_id in one.queue_ids]
    return found


async def page_files(directory: Path, count: int) -> None:
    await until(lambda: len(files_below(directory, "*.page")) == count)


async def test_paged_messages_come_back_in_order_and_files_go_away(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, page_size_bytes=8 << 10)
    async with opened(settings) as one:
        storage = one.storage
        pages = storage.pages.address("a")
        sent = []
        for number in range(200):
            message = message_of(storage, b"p" * 200, address="a")
            pages.append(message, [1, 2] if number % 2 else [1])
            sent.append(message.id)
        await stable(storage)
        assert pages.remaining(1) == 200
        assert pages.remaining(2) == 100
        assert len(pages.pages) > 5
        assert await drain(pages, 1) == sent
        assert await drain(pages, 2) == sent[1::2]
        for queue_id in (1, 2):
            while (page := pages.next_page(queue_id)) is not None:
                batch = await pages.read(page)
                pages.acknowledge(queue_id, page, [m.message.id for m in batch if queue_id in m.queue_ids])
        pages.close_page()
        await stable(storage)
        assert pages.empty
        assert storage.pages.addresses() == {}
        await page_files(settings.paging_directory, 0)
        await until(lambda: files_below(settings.paging_directory, "*") == [])


async def test_a_life_that_wakes_up_changes_no_page_of_its_successor(tmp_path: Path) -> None:
    """It truncates none of the successor's pages, and what it adds to its own does not count any more."""
    settings = settings_in(tmp_path, page_size_bytes=8 << 10)
    async with opened(settings, crash=True) as one:
        sent = [message_of(one.storage, b"p" * 200, address="a") for _ in range(10)]
        pages = one.storage.pages.address("a")
        for message in sent:
            pages.append(message, [1])
        await stable(one.storage)
        (old,) = files_below(settings.paging_directory, "*.page")
        salt, following = pages.pages[next(iter(pages.pages))].salt, one.storage.pages.new_page()
    async with opened(settings) as two:
        pages = two.storage.pages.address("a")
        late = message_of(None, b"late", address="a", message_id=999_999)
        with old.open("ab") as stream:
            stream.write(frame(records.message_head(late, [1], 0, b"a") + late.data, salt))
        assert await drain(pages, 1) == [message.id for message in sent]
        message = message_of(two.storage, b"new", address="a")
        number = pages.append(message, [1])
        await stable(two.storage)
        assert number > following + 1_000_000, "what the other one would open next is none of ours"
        assert await drain(pages, 1) == [*(one.id for one in sent), message.id]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("closed", [False, True])
async def test_pages_and_acks_survive(tmp_path: Path, clean: bool, closed: bool) -> None:
    settings = settings_in(tmp_path, page_size_bytes=8 << 10)
    async with opened(settings, crash=not clean) as one:
        storage = one.storage
        pages = storage.pages.address("an/odd address ü")
        sent = [message_of(storage, b"p" * 200, address="an/odd address ü", durable=n % 5 != 0) for n in range(100)]
        for message in sent:
            pages.append(message, [1, 2])
        if closed:
            pages.close_page()
        await stable(storage)
        first = pages.next_page(1)
        assert first is not None
        batch = await pages.read(first)
        gone = [one.message.id for one in batch][:10]
        pages.acknowledge(1, first, gone)
        await stable(storage)
    lasting = [message.id for message in sent if message.durable]
    for again in range(2):
        async with opened(settings, crash=not clean) as two:
            pages = two.storage.pages.addresses()["an/odd address ü"]
            left = [message_id for message_id in lasting if message_id not in gone]
            assert pages.remaining(1) == len(left)
            assert pages.remaining(2) == len(lasting)
            assert await drain(pages, 1) == left
            assert await drain(pages, 2) == lasting
            assert pages.queue_ids() == {1, 2}
            assert two.recovered.damage == []
            if again:
                for number in list(pages.pages):
                    batch = await pages.read(number)
                    for queue_id in (1, 2):
                        pages.acknowledge(queue_id, number, [m.message.id for m in batch if queue_id in m.queue_ids])
                await stable(two.storage)
                await page_files(settings.paging_directory, 0)
    async with opened(settings) as three:
        assert three.storage.pages.addresses() == {}


async def test_a_page_done_but_not_deleted_does_not_come_back(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, page_size_bytes=4 << 10)
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        for _ in range(40):
            pages.append(message_of(one.storage, b"p" * 200, address="a"), [1])
        await stable(one.storage)
        saved = tmp_path / "saved"
        shutil.copytree(settings.paging_directory, saved)
        batch = await pages.read(1)
        pages.acknowledge(1, 1, [m.message.id for m in batch])
        left = pages.remaining(1)
        await stable(one.storage)
        await stable(one.storage)  # that it is done follows what was acknowledged
    shutil.rmtree(settings.paging_directory)
    shutil.copytree(saved, settings.paging_directory)
    async with opened(settings) as two:
        assert two.storage.pages.addresses()["a"].remaining(1) == left


async def test_dropped_queues_stay_dropped_but_get_what_comes_later(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        pages.append(message_of(one.storage, address="a"), [1, 2])
        pages.drop_queue(1)
        later = message_of(one.storage, address="a")
        pages.append(later, [1])
        assert pages.remaining(1) == 1
        await stable(one.storage)
    async with opened(settings) as two:
        pages = two.storage.pages.addresses()["a"]
        assert await drain(pages, 1) == [later.id]
        assert pages.remaining(2) == 1


async def test_a_page_is_read_behind_the_commit_of_a_transaction_of_several_writes(tmp_path: Path) -> None:
    """Breaks when a consumer may get what a power cut takes back: the page is stable before the commit is written."""
    settings = settings_in(tmp_path, journal_buffer_size=256)
    async with opened(settings) as one:
        journal = one.storage._journal
        pages, tx = one.storage.pages.address("a"), one.storage.next_id()
        number = pages.append(message_of(one.storage, address="a"), [1], tx)
        began = journal.last
        one.storage.append_message(message_of(one.storage, b"x" * 2000), [2], tx)
        pages.close_page()
        one.storage.append_commit(tx)
        ends = journal.last
        assert ends > began, "its commit is in a later write than what tells of the page"
        assert pages.pages[number].token > ends, "nobody reads it yet"
        await stable(one.storage)
        assert ends <= pages.pages[number].token <= journal.stable_token
        assert len(await pages.read(number)) == 1


async def test_paged_transactions_count_with_their_commit(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        plain = message_of(one.storage, address="a")
        page = pages.append(plain, [1])
        committed, torn = one.storage.next_id(), one.storage.next_id()
        inside = message_of(one.storage, address="a")
        pages.append(inside, [1], tx=committed)
        pages.acknowledge(1, page, [plain.id], tx=committed)
        one.storage.append_commit(committed)
        await stable(one.storage)
        # As if the process died between the page's write and the journal's.
        pages.append(message_of(one.storage, address="a"), [1], tx=torn)
        await stable(one.storage)
    for clean in (True, False):
        async with opened(settings, crash=not clean) as two:
            assert await drain(two.storage.pages.addresses()["a"], 1) == [inside.id]


async def test_reading_pages_that_were_closed_in_the_same_turn(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path, page_size_bytes=1000)) as one:
        pages = one.storage.pages.address("a")
        sent = [message_of(one.storage, b"p" * 300, address="a") for _ in range(10)]
        for message in sent:
            pages.append(message, [1])
        assert await drain(pages, 1) == [message.id for message in sent]


async def test_reading_the_page_being_written(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path)) as one:
        pages = one.storage.pages.address("a")
        first = message_of(one.storage, address="a")
        number = pages.append(first, [1])
        assert [m.message.id for m in await pages.read(number)] == [first.id]
        second = message_of(one.storage, address="a")
        assert pages.append(second, [1]) > number
        assert await drain(pages, 1) == [first.id, second.id]


async def test_a_page_that_is_full_and_done_takes_no_next_message_with_it(tmp_path: Path) -> None:
    """Its address had no other page: it is not forgotten, for the next one is begun at that moment."""
    settings = settings_in(tmp_path, page_size_bytes=1000)
    async with opened(settings) as one:
        pages = one.storage.pages.address("a")
        first = message_of(one.storage, b"p" * 1000, address="a")
        pages.acknowledge(1, pages.append(first, [1]), [first.id])
        await stable(one.storage)
        second, third = (message_of(one.storage, b"p" * 1000, address="a") for _ in range(2))
        pages.append(second, [1])
        await stable(one.storage)
        assert one.storage.pages.addresses() == {"a": pages}
        one.storage.pages.address("a").append(third, [1])
        await stable(one.storage)
    async with opened(settings) as two:
        assert two.recovered.damage == []
        assert await drain(two.storage.pages.addresses()["a"], 1) == [second.id, third.id]


@pytest.mark.parametrize("settled", [False, True])
async def test_pages_that_are_written_to_again_when_all_were_done(tmp_path: Path, settled: bool) -> None:
    """Whoever holds them goes on in another directory, at once or when the old one is gone."""
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        pages = one.storage.pages.address("a")
        kept = []
        for _ in range(3):
            first, second = message_of(one.storage, address="a"), message_of(one.storage, address="a")
            number = pages.append(first, [1])
            pages.close_page()
            pages.acknowledge(1, number, [first.id])
            assert pages.number not in kept
            kept.append(pages.number)
            if settled:
                await stable(one.storage)
                await until(lambda: not pages.directory.exists())
        pages.append(second, [1])
        await stable(one.storage)
        assert one.storage.pages.addresses() == {"a": pages}
    async with opened(settings) as two:
        assert two.recovered.damage == []
        assert await drain(two.storage.pages.addresses()["a"], 1) == [second.id]
        await until(lambda: len(list(settings.paging_directory.iterdir())) <= 1)


@pytest.mark.parametrize("cut", [False, True], ids=["torn", "cut"])
async def test_a_torn_page_is_normal_and_a_cut_one_is_damage(tmp_path: Path, cut: bool) -> None:
    """A write that a crash broke off leaves the file as long as it was made; a file that is shorter was cut."""
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        sent = [message_of(one.storage, b"p" * 100, address="a") for _ in range(5)]
        for message in sent:
            pages.append(message, [1])
        await stable(one.storage)
    (path,) = files_below(settings.paging_directory, "*.page")
    data = path.read_bytes()
    end = len(data.rstrip(b"\0")) - 20
    path.write_bytes(data[:end] if cut else data[:end].ljust(len(data), b"\0"))
    async with opened(settings) as two:
        assert await drain(two.storage.pages.addresses()["a"], 1) == [message.id for message in sent[:-1]]
        kinds = [damage.kind for damage in two.recovered.damage]
        assert kinds == (["cut", "corrupt"] if cut else ["torn-tail"])


async def test_a_last_write_and_the_end_of_its_page_damaged_are_no_torn_write(tmp_path: Path) -> None:
    """The end is written when what is before it is stable: the message was confirmed, and its loss is told."""
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        pages = one.storage.pages.address("a")
        for _ in range(3):
            pages.append(message_of(one.storage, b"p" * 100, address="a"), [1])
            await stable(one.storage)
        pages.close_page()
        await stable(one.storage)
    (path,) = files_below(settings.paging_directory, "*.page")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"p" * 100)] ^= 1
    data[-10] ^= 1
    path.write_bytes(data)
    async with opened(settings) as two:
        assert len(await drain(two.storage.pages.addresses()["a"], 1)) == 2
        assert [damage.kind for damage in two.recovered.damage] == ["corrupt"]


async def test_full_disk_refuses_paging_too(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(settings_in(tmp_path, max_disk_usage=90, disk_scan_period=10), files=files) as one:
        files.free = 1
        await until(lambda: one.storage.full)
        with pytest.raises(DiskFullError):
            one.storage.pages.address("a").append(message_of(one.storage, address="a"), [1])


async def test_what_is_damaged_in_both_of_two_writes_of_a_page_is_no_torn_write(tmp_path: Path) -> None:
    """The first one ended where its beginning says: something was written behind it, so that it was confirmed."""
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        ends = []
        for _ in range(2):
            pages.append(message_of(one.storage, b"x" * 100, address="a"), [1])
            await stable(one.storage)
            ends.append(pages.size)
    (path,) = files_below(tmp_path, "*.page")
    data = bytearray(path.read_bytes())
    for place in (ends[0] - 1, ends[0] + FRAME_SIZE, ends[1] - 1):  # a message, the kind of a BATCH, a message
        data[place] ^= 1
    path.write_bytes(data)
    async with opened(settings) as two:
        assert [damage.kind for damage in two.recovered.damage] == ["corrupt"]


async def test_without_persistence_pages_work_and_vanish(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, persistence_enabled=False, page_size_bytes=2000)
    for _ in range(2):
        async with opened(settings) as one:
            pages = one.storage.pages.address("a")
            sent = [message_of(one.storage, b"p" * 300, address="a", durable=False) for _ in range(50)]
            for message in sent:
                pages.append(message, [1])
            assert await drain(pages, 1) == [message.id for message in sent]
    assert files_below(tmp_path, "*.page") == []


@pytest.mark.parametrize("lost", [False, True], ids=["orderly", "the journal's last write was lost"])
@pytest.mark.parametrize("page_size", [1 << 10, 1 << 20], ids=["closed pages", "an open page"])
async def test_duplicate_ids_of_paged_messages_survive(tmp_path: Path, page_size: int, lost: bool) -> None:
    """They are in the journal, and where a crash came between page and journal, taken from the page.

    Breaks without the journal's records (orderly), without the look into pages (lost), and, in the third life, when
    what was found in pages is not written to the journal.
    """
    settings = settings_in(tmp_path, page_size_bytes=page_size)
    ids = [b"id-%02d" % number for number in range(20)]
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        for number, duplicate_id in enumerate(ids):
            if number == 10:
                await stable(one.storage)
                shutil.copytree(settings.journal_directory, tmp_path / "earlier")
            message = message_of(one.storage, b"p" * 200, address="a")
            message.duplicate_id = duplicate_id
            pages.append(message, [1])
        await stable(one.storage)
    if lost:
        shutil.rmtree(settings.journal_directory)
        shutil.copytree(tmp_path / "earlier", settings.journal_directory)
    async with opened(settings, crash=True) as two:
        assert two.recovered.duplicates == {"a": ids}
        pages = two.storage.pages.address("a")
        assert len(await drain(pages, 1)) == 20
        while (page := pages.next_page(1)) is not None:
            pages.acknowledge(1, page, [each.message.id for each in await pages.read(page)])
        await stable(two.storage)
        await page_files(settings.paging_directory, 0)
    async with opened(settings) as three:
        assert three.recovered.duplicates == {"a": ids}


async def test_duplicate_ids_of_rolled_back_pages_are_free(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        pages = one.storage.pages.address("a")
        for tx, duplicate_id in ((1, b"never"), (2, b"done")):
            message = message_of(one.storage, b"p", address="a")
            message.duplicate_id = duplicate_id
            pages.append(message, [1], tx)
        one.storage.append_commit(2)
        await stable(one.storage)
    async with opened(settings) as two:
        assert two.recovered.duplicates == {"a": [b"done"]}
        assert len(await drain(two.storage.pages.address("a"), 1)) == 1


class Seeing(FaultyFiles):
    """Remembers how long a large message's file was whenever a page was written."""

    def __init__(self, large: Path) -> None:
        super().__init__()
        self._large = large
        self.seen: dict[bytes, int] = {}

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".page":
            written = sum(path.stat().st_size for path in files_below(self._large, "*.msg"))
            self.seen |= {mark: written for mark in (b"first", b"large", b"last") if mark in bytes(data)}
        return super().write(fd, data, offset, sync=sync)


async def test_a_large_message_is_whole_before_a_page_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it is written with what was paged in the same turn before it: a kill between the two would leave a
    message, confirmed to nobody, of which the end is missing, and whose consumers come no further."""
    settings = settings_in(tmp_path)
    files = Seeing(settings.large_messages_directory)
    async with opened(settings, files=files, crash=True) as one:
        pages = one.storage.pages.address("a")
        # No thread writes ahead: what is written is written in the journal's writer.
        monkeypatch.setattr(one.storage.large, "submit", lambda _: None)
        writer = one.storage.large.create()
        writer.write(bytes(150_000))
        pages.append(message_of(one.storage, b"first", address="a"), [1])
        pages.append(message_of(one.storage, b"large", address="a", large=writer.finish()), [1])
        pages.append(message_of(one.storage, b"last", address="a"), [1])
        await stable(one.storage)
        assert files.seen == {b"first": 0, b"large": 150_000, b"last": 150_000}
        assert len(await drain(pages, 1)) == 3
    async with opened(settings) as two:
        assert len(await drain(two.storage.pages.address("a"), 1)) == 3
