"""Files that a takeover does not open: pages that were read along, bodies of checkpoints, files of large messages.

It comes to the same as a start that opens everything, and what it did not look at is looked at behind it.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from harness.store import message_of, opened, settings_in, stable
from pollux.store import known_pages
from pollux.store.follower import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.store.settings import StoreSettings
    from pollux.store.storage import Storage


def following(settings: StoreSettings) -> Follower:
    return Follower(settings.journal_directory, settings.id_cache_size, settings.paging_directory)


def facts(storage: Storage) -> dict[tuple[str, int], Any]:
    """Return what a life knows of its predecessors' pages, and which files of them are left."""
    return {
        (name, one.number): (
            *(one.messages, one.remaining, one.committed, one.large, one.size),
            {queue_id: ids for queue_id, ids in one.acknowledged.items() if queue_id in one.remaining},
        )
        for name, pages in storage.pages.addresses().items()
        for one in pages.pages.values()
    }


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[list[str]]:
    """The files below a directory that are opened, or whose size is looked at."""
    seen: list[str] = []
    opening, looking, system = pathlib.Path.open, pathlib.Path.stat, os.open

    def note(path: Any) -> None:
        if isinstance(path, pathlib.Path) and directory in path.parents and path.suffix:
            seen.append(path.name)

    def noted_open(path: Path, *rest: Any, **named: Any) -> Any:
        note(path)
        return opening(path, *rest, **named)

    def noted_look(path: Path, **named: Any) -> Any:
        note(path)
        return looking(path, **named)

    def noted_system(path: Any, *rest: Any, **named: Any) -> int:
        note(path)
        return system(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "open", noted_open)
        patch.setattr(pathlib.Path, "stat", noted_look)
        patch.setattr(os, "open", noted_system)
        yield seen


async def page(storage: Storage, count: int, address: str = "a", tx: int = 0, **values: Any) -> None:
    """So many messages to pages, for two queues."""
    pages = storage.pages.address(address)
    for _ in range(count):
        pages.append(message_of(storage, b"p" * 300, address=address, **values), [1, 2], tx)
    if tx:
        storage.append_commit(tx)
    await stable(storage)


@pytest.mark.parametrize("transactions", [False, True])
async def test_a_takeover_opens_the_page_that_was_being_written_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transactions: bool
) -> None:
    """Breaks when each page is opened, or each that a killed life left open: it grows with pages and with failovers."""
    settings = settings_in(tmp_path, page_size_bytes=2 << 10)
    for _ in range(4):
        follower = following(settings)
        async with opened(settings, crash=True, follower=follower) as live:
            storage = live.storage
            for _ in range(5):
                await page(storage, 6, tx=storage.next_id() if transactions else 0)
            follower = following(settings)
            while follower.poll():
                pass
            # What came after the last look.
            await page(storage, 1)
    files = len(list(settings.paging_directory.rglob("*.page")))
    assert files > 20
    with counted(monkeypatch, settings.paging_directory) as seen:
        async with opened(settings, crash=True, follower=follower) as heir:
            pages = heir.storage.pages.addresses()["a"]
            assert pages.remaining(1) == 4 * 31
            before = list(seen)
    # The last page, and those that it was begun after in writes that the last look could not know to be complete.
    assert len(set(before)) <= 3, f"{sorted(set(before))} of {files}"


async def test_a_look_says_that_it_left_pages_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a look does not say so: a member is taken for ready, and a takeover opens the pages that are left."""
    monkeypatch.setattr(known_pages, "_AT_ONCE", 2)
    settings = settings_in(tmp_path, page_size_bytes=2 << 10)
    async with opened(settings) as live:
        for _ in range(7):
            await page(live.storage, 6)
        closed = len(list(settings.paging_directory.rglob("*.page"))) - 1
        follower = following(settings)
        left = []
        for _ in range(1 + closed // 2):
            follower.poll()
            left.append(follower.pages.behind)
    assert left == [True] * ((closed - 1) // 2) + [False] * (len(left) - (closed - 1) // 2)
    assert closed >= 5


@pytest.mark.parametrize("seed", range(6))
async def test_a_takeover_knows_what_a_start_knows(tmp_path: Path, seed: int) -> None:
    """Whatever happened to pages, and whenever the follower looked."""
    choice = random.Random(seed)  # noqa: S311  (reproducible)
    settings = settings_in(tmp_path, page_size_bytes=2 << 10, id_cache_size=1000)
    follower: Follower | None = None
    for life in range(4):
        copy = settings_in(tmp_path / f"copy{life}", page_size_bytes=2 << 10, id_cache_size=1000)
        for theirs, mine in zip(directories(settings), directories(copy), strict=True):
            if theirs.is_dir():
                shutil.copytree(theirs, mine)
        async with opened(copy, crash=True) as cold:
            expected = facts(cold.storage), cold.recovered.duplicates, sorted(map(str, cold.recovered.damage))
        async with opened(settings, crash=True, follower=follower) as live:
            storage = live.storage
            there = str(copy.journal_directory.parent)
            said = [str(one).replace(str(tmp_path), there) for one in live.recovered.damage]
            assert facts(storage) == expected[0]
            assert (live.recovered.duplicates, sorted(said)) == expected[1:]
            assert storage.damage == live.recovered.damage
            follower = following(settings)
            for step in range(60):
                await something(storage, choice, step)
                if choice.random() < 0.3:
                    follower.poll()


def directories(settings: StoreSettings) -> tuple[Path, ...]:
    return (
        settings.journal_directory,
        settings.bindings_directory,
        settings.paging_directory,
        settings.large_messages_directory,
    )


async def something(storage: Storage, choice: random.Random, step: int) -> None:
    """One thing that happens to pages."""
    address = choice.choice("ab")
    pages = storage.pages.address(address)
    match choice.randrange(8):
        case 0 | 1 | 2:
            await page(storage, choice.randrange(1, 5), address, duplicate_id=b"%d-%d" % (storage.epoch, step))
        case 3:
            await page(storage, choice.randrange(1, 5), address, tx=storage.next_id())
        case 4:
            await page(storage, 2, address, durable=False)
        case 5:
            pages.close_page()
        case 6 if pages.pages:
            number = choice.choice(list(pages.pages))
            found = await pages.read(number)
            some = choice.sample(found, choice.randrange(len(found) + 1)) if choice.random() < 0.5 else found
            pages.acknowledge(choice.choice((1, 2)), number, [one.message.id for one in some])
        case 7 if choice.random() < 0.2:
            pages.drop_queue(choice.choice((1, 2)))
        case _:
            pass
    if not pages.pages:
        storage.pages._by_address.pop(address, None)  # nothing was ever written: it has no directory
    await stable(storage)


async def test_a_page_that_was_cut_after_it_was_read_is_reported_behind_the_takeover(tmp_path: Path) -> None:
    """Breaks when nobody looks: the damage would be found when a consumer gets there, months later."""
    settings = settings_in(tmp_path, page_size_bytes=2 << 10)
    async with opened(settings, crash=True) as live:
        for _ in range(10):
            await page(live.storage, 6)
        follower = following(settings)
        follower.poll()
    first, second, third, *_ = sorted(settings.paging_directory.rglob("*.page"))
    os.truncate(first, 1000)
    third.write_bytes(b"\xff" * 200 + third.read_bytes()[200:])
    (second.parent / "address.txt").write_bytes(b"another")
    async with opened(settings, crash=True, follower=follower) as heir:
        looking = heir.storage._looking
        assert looking is not None
        await looking
        found = {(one.file.name, one.kind) for one in heir.storage.damage}
    assert found == {(first.name, "cut"), (third.name, "bad-header"), ("address.txt", "corrupt")}


async def test_a_damaged_page_is_read_once_and_judged_by_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a member that waits reads it at each look, five times a second."""
    settings = settings_in(tmp_path, page_size_bytes=2 << 10)
    async with opened(settings, crash=True) as live:
        for _ in range(10):
            await page(live.storage, 6)
        damaged = min(settings.paging_directory.rglob("*.page"))
        os.truncate(damaged, 1000)
        follower = following(settings)
        follower.poll()
        with counted(monkeypatch, settings.paging_directory) as seen:
            await page(live.storage, 6)
            follower.poll()
        assert damaged.name not in seen
    async with opened(settings, crash=True, follower=follower) as heir:
        assert (damaged.name, "cut") in {(one.file.name, one.kind) for one in heir.recovered.damage}


async def test_a_page_that_is_gone_is_missing_at_the_takeover(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, page_size_bytes=2 << 10)
    async with opened(settings, crash=True) as live:
        for _ in range(10):
            await page(live.storage, 6)
        follower = following(settings)
        follower.poll()
    gone = min(settings.paging_directory.rglob("*.page"))
    gone.unlink()
    async with opened(settings, crash=True, follower=follower) as heir:
        assert [(one.file.name, one.kind) for one in heir.recovered.damage] == [(gone.name, "missing-file")]


async def test_a_takeover_looks_for_the_names_of_large_messages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when each file is looked at. One that was cut is reported behind the takeover."""
    settings = settings_in(tmp_path)
    ids = []
    async with opened(settings, crash=True) as live:
        storage = live.storage
        for _ in range(30):
            writer = storage.large.create()
            writer.write(b"x" * 5000)
            large = writer.finish()
            ids.append(large.id)
            storage.append_message(message_of(storage, b"head", durable=True, large=large), [1])
        await stable(storage)
        follower = following(settings)
        follower.poll()
    directory = settings.large_messages_directory
    os.truncate(directory / f"{ids[7]}.msg", 100)
    (directory / f"{ids[8]}.msg").unlink()
    with counted(monkeypatch, directory) as seen:
        async with opened(settings, crash=True, follower=follower) as heir:
            before = list(seen)
            assert sum(len(one) for one in heir.recovered.queues[1].values()) == 29
            assert [one.file.name for one in heir.recovered.damage] == [f"{ids[8]}.msg"]
            looking = heir.storage._looking
            assert looking is not None
            await looking
            assert {one.file.name for one in heir.storage.damage} == {f"{ids[7]}.msg", f"{ids[8]}.msg"}
    assert before == []
