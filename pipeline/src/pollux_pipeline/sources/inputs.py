"""Which of the given paths are journals, ledgers and audit trails."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pollux.formats.ledger import HEADER
from pollux.formats.names import UNFINISHED_COPY
from pollux_pipeline.errors import InputError
from pollux_pipeline.sources.files import directories, once, walk

#: What the tools call theirs.
_NAME = "ledger.txt"
_LEDGER_MAGIC = HEADER.partition(" ")[0].encode()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that was found at and below the given paths."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    #: Directories with audit trails.
    audits: tuple[str, ...] = ()

    def size(self) -> int:
        """Bytes of all files; what is deleted meanwhile counts nothing."""
        return sum(_size_of(Path(place)) for place in {*self.journals, *self.ledgers, *self.audits})


def find(paths: list[str]) -> Inputs:
    """Look at each path: a ledger file, or a directory with any of the three below it, or a pattern (`*`, `?`, `[...]`,
    `**` for directories at any depth) that some of these match. Raises InputError."""
    journals: list[Path] = []
    ledgers: list[Path] = []
    audits: list[Path] = []
    for name in paths:
        before = len(journals) + len(ledgers) + len(audits)
        for path in _matching(name):
            if path.is_dir():
                stores, files, trails = _below(path)
                journals += stores
                ledgers += files
                audits += trails
            else:
                ledgers.append(_ledger(path))
        if len(journals) + len(ledgers) + len(audits) == before:
            raise InputError(f"--input {name}: holds neither a journal nor a ledger nor an audit trail")
    for ledger in ledgers:
        _check(ledger)
    return Inputs(*(tuple(str(one) for one in once(kind)) for kind in (journals, ledgers, audits)))


def _below(top: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """The journals, ledgers and audit trails at and below a directory."""
    places = list(walk(top))
    for place, names in places:
        if UNFINISHED_COPY in names:
            raise InputError(f"{place}: the copy of a store to here was interrupted: run pollux store copy again")
    ledgers = [
        (place / file).absolute()
        for place, names in places
        for file in names
        if file.endswith((".txt", ".ledger")) and is_ledger(place / file, named=_is_named(place / file))
    ]
    trails = [place.absolute() for place, names in places if any(file.endswith(".audit") for file in names)]
    return [one.absolute() for one in directories([str(top)])], ledgers, trails


#: What an SQLite database begins with, and how much of a file is looked at.
_SQLITE, _HEAD = b"SQLite format 3\0", 1 << 20
_IN_A_DATABASE = (
    "a store in a database is read from a copy in files: stop its broker, run `pollux store copy broker.xml files.xml`"
    " (the second one names empty directories), and give the directory of the copy"
)


def _ledger(path: Path) -> Path:
    """A path that is given as a ledger's. Raises InputError."""
    if not path.exists():
        raise InputError(f"--input {path}: does not exist")
    if not path.is_file():
        raise InputError(f"--input {path}: is neither a file nor a directory; copy what it gives into a file")
    if not is_ledger(path, named=True):
        if _tells_of_a_database(path):
            raise InputError(f"--input {path}: {_IN_A_DATABASE}")
        raise InputError(f"--input {path}: is not a ledger; journals and trails are given as directories")
    return path.absolute()


def _tells_of_a_database(path: Path) -> bool:
    """Whether a file is an SQLite database, or a broker.xml that names one."""
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    return head.startswith(_SQLITE) or b"<database-store" in head


def _is_named(path: Path) -> bool:
    """Whether a file is called what ledgers are called."""
    return path.name == _NAME or path.suffix == ".ledger"


def _matching(name: str) -> list[Path]:
    """The paths that a name means: what is called so, or else what it matches as a pattern. Raises InputError."""
    if os.path.lexists(name) or not glob.has_magic(name):
        return [Path(name)]
    found = [Path(one) for one in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207  (its root is in the pattern)
    # Of a pattern's matches those count that hold something: `data/*` also matches what lies beside it.
    found = [path for path in found if path.is_dir() or is_ledger(path, named=_is_named(path))]
    if not found:
        raise InputError(f"--input {name}: there is nothing of that name, and nothing that matches it as a pattern")
    return found


def _check(ledger: Path) -> None:
    """Raise InputError for a ledger that cannot be read."""
    with ledger.open("rb") as stream:
        head = stream.read(len(HEADER))
    if not HEADER.encode().startswith(head):
        raise InputError(f"--input {ledger}: this Pollux reads ledgers of version 1, not {head[:40]!r}")
    if ":" in ledger.name:
        raise InputError(f"--input {ledger}: Spark reads no file with a colon in its name; give it another name")


def is_ledger(path: Path, *, named: bool) -> bool:
    """Whether a file begins as a ledger does, of whichever version. `named`: it is given, or named, as one, so that it
    is one also when its writer was killed before the first line was complete, or has written nothing yet."""
    try:
        if not path.is_file():  # who opens a pipe waits for its writer
            return False
        with path.open("rb") as stream:
            head = stream.read(len(_LEDGER_MAGIC))
    except OSError:
        return False
    return head == _LEDGER_MAGIC or (named and _LEDGER_MAGIC.startswith(head))


def is_torn(path: str) -> bool:
    """Whether the last line of a ledger has no newline: its writer was killed."""
    with Path(path).open("rb") as stream:
        if not stream.seek(0, os.SEEK_END):
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read() != b"\n"


def _size_of(path: Path) -> int:
    files = [Path(at) / name for at, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    size = 0
    for file in files:
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size
