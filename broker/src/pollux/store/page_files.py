"""Page files as recovery and ``pollux journal verify`` read them: which there must be, and what is in them.

The journal tells which files there must be (PAGE, PAGE_DONE) and whose they are; what is missing or damaged is reported
and left as it is. Read-only.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct, field

from pollux.formats import records
from pollux.formats.names import PAGE_NAME
from pollux.formats.records import DURABLE, TX, PageCounts, RecordType
from pollux.formats.segments import (
    FRAME_SIZE,
    HEADER_SIZE,
    DamagedRange,
    FormatError,
    Kind,
    SegmentHeader,
    decode_header,
    valid_at,
)
from pollux.formats.segments import records as scan
from pollux.store.files import DISK, FileReader, is_directory, names_in, read_all
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.store.known_pages import KnownPage, KnownPages
    from pollux.store.port import Files
    from pollux.store.state import State

#: The address in its file is a name, not a path: anything is allowed in it.
ADDRESS_FILE = "address.txt"
STORE_NAME = re.compile(r"[0-9]+", re.ASCII)
#: Page numbers carry the epoch above this bit.
PAGE_SHIFT = 24
#: Missing pages that are named one by one.
_NAMED = 20


class Page(Struct):
    """One page file. ``remaining``: queue id -> messages it has not acknowledged."""

    number: int
    path: Path
    salt: int
    messages: int = 0
    #: Where its messages end.
    size: int = HEADER_SIZE
    closed: bool = False
    #: Written by an earlier life: what is not durable in it is gone.
    recovered: bool = False
    remaining: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, set[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    large: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    #: Durable messages per queue, what PAGE_END records, and whether some of them are part of transactions.
    durable: dict[int, int] = field(default_factory=dict)
    durable_messages: int = 0
    partial: bool = False
    #: The last of its messages with a duplicate id, 0: none; those of transactions do not count.
    duplicate: int = 0
    #: Ids of messages that were read and are not durable: their acknowledgements are not recorded.
    volatile: set[int] = field(default_factory=set)
    #: The file's size is a multiple of this, 0: as long as what was written.
    length: int = 0
    #: It has its last record, or what takes the place of that: no end of it may be torn.
    whole: bool = False
    #: The open file, what is written to it, and its size; only the writer thread uses them.
    fd: int = -1
    written: int = 0
    #: Whether something was written to it that is not synced.
    dirty: bool = False
    file_size: int = 0
    writes: int = 0
    #: The last chunk that writes to it.
    token: int = 0
    #: It was read while another broker served, not at this start.
    known: bool = False


class StorePages(Struct):
    """The pages of one address, as they are on disk."""

    number: int
    directory: Path
    files: Files = DISK
    #: What the journal says, or the file beside the pages, or the messages in them; None: nothing tells.
    address: str | None = None
    pages: list[Page] = field(default_factory=list)
    #: Files of which the journal says that nobody needs them, and pages of which every message is acknowledged.
    done: list[Path] = field(default_factory=list)
    finished: list[Page] = field(default_factory=list)
    #: Pages the journal names and that are not there.
    missing: list[int] = field(default_factory=list)
    #: Duplicate ids that are in pages only.
    duplicates: list[bytes] = field(default_factory=list)
    #: Large messages in the pages: file id -> its size, 0 where nothing tells.
    large: dict[int, int] = field(default_factory=dict)
    #: Their checksums, of those whose records were read and have one.
    sums: dict[int, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    #: The address's file is not what it should be.
    unnamed: bool = False
    #: The address is what the journal says, and nobody looked whether its file says the same.
    assumed: bool = False


def read_stores(
    directory: Path,
    state: State,
    *,
    duplicates: bool,
    thorough: bool,
    known: KnownPages | None = None,
    files: Files = DISK,
) -> Iterator[StorePages]:
    """The pages of every address, of those too that only the journal knows. ``duplicates``: look for their ids.

    With ``thorough`` every record is read; without, only the counts at the end of a page that was closed in order.
    What is ``known`` is not opened; a store of which the journal says whose it is not either.
    """
    found = {int(name): directory / name for name in names_in(files, directory) if STORE_NAME.fullmatch(name)}
    for store in sorted(found.keys() | {store for store, pages in state.pages.files.items() if pages}):
        place = found.get(store, directory / str(store))
        result = StorePages(store, place, files=files)
        yield _read_store(result, state, duplicates=duplicates, thorough=thorough, known=known)


def _read_store(
    result: StorePages, state: State, *, duplicates: bool, thorough: bool, known: KnownPages | None
) -> StorePages:
    store, directory = result.number, result.directory
    names = result.files.entries(directory) if is_directory(result.files, directory) else []
    numbers = {int(match[1]): entry for entry in names if (match := PAGE_NAME.fullmatch(entry.name))}
    done = state.pages.done.get(store, set())
    wanted = state.pages.files.get(store, set())
    result.missing = sorted(wanted - done - numbers.keys())
    result.damage += _missing(result, state.pages.addresses.get(store, "?"))
    mark = state.pages.marks.get(store, 0) if duplicates else None
    followed = {number for number, other in pairwise(sorted(numbers)) if number >> PAGE_SHIFT == other >> PAGE_SHIFT}
    for number in sorted(numbers):
        path = directory / numbers[number].name
        if number in done or 0 in done:
            result.done.append(path)
            continue
        committed = state.pages.tx.get((store, number), set())
        gone = state.pages.acks.get((store, number), {})
        end = state.pages.ends.get((store, number), 0)
        before = known.get(store, number, numbers[number].inode, committed, end) if known is not None else None
        if before is not None and (mark is None or before.page.duplicate < max(mark, 1)):
            read = _from_known(before, path, gone, result)
            (result.pages if read.remaining else result.finished).append(read)
            continue
        reader = _PageReader(path, number, committed, mark, result, wanted=number in wanted)
        page = reader.read(gone, closed=number in followed, recorded=end, thorough=thorough)
        if page is None and not reader.damaged:
            result.done.append(path)  # it was being made: nothing in it was confirmed
        elif page is not None and not page.remaining and not reader.damaged:
            result.finished.append(page)
        elif page is not None:
            result.pages.append(page)
    told = state.pages.addresses.get(store)
    if known is not None and told is not None and not result.missing:
        result.address, result.assumed = told, True
    elif result.pages or result.finished or result.missing:
        _name(result, told)
    return result


def _from_known(known: KnownPage, path: Path, gone: dict[int, set[int]], found: StorePages) -> Page:
    """The page, less what was acknowledged of it since it was read."""
    read = known.page
    page = Page(read.number, path, read.salt, read.messages, read.size, closed=True, recovered=True, whole=read.whole)
    page.remaining, page.committed, page.large, page.known = dict(read.remaining), read.committed, read.large, True
    page.duplicate = read.duplicate
    found.large.update(known.large)
    _subtract(page, gone)
    return page


def read_page(
    path: Path, store: int, number: int, committed: set[int], recorded: int, *, files: Files = DISK
) -> tuple[Page | None, dict[int, int]]:
    """A page that nobody writes to, nothing of it acknowledged, and the sizes of its large messages' files.

    None when anything about it is not as it should be: recovery must judge it. Raises OSError.
    """
    found = StorePages(store, path.parent, files)
    reader = _PageReader(path, number, committed, None, found, wanted=True)
    page = reader.read({}, closed=True, recorded=recorded, thorough=False)
    return (page, found.large) if not found.damage else (None, {})


def differs(directory: Path, address: str, files: Files = DISK) -> Damage | None:
    """Return what is wrong with the file that says whose pages a directory holds, where they are ``address``'s."""
    found = StorePages(0, directory, files, missing=[0])  # whatever is wrong is worth a word
    _name(found, address)
    return found.damage[0] if found.damage else None


def _missing(found: StorePages, address: str) -> Iterator[Damage]:
    words = f"is missing; the messages of address {address} in it are not there unless it is put back"
    for number in found.missing[:_NAMED]:
        path = found.directory / f"{number:010d}.page"
        yield Damage(path, 0, 0, "missing-file", f"page {number} {words}")
    if more := len(found.missing[_NAMED:]):
        yield Damage(found.directory, 0, 0, "missing-file", f"{more} more pages are missing")


def _name(found: StorePages, told: str | None) -> None:
    """Settle whose pages these are: a flipped bit in a name, or no name, must not make them nobody's."""
    path = found.directory / ADDRESS_FILE
    try:
        text: str | None = read_all(path, found.files).decode()
        words, kind = f"says {text!r}", "corrupt"
    except FileNotFoundError:
        if told is None and not found.pages and not found.missing:
            return  # it was only just made when its life ended
        text, words, kind = None, "is missing", "missing-file"
    except UnicodeDecodeError:
        text, words, kind = None, "is not UTF-8", "corrupt"
    source = "the journal"
    if told is None:
        told = next((one for page in found.pages if (one := _address_in(page, found.files)) is not None), None)
        source = "a message in the pages"
    found.address = text if told is None else told
    if found.address is None or text != found.address:
        found.unnamed = True
        answer = "nothing tells whose pages these are" if found.address is None else f"{source}: {found.address!r}"
        found.damage.append(Damage(path, 0, 0, kind, f"the address's name {words}; {answer}"))


def _address_in(page: Page, files: Files) -> str | None:
    """The address of the first message that can be read in a page."""
    with FileReader(page.path, files) as stream:
        data = stream.read(page.size)
    view = memoryview(data)
    for entry in scan(data, page.salt):
        if not isinstance(entry, DamagedRange) and data[entry[0] + FRAME_SIZE] == RecordType.MESSAGE:
            return records.message_address(view[entry[0] : entry[0] + entry[1]]).partition("::")[0]
    return None


def counts(record: memoryview, page: Page) -> bool:
    """Whether a page's record is a message that still exists."""
    if record[FRAME_SIZE] != RecordType.MESSAGE:
        return False
    flags = record[FRAME_SIZE + 1]
    if page.recovered and not flags & DURABLE:
        return False
    if flags & TX:
        (tx,) = records.U64.unpack_from(record, FRAME_SIZE + 2)
        return tx in page.committed
    return True


class _PageReader:
    """Reads one page into ``found``, with the duplicate ids of its messages from ``mark`` on (None: of no message)."""

    def __init__(
        self, path: Path, number: int, committed: set[int], mark: int | None, found: StorePages, *, wanted: bool
    ) -> None:
        """``wanted``: the journal says that there is such a page."""
        self._wanted = wanted
        self._path = path
        self._number = number
        self._committed = committed
        self._mark = mark
        self._found = found
        self.damaged = False

    def _report(self, kind: str, offset: int, length: int, words: str) -> None:
        self.damaged = self.damaged or kind != "torn-tail"
        address = f"page {self._number} of store {self._found.number}"
        self._found.damage.append(Damage(self._path, offset, length, kind, f"{address}: {words}"))

    def read(self, gone: dict[int, set[int]], *, closed: bool, recorded: int, thorough: bool) -> Page | None:
        """The page; None when it holds nothing, or nothing that can be read. ``gone``: what is acknowledged of it.

        ``closed``: another page of the same life was begun after it. ``recorded``: where a later life found its end, 0:
        none did.
        """
        with FileReader(self._path, self._found.files) as stream:
            size = stream.size
            header = self._header(stream, size)
            if header is None:
                return None
            page = Page(self._number, self._path, header.salt, closed=True, recovered=True, committed=self._committed)
            page.length = header.length
            if cut := header.cut(size):
                self._report("cut", size, 0, f"the file was cut: {size} bytes are no multiple of {header.length}")
            end = self._end(stream, header, size)
            if end is not None:
                told, page.size = end[0], end[1]
                if not thorough and not self._committed and not told.partial and self._is_recorded(told):
                    page.messages, page.remaining, page.large = told.messages, told.queues, told.large
                    page.whole, page.duplicate = True, told.duplicate
                    sizes = told.sizes or [0] * len(told.large)
                    self._found.large.update(zip(told.large, sizes, strict=True))
                    _subtract(page, gone)
                    return page
            elif closed and not cut and not recorded:
                self._report("cut", size, 0, "it was closed, and its last record is not there")
            if end is None and recorded:
                page.size = recorded
            stream.seek(0)
            data = stream.read(page.size if end is not None or recorded else size)
        page.whole = end is not None or closed or cut or recorded > 0
        self._scan(page, data, gone)
        return page

    def _header(self, stream: FileReader, size: int) -> SegmentHeader | None:
        head = stream.read(HEADER_SIZE)
        if not head.strip(b"\0") and not stream.read(size).strip(b"\0"):
            if self._wanted:
                self._report("cut", 0, size, "nothing is left in the file")
            return None
        try:
            header = decode_header(head, str(self._path))
        except FormatError as error:
            self._report("bad-header", 0, size, str(error).removeprefix(f"{self._path}: "))
            return None
        if header.kind != Kind.PAGE or header.sequence != self._number:
            self._report("bad-header", 0, size, f"its header says {header.kind.name} {header.sequence}")
            return None
        return header

    def _is_recorded(self, told: PageCounts) -> bool:
        """Whether the journal has every duplicate id of the page."""
        return self._mark is None or told.duplicate < max(self._mark, 1)

    def _end(self, stream: FileReader, header: SegmentHeader, size: int) -> tuple[PageCounts, int] | None:
        """PAGE_END of a page that was closed, found from the end of the file, and where the messages end."""
        if size < HEADER_SIZE + 4:
            return None
        stream.seek(size - 4)
        length = int.from_bytes(stream.read(4), "little")
        if not FRAME_SIZE < length <= size - HEADER_SIZE:
            return None
        stream.seek(size - length)
        record = memoryview(stream.read(length))
        if valid_at(record, 0, length, header.salt) != length or record[FRAME_SIZE] != RecordType.PAGE_END:
            return None
        told = records.decode_page_end(record)
        return told, told.end or size - length

    def _scan(self, page: Page, data: bytes, gone: dict[int, set[int]]) -> None:
        """Count the messages in ``data``."""
        view = memoryview(data)
        position = last_write = last_end = HEADER_SIZE
        for entry in scan(data, page.salt):
            if isinstance(entry, DamagedRange):
                torn = entry.tail and not page.whole and entry.start >= last_write and not entry.several
                # Behind the end of a write something is only when that was stable.
                torn = torn and not entry.start < last_end < entry.end
                torn = torn and not (page.length and _was_ended(data, entry.start))
                kind = "torn-tail" if torn else "corrupt"
                length = entry.end - entry.start
                self._report(kind, entry.start, length, f"{length} bytes hold no valid record")
                position = entry.end
                continue
            position = entry[0] + entry[1]
            record = view[entry[0] : position]
            if record[FRAME_SIZE] == RecordType.BATCH:
                last_write = entry[0]
                last_end = position + records.BATCH.unpack_from(record, FRAME_SIZE)[2]
            elif record[FRAME_SIZE] == RecordType.MESSAGE:
                page.size = max(page.size, position)
            if counts(record, page):
                self._count(page, record, gone)
        if page.whole and page.size > position:
            self._report("corrupt", position, page.size - position, "the end of what was written is not there")

    def _count(self, page: Page, record: memoryview, gone: dict[int, set[int]]) -> None:
        queue_ids = records.lasting_queues(record)
        page.messages += bool(queue_ids)
        message_id = records.message_id(record)
        for queue_id in queue_ids:
            acknowledged = gone.get(queue_id)
            # An empty set: the queue is done with the whole page.
            if acknowledged is None or (acknowledged and message_id not in acknowledged):
                page.remaining[queue_id] = page.remaining.get(queue_id, 0) + 1
                if acknowledged is not None:
                    page.acknowledged[queue_id] = acknowledged
        extension = records.message_extension(record)
        body = extension.get("large")
        if body is not None and queue_ids:
            page.large.append(body[0])
            self._found.large[body[0]] = body[1]
            if len(body) > 2:
                self._found.sums[body[0]] = body[2]
        # Those of transactions are in the journal with the rest of their transaction.
        if "duplicate_id" in extension and not record[FRAME_SIZE + 1] & TX:
            page.duplicate = message_id
            if self._mark is not None and message_id >= self._mark:
                self._found.duplicates.append(extension["duplicate_id"])


def _was_ended(data: bytes, start: int) -> bool:
    """Whether something was written at ``start``, and at the end of the file, where there is only the last record.

    That is written when what is before it is stable, so that what is there was confirmed, readable or not.
    """
    return any(data[-4:]) and any(data[start : start + FRAME_SIZE])


def _subtract(page: Page, gone: dict[int, set[int]]) -> None:
    """Take what is acknowledged from the counts of a page that was not read."""
    for queue_id, acknowledged in gone.items():
        if queue_id not in page.remaining:
            continue
        if acknowledged:
            page.acknowledged[queue_id] = acknowledged
            page.remaining[queue_id] -= len(acknowledged)
        if not acknowledged or page.remaining[queue_id] <= 0:
            del page.remaining[queue_id]
