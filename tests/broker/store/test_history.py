"""A checkpoint tells of lives whose records compaction took away: where they began and ended, what they accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from harness.parted_stores import without_history
from harness.store import message_of, opened, segments, settings_in, stable
from pollux.formats import history as histories
from pollux.formats.history import History, Life, decode_history
from pollux.formats.segments import HEADER_SIZE, decode_header
from pollux.store.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pollux.store.settings import StoreSettings


def told(settings: StoreSettings) -> History:
    """Return what the one checkpoint of a store says."""
    (path,) = settings.journal_directory.glob("*.checkpoint")
    checkpoint = read_checkpoint(path, None)
    return decode_history(checkpoint.state, checkpoint.key[1:])


async def lived(settings: StoreSettings, *counts: tuple[str, int], crash: bool = False) -> tuple[int, int]:
    """A life that accepts messages and has them all consumed; (salt, highest id)."""
    async with opened(settings, crash=crash) as one:
        last = 0
        for address, count in counts:
            for number in range(count):
                message = message_of(one.storage, b"x" * (10 + number), address=address)
                if number % 2:
                    message.duplicate_id = b"given"  # makes the record an extended one
                one.storage.append_message(message, [1])
                one.storage.append_acks(1, [message.id])
                last = message.id
        await stable(one.storage)
        written = [data for path in segments(settings) if any((data := path.read_bytes())[:HEADER_SIZE])]
        salt = decode_header(written[-1], "").salt
    return salt, last


async def test_lives_that_stopped_in_order_are_told_of_after_their_records_are_gone(tmp_path: Path) -> None:
    """Over several checkpoints, lives that were killed among them.

    Breaks when a checkpoint forgets what the one before knew, counts a segment twice, or measures records for messages.
    """
    settings = settings_in(tmp_path, journal_file_size=4 << 10, journal_compact_min_files=1)
    found = [
        await lived(settings, ("orders", 30), ("news", 3)),
        await lived(settings, ("orders", 5), crash=True),
        await lived(settings, ("orders", 1), ("other", 2)),
    ]
    history = told(settings)
    assert history.unknown is None
    assert [(life.salt, life.newest) for life in history.lives.values()] == found
    first, second, third = history.lives.values()
    assert first.counted == {
        "orders": (30, sum(10 + number for number in range(30)), 39),
        "news": (3, 33, 12),
    }
    assert (second.counted, third.counted["other"]) == ({"orders": (5, 60, 14)}, (2, 21, 11))
    assert first.began == 1
    assert [one.began for one in (second, third)] == [one.ended + 1 for one in (first, second)]
    assert all(HEADER_SIZE < life.end <= 4 << 10 for life in history.lives.values())
    assert not [path for path in segments(settings) if int(path.name[7:15]) < 3], "compaction took the records away"


async def test_a_checkpoint_of_a_version_before_says_that_it_does_not_know(tmp_path: Path) -> None:
    """It is read as before; what is folded behind it is told."""
    settings = settings_in(tmp_path, journal_file_size=4 << 10, journal_compact_min_files=1)
    await lived(settings, ("orders", 30))
    (path,) = settings.journal_directory.glob("*.checkpoint")
    old = read_checkpoint(path, None)
    assert decode_history({}, old.key[1:]) == History(unknown=old.key[1:])
    without_history(path)
    await lived(settings, ("orders", 2))
    history = told(settings)
    assert history.unknown == old.key[1:]
    assert [life.counted for life in history.lives.values()] == [{"orders": (2, 21, 11)}]


def test_what_a_checkpoint_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MOST_ADDRESSES", 2)
    monkeypatch.setattr(histories, "COUNTED_LIVES", 2)
    monkeypatch.setattr(histories, "MOST_LIVES", 4)
    history = History()
    for epoch in range(1, 7):
        counted = {f"a{number}": (number, 10 * number, number) for number in range(1, 6)}
        history.lives[epoch] = Life(epoch, 1, 2, 10 * epoch, 10 * epoch + 5, 99, 7, counted)
    history.bound()
    assert (history.unknown, list(history.lives)) == ((2, 25), [3, 4, 5, 6])
    assert history.lives[4].counted == {"": (15, 150, 5)}
    assert history.lives[5].counted == {"a5": (5, 50, 5), "a4": (4, 40, 4), "": (6, 60, 3)}
    history.bound()
    assert history.lives[5].counted[""] == (6, 60, 3)
    assert (
        decode_history({"history": msgspec.msgpack.decode(msgspec.msgpack.encode(history.encode()))}, (9, 9)) == history
    )


def page_files(directory: Path) -> list[Path]:
    """The pages that are on disk."""
    return list(directory.rglob("*.page"))


async def test_pages_that_ended_are_told_of_with_how_many_messages_they_held(tmp_path: Path) -> None:
    """Acknowledged in parts, over several checkpoints, by two queues.

    Breaks when a checkpoint forgets what the one before knew, counts a message twice, or a page that still holds some.
    """
    settings = settings_in(tmp_path, journal_file_size=4 << 10, page_size_bytes=2 << 10, journal_compact_min_files=1)
    async with opened(settings) as one:
        pages = one.storage.pages.address("paged")
        for _ in range(40):
            pages.append(message_of(one.storage, b"p" * 150, address="paged"), [7, 8])
        await stable(one.storage)
    files = len(page_files(tmp_path))
    for queue in (7, 8):
        async with opened(settings) as one:
            pages = one.storage.pages.address("paged")
            while (number := pages.next_page(queue)) is not None:
                ids = [each.message.id for each in await pages.read(number)]
                pages.acknowledge(queue, number, ids[:3], 0)
                pages.acknowledge(queue, number, ids[3:], 0)
            await stable(one.storage)
        assert told(settings).pages == ({} if queue == 7 else {"paged": (files, 40)})


def test_addresses_with_few_paged_messages_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MOST_ADDRESSES", 2)
    history = History()
    history.end_pages({f"address-{number}": (1, number) for number in range(1, 6)})
    history.end_pages({"address-5": (2, 10)})
    history.bound()
    assert history.pages == {"address-5": (3, 15), "address-4": (1, 4), "": (3, 6)}
