"""Which files of a data directory are read, and what can be said of them without reading their records.

Everything in the segment format below a directory is found: journal segments, bodies, bindings, pages; of checkpoints
the one that recovery would begin with. Headers and START records decide, by the rules of docs/journal-format.md
("Lives and fencing", "Recovery"), which bytes count. Unlike recovery nothing is refused: a file that cannot be used is
reported as damage, and the others are read.

Runs where the data source is planned (on the driver); reads a header of each file, and of the last segment the records,
which say whether there is one more.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.formats import StoreError, lives
from pollux.formats.checkpoint import Checkpoint, decode_checkpoint
from pollux.formats.lives import FoundSegment, Journal, Start
from pollux.formats.names import BINDINGS_NAME, BODIES_NAME, PAGE_NAME, SEGMENT_NAME
from pollux.formats.records import FIELDS, U64, RecordType
from pollux.formats.segments import (
    FRAME_SIZE,
    HEADER_SIZE,
    DamagedRange,
    FormatError,
    Kind,
    SegmentHeader,
    data_end,
    decode_header,
    records,
)
from pollux_pipeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAMES = {Kind.JOURNAL: SEGMENT_NAME, Kind.BODIES: BODIES_NAME, Kind.BINDINGS: BINDINGS_NAME, Kind.PAGE: PAGE_NAME}
#: Missing sequence numbers that are reported one by one; the rest as one row.
_MISSING_NAMED = 1000
_LOOK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or what is to be read of it. `kind`: journal, bodies, bindings, page or checkpoint."""

    path: str
    kind: str
    node_id: str
    epoch: int
    segment: int
    salt: int
    size: int
    created: int
    #: The first byte that is read; 0: from the first record.
    start: int = 0
    #: The first byte that is not read; None: to the end of the file.
    end: int | None = None
    #: Bytes from here on were written after another life took over; None: none of them.
    limit: int | None = None
    #: Its life wrote nothing behind this segment: an incomplete last write is a torn tail.
    final: bool = False
    #: The checkpoint holds what the records of this segment did; only bodies in it are still of use.
    folded: bool = False
    #: Number of the directory of pages; 0 for other files.
    store: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """Bytes that cannot be used, seen before reading any record. Becomes a row with `damage` and `detail`."""

    path: str
    kind: str
    damage: str
    detail: str
    node_id: str = ""
    epoch: int = 0
    segment: int = 0
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold what is to be read, in the order in which it was written, and what is wrong with the rest."""

    parts: tuple[Part, ...]
    problems: tuple[Problem, ...]


def walk(top: Path | str) -> Iterator[tuple[Path, list[str]]]:
    """Every directory at and below `top`, once, with the names in it that are no directories. Symbolic links are
    followed, last: what lies below `top` itself is there under its own path."""
    seen: set[tuple[int, int]] = set()
    starts = [Path(top)]
    while starts:
        links: list[Path] = []
        for start in starts:
            for name, below, names in os.walk(start):
                place = Path(name)
                status = place.stat()
                if (status.st_dev, status.st_ino) in seen:
                    below.clear()
                    continue
                seen.add((status.st_dev, status.st_ino))
                linked = {one for one in below if (place / one).is_symlink()}
                links += [place / one for one in sorted(linked)]
                below[:] = sorted(set(below) - linked)
                yield place, sorted(names)
        starts = links


def once(paths: Iterable[Path]) -> list[Path]:
    """The paths, sorted. Of those that lead to one thing only its own path, or else the first."""
    found: dict[Path, Path] = {}
    for path in sorted(paths):
        real = path.resolve()
        if real == path or real not in found:
            found[real] = path
    return sorted(found.values())


def directories(paths: list[str]) -> list[Path]:
    """Every directory at or below `paths` that holds files of a store, sorted, each once. Raises InputError."""
    found: set[Path] = set()
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise InputError(f"{path}: does not exist; give a journal directory or an instance's data directory")
        if not path.is_dir():
            raise InputError(f"{path}: is not a directory; give a journal directory or an instance's data directory")
        for place, names in walk(path):
            isolated = "isolated" in place.relative_to(path).parts
            if not isolated and any(_kind_of(one) is not None or one.endswith(".checkpoint") for one in names):
                found.add(place)
    return once(found)


def plan(paths: list[str]) -> Plan:
    """Decide what to read of the directories at and below `paths`. Raises InputError when one does not exist."""
    parts: list[Part] = []
    problems: list[Problem] = []
    for directory in directories(paths):
        found = plan_directory(directory)
        parts += found.parts
        problems += found.problems
    return Plan(tuple(parts), tuple(problems))


def plan_directory(directory: Path) -> Plan:
    """Decide what to read of the files of one directory."""
    problems: list[Problem] = []
    segments: list[FoundSegment] = []
    others: list[Part] = []
    for path in sorted(directory.iterdir()):
        kind = _kind_of(path.name)
        if kind is None:
            continue
        if not path.is_file() and (path.exists() or path.is_symlink()):
            words = "leads to no file" if path.is_symlink() else "is no regular file"
            problems.append(Problem(str(path), kind.name.lower(), "missing-segment", f"this name {words}"))
            continue
        try:
            with path.open("rb") as stream:
                head = stream.read(HEADER_SIZE)
                size = os.fstat(stream.fileno()).st_size
        except FileNotFoundError:  # deleted by a running broker since the directory was listed
            continue
        header, problem = _header(path, kind, head, size)
        if problem is not None:
            problems.append(problem)
        if kind is Kind.JOURNAL:
            epoch, sequence = _numbers(path.name, kind)
            segment = FoundSegment(path, epoch, sequence, size, header, unfinished=not head.strip(b"\0"))
            segments.append(segment)
        elif header is not None:
            if kind is Kind.PAGE and header.cut(size):
                words = f"{size} bytes are no multiple of {header.length}, which its header says"
                where = (header.node_id.hex(), header.epoch, header.sequence)
                problems.append(Problem(str(path), "page", "cut", words, *where, offset=size))
            others.append(_part(path, header, size))
    segments.sort(key=lambda segment: segment.key)
    parts, more = _journal(directory, segments)
    parts += others
    return Plan(tuple(parts), tuple(problems + more + _foreign(parts)))


def _kind_of(name: str) -> Kind | None:
    return next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(name)), None)


def _numbers(name: str, kind: Kind) -> tuple[int, int]:
    """Epoch and sequence as the file's name says; pages have no epoch in theirs."""
    match = _NAMES[kind].fullmatch(name)
    numbers = [int(group) for group in match.groups()] if match else []
    return (0, numbers[0]) if kind is Kind.PAGE else (numbers[0], numbers[1])


def _header(path: Path, kind: Kind, head: bytes, size: int) -> tuple[SegmentHeader | None, Problem | None]:
    """The header, or what is wrong with it; (None, None) for a file that was only being made."""
    if not head.strip(b"\0") and len(head) == HEADER_SIZE:
        return None, None
    epoch, sequence = _numbers(path.name, kind)
    where: dict[str, Any] = {"epoch": epoch, "segment": sequence, "length": size}
    name = kind.name.lower()
    if len(head) < HEADER_SIZE:
        return None, Problem(str(path), name, "cut", f"{size} bytes are too few for a segment", **where)
    try:
        header = decode_header(head, str(path))
    except FormatError as error:
        words = str(error).removeprefix(f"{path}: ")
        unknown = "format version" in words or "unknown segment kind" in words
        return None, Problem(str(path), name, "unknown-version" if unknown else "bad-header", words, **where)
    said = (0 if kind is Kind.PAGE else header.epoch, header.sequence)
    if header.kind != kind or said != (epoch, sequence):
        words = f"its header says {header.kind.name.lower()} {header.epoch}/{header.sequence}"
        return None, Problem(str(path), name, "bad-header", words, header.node_id.hex(), **where)
    return header, None


def _part(path: Path, header: SegmentHeader, size: int) -> Part:
    store = int(path.parent.name) if header.kind is Kind.PAGE and path.parent.name.isdigit() else 0
    name = header.kind.name.lower()
    return Part(
        str(path),
        name,
        header.node_id.hex(),
        header.epoch,
        header.sequence,
        header.salt,
        size,
        header.created,
        store=store,
        final=header.kind is not Kind.BODIES,
    )


def _journal(directory: Path, segments: list[FoundSegment]) -> tuple[list[Part], list[Problem]]:
    problems: list[Problem] = []
    try:
        starts = lives.read_starts(segments, _read_start)
    except (StoreError, ValueError, KeyError, OSError) as error:
        starts = []
        problems.append(Problem(str(directory), "journal", "corrupt", f"a START record cannot be read: {error}"))
    checkpoint, unusable = _choose_checkpoint(directory, starts)
    problems += unusable
    folded = checkpoint.key[1:] if checkpoint is not None else (0, 0)
    arranged = lives.arrange(segments, starts, folded, None, _is_empty)
    finals = lives.last_of_lives(arranged.chain)
    parts: list[Part] = []
    fenced = {segment.key for segment in arranged.fenced}
    kept = {segment.key for segment in (*arranged.folded, *arranged.chain)} | fenced
    for segment in segments:
        if segment.header is None or segment.key not in kept:
            continue
        part = _part(segment.path, segment.header, segment.size)
        part = replace(
            part,
            final=segment.key in finals,
            folded=segment.key <= folded,
            limit=HEADER_SIZE if segment.key in fenced else segment.limit,
        )
        parts.append(part)
    problems += _short(parts, segments)
    missing = lives.missing_sequences(arranged.chain, starts, folded[1], _reach(arranged, checkpoint))
    unreadable = {segment.sequence for segment in segments if segment.header is None and not segment.unfinished}
    gone = [sequence for sequence in missing if sequence not in unreadable]
    words = "segment {} is missing; what it held is unknown"
    problems += [
        Problem(str(directory), "journal", "missing-segment", words.format(number), segment=number)
        for number in gone[:_MISSING_NAMED]
    ]
    if len(gone) > _MISSING_NAMED:
        words = f"{len(gone) - _MISSING_NAMED} more segments are missing"
        problems.append(Problem(str(directory), "journal", "missing-segment", words))
    if checkpoint is not None:
        node = checkpoint.node_id.hex()
        name = str(checkpoint.path)
        parts.insert(0, Part(name, "checkpoint", node, *checkpoint.key[1:], 0, checkpoint.size, 0, final=True))
        present = {Path(part.path).name: part.salt for part in parts}
        bodies = {path.name for path in directory.iterdir() if BODIES_NAME.fullmatch(path.name)}
        problems += [
            Problem(str(directory / body.name), "bodies", "missing-segment", f"{body.live} bytes of messages are gone")
            for body in checkpoint.files
            if body.live and body.name not in bodies and present.get(body.name) != body.salt
        ]
    return parts, problems


def _reach(journal: Journal[FoundSegment], checkpoint: Checkpoint | None) -> int:
    """The last segment that the one before it, or the checkpoint, says is there; 0: nothing says it."""
    told = int(checkpoint.state.get("reach", 0)) if checkpoint is not None else 0
    last = journal.chain[-1] if journal.chain else None
    if last is not None and last.header is not None:
        with suppress(FileNotFoundError):
            data = last.path.read_bytes()
            end = len(data) if last.limit is None else min(last.limit, len(data))
            for entry in records(data, last.header.salt, end=end):
                if not isinstance(entry, DamagedRange) and data[entry[0] + FRAME_SIZE] == RecordType.SEGMENT_END:
                    told = max(told, U64.unpack_from(data, entry[0] + FIELDS)[0])
    # What was made ahead and never written to is there too.
    empty = {one.sequence for one in journal.empty if one.header is not None}
    while told in empty:
        told -= 1
    return told


def read_checkpoint(path: Path) -> Checkpoint:
    """Map a checkpoint and verify all of it. Raises FormatError, FileNotFoundError."""
    with path.open("rb") as stream:
        empty = not os.fstat(stream.fileno()).st_size
        view = b"" if empty else mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    return decode_checkpoint(memoryview(view), path, None)


def _choose_checkpoint(directory: Path, starts: list[Start]) -> tuple[Checkpoint | None, list[Problem]]:
    """The checkpoint that recovery would begin with, and newer ones that cannot be used."""
    problems: list[Problem] = []
    for _, name in lives.eligible_checkpoints((path.name for path in directory.iterdir()), starts):
        path = directory / name
        try:
            return read_checkpoint(path), problems
        except FormatError as error:
            words = f"the checkpoint cannot be used: {error}"
            problems.append(Problem(str(path), "checkpoint", "corrupt", words, length=path.stat().st_size))
    return None, problems


def _read_start(segment: FoundSegment) -> Start | None:
    if segment.header is None:
        return None
    with segment.path.open("rb") as stream:
        return lives.read_start(stream.read, segment.epoch, segment.header.salt)[1]


def _is_empty(segment: FoundSegment) -> bool:
    """Whether nothing was ever written behind the header."""
    if segment.empty is None:
        with segment.path.open("rb") as stream:
            stream.seek(HEADER_SIZE)
            parts = iter(lambda: stream.read(_LOOK_BYTES), b"")
            segment.empty = not any(data_end(part, 0, len(part)) for part in parts)
    return segment.empty


def _short(parts: list[Part], segments: list[FoundSegment]) -> list[Problem]:
    """Segments shorter than the others of their life: they are made at full length, so something cut them."""
    sizes: dict[int, Counter[int]] = {}
    for segment in segments:
        sizes.setdefault(segment.epoch, Counter())[segment.size] += 1
    usual = {epoch: max(counts, key=lambda size: (counts[size], -size)) for epoch, counts in sizes.items()}
    return [
        Problem(
            part.path,
            "journal",
            "cut",
            f"{part.size} bytes, the segments of its life have {usual[part.epoch]}",
            part.node_id,
            part.epoch,
            part.segment,
            part.size,
            usual[part.epoch] - part.size,
        )
        for part in parts
        if part.size < usual[part.epoch]
    ]


def _foreign(parts: list[Part]) -> list[Problem]:
    """Files of another node than most of the directory."""
    counts = Counter(part.node_id for part in parts)
    if len(counts) < 2:
        return []
    owner = max(counts, key=lambda node: (counts[node], node))
    return [
        Problem(
            part.path,
            part.kind,
            "foreign-node",
            f"belongs to node {part.node_id}, the directory to node {owner}",
            part.node_id,
            part.epoch,
            part.segment,
            0,
            part.size,
        )
        for part in parts
        if part.node_id != owner
    ]
