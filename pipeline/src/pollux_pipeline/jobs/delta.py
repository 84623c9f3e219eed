"""`--delta`: a log beside a table's Parquet files that says which of them are one snapshot, as Delta Lake defines it.

The files stay what they are, and stay readable as Parquet. What was written or taken away since the last version of the
log becomes the next one, in one step: a reader has the one or the other, also while a run writes or after one was
killed. Columns that a table has got since are added to the log's schema first; none is taken away, and no type changes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from pollux_pipeline.errors import InputError
from pollux_pipeline.places import Remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake.transaction import AddAction, RemoveAction
    from pyspark.sql.types import StructType

    from pollux_pipeline.places import Output

_LOG = "_delta_log"
#: What Spark calls the partition of rows that have no value.
_NULL = "__HIVE_DEFAULT_PARTITION__"


class File(NamedTuple):
    """A file of a table, by its path below the table's directory; its time in milliseconds since the epoch."""

    path: str
    size: int
    changed: int


def check(place: Output) -> None:
    """Raise InputError where the package that writes the log is not installed, or cannot write it at `place`."""
    if isinstance(place, Remote):
        raise InputError(f"--delta: a log is written on this machine's paths alone, not to {place}")
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise InputError(f"--delta: {error}: install pollux-pipeline[delta]") from error


def has_log(directory: Output) -> bool:
    """Whether a table has a log that has to be kept true."""
    return (directory / _LOG).is_dir()


def publish(directory: Output, schema: StructType, partitions: Sequence[str] = ()) -> int:
    """Have the log say what files the table has now, all columns of `schema` included; the version that says so.

    Whoever writes the table has finished. Raises InputError where the log cannot be written.
    """
    check(directory)
    assert isinstance(directory, Path)  # noqa: S101
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import create_table_with_add_actions

    wanted = Schema.from_arrow(_plain(to_arrow_schema(schema, timezone="UTC")))
    there = {one.path: one for one in _files(directory)}
    try:
        if not has_log(directory):
            added = [_added(one, partitions) for one in there.values()]
            create_table_with_add_actions(str(directory), wanted, added, partition_by=list(partitions))
            return DeltaTable(str(directory)).version()
        table = DeltaTable(str(directory))
        known = {unquote(path): path for path in pa.table(table.get_add_actions()).column("path").to_pylist()}
        names = {field.name for field in table.schema().fields}
        if new := [field for field in wanted.fields if field.name not in names]:
            table.alter.add_columns(new)
        new_files = sorted(there.keys() - known.keys())
        changes: list[AddAction | RemoveAction] = [_added(there[path], partitions) for path in new_files]
        changes += [_removed(known[path]) for path in sorted(known.keys() - there.keys())]
        if changes:
            table.create_write_transaction(changes, "append", table.schema(), list(partitions))
        return DeltaTable(str(directory)).version()
    except (DeltaError, OSError) as error:
        raise InputError(f"{directory / _LOG}: {error}") from error


def _files(directory: Path) -> list[File]:
    """The files that Spark has finished; what begins with a mark of its own is none of the table's."""
    found = []
    for path in sorted(directory.rglob("*.parquet")):
        place = path.relative_to(directory)
        if not any(part.startswith(("_", ".")) for part in place.parts):
            told = path.stat()
            found.append(File(place.as_posix(), told.st_size, told.st_mtime_ns // 1_000_000))
    return found


def _added(file: File, partitions: Sequence[str]) -> AddAction:
    from deltalake.transaction import AddAction

    values: dict[str, str | None] = dict.fromkeys(partitions)
    for part in Path(file.path).parts[:-1]:
        name, _, value = part.partition("=")
        values[name] = None if value == _NULL else unquote(value)
    return AddAction(file.path, file.size, values, file.changed, data_change=True, stats="{}")


def _removed(path: str) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    return RemoveAction(path, data_change=True, deletion_timestamp=time.time_ns() // 1_000_000)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Arrow's types as Delta has them: times count microseconds."""
    return pa.schema(
        [
            pa.field(one.name, pa.timestamp("us", one.type.tz) if pa.types.is_timestamp(one.type) else one.type)
            for one in schema
        ]
    )
