"""One of two stores that are compared: its segments, lives and queues, read as recovery would read them. Read-only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct, field

from pollux.errors import StoreError
from pollux.formats.history import History, decode_history
from pollux.formats.names import PAGE_NAME, checkpoint_key, is_journal_file
from pollux.formats.records import DURABLE, TX, U64, RecordType, lasting_queues, message_id
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE, DamagedHeaderError, DamagedRange, Kind, decode_header
from pollux.formats.segments import records as scan
from pollux.store.bindings import newest_file, read_bindings
from pollux.store.checkpoint import node_of
from pollux.store.files import DISK, names_in, read_all
from pollux.store.inventory import missing
from pollux.store.journal_reader import read_journal
from pollux.store.page_files import STORE_NAME
from pollux.store.recovered import NORMAL_DAMAGE, Damage
from pollux.store.state import FILE_SHIFT, OFFSET_MASK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.formats.lives import Start
    from pollux.store.port import Files
    from pollux.store.recovery import SegmentFile
    from pollux.store.state import State

#: A message's id is its life's epoch, shifted by this much, and a counter.
EPOCH_SHIFT = 44
_QUEUE = "queue"
_OLD_REPLICA = re.compile(r"oldreplica\.\d+")
#: (epoch, sequence) of a segment.
Key = tuple[int, int]


class Position(NamedTuple):
    """A place in the journal. Positions of one life are in the order in which it wrote."""

    epoch: int
    sequence: int
    offset: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, segment {self.sequence}, byte {self.offset}"


def locate(directory: Path) -> tuple[Path, Path | None, Path | None]:
    """Return where journal, bindings and pages (None: there are none) of a store are. Raises StoreError.

    It is meant by a data directory, a journal directory, or an ``oldreplica.N`` in one.
    """
    if not directory.is_dir():
        raise StoreError(f"{directory}: is not a directory")
    journal = directory
    if not _holds_journal(journal) and (directory / "journal").is_dir():
        journal = directory / "journal"
    if not _holds_journal(journal):
        raise StoreError(f"{directory}: holds no journal; name a broker's journal directory, or its data directory")
    old = _OLD_REPLICA.fullmatch(journal.name) is not None
    above = journal.parent.parent if old else journal.parent

    def beside(name: str) -> Path | None:
        found = above / name / journal.name if old else above / name
        return found if found.is_dir() else None

    return journal, beside("bindings"), beside("paging")


def _holds_journal(directory: Path) -> bool:
    return any(is_journal_file(path.name) for path in directory.iterdir())


class Side(Struct):
    """One store's contents. Segments that a takeover fenced are left out: nothing in them counts."""

    #: Its journal's directory.
    journal: Path
    node_id: bytes
    #: Those with records, and those a checkpoint has folded.
    segments: dict[Key, SegmentFile]
    starts: list[Start]
    #: The last segment the checkpoint holds; (0, 0): there is no checkpoint.
    folded: Key
    #: epoch -> salt, of the lives that segments and bindings tell of.
    salts: dict[int, int]
    #: Epochs of all files that count.
    epochs: set[int]
    #: queue id -> ids of the messages in it.
    queues: dict[int, set[int]]
    names: dict[int, str]
    state: State
    #: The segments in the order of the numbers in ``state.locations``.
    chain: list[SegmentFile]
    #: Every message id that some record or page tells of.
    trace: set[int]
    #: Those of them that are in pages.
    paged: set[int]
    #: What its checkpoint noted of the lives that it folded.
    history: History
    damage: list[Damage] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The newest epoch."""
        return max(self.epochs, default=0)

    @property
    def unsound(self) -> list[Damage]:
        """Damage that a crash does not explain."""
        return [one for one in self.damage if one.kind not in NORMAL_DAMAGE]

    def name(self, queue_id: int) -> str:
        """A queue's name; its number where no binding tells it."""
        return self.names.get(queue_id, f"#{queue_id}")

    def last(self, key: Key) -> int:
        """Where the data of a segment ends."""
        segment = self.segments[key]
        if segment.replay is not None:
            return segment.replay.end
        return max((offset + length for offset, length in self.records(key)), default=HEADER_SIZE)

    def records(self, key: Key) -> Iterator[tuple[int, int]]:
        """(offset, length) of every valid record of a segment that counts."""
        segment = self.segments[key]
        if segment.header is None:
            return
        data = segment.path.read_bytes()
        for entry in scan(data, segment.header.salt, end=segment.limit):
            if not isinstance(entry, DamagedRange):
                yield entry

    def positions(self, wanted: set[int]) -> dict[int, Position]:
        """Where the records of these messages are; of those in compacted files and pages nothing is known."""
        found: dict[int, Position] = {}
        for one, location in zip(self.state.ids, self.state.locations, strict=True):
            if one in wanted and one not in found:
                segment = self.chain[location >> FILE_SHIFT]
                found[one] = Position(segment.epoch, segment.sequence, location & OFFSET_MASK)
        return found


def read_side(directory: Path) -> Side:
    """Read a store. Raises StoreError (FormatError) for one that cannot be read as a whole, OSError."""
    journal, bindings, paging = locate(directory)
    found = read_journal(journal, None)
    lost = [one for one in (*found.damage, *missing(found, {})) if one.kind in ("missing-segment", "missing-file")]
    if lost:
        # What was there is not known, so neither side can be said to have all that the other has.
        raise StoreError(f"{directory}: data is missing or unreadable: {'; '.join(map(str, lost[:3]))}")
    nodes = {one.header.node_id for one in found.segments if one.header is not None}
    nodes |= {
        node
        for path in journal.iterdir()
        if checkpoint_key(path.name) is not None and (node := node_of(path)) is not None
    }
    salts: dict[int, int] = {}
    damage = found.damage
    known = {queue_id: _queue(value).spec.name for queue_id, value in found.state.queue_records.items()}
    names = {queue_id: name for queue_id, name in known.items() if name}
    path = newest_file(bindings) if bindings is not None else None
    try:
        if path is not None:
            values, wrong, header = read_bindings(path, None)
            nodes.add(header.node_id)
            damage += wrong
            salts[header.epoch] = header.salt
            names |= {_queue(value).id: key for (kind, key), value in values.items() if kind == _QUEUE}
    except DamagedHeaderError as error:
        damage.append(Damage(path or journal, 0, 0, "corrupt", str(error)))
    if len(nodes) != 1:
        told = ", ".join(sorted(node.hex() for node in nodes)) or "no file tells which"
        raise StoreError(f"{directory}: holds files of {len(nodes)} nodes ({told}); keep one node's only")
    counted = [one for one in (*found.journal.chain, *found.journal.folded) if one.header is not None]
    salts |= {one.epoch: one.header.salt for one in counted if one.header is not None}
    epochs = {one.epoch for one in counted} | set(salts)
    history = History()
    if found.checkpoint is not None:
        history = decode_history(found.checkpoint.state, found.folded)
        salts |= {life.epoch: life.salt for life in history.lives.values()}
        epochs |= {found.checkpoint.key[0], found.checkpoint.key[1], *history.lives}
    live = found.state.finish()
    queues = {queue: {one for ids in priorities.values() for one in ids} for queue, priorities in live.items()}
    trace = set(found.state.ids).union(*queues.values())
    if found.checkpoint is not None:
        trace.update(found.checkpoint.ids)
    paged: set[int] = set()
    if paging is not None:
        read_pages(paging, found.state, queues, paged, damage)
    trace |= paged
    return Side(
        journal,
        nodes.pop(),
        {one.key: one for one in counted},
        found.starts,
        found.folded,
        salts,
        epochs,
        queues,
        names,
        found.state,
        found.readable,
        trace,
        paged,
        history,
        damage,
    )


class _Spec(msgspec.Struct):
    name: str = ""


class _Queue(msgspec.Struct):
    """The part of a queue's binding that is of interest."""

    id: int = 0
    spec: _Spec = msgspec.field(default_factory=_Spec)


def _queue(value: bytes) -> _Queue:
    try:
        return msgspec.msgpack.decode(value, type=_Queue)
    except msgspec.MsgspecError:
        return _Queue()


def read_pages(
    paging: Path,
    state: State,
    queues: dict[int, set[int]],
    trace: set[int],
    damage: list[Damage],
    *,
    files: Files = DISK,
) -> None:
    """Add the durable messages in pages to the queues that still want them."""
    stores = (one.name for one in files.entries(paging) if one.is_directory and STORE_NAME.fullmatch(one.name))
    for directory in sorted(paging / name for name in stores):
        store = int(directory.name)
        done = state.pages.done.get(store, set())
        for path in sorted(directory / name for name in names_in(files, directory) if PAGE_NAME.fullmatch(name)):
            if 0 not in done and int(path.stem) not in done:
                key = (store, int(path.stem))
                gone = state.pages.acks.get(key, {})
                for one, wanted in _paged(path, state.pages.tx.get(key, set()), damage, files):
                    trace.add(one)
                    for queue_id in wanted:
                        # An empty set: the queue is done with the whole page.
                        if queue_id not in gone or (gone[queue_id] and one not in gone[queue_id]):
                            queues.setdefault(queue_id, set()).add(one)


def _paged(
    path: Path, committed: set[int], damage: list[Damage], files: Files
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(message id, queue ids) of the messages in a page that survive a restart."""
    data = read_all(path, files)
    if not data[:HEADER_SIZE].strip(b"\0"):
        return
    try:
        header = decode_header(data, str(path))
    except DamagedHeaderError as error:
        damage.append(Damage(path, 0, len(data), "bad-header", str(error)))
        return
    if header.kind != Kind.PAGE:
        raise StoreError(f"{path}: its header says {header.kind.name}, not page")
    view = memoryview(data)
    for entry in scan(data, header.salt):
        if isinstance(entry, DamagedRange):
            words = f"{entry.end - entry.start} bytes of a page hold no valid record"
            kind = "torn-tail" if entry.tail else "corrupt"
            damage.append(Damage(path, entry.start, entry.end - entry.start, kind, words))
            continue
        record = view[entry[0] : entry[0] + entry[1]]
        flags = record[FRAME_SIZE + 1]
        if record[FRAME_SIZE] != RecordType.MESSAGE or not flags & DURABLE:
            continue
        if not flags & TX or U64.unpack_from(record, FRAME_SIZE + 2)[0] in committed:
            yield message_id(record), lasting_queues(record)
