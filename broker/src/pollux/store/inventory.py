"""Find what a journal directory must hold and does not: segments, the checkpoint, files with compacted bodies.

What is missing is damage like any other: a start reports it and goes on with the rest, and ``pollux journal verify``
says the same. Two starts are refused (:func:`check`), because somebody has better: see decision 47. Read-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pollux.errors import StoreError
from pollux.formats.lives import missing_sequences
from pollux.formats.names import checkpoint_key, checkpoint_name
from pollux.formats.segments import HEADER_SIZE, FormatError, decode_header
from pollux.store.files import DISK, FileReader, exists, names_in
from pollux.store.recovered import Damage
from pollux.store.recovery import ALLOW_MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.formats.segments import SegmentHeader
    from pollux.store.journal_reader import Reading
    from pollux.store.port import Files, Status
    from pollux.store.recovery import Headers

#: Kinds of damage that are files which are not there, or as good as that.
_MISSING = ("missing-segment", "missing-file")
#: The binding in which a life writes down where its journal began.
INVENTORY = ("inventory", "journal")
_GONE = (
    "the messages, acknowledgements, transactions and duplicate ids in {them} are gone; what was acknowledged there is "
    "delivered again"
)


def begun(epoch: int, sequence: int) -> bytes:
    """The value of the binding INVENTORY for a life whose first segment is ``sequence``."""
    return msgspec.msgpack.encode((epoch, sequence))


def named(found: Reading, bindings: Mapping[tuple[str, str], bytes]) -> int:
    """The last segment that the one before it, the checkpoint or the bindings say is there; 0: nothing says it."""
    told = found.state.reach
    if value := bindings.get(INVENTORY):
        epoch, sequence = msgspec.msgpack.decode(value, type=tuple[int, int])
        if not found.starts or found.starts[-1].epoch <= epoch:
            told = max(told, sequence)
    return told


def reach(found: Reading, bindings: Mapping[tuple[str, str], bytes]) -> int:
    """The last segment that is there, or should be, and that something was written to; 0: nothing says so."""
    told = named(found, bindings)
    # What was made ahead and never written to is there too.
    empty = {one.sequence for one in found.journal.empty if one.header is not None}
    while told in empty:
        told -= 1
    return told


def missing(found: Reading, bindings: Mapping[tuple[str, str], bytes]) -> list[Damage]:
    """Everything that must be in the journal's directory and is not, or is shorter than it was."""
    directory, after = found.directory, found.folded[1]
    lost = [
        _lost_segments(directory, first, last)
        for first, last in _ranges(missing_sequences(found.journal.chain, found.starts, after, reach(found, bindings)))
    ]
    named = found.starts[-1].checkpoint if found.starts else None
    if lost and named is not None and found.folded < named[1:]:
        path = directory / checkpoint_name(named)
        if not exists(found.files, path):
            words = (
                f"the life of epoch {found.starts[-1].epoch} began with this checkpoint; what was in it only is gone"
            )
            lost.append(Damage(path, 0, 0, "missing-file", words))
    return lost + _lost_bodies(found) + _cut(found)


def next_sequence(found: Reading, bindings: Mapping[tuple[str, str], bytes]) -> int:
    """Return the sequence of the first segment of the next life: behind all that there are, and all that there were."""
    chain, after = found.journal.chain, found.folded[1]
    there = (segment.sequence for segment in chain)
    return max([after, *there, *missing_sequences(chain, found.starts, after, reach(found, bindings))]) + 1


def unreadable(found: Reading, lost: list[Damage]) -> list[Path]:
    """Files that nothing can be made of, or that only something that is lost tells of. ``lost``: what is missing."""
    files = [segment.path for segment in found.journal.chain if segment.header is None]
    files += [one.file for one in found.damage if checkpoint_key(one.file.name) is not None]
    if lost:
        named = {file.name for file in found.checkpoint.files} if found.checkpoint is not None else set()
        names = [name for name in names_in(found.files, found.directory) if name.endswith(".bodies")]
        files += [found.directory / name for name in names if name not in named]
    return files


def check(found: Reading, bindings: Mapping[tuple[str, str], bytes], *, copies: bool) -> None:
    """Raise StoreError for a start that would put what is left in the place of something better.

    That is the data of a directory that is not mounted, and with ``copies`` (other members of a group keep copies) a
    whole copy.
    """
    word = f"create the file {ALLOW_MISSING} there to have one start go on without what is missing"
    if not found.segments and found.checkpoint is None and not found.damage and INVENTORY in bindings:
        raise StoreError(
            f"{found.directory}: nothing of a journal is here, but the bindings tell of one; is the directory mounted? "
            f"Mount it, or put its files back, or {word}"
        )
    lost = [one for one in (*found.damage, *missing(found, bindings)) if one.kind in _MISSING] if copies else []
    if lost:
        raise StoreError(
            f"{found.directory}: data is missing ({'; '.join(map(str, lost[:3]))}), and other members keep copies; "
            f"start one that has all of it, which is copied to this one, or put the files back, or {word}"
        )


def _ranges(sequences: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
    return ranges


def _lost_segments(directory: Path, first: int, last: int) -> Damage:
    """Report missing segments. Of which epoch they were is not known."""
    if first == last:
        words = f"segment {first} is missing: {_GONE.format(them='it')}"
    else:
        words = f"segments {first} to {last}, or a checkpoint that holds them, are missing: {_GONE.format(them='them')}"
    return Damage(directory / f"pollux-*-{first:010d}.segment", 0, 0, "missing-segment", words)


def body_headers(directory: Path, checkpoint: Checkpoint, known: Headers, files: Files = DISK) -> Headers:
    """The headers of the files that hold a checkpoint's messages, as far as they can be read."""
    found: Headers = {}
    for file in checkpoint.files:
        try:
            status, found_header = _look_at(directory / file.name, known, files)
        except (FileNotFoundError, FormatError):
            continue
        found[file.name, status.inode] = found_header
    return found


def _look_at(path: Path, known: Headers, files: Files) -> tuple[Status, SegmentHeader]:
    """A file's status and header; one whose header is known is not opened. Raises FileNotFoundError, FormatError."""
    status = files.status(path)
    header = known.get((path.name, status.inode))
    if header is None:
        with FileReader(path, files) as stream:
            header = decode_header(stream.read(HEADER_SIZE), str(path))
    return status, header


def _size_of(path: Path, salt: int, known: Headers, files: Files) -> int:
    """The size of a file with this salt; -1 when it is not there, or another."""
    try:
        status, header = _look_at(path, known, files)
    except (FileNotFoundError, FormatError):
        return -1
    return status.size if header.salt == salt else -1


def _lost_bodies(found: Reading) -> list[Damage]:
    """Files that the checkpoint says hold live messages, and that are gone or cut."""
    lost: list[Damage] = []
    for file in found.checkpoint.files if found.checkpoint is not None else ():
        path = found.directory / file.name
        size, end = _size_of(path, file.salt, found.headers, found.files), HEADER_SIZE + file.used
        if size < 0:
            words = f"{file.live} bytes of live messages are not there; the messages wait until the file is put back"
            lost.append(Damage(path, 0, file.live, "missing-segment", words))
        elif size < end:
            words = f"the file was cut: it has {size} bytes, and had {end} at least"
            lost.append(Damage(path, size, end - size, "cut", words))
    return lost


def _cut(found: Reading) -> list[Damage]:
    """Segments that read as empty because they were cut."""
    told = found.state.reach
    return [
        Damage(segment.path, 0, segment.size, "cut", f"the file was cut to {segment.size} bytes")
        for segment in found.journal.empty
        if segment.header is not None and segment.sequence <= told and segment.epoch == found.journal.newest_epoch
        if segment.header.cut(segment.size)
    ]
