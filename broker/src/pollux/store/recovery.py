"""Reading a journal directory back: which files count, in which order, up to where.

The rules are in docs/journal-format.md ("Recovery"). Read-only: the caller decides what to delete.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from pollux.checksum import crc32c
from pollux.errors import StoreError
from pollux.formats import lives, records
from pollux.formats.lives import FoundSegment, Start
from pollux.formats.names import SEGMENT_NAME
from pollux.formats.segments import (
    FRAME_SIZE,
    HEADER_SIZE,
    DamagedRange,
    FormatError,
    Kind,
    SegmentHeader,
    decode_header,
)
from pollux.store.checkpoint import read_checkpoint
from pollux.store.files import DISK, FileReader, write_all
from pollux.store.recovered import NORMAL_DAMAGE, Damage
from pollux.store.state import OFFSET_MASK, PADDING, Replay, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.store.port import Files

#: An operator's word for one start, which goes on where it would be refused, and gives up the messages whose page or
#: body is missing. The life that begins so removes the file.
ALLOW_MISSING = "allow-missing-segments"
#: Damaged ranges longer than this are isolated only up to here.
_ISOLATE_LIMIT = 64 << 20
#: Read at once. In a database a question costs as much as 64 KiB of its answer, and pieces at both ends are read twice.
_LOOK_BYTES = 1 << 20
_QUICK_BYTES = 4096
_ZEROS = bytes(_LOOK_BYTES)


class SegmentFile(FoundSegment):
    """A journal segment where it is, and what its replay found."""

    replay: Replay | None = None
    inode: int = 0
    #: Where it is.
    files: Files = DISK


#: (name, inode) of segments -> their headers, which never change.
Headers = dict[tuple[str, int], SegmentHeader]


def read_segments(
    directory: Path, node_id: bytes | None, known: Headers | None = None, files: Files = DISK
) -> list[SegmentFile]:
    """Every journal segment with its header, in (epoch, sequence) order. Files whose header is known are not opened.

    Raises FormatError for a version this Pollux cannot read or, unless ``node_id`` is None, another node's file.
    """
    found: list[SegmentFile] = []
    for entry in files.entries(directory):
        match = SEGMENT_NAME.fullmatch(entry.name)
        if match is None:
            continue
        path = directory / entry.name
        size, inode, _ = files.status(path)
        segment = SegmentFile(path, int(match[1]), int(match[2]), size, None, inode=inode, files=files)
        found.append(segment)
        segment.header = known.get((path.name, inode)) if known is not None else None
        if segment.header is None:
            _read_header(segment)
        if segment.header is not None:
            _check_header(segment, segment.header, node_id)
    found.sort(key=lambda segment: segment.key)
    return found


def _read_header(segment: SegmentFile) -> None:
    with FileReader(segment.path, segment.files) as stream:
        head = stream.read(HEADER_SIZE)
        segment.size = stream.size
    if not head.strip(b"\0"):
        # A header is written last: a file with zeros for one and something behind them has lost it.
        segment.unfinished = is_empty(segment)
        return
    try:
        segment.header = decode_header(head, str(segment.path))
    except FormatError:
        if len(head) == HEADER_SIZE and head.startswith(b"PLXSEG") and _intact(head):
            raise


def headers_of(segments: list[SegmentFile]) -> Headers:
    """Return the headers that need not be read again, by name and inode."""
    return {(one.path.name, one.inode): one.header for one in segments if one.header is not None}


def _intact(head: bytes) -> bool:
    """Whether the header's checksum matches, so that what it says is meant."""
    return any(
        len(part) == 64 and crc32c(part[:60]) == int.from_bytes(part[60:], "little") for part in (head[:64], head[64:])
    )


def _check_header(segment: SegmentFile, header: SegmentHeader, node_id: bytes | None) -> None:
    if node_id is not None and header.node_id != node_id:
        raise FormatError(
            f"{segment.path}: belongs to node {header.node_id.hex()}, this broker is node {node_id.hex()}; "
            "point journal-directory elsewhere or move the files away"
        )
    if header.kind != Kind.JOURNAL or (header.epoch, header.sequence) != segment.key:
        raise FormatError(f"{segment.path}: its header says {header.kind.name} {header.epoch}/{header.sequence}")


#: (name, inode) of segments in which something is -> the START record there, which never changes, or None.
KnownStarts = dict[tuple[str, int], Start | None]


def read_starts(segments: list[SegmentFile], known: KnownStarts | None = None) -> list[Start]:
    """Return the START records of all lives whose first segment is still there, by epoch.

    Segments that are ``known`` are not opened, and those that were are known afterwards.
    """
    known = {} if known is None else known

    def read(segment: SegmentFile) -> Start | None:
        key = (segment.path.name, segment.inode)
        if key in known or segment.header is None:
            return known.get(key)
        with FileReader(segment.path, segment.files) as stream:
            written, start = lives.read_start(stream.read, segment.epoch, segment.header.salt)
        if written:
            known[key] = start
        return start

    starts = lives.read_starts(segments, read)
    for gone in known.keys() - {(segment.path.name, segment.inode) for segment in segments}:
        del known[gone]
    return starts


def is_empty(segment: SegmentFile, *, quick: bool = False) -> bool:
    """Whether nothing was ever written behind the header.

    ``quick`` looks at the beginning only, where a first write starts: enough for who only reads along.
    """
    if segment.empty is False:
        return False
    if quick:
        with FileReader(segment.path, segment.files) as stream:
            stream.seek(HEADER_SIZE)
            return not stream.read(_QUICK_BYTES).strip(b"\0")
    if segment.empty is None:
        with FileReader(segment.path, segment.files) as stream:
            segment.empty = not any(True for _ in _written_parts(stream, HEADER_SIZE, segment.size))
    return segment.empty


def _written_parts(stream: FileReader, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the parts of a file between two offsets that hold anything but zeros.

    Most of a segment in use is zeros: they are read, for what damage may have left behind them, but not copied. Where
    the place of the files has no zeros (a database) there is nothing to read.
    """
    stream.seek(start)
    end = min(end, stream.used)
    while start < end and (part := stream.read(min(_LOOK_BYTES, end - start))):
        # Bytes are compared by memcmp; views of them are not.
        if part != (_ZEROS if len(part) == _LOOK_BYTES else bytes(len(part))):
            yield start, part
        start += len(part)


def replay_segment(
    state: State,
    segment: SegmentFile,
    file: int,
    buffer: bytearray,
    *,
    resume: Replay | None = None,
    upto: int | None = None,
) -> Replay:
    """Fold one segment into ``state``; ``file`` is its number in the index's table.

    ``buffer`` is grown as needed and used again for the next segment: what is behind the limit does not matter.
    ``resume``: what was folded of it before; ``upto``: fold only what is before this offset.
    """
    if segment.header is None:
        raise StoreError(f"{segment.path}: both copies of the header are damaged")
    size = min(segment.size if upto is None else upto, segment.size if segment.limit is None else segment.limit)
    # Zeros at the end hold no record: how far the buffer is filled is as good as the file's size.
    filled = start = resume.end if resume is not None else 0
    with FileReader(segment.path, segment.files) as stream:
        for offset, part in _written_parts(stream, start, size):
            end = offset + len(part)
            if len(buffer) < end + PADDING:
                buffer.extend(bytes(end + PADDING - len(buffer)))
            buffer[filled:offset] = bytes(offset - filled)
            buffer[offset:end] = part
            filled = end
    if len(buffer) < max(filled, HEADER_SIZE) + PADDING:
        buffer.extend(bytes(max(filled, HEADER_SIZE) + PADDING - len(buffer)))
    replay = state.replay(buffer, segment.header.salt, file, filled, resume)
    segment.replay = replay
    return replay


def late_bytes(segment: SegmentFile) -> int:
    """How many bytes a fenced life wrote behind the recorded end."""
    if segment.limit is None or segment.limit >= segment.size:
        return 0
    with FileReader(segment.path, segment.files) as stream:
        start = max(segment.limit, segment.tail)
        stream.seek(start)
        return len(stream.read(max(0, stream.size - start)).rstrip(b"\0"))


def isolate(directory: Path, segment: SegmentFile, damaged: DamagedRange) -> Path | None:
    """Copy a damaged range beside the journal, for whoever investigates. None when that fails (disk full)."""
    target = directory / "isolated" / f"{segment.path.name}-{damaged.start}-{damaged.end}-{time.time_ns()}"
    try:
        segment.files.make_directory(target.parent)
        with FileReader(segment.path, segment.files) as stream:
            stream.seek(damaged.start)
            data = stream.read(min(damaged.end - damaged.start, _ISOLATE_LIMIT))
        copy = segment.files.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(segment.files, copy, data, 0, sync=False)
        finally:
            segment.files.close(copy)
    except OSError:
        return None
    return target


def settle_segment(
    state: State, directory: Path, segment: SegmentFile, *, final: bool, keep: bool, holed: bool = False
) -> list[Damage]:
    """Return what the replay of one segment found wrong; called right after it, before the next one is replayed.

    ``final``: the segment is the last of its life, so its last write may be torn, with those before it that were not
    synced, and nothing in them was confirmed. With ``keep`` damaged bytes are copied aside. ``holed``: something of the
    same life is missing or damaged.
    """
    found: list[Damage] = []
    replay = segment.replay
    if replay is None:
        return found
    # Where the writes begin that may be torn, in any order of their sectors: nothing of them was confirmed.
    torn_from = replay.open_from if final else 1 << 62
    if segment.cut:
        expected = segment.limit or (segment.header.length if segment.header is not None else 0)
        words = f"the file was cut: it has {segment.size} bytes, and had {expected} at least"
        found.append(Damage(segment.path, replay.end, max(0, expected - replay.end), "cut", words))
    for damaged in replay.damaged:
        length = damaged.end - damaged.start
        if _is_torn(segment, damaged, torn_from):
            kind, words = "torn-tail", f"{length} bytes of the last write, never confirmed, are incomplete"
        elif damaged.tail:
            kind, words = "corrupt", f"{length} bytes hold no valid record and nothing valid follows in the file"
        else:
            kind, words = "corrupt", f"{length} bytes hold no valid record; reading went on at offset {damaged.end}"
        kept = isolate(directory, segment, damaged) if keep and kind == "corrupt" else None
        found.append(Damage(segment.path, damaged.start, length, kind, words, kept))
    found += _check_last_write(segment, replay, final=final)
    found += _settle_incomplete(state, segment, torn_from)
    late = late_bytes(segment)
    if late and segment.limit is not None:
        words = f"{late} bytes were written after another life took over; they are not replayed"
        found.append(Damage(segment.path, segment.limit, late, "late-writes", words))
    if final:
        forgotten = state.end_of_life()
        if forgotten and (holed or any(one.kind not in NORMAL_DAMAGE for one in found)):
            # They may have been under way, or their commits may have been in what is gone: nobody can tell.
            records_of = sum(len(pending) for pending in forgotten)
            words = f"{len(forgotten)} transactions with {records_of} records have no outcome: they did not happen"
            found.append(Damage(segment.path, replay.end, 0, "corrupt", words))
    return found


def _is_torn(segment: SegmentFile, damaged: DamagedRange, torn_from: int) -> bool:
    """Whether a damaged range is of writes that were never confirmed, which a power cut leaves in any order."""
    if segment.recorded:
        # What a later life found valid was no torn write.
        return any(start <= damaged.start and damaged.end <= end for start, end in segment.torn)
    return damaged.start >= torn_from and not damaged.several


def torn_holes(chain: list[SegmentFile]) -> list[tuple[int, int, int, int]]:
    """Holes in the last writes of lives, before what could be read of them: (epoch, sequence, start, end)."""
    finals = lives.last_of_lives(chain)
    return [
        (*segment.key, damaged.start, damaged.end)
        for segment in chain
        if segment.replay is not None and segment.key in finals
        for damaged in segment.replay.damaged
        if not damaged.tail and _is_torn(segment, damaged, segment.replay.open_from)
    ]


def _check_last_write(segment: SegmentFile, replay: Replay, *, final: bool) -> list[Damage]:
    """A last write with fewer bytes than its BATCH record says, where no other damage tells of it: they are zeros."""
    position, size = replay.last_batch
    written = position + FRAME_SIZE + records.BATCH.size + size if size else replay.end
    expected = written if segment.limit is None else segment.limit if segment.recorded else min(written, segment.limit)
    missing = expected - replay.end
    if missing <= 0 or segment.cut or any(one.end > replay.end for one in replay.damaged):
        return []
    if final and not segment.recorded:
        words = f"{missing} bytes of the last write, never confirmed, were not written"
        return [Damage(segment.path, replay.end, missing, "torn-tail", words)]
    return [Damage(segment.path, replay.end, missing, "corrupt", f"{missing} bytes that were written are zeros")]


def _settle_incomplete(state: State, segment: SegmentFile, torn_from: int) -> list[Damage]:
    """Decide about commits, and ends of first phases, whose transactions lost records to damage.

    In the last write, and those before it that were not synced, nothing was confirmed, so the transaction did not
    happen. Anywhere else it was confirmed: what is left of it counts, or waits, and the loss is reported.
    """
    found: list[Damage] = []
    for incomplete in state.incomplete:
        offset = incomplete.location & OFFSET_MASK
        if offset >= torn_from:
            if incomplete.prepared:
                state.pending.pop(incomplete.tx, None)
            continue
        if not incomplete.prepared:
            state.commit(incomplete.tx, incomplete.pending)
        words = (
            f"transaction {incomplete.tx} was {'prepared' if incomplete.prepared else 'committed'} with "
            f"{incomplete.expected} records, {len(incomplete.pending)} of them could be read"
        )
        found.append(Damage(segment.path, offset, 0, "corrupt", words))
    state.incomplete.clear()
    return found


def check_batches(chain: list[SegmentFile]) -> list[Damage]:
    """Writes missing between two segments of one life: a tail that reads as zeros leaves no other trace."""
    found: list[Damage] = []
    for before, after in itertools.pairwise(chain):
        first, second = before.replay, after.replay
        if before.epoch != after.epoch or before.sequence + 1 != after.sequence or first is None or second is None:
            continue
        expected = first.last_number + 1
        if second.first_number > expected and not first.damaged and not second.damaged:
            words = f"writes {expected} to {second.first_number - 1} of epoch {before.epoch} are missing at the end"
            found.append(Damage(before.path, first.end, before.size - first.end, "corrupt", words))
    return found


def holed_lives(chain: list[SegmentFile]) -> set[int]:
    """The epochs of lives of which a segment is missing or unreadable between others."""
    return {segment.epoch for segment in chain if segment.header is None} | {
        before.epoch
        for before, after in itertools.pairwise(chain)
        if before.epoch == after.epoch and before.sequence + 1 != after.sequence
    }


def damaged_headers(chain: list[SegmentFile]) -> list[Damage]:
    """Segments whose header cannot be read: nothing in them can be verified."""
    return [
        Damage(segment.path, 0, segment.size, "missing-segment", "both copies of the segment's header are damaged")
        for segment in chain
        if segment.header is None
    ]


def choose_checkpoint(
    directory: Path,
    starts: list[Start],
    node_id: bytes | None,
    known: Checkpoint | None = None,
    files: Files = DISK,
) -> tuple[Checkpoint | None, list[Damage]]:
    """The checkpoint to start from, and what is wrong with newer ones.

    ``known`` was read, and found to be sound, before: it is not read again.
    """
    damage: list[Damage] = []
    for _, name in lives.eligible_checkpoints((entry.name for entry in files.entries(directory)), starts):
        path = directory / name
        if known is not None and known.path == path and known.node_id == node_id:
            return known, damage
        try:
            return read_checkpoint(path, node_id, files), damage
        except FormatError as error:
            words = f"the checkpoint cannot be used: {error}"
            damage.append(Damage(path, 0, files.status(path).size, "corrupt", words))
    return None, damage


def fenced_damage(fenced: list[SegmentFile]) -> list[Damage]:
    """Files a fenced life wrote: reported, never replayed."""
    return [
        Damage(segment.path, HEADER_SIZE, segment.size, "late-writes", "written after another life took over")
        for segment in fenced
    ]


def torn_tails(chain: list[SegmentFile]) -> dict[tuple[int, int], int]:
    """Where the incomplete writes behind the valid data of replayed segments end, for those that have one."""
    tails = {
        segment.key: segment.replay.damaged[-1].end
        for segment in chain
        if segment.replay is not None and segment.replay.damaged and segment.replay.damaged[-1].tail
    }
    return tails | {segment.key: segment.tail for segment in chain if segment.tail > (segment.limit or 1 << 62)}
