"""A power cut leaves the sectors of a last write in any order: what was not confirmed is no damage, at no start."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.store import ids_in, message_of, opened, segments, settings_in, stable
from pollux.formats.segments import HEADER_SIZE
from pollux.store.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.journal import Journal, StableCallback
    from pollux.store.settings import StoreSettings


def without_a_sector(settings: StoreSettings, of: bytes) -> None:
    """Make of a write what a power cut may leave: a sector in the middle of ``of`` is the zeros it was."""
    for path in segments(settings):
        data = bytearray(path.read_bytes())
        if (at := data.find(of)) >= 0:
            sector = (at // 512 + 1) * 512
            data[sector : sector + 512] = bytes(512)
            path.write_bytes(data)
            return
    pytest.fail("no segment holds it")


def copy(directory: Path, to: Path) -> None:
    shutil.copytree(directory, to, dirs_exist_ok=True)


async def test_a_hole_in_the_last_write_is_no_damage_at_later_starts_either(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        torn, kept = message_of(one.storage, b"x" * 2000), message_of(one.storage)
        under_way = one.storage.next_id()
        one.storage.append_message(message_of(one.storage), [1], under_way)
        one.storage.append_message(torn, [1])
        one.storage.append_message(kept, [1])
        await stable(one.storage)
    without_a_sector(settings, torn.data)
    for _ in range(3):
        async with opened(settings, crash=True) as two:
            assert ids_in(two.recovered) == {kept.id}
            assert {damage.kind for damage in two.recovered.damage} == {"torn-tail"}
        assert verify(tmp_path).sound


@pytest.mark.parametrize("confirmed", [False, True])
async def test_half_of_a_prepared_transaction_is_none_unless_it_was_confirmed(tmp_path: Path, confirmed: bool) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        tx = one.storage.next_id()
        messages = [message_of(one.storage, b"x" * 2000), message_of(one.storage)]
        for message in messages:
            one.storage.append_message(message, [1], tx)
        one.storage.append_prepare(tx, b"xid")
        await stable(one.storage)
        if confirmed:
            one.storage.append_message(message_of(one.storage), [2])
            await stable(one.storage)
    without_a_sector(settings, messages[0].data)
    for _ in range(2):
        async with opened(settings, crash=True) as two:
            found = [[message_id for message_id, _, _ in prepared.messages] for prepared in two.recovered.prepared]
            assert found == ([[messages[1].id]] if confirmed else [])
            told = [damage.detail for damage in two.recovered.damage if "was prepared with 2 records" in damage.detail]
            assert len(told) == confirmed
            assert {damage.kind for damage in two.recovered.damage} == ({"corrupt"} if confirmed else {"torn-tail"})


async def test_a_page_is_not_done_where_what_was_on_it_did_not_move(tmp_path: Path) -> None:
    """A hole in the transaction that took its last message elsewhere: whatever is behind that must not count alone."""
    before, settings = settings_in(tmp_path / "before"), settings_in(tmp_path / "left")
    async with opened(before, crash=True) as one:
        pages = one.storage.pages.address("a")
        paged, moved = message_of(one.storage, address="a"), message_of(one.storage, b"x" * 2000)
        number = pages.append(paged, [1])
        pages.close_page()
        await stable(one.storage)
        tx = one.storage.next_id()
        one.storage.append_message(moved, [2], tx)
        # Before anybody else hears of it, and writes more.
        one.storage.when_stable(lambda _: copy(tmp_path / "before", tmp_path / "left"))
        pages.acknowledge(1, number, [paged.id], tx)
        one.storage.append_commit(tx)
        await stable(one.storage)
    without_a_sector(settings, moved.data)
    for _ in range(2):
        async with opened(settings, crash=True) as two:
            assert ids_in(two.recovered) == set()
            assert two.storage.pages.addresses()["a"].remaining(1) == 1
            assert {damage.kind for damage in two.recovered.damage} == {"torn-tail"}


class Asked:
    """A journal that notes up to which group somebody wants to hear that all is stable."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.groups: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def when_stable(self, callback: StableCallback) -> None:
        self.groups.append(self._journal.token - (not self._journal.parts))
        self._journal.when_stable(callback)


async def test_a_page_is_not_done_before_the_end_of_a_transaction_of_several_writes(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_buffer_size=256)
    async with opened(settings) as one:
        pages = one.storage.pages.address("a")
        paged = [message_of(one.storage, address="a") for _ in range(100)]
        number = max(pages.append(message, [1]) for message in paged)
        pages.close_page()
        await stable(one.storage)
        asked = Asked(one.storage._journal)
        one.storage.pages.journal = cast("Journal", asked)
        tx = one.storage.next_id()
        began = one.storage._journal.token
        pages.acknowledge(1, number, [message.id for message in paged], tx)
        one.storage.append_commit(tx)
        ends = one.storage._journal.token
        assert ends > began, "its acknowledgements are a write of their own"
        await stable(one.storage)
        await stable(one.storage)
        assert one.storage.pages.addresses() == {}
        assert len(asked.groups) >= 2, "that its page is done, and its store"
        assert min(asked.groups) >= ends


async def test_a_segment_whose_first_write_is_torn_is_there_at_later_starts_too(tmp_path: Path) -> None:
    """The segment before it says that it follows, and a transaction was under way: nothing of it is missing."""
    settings = settings_in(tmp_path, journal_file_size=8 << 10)
    async with opened(settings, crash=True) as one:
        kept = message_of(one.storage)
        one.storage.append_message(kept, [1])
        await stable(one.storage)
        first, tx = one.storage._journal.segment, one.storage.next_id()
        while one.storage._journal.segment is first:
            one.storage.append_message(message_of(one.storage, b"x" * 2000), [1], tx)
            await stable(one.storage)
        last = one.storage._journal.segment
        assert last is not None
    data = bytearray(last.path.read_bytes())
    data[HEADER_SIZE:512] = bytes(512 - HEADER_SIZE)
    assert data[512:].strip(b"\0")
    last.path.write_bytes(data)
    for _ in range(3):
        async with opened(settings, crash=True) as two:
            assert ids_in(two.recovered) == {kept.id}
            assert {damage.kind for damage in two.recovered.damage} <= {"torn-tail", "late-writes"}
        assert verify(tmp_path).sound
