"""Pages that a member which waits has read before it takes over, so that a takeover opens none of those.

A page that nobody writes to any more is read once, while another broker serves: its last record or, where it has none
or where transactions wrote to it, all of it. What the journal says of it later (acknowledgements) is taken from that.
What is known may have been damaged since: :func:`changed` looks behind a takeover, and whoever reads a page verifies
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.formats.segments import HEADER_SIZE, FormatError, decode_header
from pollux.store.files import DISK, FileReader
from pollux.store.page_files import PAGE_SHIFT, Page, read_page
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.port import Files
    from pollux.store.state import State

#: Pages read at one look.
_AT_ONCE = 64


class KnownPage(Struct, frozen=True):
    """A page as it was read, nothing of it acknowledged, and what that reading relied on."""

    inode: int
    page: Page
    #: Large messages in it: file id -> size.
    large: dict[int, int]
    #: Where a later life found its end, 0: it has its last record.
    recorded: int


class KnownPages:
    """The pages read so far, and whether they are still as they were read. For one thread at a time."""

    def __init__(self, directory: Path | None, files: Files = DISK) -> None:
        """``directory``: for pages; None knows none."""
        self._directory = directory
        self._files = files
        #: None: a page that recovery must judge; it is not read again and again.
        self._stores: dict[int, dict[int, KnownPage | None]] = {}
        #: The last look left pages for the next one.
        self.behind = False

    def look(self, state: State, stopping: Callable[[], bool]) -> None:
        """Read some of the pages of which the journal says that they are, and forget those that are not any more."""
        directory = self._directory
        if directory is None:
            return
        self.behind = False
        for store in self._stores.keys() - state.pages.files.keys():
            del self._stores[store]
        left = _AT_ONCE
        for store, wanted in state.pages.files.items():
            known = self._stores.setdefault(store, {})
            for number in known.keys() - wanted:
                del known[number]
            for number in sorted(wanted - known.keys()):
                recorded = state.pages.ends.get((store, number), 0)
                if not recorded and not _followed(number, wanted):
                    continue  # it may be written to
                if not left or stopping():
                    self.behind = True
                    return
                left -= 1
                committed = state.pages.tx.get((store, number), set())
                known[number] = self._read(directory / str(store), store, number, set(committed), recorded)

    def _read(self, directory: Path, store: int, number: int, committed: set[int], recorded: int) -> KnownPage | None:
        path = directory / f"{number:010d}.page"
        try:
            inode = self._files.status(path).inode
            page, large = read_page(path, store, number, committed, recorded, files=self._files)
        except OSError:
            return None  # it may be gone by now
        return KnownPage(inode, page, large, recorded) if page is not None else None

    def get(self, store: int, number: int, inode: int, committed: set[int], recorded: int) -> KnownPage | None:
        """Return what is known of a page, None where that is nothing, or of another file or state of the journal."""
        known = self._stores.get(store, {}).get(number)
        if known is None or (known.inode, known.recorded) != (inode, recorded) or known.page.committed != committed:
            return None
        return known


def _followed(number: int, numbers: set[int]) -> bool:
    """Whether the life that wrote a page began another one after it, and so closed this one."""
    return any(other > number and other >> PAGE_SHIFT == number >> PAGE_SHIFT for other in numbers)


def changed(page: Page, files: Files = DISK) -> Damage | None:
    """Return what has become of a page since it was read, as far as its size and header tell."""
    try:
        with FileReader(page.path, files) as stream:
            size = stream.size
            header = decode_header(stream.read(HEADER_SIZE), str(page.path))
    except FileNotFoundError:
        return Damage(page.path, 0, 0, "missing-file", f"page {page.number} is missing")
    except FormatError as error:
        return Damage(page.path, 0, 0, "bad-header", str(error).removeprefix(f"{page.path}: "))
    if header.salt != page.salt:
        return Damage(page.path, 0, 0, "bad-header", f"page {page.number} is another file than it was")
    if header.cut(size) or size < page.size:
        return Damage(page.path, size, max(0, page.size - size), "cut", f"page {page.number} was cut to {size} bytes")
    return None
