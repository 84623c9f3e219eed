"""The numbers of links in the journal: with the message in one transaction, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.store import contents, message_of, opened, settings_in, stable
from pollux.formats.records import LINK_LIVES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio

KEY, LIFE, LATER = "cluster/A", b"life one", b"life two"


async def test_a_number_counts_with_its_message(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path), crash=True) as one:
        for number, committed in ((1, True), (2, False)):
            tx = one.storage.next_id()
            one.storage.append_message(message_of(one.storage), [7], tx)
            one.storage.append_link(KEY, LIFE, number, tx)
            if committed:
                one.storage.append_commit(tx)
        await stable(one.storage)
    async with opened(settings_in(tmp_path)) as one:
        assert one.recovered.links == {KEY: [(LIFE, 1)]}
        assert len(contents(one.recovered)[7]) == 1


async def test_numbers_of_a_life_only_grow_and_the_newest_lives_are_kept(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path), crash=True) as one:
        one.storage.append_link(KEY, LIFE, 5)
        one.storage.append_link(KEY, LATER, 1)
        one.storage.append_link(KEY, LIFE, 3)
        for number in range(LINK_LIVES):
            one.storage.append_link("another", number.to_bytes(8, "little"), 1)
        one.storage.append_link("another", LIFE, 1)
        await stable(one.storage)
    async with opened(settings_in(tmp_path)) as one:
        assert one.recovered.links[KEY] == [(LATER, 1), (LIFE, 5)]
        assert [life for life, _ in one.recovered.links["another"]][-1] == LIFE
        assert len(one.recovered.links["another"]) == LINK_LIVES


async def test_a_stop_in_order_keeps_them(tmp_path: Path) -> None:
    for number in (1, 2):
        async with opened(settings_in(tmp_path)) as one:
            assert one.recovered.links == ({KEY: [(LIFE, 1)]} if number == 2 else {})
            one.storage.append_link(KEY, LIFE, number)
            await stable(one.storage)
