"""``pollux journal verify``: a whole store read as recovery reads it, and each live message's record besides.

What recovery would report or refuse is found by the same functions, so the two cannot disagree; this module reads more:
every body that a checkpoint tells of, and all of every page. Changes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from pollux.errors import StoreError
from pollux.formats.names import BINDINGS_NAME, PAGE_NAME, is_journal_file
from pollux.formats.segments import valid_at
from pollux.store import inventory
from pollux.store.bindings import newest_file, read_newest
from pollux.store.files import DISK, exists, is_directory, read_all
from pollux.store.journal_reader import Reading, read_journal
from pollux.store.lost_files import LARGE_NAME, changed_files, lost_files
from pollux.store.orphans import lost_queues
from pollux.store.page_files import ADDRESS_FILE, read_stores
from pollux.store.recovered import NORMAL_DAMAGE, Damage, lost_bodies
from pollux.store.state import FILE_SHIFT, OFFSET_MASK

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.store.port import Files

#: Directories of a store, as a data directory has them.
_NAMES = ("journal", "bindings", "largemessages", "paging")
#: Names that Artemis's own broker.xml, and its documentation, have for one of them.
_OTHER_NAMES = {"largemessages": ("large-messages", "large")}
#: How often a store that changes while it is read is looked at again.
_LOOKS = 3
_OLD_REPLICA = re.compile(r"oldreplica\.[0-9]+")


class NotAStoreError(StoreError):
    """A directory without anything of a store."""


class StoreLayout(NamedTuple):
    """The directories of a store; None: not looked at."""

    journal: Path | None
    bindings: Path | None = None
    large: Path | None = None
    paging: Path | None = None


class Report(Struct):
    """The findings of ``verify``. ``damage`` of the kinds in NORMAL_DAMAGE is what crashes and takeovers leave."""

    directory: Path
    #: What was looked at: journal, bindings, large, paging.
    covered: list[str] = field(default_factory=list)
    files: int = 0
    records: int = 0
    bytes: int = 0
    live_messages: int = 0
    checkpoint: Path | None = None
    damage: list[Damage] = field(default_factory=list)
    #: What makes the store unusable as a whole, in words; None when recovery would go through.
    refused: str | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing that was confirmed is missing."""
        return self.refused is None and all(damage.kind in NORMAL_DAMAGE for damage in self.damage)


def layout_of(directory: Path) -> StoreLayout:
    """The store meant by a data directory, a journal directory (what lies beside it belongs to it) or a bindings one.

    Raises NotAStoreError, OSError.
    """
    if not directory.is_dir():
        raise NotAStoreError(f"{directory}: not a store: not a directory")
    if _is_journal(directory):
        if _OLD_REPLICA.fullmatch(directory.name):  # data that a replica moved aside
            return StoreLayout(directory, *(directory.parent.parent / name / directory.name for name in _NAMES[1:]))
        journal, above = directory, directory.parent
        if not (above / "bindings").is_dir():
            return StoreLayout(journal)  # nothing tells where the rest of it is
    elif (directory / "journal").is_dir() or (directory / "bindings").is_dir():
        journal, above = directory / "journal", directory
        if not any(_holds_something(directory / name) for name in _NAMES):
            raise NotAStoreError(f"{directory}: not a store: its directories hold no file of one")
    elif newest_file(directory) is not None:
        return StoreLayout(None, directory)
    else:
        raise NotAStoreError(
            f"{directory}: not a store: neither it nor a journal/ in it holds journal segments, bindings or checkpoints"
        )
    return StoreLayout(journal, *(_named(above, name) for name in _NAMES[1:]))


def _named(above: Path, name: str) -> Path:
    others = (above / other for other in _OTHER_NAMES.get(name, ()))
    return next((path for path in (above / name, *others) if path.is_dir()), above / name)


def _is_journal(directory: Path) -> bool:
    return any(is_journal_file(path.name) for path in directory.iterdir())


def _holds_something(directory: Path) -> bool:
    """Whether there is any file that only a store has."""
    if not directory.is_dir():
        return False
    patterns = (BINDINGS_NAME, LARGE_NAME)
    return any(
        is_journal_file(path.name)
        or any(pattern.fullmatch(path.name) for pattern in patterns)
        or (path.is_dir() and any(PAGE_NAME.fullmatch(one.name) or one.name == ADDRESS_FILE for one in path.iterdir()))
        for path in directory.iterdir()
    )


def verify(directory: Path | StoreLayout, files: Files = DISK) -> Report:
    """Read a store as recovery would and check every live message. Changes nothing.

    ``files``: where a layout is.

    Never raises for damage: the report says what recovery would say or refuse. Raises NotAStoreError, OSError.
    """
    layout = layout_of(directory) if not isinstance(directory, StoreLayout) else directory
    first = next(place for place in layout if place is not None)
    report = _verify_once(layout, first if isinstance(directory, StoreLayout) else directory, files)
    for _ in range(_LOOKS):
        if report.sound:
            break
        # A running broker deletes files between a look at the journal and one at them: what is wrong stays wrong.
        before, report = report, _verify_once(layout, report.directory, files)
        if (before.records, before.bytes, before.checkpoint) == (report.records, report.bytes, report.checkpoint):
            break
    return report


def _verify_once(layout: StoreLayout, directory: Path, files: Files) -> Report:
    report = Report(directory)
    report.covered = [name for name, place in zip(StoreLayout._fields, layout, strict=True) if place is not None]
    if layout.journal is None:
        _verify_bindings(layout.bindings, report, files, expected=True)
    else:
        with _Refusals(report):
            found = read_journal(layout.journal, None, files=files)
            begun = bool(found.starts) or found.checkpoint is not None
            values = _verify_bindings(layout.bindings, report, files, expected=begun)
            _verify_journal(found, report, files)
            report.damage += inventory.missing(found, values)
            with _Refusals(report):
                inventory.check(found, values, copies=False)
            _verify_rest(found, layout, report, files)
            # A store whose bindings are whole and name no queue is a tool's, which knows them by numbers.
            whole = bool(values) and not any(one.file.parent == layout.bindings for one in report.damage)
            named = bool(found.state.queue_records) or not whole or any(kind == "queue" for kind, _ in values)
            if layout.bindings is not None and named:
                lost = lost_queues(found, values, layout.paging, files)
                report.damage += [Damage(layout.bindings, 0, 0, "lost-queue", str(one)) for one in lost]
    return report


class _Refusals(suppress):
    """A context that puts what recovery would refuse into the report."""

    def __init__(self, report: Report) -> None:
        super().__init__(StoreError, FileNotFoundError)
        self._report = report

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        stopped = super().__exit__(kind, error, trace)  # type: ignore[arg-type]
        if stopped and error is not None:
            self._report.refused = self._report.refused or str(error)
        return stopped


def _verify_bindings(
    directory: Path | None, report: Report, files: Files, *, expected: bool
) -> dict[tuple[str, str], bytes]:
    if directory is None:
        return {}
    if not is_directory(files, directory):
        report.damage.append(Damage(directory, 0, 0, "missing-bindings", "the directory is missing; is it mounted?"))
        return {}
    with _Refusals(report):
        values, damage, _ = read_newest(directory, None, expected=expected, files=files)
        report.damage += damage
        report.records += len(values)
        if (path := newest_file(directory, files)) is not None:
            report.files += 1
            report.bytes += files.status(path).size
        return values
    return {}


def _verify_journal(found: Reading, report: Report, files: Files) -> None:
    checkpoint, journal, state = found.checkpoint, found.journal, found.state
    report.damage += found.damage
    report.checkpoint = checkpoint.path if checkpoint is not None else None
    report.files += len(journal.chain) + len(journal.folded) + (checkpoint is not None)
    report.bytes += checkpoint.size if checkpoint is not None else 0
    for segment in found.readable:
        if segment.replay is not None:
            report.records += segment.replay.records
            report.bytes += segment.replay.end
    live = state.prune(state.finish())
    report.live_messages = len(live)
    _verify_bodies(found.directory, report, files, checkpoint, (set(state.ids), live))


def _verify_bodies(
    directory: Path, report: Report, files: Files, checkpoint: Checkpoint | None, messages: tuple[set[int], set[int]]
) -> None:
    """Every live message must have a valid record: in the chain just replayed, or where the checkpoint says.

    ``messages``: those replayed, and those that are live.
    """
    replayed, live = messages
    missing = live - replayed
    if checkpoint is not None:
        contents: dict[int, bytes] = {}
        for position, message_id in enumerate(checkpoint.ids):
            if message_id not in missing:
                continue
            file, offset = checkpoint.locations[position] >> FILE_SHIFT, checkpoint.locations[position] & OFFSET_MASK
            body = checkpoint.files[file]
            path = directory / body.name
            if file not in contents:
                contents.clear()
                contents[file] = read_all(path, files) if exists(files, path) else b""
            view = memoryview(contents[file])
            length = checkpoint.lengths[position]
            missing.discard(message_id)
            if valid_at(view, offset, len(view), body.salt) != length:
                words = f"the record of message {message_id} is damaged"
                report.damage.append(Damage(path, offset, length, "lost-body", words))
    for message_id in sorted(missing):
        words = f"message {message_id} is in a queue, but no file holds it"
        report.damage.append(Damage(directory, 0, 0, "lost-body", words))


def _verify_rest(found: Reading, layout: StoreLayout, report: Report, files: Files) -> None:
    """Check pages and large messages."""
    state = found.state
    wanted = {file: state.large_sizes.get(file, 0) for file in state.large.values()}
    sums = {file: state.large_sums[file] for file in wanted if file in state.large_sums}
    if layout.paging is not None:
        for store in read_stores(layout.paging, state, duplicates=False, thorough=True, files=files):
            report.damage += store.damage
            wanted.update(store.large)
            sums.update(store.sums)
            report.files += len(store.pages)
            report.live_messages += sum(page.messages for page in store.pages)
            report.bytes += sum(page.size for page in store.pages)
    if layout.large is not None:
        large = layout.large
        lost = lost_files(large, wanted, files=files)
        whole = {file: (wanted[file], checksum) for file, checksum in sums.items() if file not in lost}
        lost |= changed_files(large, whole, files)
        report.damage += lost_bodies(lambda file: large / f"{file}.msg", lost, state.large)
        report.files += len(wanted) - len(lost)
