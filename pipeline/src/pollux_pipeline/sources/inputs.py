"""Which of the given paths are journals, ledgers and audit trails."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pollux.formats.ledger import HEADER
from pollux_pipeline.errors import InputError
from pollux_pipeline.sources.files import directories

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
    """Look at each path: a ledger file, or a directory with any of the three below it. Raises InputError."""
    journals: list[str] = []
    ledgers: list[str] = []
    audits: list[str] = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise InputError(f"--input {path}: does not exist")
        if path.is_file():
            if not is_ledger(path):
                raise InputError(f"--input {path}: is not a ledger; journals and trails are given as directories")
            ledgers.append(str(path.absolute()))
            continue
        stores = directories([name])
        journals += [str(one.absolute()) for one in stores]
        found = [
            Path(place) / file
            for place, _, files in os.walk(path)
            for file in files
            if file.endswith((".txt", ".ledger")) and is_ledger(Path(place) / file)
        ]
        ledgers += sorted(str(one.absolute()) for one in found)
        trails = {place for place, _, files in os.walk(path) if any(file.endswith(".audit") for file in files)}
        audits += sorted(str(Path(place).absolute()) for place in trails)
        if not stores and not found and not trails:
            raise InputError(f"--input {path}: holds neither a journal nor a ledger nor an audit trail")
    for ledger in ledgers:
        with Path(ledger).open("rb") as stream:
            head = stream.read(len(HEADER))
        if not HEADER.encode().startswith(head):
            raise InputError(f"--input {ledger}: this Pollux reads ledgers of version 1, not {head[:40]!r}")
    return Inputs(tuple(dict.fromkeys(journals)), tuple(dict.fromkeys(ledgers)), tuple(dict.fromkeys(audits)))


def is_ledger(path: Path) -> bool:
    """Whether a file begins as a ledger does, of whichever version."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_LEDGER_MAGIC)) == _LEDGER_MAGIC
    except OSError:
        return False


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
