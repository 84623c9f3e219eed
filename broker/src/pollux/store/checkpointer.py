"""The checkpointer: folds sealed segments into a new checkpoint and rewrites sparse files.

A subprocess of the broker (``python -m pollux.store.checkpointer``), which has it work at nice 19 so that it never
stalls the event loop; unless somebody waits for it (a full disk, a stop), or it waited too long. It reads one JSON job
from standard input and writes one JSON result. It only ever adds files: killed at any point it leaves a ``.tmp`` or an
unreferenced ``.bodies`` file, which the broker deletes when the next checkpoint is installed. Deleting is the broker's
decision.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from pollux.checksum import crc32c
from pollux.errors import StoreError
from pollux.formats import checkpoint as layout
from pollux.formats.checkpoint import BodyFile, Checkpoint
from pollux.formats.history import History, decode_history
from pollux.formats.names import BODIES_NAME, SEGMENT_NAME, checkpoint_key
from pollux.formats.segments import FRAME, FRAME_SIZE, HEADER_SIZE, MARKER, Kind, SegmentHeader, decode_header, valid_at
from pollux.store import recovery
from pollux.store.checkpoint import encode_state, load_checkpoint, read_checkpoint, write_checkpoint
from pollux.store.files import DISK, FileReader, exists, names_in, read_all, write_all
from pollux.store.handles import files_of
from pollux.store.recovery import SegmentFile
from pollux.store.state import FILE_SHIFT, OFFSET_MASK, State

if TYPE_CHECKING:
    from pollux.store.port import Files

#: One run rewrites at most this much, so that it ends in bounded time; the next goes on.
COMPACT_BYTES = 512 << 20
_WRITE_BYTES = 1 << 20
_SMALL_FILES = 4


class Source(msgspec.Struct):
    """A sealed segment to fold."""

    name: str
    epoch: int
    sequence: int
    #: Offset behind which nothing counts; None: the file's end.
    limit: int | None
    #: Whether it is the last segment of its life (its end may be torn).
    final: bool


class Job(msgspec.Struct):
    """A request of the broker's: which segments to fold into which checkpoint."""

    directory: str
    paging_directory: str
    node_id: str
    epoch: int
    base: str | None
    segments: list[Source]
    id_cache_size: int
    compact_percentage: int
    segment_size: int
    #: Process id of the broker: when it is gone the work is nobody's any more. 0: whoever asks.
    broker: int = 0
    #: Somebody waits for it (producers, as the disk is full; who stops the broker), or it was begun before and got too
    #: little of a busy machine: it gets its share.
    urgent: bool = False
    #: Where the files are.
    files: bytes = b""

    def check(self) -> None:
        """Raise StoreError when the broker that asked has died."""
        if self.broker and os.getppid() != self.broker:
            raise StoreError(f"the broker (process {self.broker}) is gone, its checkpoint is not wanted any more")


class Result(msgspec.Struct):
    """The answer to a job: the checkpoint, and figures of the work."""

    checkpoint: str
    messages: int
    records: int
    rewritten_files: int = 0
    rewritten_bytes: int = 0
    damage: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0


class Live(Struct):
    """The messages that still count, sorted by id, and the files they are in."""

    files: list[BodyFile]
    ids: array[int]
    locations: array[int]
    lengths: array[int]
    counts: list[int] = field(default_factory=list)


def run(job: Job, files: Files) -> Result:
    """Write the checkpoint the job describes. Raises StoreError, OSError; repeating a job is harmless."""
    began = time.perf_counter()
    directory = Path(job.directory)
    node_id = bytes.fromhex(job.node_id)
    state = State(job.id_cache_size)
    table: list[BodyFile] = []
    history = History()
    if job.base is not None:
        base = read_checkpoint(directory / job.base, node_id, files)
        load_checkpoint(base, state, bodies=True)
        table = list(base.files)
        history = decode_history(base.state, base.key[1:])
        del base
    elif job.segments[0].sequence > 1:
        # What was before is not known: it was lost, with the checkpoint that held it.
        history.unknown = (job.segments[0].epoch, job.segments[0].sequence - 1)
    replayed, damage = fold(state, job, table, files, history)
    history.end_pages(state.pages.ended)
    history.bound()
    queues = state.finish()
    live_ids = state.prune(queues)
    # Only what the journal says is gone: a directory that is not there may be one that is not mounted.
    paging = Path(job.paging_directory)
    gone = [store for store, done in state.pages.done.items() if 0 in done and not exists(files, paging / str(store))]
    if gone:
        # One that came back after a power cut would be a store of which nothing is known to be done.
        files.sync_directory(paging)
    for store in gone:
        state.pages.forget(store)
    live = collect(state, table, live_ids)
    rewritten = compact(files, directory, job, live)
    job.check()
    last = job.segments[-1]
    key = (job.epoch, last.epoch, last.sequence)
    queue_table: list[tuple[int, int, int, int]] = []
    queue_ids: array[int] = array("Q")
    for queue_id, priorities in queues.items():
        for priority, ids in priorities.items():
            queue_table.append((queue_id, priority, len(queue_ids), len(ids)))
            queue_ids.extend(ids)
    encode = msgspec.msgpack.encode
    path = write_checkpoint(
        files,
        directory,
        node_id,
        key,
        [
            (layout.FILES, encode([[file.name, file.salt, file.used, file.live] for file in live.files])),
            (layout.IDS, memoryview(live.ids).cast("B")),
            (layout.LOCATIONS, memoryview(live.locations).cast("B")),
            (layout.LENGTHS, memoryview(live.lengths).cast("B")),
            (layout.QUEUES, encode(queue_table)),
            (layout.QUEUE_IDS, memoryview(queue_ids).cast("B")),
            (layout.STATE, encode(encode_state(state) | {"history": history.encode()})),
        ],
    )
    return Result(path.name, len(live.ids), replayed, *rewritten, damage=damage, seconds=time.perf_counter() - began)


def fold(state: State, job: Job, table: list[BodyFile], files: Files, history: History) -> tuple[int, list[str]]:
    """Replay the job's segments into ``state``, ``table`` and ``history``; (records, damage in words)."""
    replayed = 0
    damage: list[str] = []
    buffer = bytearray()
    directory = Path(job.directory)
    for source in job.segments:
        job.check()
        path = directory / source.name
        with FileReader(path, files) as stream:
            header = decode_header(stream.read(HEADER_SIZE), str(path))
            size = stream.size
        segment = SegmentFile(path, source.epoch, source.sequence, size, header, limit=source.limit, files=files)
        known = len(state.locations)
        replay = recovery.replay_segment(state, segment, len(table), buffer)
        offsets = [one & OFFSET_MASK for one in state.locations[known:]]
        history.fold(
            header, replay.end, buffer, state.ids[known:], offsets, large=state.large_size if state.large else None
        )
        replayed += replay.records
        found = recovery.settle_segment(state, directory, segment, final=source.final, keep=False)
        if source.epoch == job.epoch:
            # What earlier lives left damaged was reported when it was recovered.
            damage += [str(one) for one in found if one.kind == "corrupt"]
        table.append(BodyFile(source.name, header.salt, replay.end - HEADER_SIZE, 0))
    return replayed, damage


def collect(state: State, table: list[BodyFile], live: set[int]) -> Live:
    """The index of live messages, sorted by id; files without any leave the table."""
    ids, locations, lengths = state.ids, state.locations, state.lengths
    kept = [position for position, message_id in enumerate(ids) if message_id in live]
    ordered = [ids[position] for position in kept]
    if any(second <= first for first, second in itertools.pairwise(ordered)):
        latest = {ids[position]: position for position in kept}
        ordered = sorted(latest)
        kept = [latest[message_id] for message_id in ordered]
    bytes_in = [0] * len(table)
    for position in kept:
        bytes_in[locations[position] >> FILE_SHIFT] += lengths[position]
    numbers: dict[int, int] = {}
    files: list[BodyFile] = []
    for number, file in enumerate(table):
        if bytes_in[number]:
            numbers[number] = len(files)
            files.append(BodyFile(file.name, file.salt, file.used, bytes_in[number]))
    moved = array(
        "Q",
        [
            numbers[locations[position] >> FILE_SHIFT] << FILE_SHIFT | locations[position] & OFFSET_MASK
            for position in kept
        ],
    )
    return Live(files, array("Q", ordered), moved, array("I", [lengths[position] for position in kept]))


def compact(files: Files, directory: Path, job: Job, live: Live) -> tuple[int, int]:
    """Copy the live records of sparse files into new ones; (files emptied, bytes copied)."""
    sparse = sparse_files(job, live.files)
    if not sparse:
        return 0, 0
    budget = COMPACT_BYTES
    chosen: set[int] = set()
    for number in sparse:
        if live.files[number].live <= budget:
            chosen.add(number)
            budget -= live.files[number].live
    positions: dict[int, list[int]] = {number: [] for number in chosen}
    for position, location in enumerate(live.locations):
        number = location >> FILE_SHIFT
        if number in chosen:
            positions[number].append(position)
    output = BodiesWriter(files, directory, job, live.files)
    emptied = 0
    try:
        for number in sorted(chosen):
            job.check()
            if _copy(directory, live, number, sorted(positions[number], key=live.locations.__getitem__), output):
                emptied += 1
    finally:
        output.finish()
    _drop_empty(live)
    return emptied, output.copied


def sparse_files(job: Job, table: list[BodyFile]) -> list[int]:
    """The numbers of the files worth rewriting.

    A segment occupies its full size whatever is in it, a ``.bodies`` file only what was written. Small bodies
    files join a rewriting that happens anyway, and cause one when there are many of them.
    """
    sparse: list[int] = []
    small: list[int] = []
    for number, file in enumerate(table):
        bodies = file.name.endswith(".bodies")
        size = file.used if bodies else max(file.used, job.segment_size)
        if file.live * 100 < job.compact_percentage * size:
            sparse.append(number)
        elif bodies and file.used * 4 < job.segment_size:
            small.append(number)
    return sparse + small if sparse or len(small) >= _SMALL_FILES else []


def _copy(directory: Path, live: Live, number: int, positions: list[int], output: BodiesWriter) -> bool:
    """Copy one file's live records; False (and nothing changed) when one of them is damaged, or all are gone."""
    file = live.files[number]
    try:
        data = read_all(directory / file.name, output.files)
    except FileNotFoundError:
        return False
    view = memoryview(data)
    for position in positions:
        offset = live.locations[position] & OFFSET_MASK
        if valid_at(view, offset, len(view), file.salt) != live.lengths[position]:
            return False
    for position in positions:
        offset = live.locations[position] & OFFSET_MASK
        length = live.lengths[position]
        live.locations[position] = output.add(view[offset + FRAME_SIZE : offset + length])
    file.live = 0
    return True


def _drop_empty(live: Live) -> None:
    numbers: dict[int, int] = {}
    kept: list[BodyFile] = []
    for number, file in enumerate(live.files):
        if file.live:
            numbers[number] = len(kept)
            kept.append(file)
    if len(kept) == len(live.files):
        return
    live.files[:] = kept
    live.locations = array(
        "Q", [numbers[one >> FILE_SHIFT] << FILE_SHIFT | one & OFFSET_MASK for one in live.locations]
    )


class BodiesWriter:
    """Writes records into new ``.bodies`` files and enters those in the table of files."""

    def __init__(self, files: Files, directory: Path, job: Job, table: list[BodyFile]) -> None:
        self.files = files
        self._directory = directory
        self._job = job
        self._table = table
        self._fd = -1
        self._number = max(
            (int(match[2]) for name in names_in(files, directory) if (match := BODIES_NAME.fullmatch(name))), default=0
        )
        self._buffer = bytearray()
        self._written = 0
        self.copied = 0

    def add(self, body: memoryview) -> int:
        """Add a record (without its frame); its location."""
        length = FRAME_SIZE + len(body)
        position = self._written + len(self._buffer)
        if self._fd < 0 or position + length > max(self._job.segment_size, HEADER_SIZE + length):
            self.finish()
            self._start()
            position = HEADER_SIZE
        file = self._table[-1]
        self._buffer += FRAME.pack(MARKER, length, crc32c(body, file.salt ^ length))
        self._buffer += body
        file.used += length
        file.live += length
        self.copied += length
        if len(self._buffer) >= _WRITE_BYTES:
            self._flush()
        return (len(self._table) - 1) << FILE_SHIFT | position

    def _start(self) -> None:
        self._number += 1
        name = f"pollux-{self._job.epoch:08d}-{self._number:010d}.bodies"
        salt = int.from_bytes(os.urandom(4), "little")
        node_id = bytes.fromhex(self._job.node_id)
        created = time.time_ns() // 1_000_000
        header = SegmentHeader(Kind.BODIES, salt, node_id, self._job.epoch, self._number, created)
        self._fd = self.files.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._table.append(BodyFile(name, salt, 0, 0))
        self._buffer += header.encode()
        self._written = 0

    def _flush(self) -> None:
        write_all(self.files, self._fd, bytes(self._buffer), self._written, sync=False)
        self._written += len(self._buffer)
        self._buffer.clear()

    def finish(self) -> None:
        """Sync and close the file being written."""
        if self._fd < 0:
            return
        self._flush()
        self.files.fsync(self._fd)
        self.files.close(self._fd)
        self._fd = -1
        self.files.sync_directory(self._directory)


def unreferenced(directory: Path, checkpoint: Checkpoint, files: Files = DISK) -> list[Path]:
    """The files an installed checkpoint makes superfluous: folded segments, bodies, older layout."""
    wanted = {file.name for file in checkpoint.files} | {checkpoint.path.name}
    folded = checkpoint.key[1:]
    dead: list[Path] = []
    for path in [directory / entry.name for entry in files.entries(directory)]:
        if path.name in wanted:
            continue
        segment = SEGMENT_NAME.fullmatch(path.name)
        if segment is not None:
            if (int(segment[1]), int(segment[2])) <= folded:
                dead.append(path)
        elif BODIES_NAME.fullmatch(path.name):
            dead.append(path)
        else:
            key = checkpoint_key(path.with_suffix(".checkpoint").name)
            if key is not None and key < checkpoint.key and path.suffix in (".checkpoint", ".tmp"):
                dead.append(path)
    return dead


def main() -> int:
    """Read a job, do it, write the result."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    result = run(job, files_of(job.files))
    sys.stdout.buffer.write(msgspec.json.encode(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
