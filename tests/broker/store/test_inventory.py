"""Files that must be there and are not: reported, set aside, there again when put back; everything else goes on."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.store import FaultyFiles, contents, files_below, message_of, opened, segments, settings_in, stable
from pollux.errors import StoreError
from pollux.store.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.settings import StoreSettings
    from pollux.store.verify import Report

SMALL = {"journal_file_size": 8 << 10, "page_size_bytes": 4 << 10, "journal_min_files": 1}
OLD = Path(__file__).with_name("store-0.1.0.tar.gz")


def report_on(settings: StoreSettings) -> Report:
    """Return the report of `pollux journal verify`."""
    from pollux.store.verify import StoreLayout, verify

    return verify(
        StoreLayout(
            settings.journal_directory,
            settings.bindings_directory,
            settings.large_messages_directory,
            settings.paging_directory,
        )
    )


async def send(storage: Storage, count: int) -> list[int]:
    """Messages in queue 1, confirmed."""
    sent = [message_of(storage, b"m" * 500) for _ in range(count)]
    for message in sent:
        storage.append_message(message, [1])
    await stable(storage)
    return [message.id for message in sent]


async def paged(storage: Storage, count: int, address: str = "a") -> list[int]:
    """Messages in the pages of an address for queue 1, confirmed."""
    sent = [message_of(storage, b"p" * 300, address=address) for _ in range(count)]
    for message in sent:
        storage.pages.address(address).append(message, [1])
    await stable(storage)
    return [message.id for message in sent]


async def read(storage: Storage, address: str = "a") -> list[int]:
    """Return what is in the pages of an address."""
    pages = storage.pages.addresses()[address]
    return [one.message.id for number in list(pages.pages) for one in await pages.read(number)]


async def with_large(storage: Storage, size: int) -> tuple[int, Path]:
    """A large message in queue 1: its id, its file."""
    writer = storage.large.create()
    writer.write(bytes(size))
    large = writer.finish()
    message = message_of(storage, b"head", large=large)
    storage.append_message(message, [1])
    await stable(storage)
    return message.id, storage.large.path(large.id)


@pytest.mark.parametrize("how", ["deleted", "emptied", "not UTF-8"])
async def test_a_missing_last_segment_is_noticed(tmp_path: Path, how: str) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        await send(one.storage, 40)
        last = one.storage._journal.segment
        assert last is not None
        used = last.path
    assert used != segments(settings)[0]
    if how == "emptied":
        os.truncate(used, 0)
    elif how == "deleted":
        used.unlink()
    else:
        os.rename(used, os.fsencode(used.parent) + b"/\xff.segment")  # noqa: PTH104  (a Path cannot be such a name)
    assert not report_on(settings).sound
    held: dict[int, list[int]] = {}
    for clean in (False, True):
        async with opened(settings, crash=not clean) as two:
            assert {damage.kind for damage in two.recovered.damage} == {"missing-segment"}
            assert two.storage.damage == two.recovered.damage
            assert held in ({}, contents(two.recovered))
            held = contents(two.recovered)
            assert None not in await two.storage.read_messages(held[1])
            held[1] += await send(two.storage, 2)
        assert not report_on(settings).sound


async def test_what_was_acknowledged_in_a_missing_segment_is_delivered_again(tmp_path: Path) -> None:
    """Something of all that a segment may hold: nothing else changes, and all is well when it is back."""
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        storage = one.storage
        first = await send(storage, 20)
        whole, begun, unseen = storage.next_id(), storage.next_id(), storage.next_id()
        storage.append_message(message_of(storage, b"begun"), [2], begun)
        storage.append_message(message_of(storage, b"unseen"), [2], unseen)
        await send(storage, 10)
        at = storage._journal.segment
        assert at is not None
        storage.append_acks(1, first[:5])
        storage.append_duplicate_id("a", b"id")
        storage.append_commit(unseen)
        for _ in range(3):
            storage.append_message(message_of(storage, b"whole"), [2], whole)
        storage.append_message(message_of(storage, b"begun"), [2], begun)
        await stable(storage)
        assert at is storage._journal.segment
        await send(storage, 20)
        storage.append_message(message_of(storage, b"whole"), [2], whole)
        storage.append_commit(whole)
        storage.append_commit(begun)
        later = await send(storage, 20)
    data = at.path.read_bytes()
    at.path.unlink()
    for _ in range(2):
        async with opened(settings) as two:
            held = contents(two.recovered)
            assert held[1][:5] == first[:5]
            assert held[1][-20:] == later
            assert len(held[2]) == 2, "what is left of what was committed"
            assert two.recovered.duplicates == {}
            told = [str(damage) for damage in two.recovered.damage]
            assert len(told) == 4, told
            assert any("committed with 4 records, 1 of them" in text for text in told)
            assert any("committed with 2 records, 1 of them" in text for text in told)
            assert any("1 transactions with 1 records have no outcome" in text for text in told)
        assert {str(damage) for damage in report_on(settings).damage} >= set(told)
    at.path.write_bytes(data)
    async with opened(settings) as three:
        held = contents(three.recovered)
        assert held[1][:1] == first[5:6]
        assert len(held[2]) == 7
        assert three.recovered.duplicates == {"a": [b"id"]}
        assert three.recovered.damage == []
    assert report_on(settings).sound


async def test_a_checkpoint_ends_the_reports_of_what_is_missing(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        await send(one.storage, 60)
    segments(settings)[1].unlink()
    async with opened(settings, crash=True) as two:
        left = contents(two.recovered)
        maintenance = two.storage._maintenance
        assert maintenance is not None
        await maintenance._checkpoint()
    async with opened(settings) as three:
        assert contents(three.recovered) == left
        assert three.recovered.damage == []


async def test_all_segments_of_a_life_missing_are_noticed(tmp_path: Path) -> None:
    """Only the bindings tell of a life whose first segment is gone too. Its ids are nobody's after it."""
    settings = settings_in(tmp_path, **SMALL)
    for _ in range(2):
        async with opened(settings, crash=True) as one:
            ids = await send(one.storage, 5)
    for path in segments(settings):
        if path.name.startswith("pollux-00000002"):
            path.unlink()
    assert not report_on(settings).sound
    async with opened(settings, crash=True) as two:
        assert [damage.kind for damage in two.recovered.damage] == ["missing-segment"]
        assert len(contents(two.recovered)[1]) == 5
        assert min(await send(two.storage, 1)) > max(ids)


async def test_an_empty_journal_directory_beside_bindings_that_tell_of_one_is_refused(tmp_path: Path) -> None:
    """It is not mounted: a life that began there would be hidden, or hide what it should have begun with."""
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings) as one:
        ids = await send(one.storage, 5)
        _, body = await with_large(one.storage, 5000)
    settings.journal_directory.rename(tmp_path / "elsewhere")
    settings.journal_directory.mkdir()
    bindings = {path.name for path in files_below(settings.bindings_directory, "*")}
    assert "is the directory mounted" in str(report_on(settings).refused)
    with pytest.raises(StoreError, match=r"is the directory mounted.*allow-missing-segments"):
        async with opened(settings):
            pass
    assert {path.name for path in files_below(settings.bindings_directory, "*")} == bindings
    assert body.exists()
    shutil.rmtree(settings.journal_directory)
    shutil.copytree(tmp_path / "elsewhere", settings.journal_directory)
    async with opened(settings) as two:
        assert contents(two.recovered)[1][:5] == ids
        assert two.recovered.damage == []
    shutil.rmtree(settings.journal_directory)
    settings.journal_directory.mkdir()
    word = settings.journal_directory / "allow-missing-segments"
    word.touch()
    async with opened(settings) as three:
        assert contents(three.recovered) == {}
        assert "missing-segment" in {damage.kind for damage in three.recovered.damage}
    assert not word.exists()
    assert (body.parent / "isolated" / body.name).exists()


async def test_large_messages_beside_a_journal_that_begins_are_kept(tmp_path: Path) -> None:
    """Journal and bindings are on a disk that is not mounted, large messages on another one."""
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        _, body = await with_large(one.storage, 5000)
    shutil.rmtree(settings.journal_directory)
    shutil.rmtree(settings.bindings_directory)
    async with opened(settings):
        assert (body.parent / "isolated" / body.name).read_bytes() == bytes(5000)


async def test_a_member_with_copies_elsewhere_does_not_begin_without_what_is_missing(tmp_path: Path) -> None:
    """It would be copied over the others' whole data."""
    settings = settings_in(tmp_path, **SMALL, copies_elsewhere=True)
    async with opened(settings, crash=True) as one:
        await send(one.storage, 40)
    segments(settings)[1].unlink()
    before = sorted(path.name for path in files_below(tmp_path, "*"))
    with pytest.raises(StoreError, match=r"segment 2 is missing.*other members keep copies.*allow-missing-segments"):
        async with opened(settings):
            pass
    assert sorted(path.name for path in files_below(tmp_path, "*")) == before
    (settings.journal_directory / "allow-missing-segments").touch()
    async with opened(settings) as two:
        assert [damage.kind for damage in two.recovered.damage] == ["missing-segment"]


@pytest.mark.parametrize("kept", [False, True])
async def test_a_missing_checkpoint_is_the_loss_of_what_only_it_held(tmp_path: Path, kept: bool) -> None:
    """Segments that it kept for their messages are read again, and files of rewritten messages are set aside."""
    settings = settings_in(tmp_path, **SMALL, journal_compact_percentage=0 if kept else 100)
    async with opened(settings) as one:
        ids = await send(one.storage, 40)
        one.storage.append_acks(1, ids[:30])
    async with opened(settings, crash=True) as two:
        ids += await send(two.storage, 3)
    for path in settings.journal_directory.glob("*.checkpoint"):
        path.unlink()
    bodies = {path.name for path in settings.journal_directory.glob("*.bodies")}
    assert bool(bodies) != kept
    assert not report_on(settings).sound
    for expected in ({"missing-segment", "missing-file"}, {"missing-segment"}):
        async with opened(settings, crash=True) as three:
            assert {damage.kind for damage in three.recovered.damage} == expected
            assert set(contents(three.recovered)[1]) >= set(ids[-13:] if kept else ids[-3:])
    assert {path.name for path in (settings.journal_directory / "isolated").glob("*.bodies")} == bodies


async def test_a_segment_cut_between_two_records_is_noticed(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_file_size=64 << 10)
    async with opened(settings, crash=True) as one:
        ids = await send(one.storage, 10)
        last = one.storage._journal.segment
        assert last is not None
        end = last.position
        await send(one.storage, 10)
    os.truncate(segments(settings)[0], end)
    assert not report_on(settings).sound
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: ids}
        assert [damage.kind for damage in two.recovered.damage] == ["cut"]
        assert two.storage.damage == two.recovered.damage


@pytest.mark.parametrize("how", ["deleted", "cut", "both headers", "not UTF-8"])
async def test_a_page_that_is_missing_is_set_aside_until_it_is_back(tmp_path: Path, how: str) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        first = await paged(one.storage, 40)
        other = await paged(one.storage, 3, "b")
    victim = files_below(settings.paging_directory, "*.page")[1]
    data = victim.read_bytes()
    odd = os.fsencode(victim.parent) + b"/\xff.page"
    match how:
        case "deleted":
            victim.unlink()
        case "cut":
            os.truncate(victim, 1000)
        case "both headers":
            victim.write_bytes(bytes([data[0] ^ 1]) + data[1:64] + bytes([data[64] ^ 1]) + data[65:])
        case _:
            os.rename(victim, odd)  # noqa: PTH104
    assert not report_on(settings).sound
    for clean in (True, False):
        async with opened(settings, crash=not clean) as two:
            left = await read(two.storage)
            assert set(left) < set(first)
            assert await read(two.storage, "b") == other
            assert any(damage.file == victim for damage in two.storage.damage), two.storage.damage
    victim.write_bytes(data)
    async with opened(settings, crash=True) as three:
        assert await read(three.storage) == first
        assert three.recovered.damage == []


async def test_a_page_cut_between_two_records_is_noticed(tmp_path: Path) -> None:
    """The last one of a life that crashed: nothing in it says that it had more."""
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        first = await paged(one.storage, 3)
        end = one.storage.pages.addresses()["a"].size
        await paged(one.storage, 3)
    (victim,) = files_below(settings.paging_directory, "*.page")
    os.truncate(victim, end)
    assert not report_on(settings).sound
    async with opened(settings) as two:
        assert await read(two.storage) == first
        assert [damage.kind for damage in two.recovered.damage] == ["cut"]


@pytest.mark.parametrize("content", [None, b"", b"b", b"\xff\xfe"], ids=["deleted", "cut", "changed", "not UTF-8"])
async def test_whose_pages_they_are_is_in_the_journal(tmp_path: Path, content: bytes | None) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        sent = await paged(one.storage, 10)
    (name,) = files_below(settings.paging_directory, "address.txt")
    name.unlink()
    if content is not None:
        name.write_bytes(content)
    assert not report_on(settings).sound
    async with opened(settings, crash=True) as two:
        assert await read(two.storage) == sent
        assert [damage.file for damage in two.recovered.damage] == [name]
    assert name.read_bytes() == b"a"


async def test_all_pages_missing_are_noticed(tmp_path: Path) -> None:
    """An unmounted directory: nothing is given up, by no checkpoint either, and everything is there when it is back."""
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings) as one:
        sent = await paged(one.storage, 40)
        gone = [one.message.id for one in await one.storage.pages.address("a").read(1 << 24 | 1)]
        one.storage.pages.address("a").acknowledge(1, 1 << 24 | 1, gone[:1])
        await stable(one.storage)
    settings.paging_directory.rename(tmp_path / "elsewhere")
    for _ in range(2):
        async with opened(settings) as two:
            assert {damage.kind for damage in two.recovered.damage} == {"missing-file"}
            await send(two.storage, 1)
    settings.paging_directory.rmdir()
    (tmp_path / "elsewhere").rename(settings.paging_directory)
    async with opened(settings) as three:
        assert await read(three.storage) == sent[1:]
        assert three.recovered.damage == []


@pytest.mark.parametrize("left", [None, 0, 4000])
async def test_a_large_message_without_its_body_is_set_aside_until_that_is_back(
    tmp_path: Path, left: int | None
) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        large, path = await with_large(one.storage, 5000)
        others = await send(one.storage, 3)
    data = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(data[:left])
    assert not report_on(settings).sound
    for clean in (True, False):
        async with opened(settings, crash=not clean) as two:
            assert contents(two.recovered) == {1: others}
            assert [damage.file for damage in two.storage.damage] == [path]
    path.write_bytes(data)
    async with opened(settings, crash=True) as three:
        assert contents(three.recovered) == {1: [large, *others]}
        assert three.recovered.damage == []


async def test_a_body_that_is_cut_while_the_broker_runs_is_left_out_when_it_is_read(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings) as one:
        large, path = await with_large(one.storage, 5000)
        (other,) = await send(one.storage, 1)
    async with opened(settings) as two:
        os.truncate(path, 100)
        found = await two.storage.read_messages([large, other])
        assert [message.id if message is not None else None for message in found] == [None, other]
        assert [damage.kind for damage in two.storage.damage] == ["lost-body"]


async def test_files_without_a_record_are_kept_while_the_store_is_damaged(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        await paged(one.storage, 20)
        writer = one.storage.large.create()
        writer.write(bytes(5000))
        message = message_of(one.storage, b"head", address="a", large=writer.finish())
        one.storage.pages.address("a").append(message, [1])
        await stable(one.storage)
    *_, page = files_below(settings.paging_directory, "*.page")
    page.unlink()
    (body,) = settings.large_messages_directory.glob("*.msg")
    async with opened(settings):
        assert not body.exists()
        assert (body.parent / "isolated" / body.name).read_bytes() == bytes(5000)


async def test_what_was_finished_at_a_start_is_not_missing_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged and not yet on record as done: the start deletes the files, and says so first."""
    settings = settings_in(tmp_path, **SMALL)
    async with opened(settings, crash=True) as one:
        await paged(one.storage, 20)
        pages = one.storage.pages.address("a")
        pages.close_page()
        monkeypatch.setattr(one.storage.pages, "finish", lambda *_: None)
        monkeypatch.setattr(one.storage.pages, "forget", lambda _: None)
        for number in list(pages.pages):
            pages.acknowledge(1, number, [one.message.id for one in await pages.read(number)])
        await stable(one.storage)
    for _ in range(3):
        async with opened(settings, crash=True) as two:
            assert two.recovered.damage == []


async def test_a_store_of_0_1_0_is_read_without_false_damage(tmp_path: Path) -> None:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path)  # noqa: S202  (ours)
    told = json.loads((tmp_path / "told.json").read_text())
    settings = settings_in(tmp_path, **SMALL)
    assert report_on(settings).sound
    for clean in (False, True, False, True):
        async with opened(settings, crash=not clean) as one:
            assert one.recovered.damage == []
            assert set(contents(one.recovered)[7]) == {*told["messages"], *told["large"]}
            assert None not in await one.storage.read_messages(contents(one.recovered)[7])
            assert await read(one.storage, "paged") == told["paged"]
        assert report_on(settings).sound
    (name,) = files_below(settings.paging_directory, "address.txt")
    name.unlink()
    async with opened(settings) as one:
        assert await read(one.storage, "paged") == told["paged"], "the messages tell whose they are"
        assert [damage.file for damage in one.recovered.damage] == [name]


class FailingBindings(FaultyFiles):
    """The file of bindings takes its snapshot and one change (``changes``), or nothing."""

    def __init__(self, error: int, *, changes: bool) -> None:
        super().__init__()
        self._error = error
        self._changes = changes

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        bindings = Path(f"/proc/self/fd/{fd}").readlink().name.startswith("bindings")
        if bindings and not (self._changes and (sync or not offset)):
            raise OSError(self._error, os.strerror(self._error))
        return super().write(fd, data, offset, sync=sync)


async def fails_to_begin(settings: StoreSettings, files: FaultyFiles, guard: Callable[[], bool] | None = None) -> None:
    """A life that ends before its journal has anything."""
    storage = await Storage.open(
        settings, loop=asyncio.get_running_loop(), on_failure=lambda _: None, files=files, guard=guard
    )
    with pytest.raises((StoreError, OSError)):
        await storage.recover()
    await storage.close()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("earlier", [0, 1])
async def test_the_first_segment_of_a_life_that_wrote_nothing_is_not_missing(
    tmp_path: Path, earlier: int, *, full: bool
) -> None:
    """The bindings say where its journal begins. ``full``: another one finds no room for its own, and gives up."""
    settings = settings_in(tmp_path, **SMALL, copies_elsewhere=True)
    held: dict[int, list[int]] = {}
    for _ in range(earlier):
        async with opened(settings, crash=True) as one:
            held = {1: await send(one.storage, 5)}
    await fails_to_begin(settings, FailingBindings(errno.EIO, changes=True))
    if full:
        wanted = iter((True,))
        await fails_to_begin(settings, FailingBindings(errno.ENOSPC, changes=False), lambda: next(wanted, False))
    assert report_on(settings).sound
    async with opened(settings) as last:
        assert last.recovered.damage == []
        assert contents(last.recovered) == held
    assert report_on(settings).sound
