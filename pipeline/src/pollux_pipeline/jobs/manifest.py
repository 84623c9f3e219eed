"""Notes what runs of ours have written into an output directory. Only that is replaced; what others put there stays.

`_pollux.json` there: `{"pollux_pipeline": 1, "wrote": [NAME, ...]}`. A name is in it before the first byte is written.
"""

from __future__ import annotations

import json
from threading import Lock
from typing import TYPE_CHECKING

from pollux_pipeline.errors import InputError
from pollux_pipeline.places import finish, remove, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from pollux_pipeline.places import Output

NAME = "_pollux.json"
#: Holds tables on the way, which are deleted at the end.
STAGE = "_stage"
#: Where Spark's tasks write, below a table, what becomes part of it when all of them are done.
_UNFINISHED = ("_temporary", ".spark-staging-*")
_FILES = ("report.html", "result.json", "plan.jsonl")


def _names_in(manifest: bytes) -> set[str]:
    return {str(name) for name in json.loads(manifest)["wrote"]}


def sweep(directory: Path) -> None:
    """Delete what a run of ours that ended early was about to write. Tables that it has finished stay."""
    try:
        names = _names_in((directory / NAME).read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return  # none of ours has written anything there
    for name in names:
        for pattern in _UNFINISHED:
            for unfinished in (directory / name).glob(pattern):
                remove(unfinished)
    if STAGE in names:
        remove(directory / STAGE)


class Manifest:
    """The names that runs of ours have written in `directory`. Raises InputError when its file is not one."""

    def __init__(self, directory: Output) -> None:
        self._directory = directory
        self._path = directory / NAME
        self._claiming = Lock()  # a run may write several tables at once
        self._names = self._read()

    def _read(self) -> set[str]:
        try:
            return _names_in(self._path.read_bytes())
        except FileNotFoundError:
            return self._of_killed() or self._of_010()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"--output {self._path}: is not a manifest of pollux-pipeline: {error!r}") from error

    def _of_killed(self) -> set[str]:
        """Say what a run was about to say when it was killed.

        Where renaming replaces nothing (`places.Remote`) the file is deleted just before, and by then the new one is
        whole. One that is not is of a first run, which had written nothing else yet.
        """
        unfinished = self._path.with_suffix(".tmp")
        try:
            names = _names_in(unfinished.read_bytes())
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return set()
        finish(unfinished, self._path)
        return names

    def _of_010(self) -> set[str]:
        """Find what 0.1.0 left; it wrote no manifest: a result that names its job, and tables that Spark finished."""
        try:
            told = json.loads((self._directory / "result.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return set()
        if not isinstance(told, dict) or told.get("format") != 1 or not {"job", "findings", "facts"} <= told.keys():
            return set()
        tables = {path.parent.name for path in self._directory.glob("*/_SUCCESS")}
        return tables | {name for name in _FILES if (self._directory / name).exists()}

    def claim(self, *names: str) -> None:
        """Say that a run writes these. Raises InputError where one is there that no run of ours has written."""
        for name in names:
            path = self._directory / name
            if name in self._names or not path.exists() or (path.is_dir() and not any(path.iterdir())):
                continue
            remedy = "give another directory, or move it away"
            raise InputError(f"--output {path}: is there, and pollux-pipeline did not write it: {remedy}")
        with self._claiming:
            if self._names.issuperset(names):
                return
            self._names.update(names)
            write_text(self._path, json.dumps({"pollux_pipeline": 1, "wrote": sorted(self._names)}) + "\n")
