"""The writer goes on while copies confirm: in order, only with the word of all that count, and not too far."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from harness.store import message_of, opened, set_aside, settings_in, stable, until
from pollux.store.ahead import MOST
from pollux.store.mirror import Link, Mirror, MirroredFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest

    from harness.store import Opened
    from pollux.errors import StoreError

#: Generous: a machine under load.
TIMEOUT = 60.0


class Shipping:
    """A store with copies that confirm when the test says so."""

    def __init__(self, directory: Path, patience: float) -> None:
        self.settings = settings_in(directory)
        self.roots = {
            "journal": self.settings.journal_directory,
            "bindings": self.settings.bindings_directory,
            "large": self.settings.large_messages_directory,
            "paging": self.settings.paging_directory,
        }
        self.mirror = Mirror(self.roots, on_lost=self._lost, patience=patience)
        self.losses: list[str] = []
        self.settled = True
        #: Set while a loss may be made known, and when one is about to be.
        self.known, self.losing = threading.Event(), threading.Event()
        self.known.set()
        #: The names of the groups whoever waits for them was told of, or with which error.
        self.told: list[str] = []
        self.one: Opened

    def _lost(self, link: Link, reason: str) -> bool:
        self.losing.set()
        assert self.known.wait(TIMEOUT)
        self.losses.append(f"{link.name}: {reason}")
        return self.settled

    def link(self, name: str) -> Link:
        """Another copy that counts, and has what is written so far."""
        link = Link(name, lambda: None)
        self.mirror.attach(link)
        assert self.mirror.admit(link, b"in sync")
        self.mirror.confirm(link, link.last)
        return link

    async def group(self, name: str) -> int:
        """Write a group; the number of its change, once it is on this disk."""
        journal = self.one.storage._journal
        before = journal.batches
        self.append(name)
        await until(lambda: journal.batches > before)
        return self.mirror.number

    def append(self, name: str) -> None:
        def told(error: StoreError | None) -> None:
            self.told.append(name if error is None else f"{name}: {error}")

        self.one.storage.append_message(message_of(self.one.storage), [1])
        self.one.storage.when_stable(told)
        self.one.storage._journal.hand_over()

    async def turns(self) -> None:
        """Whatever the loop was told to do is done."""
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def shipping(directory: Path, patience: float = TIMEOUT) -> AsyncIterator[Shipping]:
    made = Shipping(directory, patience)
    async with opened(made.settings, crash=True, files=MirroredFiles(made.mirror)) as made.one:
        await set_aside(made.one.storage)
        await stable(made.one.storage)
        try:
            yield made
        finally:
            made.known.set()
            made.mirror.require(0)
            for link in made.mirror.links:
                await asyncio.to_thread(made.mirror.lose, link, "the test is over")


async def test_groups_are_written_while_others_are_under_way_and_confirmed_in_order(tmp_path: Path) -> None:
    async with shipping(tmp_path) as made:
        castor, pollux = made.link("castor"), made.link("pollux")
        numbers = [await made.group(name) for name in ("first", "second", "third")]
        assert made.told == []
        made.mirror.confirm(castor, numbers[2])
        await made.turns()
        assert made.told == [], "one copy does not have it"
        made.mirror.confirm(pollux, numbers[0])
        await made.turns()
        assert made.told == ["first"]
        made.mirror.confirm(pollux, numbers[2])
        await made.turns()
        assert made.told == ["first", "second", "third"]
        await made.group("fourth")
        await made.turns()
        assert made.told[3:] == []


async def test_what_is_confirmed_before_it_is_synced_here_is_not_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies may be faster than this disk."""
    async with shipping(tmp_path) as made:
        link = made.link("castor")
        syncing, go = threading.Event(), threading.Event()
        inner = made.one.storage.files._inner  # type: ignore[attr-defined]
        sync = inner.fdatasync

        def slow(fd: int) -> None:
            syncing.set()
            assert go.wait(TIMEOUT)
            sync(fd)

        monkeypatch.setattr(inner, "fdatasync", slow)
        made.append("first")
        assert await asyncio.to_thread(syncing.wait, TIMEOUT)
        made.mirror.confirm(link, link.last)
        await made.turns()
        assert made.told == []
        go.set()
        await until(lambda: made.told == ["first"])


async def test_only_so_many_groups_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shipping(tmp_path) as made:
        link = made.link("castor")
        journal, waiting = made.one.storage._journal, threading.Event()
        wait = made.mirror.wait

        def noted(number: int, since: float | None = None) -> None:
            waiting.set()
            wait(number, since)

        monkeypatch.setattr(made.mirror, "wait", noted)
        first, *_ = [await made.group(str(number)) for number in range(MOST)]
        written = journal.batches
        made.append("one more")
        made.append("and another")
        assert await asyncio.to_thread(waiting.wait, TIMEOUT)
        assert journal.batches == written
        made.mirror.confirm(link, first)
        await until(lambda: journal.batches > written)
        assert journal.batches == written + 1, "what waited for room is one group"
        assert made.told == ["0"]
        made.mirror.confirm(link, link.last)
        await made.turns()
        assert made.told == [*map(str, range(MOST)), "one more", "and another"]


async def test_a_copy_lost_between_two_groups_is_made_known_before_either_is_told(tmp_path: Path) -> None:
    async with shipping(tmp_path) as made:
        castor, pollux = made.link("castor"), made.link("pollux")
        first, second = await made.group("first"), await made.group("second")
        made.known.clear()
        losing = asyncio.create_task(asyncio.to_thread(made.mirror.lose, pollux, "the connection broke"))
        assert await asyncio.to_thread(made.losing.wait, TIMEOUT)
        made.mirror.confirm(castor, first)
        await made.turns()
        assert made.told == []
        made.known.set()
        await losing
        await made.turns()
        assert made.told == ["first"], "the other one does not have the second"
        made.mirror.confirm(castor, second)
        await made.turns()
        assert made.told == ["first", "second"]
        assert made.losses == ["pollux: the connection broke"]


async def test_no_group_is_told_after_a_loss_that_cannot_be_made_known(tmp_path: Path) -> None:
    async with shipping(tmp_path) as made:
        castor, pollux = made.link("castor"), made.link("pollux")
        await made.group("first")
        second = await made.group("second")
        made.settled = False
        await asyncio.to_thread(made.mirror.lose, pollux, "the connection broke")
        made.mirror.confirm(castor, second)
        await made.turns()
        assert [one.partition(":")[0] for one in made.told] == ["first", "second"]
        assert all("replica pollux is lost (the connection broke)" in one for one in made.told)
        assert len(made.one.failures) == 1


async def test_a_copy_that_hangs_is_waited_for_once_however_many_groups_are_under_way(tmp_path: Path) -> None:
    """Nobody sends anything more: the writer notices it all the same."""
    async with shipping(tmp_path, patience=0.3) as made:
        made.link("castor")
        for name in ("first", "second", "third"):
            await made.group(name)
        await until(lambda: len(made.told) == 3)
        assert made.told == ["first", "second", "third"]
        assert made.losses == ["castor: it was waited for longer than 0.3 s"]


async def test_groups_wait_for_enough_copies_and_for_the_word_to_go_on(tmp_path: Path) -> None:
    async with shipping(tmp_path) as made:
        castor = made.link("castor")
        made.mirror.require(2)
        first = await made.group("first")
        made.mirror.confirm(castor, first)
        await made.turns()
        assert made.told == [], "there are too few"
        pollux = made.link("pollux")
        await made.turns()
        assert made.told == ["first"]
        made.mirror.withhold(True)
        second = await made.group("second")
        for link in (castor, pollux):
            made.mirror.confirm(link, second)
        await made.turns()
        assert made.told == ["first"]
        made.mirror.withhold(False)
        await made.turns()
        assert made.told == ["first", "second"]


async def test_the_end_waits_for_what_is_under_way(tmp_path: Path) -> None:
    async with shipping(tmp_path) as made:
        link = made.link("castor")
        last = await made.group("last")
        journal = made.one.storage._journal
        closing = asyncio.create_task(journal.close())
        await made.turns()
        assert not closing.done()
        assert journal._thread.is_alive()
        made.mirror.confirm(link, last)
        await closing
        assert made.told == ["last"]
