"""Paging: messages of an address that has no room in memory wait in files of their own.

Every address that pages has a directory ``STORE`` (a number) below the paging directory, with the
address in ``address.txt`` and page files ``NUMBER.page`` in the segment format. One address's are
:mod:`pollux.store.address_pages`'s; here is what they have together, and what a start finds of them.

Which address pages and when is the routing layer's decision; this module only stores.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.formats import records
from pollux.formats.names import PAGE_NAME
from pollux.store import behind
from pollux.store.address_pages import AddressPages
from pollux.store.files import FileReader, is_directory, names_in, write_all
from pollux.store.page_files import ADDRESS_FILE, PAGE_SHIFT, Page, StorePages, read_stores
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from pollux.message import LargeBody
    from pollux.store.behind import Check
    from pollux.store.journal import Journal
    from pollux.store.known_pages import KnownPages
    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings
    from pollux.store.state import State

logger = logging.getLogger(__name__)


class PageStore:
    """All addresses' pages. For the loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        *,
        epoch: int,
        salt: int,
        next_id: Callable[[], int],
        large_body: records.LargeFactory,
        append: Callable[[bytes, int], None],
        check_room: Callable[[], None],
        report: Callable[[Damage], None],
        body_lost: Callable[[LargeBody], Awaitable[str | None]],
    ) -> None:
        """``report`` is told of damage; ``body_lost`` tells in words what is wrong with a large message's file."""
        self.report = report
        self.body_lost = body_lost
        self.files = files
        self.node_id = settings.node_id
        self.epoch = epoch
        self.salt = salt
        self.sync = settings.journal_datasync
        self.persist_duplicates = settings.persist_id_cache
        #: (address, duplicate id) of messages that an earlier life wrote to pages just before it died.
        self.unrecorded: list[tuple[str, bytes]] = []
        #: (store, page) -> where the messages of an earlier life's page end that it did not close.
        self.ends: dict[tuple[int, int], int] = {}
        #: (store, page, path) of earlier lives' pages that nobody needs, which the journal does not say yet; page 0:
        #: the whole directory.
        self._finished: list[tuple[int, int, Path]] = []
        #: Pages, and directories with the addresses they are taken to be for, that were not opened at this start.
        self.unopened: list[tuple[AddressPages, Page]] = []
        self.assumed: list[tuple[Path, str]] = []
        self.cache_size = max(1, settings.page_max_cache_size)
        self.large_body = large_body
        self.append = append
        self.check_room = check_room
        self.journal: Journal
        self._settings = settings
        self._loop = loop
        self._threads = threads
        #: Calls something behind what this turn of the loop does.
        self.soon = loop.call_soon
        self._next_id = next_id
        self._by_address: dict[str, AddressPages] = {}
        #: A life numbers its pages from its epoch on: a predecessor that wakes up never truncates one of them.
        self._last = epoch << PAGE_SHIFT
        self._closed = False
        self._permits = asyncio.Semaphore(max(1, settings.page_max_concurrent_io))

    def address(self, address: str, *, page_size_bytes: int | None = None) -> AddressPages:
        """The pages of an address; made when it has none yet."""
        pages = self._by_address.get(address)
        limit = self._settings.page_size_limit
        size = page_size_bytes or self._settings.page_size_bytes
        size = min(size, limit) if limit else size
        if pages is None:
            pages = self._by_address[address] = AddressPages(self, address, *self._place(), size)
        elif page_size_bytes:
            pages.page_size = size
        return pages

    def _place(self) -> tuple[int, Path]:
        """A number that no address's pages had before, and their directory."""
        number = self._next_id()
        return number, self._settings.paging_directory / str(number)

    def new_page(self) -> int:
        """A number that no page of any address has: what consumers of pages that were purged acknowledge later names
        pages by number, and their address may have new ones by then.
        """
        self._last += 1
        return self._last

    def seen(self, number: int) -> None:
        """Note that an earlier life's page has this number."""
        self._last = max(self._last, number)

    def renew(self, pages: AddressPages) -> None:
        """Somebody who still holds the pages of an address that were forgotten goes on with them."""
        assert pages.address not in self._by_address, "an address has its pages in one place"  # noqa: S101
        pages.begin_anew(*self._place())
        self._by_address[pages.address] = pages

    def addresses(self) -> dict[str, AddressPages]:
        """The addresses that have pages."""
        return dict(self._by_address)

    @property
    def messages(self) -> int:
        """Messages in all pages (acknowledged ones of unfinished pages included)."""
        return sum(pages.messages for pages in self._by_address.values())

    def forget(self, pages: AddressPages) -> None:
        """An address's last page is done: its directory goes too, and its number is not used again."""
        if self._by_address.get(pages.address) is pages:
            del self._by_address[pages.address]
        self._finish(pages.number, 0, pages.directory)

    def finish(self, store: int, page: Page) -> None:
        """Every queue has acknowledged all of a page: its file goes."""
        self._finish(store, page.number, page.path)

    def _finish(self, store: int, page: int, path: Path) -> None:
        # Not at once: the commit is appended after this call, maybe to the next write.
        self.soon(self.journal.when_stable, partial(self._record_done, store, page, path))

    def _record_done(self, store: int, page: int, path: Path, error: StoreError | None) -> None:
        """Write that a page is done, or all of a store's, now that what was acknowledged of them is stable.

        Not together with that: a power cut leaves any part of a write, so that the page could be done where the
        transaction that moved its last messages elsewhere did not happen. Where this is missing, a start finds out.
        """
        if error is not None or self._closed:
            return
        self.append(records.page_done(store, page), 0)
        if page == 0:
            self.journal.when_stable(partial(self._remove_directory, path))
        elif path.suffix == ".page":  # else it is missing
            self.journal.when_stable(partial(self._delete, path))

    def _remove_directory(self, directory: Path, error: StoreError | None) -> None:
        if error is None:
            self._submit(partial(remove_store, self.files, directory))

    def _delete(self, path: Path, error: StoreError | None) -> None:
        if error is None:
            self._submit(partial(self.files.unlink, path))

    def _submit(self, function: Callable[[], None]) -> None:
        try:
            self._threads.submit(function)
        except RuntimeError:
            logger.debug("page work after the store was closed")

    async def stable(self) -> None:
        """Wait until everything appended so far is stable."""
        done: asyncio.Future[None] = self._loop.create_future()

        def settle(error: StoreError | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self.journal.when_stable(settle)
        await done

    async def read_file(self, page: Page) -> bytes:
        """All messages of a page; none, and a report, when its file is gone. Raises StoreError."""
        async with self._permits:
            try:
                return await self._loop.run_in_executor(self._threads, self._read, page.path, page.size)
            except FileNotFoundError:
                self.report(Damage(page.path, 0, 0, "missing-file", f"page {page.number} is missing"))
                return b""
            except OSError as error:
                raise StoreError(f"{page.path}: {error.strerror or error}") from error

    def _read(self, path: Path, size: int) -> bytes:
        with FileReader(path, self.files) as reader:
            return reader.read(size)

    def newest(self) -> list[Path]:
        """The page file of each address that a life wrote last."""
        return [pages.pages[max(pages.pages)].path for pages in self._by_address.values() if pages.pages]

    # -- recovery ----------------------------------------------------------------------------------

    def recover(
        self, state: State, *, give_up: bool, known: KnownPages | None = None
    ) -> tuple[dict[int, int], list[Damage]]:
        """Find the pages of earlier lives; (large messages they name with their sizes, damage).

        In a thread, before any traffic. ``give_up``: an operator wants to go on without pages that are missing.
        ``known`` ones are not opened.
        """
        damage: list[Damage] = []
        large: dict[int, int] = {}
        directory = self._settings.paging_directory
        duplicates = self.persist_duplicates
        for found in read_stores(
            directory, state, duplicates=duplicates, thorough=False, known=known, files=self.files
        ):
            damage += found.damage
            large.update(found.large)
            for path in found.done:
                self.files.unlink(path)
            self._finished += [(found.number, page.number, page.path) for page in found.finished]
            if give_up:
                self._finished += [(found.number, number, found.directory) for number in found.missing]
            if not found.pages and not found.damage:
                self._finished.append((found.number, 0, found.directory))
            self._adopt(found, state)
        return large, damage

    def checks(self) -> list[Check]:
        """Return the checks of what :meth:`recover` took for granted, for behind it."""
        owners = {id(page): pages for pages, page in self.unopened}
        unopened = [page for _, page in self.unopened]
        found = behind.names(self.assumed, self.files)
        found += behind.pages(unopened, lambda page: page.number in owners[id(page)].pages, self.files)
        self.unopened, self.assumed = [], []
        return found

    def close(self) -> None:
        """End every page that is written to: this life writes no more. Before the journal is closed."""
        self._closed = True
        for pages in list(self._by_address.values()):
            pages.close_page()

    def settle(self) -> None:
        """Write down which pages of earlier lives are done; their files go when that is stable. Before any traffic."""
        for store, page, path in self._finished:
            self._record_done(store, page, path, None)
        self._finished.clear()

    def _adopt(self, found: StorePages, state: State) -> None:
        if found.address is None:
            return
        if found.unnamed and is_directory(self.files, found.directory):
            self.write_name(found.directory, found.address)
        known = state.duplicates.get(found.address, {})
        for value in found.duplicates:
            if value not in known:
                state.add_duplicate(found.address, value)
                self.unrecorded.append((found.address, value))
        pages = AddressPages(self, found.address, found.number, found.directory, self._settings.page_size_bytes)
        if found.assumed:
            self.assumed.append((found.directory, found.address))
        for page in found.pages:
            pages.adopt(page)
            if page.known:
                self.unopened.append((pages, page))
            if not page.whole:
                self.ends[found.number, page.number] = page.size
        if not pages.pages:
            return
        if found.address in self._by_address:
            self.report(Damage(found.directory, 0, 0, "corrupt", f"another store has address {found.address!r} too"))
        else:
            self._by_address[found.address] = pages

    def write_name(self, directory: Path, address: str) -> None:
        """Write whose pages a directory holds."""
        fd = self.files.open(directory / ADDRESS_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self.files, fd, address.encode(), 0, sync=self.sync)
        finally:
            self.files.close(fd)


def remove_store(files: Files, directory: Path) -> None:
    """Delete a store's directory with what is ours in it; what is not keeps it."""
    if not is_directory(files, directory):
        return
    for name in names_in(files, directory):
        if name == ADDRESS_FILE or PAGE_NAME.fullmatch(name):
            files.unlink(directory / name)
    try:
        files.remove_directory(directory)
    except OSError as error:
        logger.warning("%s stays: %s", directory, error.strerror)
