"""Read a journal directory's node id and newest epoch from its files, for when nothing else can be trusted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pollux.errors import PolluxError
from pollux.formats.names import BINDINGS_NAME, SEGMENT_NAME, checkpoint_key
from pollux.formats.segments import HEADER_SIZE, FormatError, decode_header
from pollux.store import recovery
from pollux.store.bindings import newest_file
from pollux.store.checkpoint import node_of
from pollux.store.files import DISK, FileReader, is_directory, names_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.port import Files

logger = logging.getLogger("pollux.ha")

T = TypeVar("T")
#: Looks at a store that changes meanwhile.
_LOOKS = 50


class ForeignJournalError(PolluxError):
    """The files of more than one node are in one directory."""


class JournalFacts(NamedTuple):
    """``node_id`` None: there is no journal yet."""

    node_id: bytes | None
    epoch: int


def newest_epoch(journal: Path, bindings: Path, files: Files = DISK) -> int:
    """The largest epoch in the names of the journal's files; 0 when there are none."""
    found = [0]
    for name in names_in(files, journal):
        segment = SEGMENT_NAME.fullmatch(name)
        checkpoint = checkpoint_key(name)
        if segment is not None:
            found.append(int(segment[1]))
        elif checkpoint is not None:
            found.append(checkpoint[0])
    found += [int(match[1]) for name in names_in(files, bindings) if (match := BINDINGS_NAME.fullmatch(name))]
    return max(found)


def read_facts(journal: Path, bindings: Path, files: Files = DISK) -> JournalFacts:
    """Read the headers of segments and checkpoints. Raises ForeignJournalError, FormatError, OSError.

    Another member may be using the store, and deletes files as it goes: then what was listed is listed anew.
    """
    return _undisturbed(lambda: _read_facts(journal, bindings, files))


def _undisturbed(look: Callable[[], T]) -> T:
    """Return what ``look`` finds while no file is deleted under it; files that go all the time are not normal."""
    for _ in range(_LOOKS - 1):
        try:
            return look()
        except FileNotFoundError as error:
            logger.debug("a file went away while the store was looked at: %s", error)
    return look()


def _read_facts(journal: Path, bindings: Path, files: Files) -> JournalFacts:
    epoch = newest_epoch(journal, bindings, files)
    if not is_directory(files, journal):
        return JournalFacts(None, epoch)
    headers = [one.header for one in recovery.read_segments(journal, None, files=files) if one.header is not None]
    nodes = {header.node_id for header in headers}
    checkpoints = [journal / name for name in names_in(files, journal) if checkpoint_key(name) is not None]
    nodes |= {node for path in checkpoints if (node := node_of(path, files)) is not None}
    if len(nodes) > 1:
        names = ", ".join(sorted(node.hex() for node in nodes))
        raise ForeignJournalError(f"{journal}: holds files of several nodes ({names}); move away those of the others")
    return JournalFacts(nodes.pop() if nodes else None, epoch)


def bindings_node(bindings: Path, files: Files = DISK) -> bytes | None:
    """The node that the newest file of bindings belongs to; None when there is none or its header is unreadable."""
    return _undisturbed(lambda: _bindings_node(bindings, files))


def _bindings_node(bindings: Path, files: Files) -> bytes | None:
    path = newest_file(bindings, files) if is_directory(files, bindings) else None
    if path is None:
        return None
    try:
        with FileReader(path, files) as file:
            return decode_header(file.read(HEADER_SIZE), str(path)).node_id
    except FormatError:
        return None  # recovery says what is wrong with it
