"""The data source `pollux_journal`: a broker's files as rows, in batch and as a stream.

```python
spark.read.format("pollux_journal").option("columns", "address,message_id,size").load("/var/lib/pollux/data")
spark.readStream.format("pollux_journal").load("/var/lib/pollux/data/journal")
```

Options: `path` (or `paths`, a JSON list): directories with a store's files, at any depth; `columns`: those wanted,
comma-separated (Spark 4.3 does not tell a Python source which columns a query uses; `.schema(...)` works too);
`where`: conditions as JSON, `[["epoch", ">=", 5], ["record_type", "in", ["MESSAGE", "ACKS"]]]`; `pushdown`: take
filters from Spark as well (see below); `partitionBytes`: small files are read together up to this size, a file is never
divided; for streams `live` (true: the last write of a life, which may not be stable yet, is left for later) and
`maxFilesPerTrigger`.

`pushdown` is off unless asked for: Spark 4.3 keeps the reader that one query pushed filters into, and gives it to every
other query on the same loaded DataFrame, which then silently lacks rows (docs/decisions/0030). Ask for it where what
`load` returns is used in one query, in one place; `where` is always safe.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from pollux_pipeline.errors import InputError
from pollux_pipeline.schemas import JOURNAL, journal_schema
from pollux_pipeline.sources.files import Part, Plan, Problem, directories, plan, plan_directory
from pollux_pipeline.sources.filters import Condition, Conditions, parse_conditions, split
from pollux_pipeline.sources.rows import contents, problem_rows, read_part
from pollux_pipeline.sources.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

PARTITION_BYTES = 16 << 20
OPTIONS = ("path", "paths", "columns", "where", "pushdown", "partitionBytes", "live", "maxFilesPerTrigger")


class JournalPartition(InputPartition):
    """Files that one task reads, and damage that one task reports."""

    def __init__(self, parts: tuple[Part, ...], problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(None)
        self.parts = parts
        self.problems = problems


class JournalSource(DataSource):
    """`spark.dataSource.register(JournalSource)` makes the format known to a session."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "pollux_journal"

    def schema(self) -> StructType:
        """The columns of option `columns`, or all but the messages' bytes."""
        text = self.options.get("columns")
        if text is None:
            return journal_schema()
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in JOURNAL.names]
        if unknown or not names:
            raise InputError(f"columns: {', '.join(unknown) or text!r}: the columns are {', '.join(JOURNAL.names)}")
        return journal_schema(names)

    def reader(self, schema: StructType) -> JournalReader:
        """For `spark.read`."""
        check_options(self.options, OPTIONS)
        pushing = self.options.get("pushdown", "false").lower() == "true"
        make = PushingJournalReader if pushing else JournalReader
        size = int(self.options.get("partitionBytes", PARTITION_BYTES))
        return make(paths_of(self.options), _checked(schema), size, parse_conditions(self.options.get("where", "[]")))

    def streamReader(self, schema: StructType) -> JournalStreamReader:  # noqa: N802  (Spark's name)
        """For `spark.readStream`."""
        check_options(self.options, OPTIONS)
        files = int(self.options.get("maxFilesPerTrigger", 0))
        live = self.options.get("live", "true").lower() != "false"
        return JournalStreamReader(paths_of(self.options), _checked(schema), live=live, files_per_trigger=files)


def check_options(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise InputError where one is given that the source does not have: it would have no effect."""
    there = {name.lower() for name in known}
    for name in options:
        if name.lower() not in there:
            near = difflib.get_close_matches(name.lower(), there, n=1)
            meant = [one for one in known if one.lower() in near]
            hint = f"did you mean {meant[0]}? " if meant else ""
            raise InputError(f"option {name!r} is not known: {hint}The options are {', '.join(known)}")


def paths_of(options: Mapping[str, str]) -> list[str]:
    """The directories that the options name. Raises InputError."""
    paths = json.loads(options["paths"]) if "paths" in options else [options["path"]] if "path" in options else []
    if not paths:
        raise InputError("no path given: use .load(DIRECTORY)")
    return [str(path) for path in paths]


def _checked(schema: StructType) -> StructType:
    for field in schema.fields:
        if field.name not in JOURNAL.names:
            raise InputError(f"column {field.name!r}: the columns are {', '.join(JOURNAL.names)}")
        if field.dataType != JOURNAL[field.name].dataType:
            expected = JOURNAL[field.name].dataType.simpleString()
            raise InputError(f"column {field.name!r} is {expected}, not {field.dataType.simpleString()}")
    return schema


def pack(parts: Iterable[Part], size: int) -> list[tuple[Part, ...]]:
    """Files in groups of up to `size` bytes, in order; a larger file has a group of its own."""
    groups: list[list[Part]] = []
    filled = 0
    for part in parts:
        length = (part.size if part.end is None else part.end) - part.start
        if not groups or filled + length > size:
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += length
    return [tuple(group) for group in groups]


class JournalReader(DataSourceReader):
    """A batch read: one partition for each group of files, planned from their headers."""

    def __init__(
        self,
        paths: list[str],
        schema: StructType,
        partition_bytes: int = PARTITION_BYTES,
        conditions: tuple[Condition, ...] = (),
    ) -> None:
        self._paths = paths
        self._schema = schema
        self._partition_bytes = partition_bytes
        self._conditions = conditions

    def partitions(self) -> Sequence[InputPartition]:
        """Files that can have rows which pass; what planning found damaged is one partition more."""
        found: Plan = plan(self._paths)
        conditions = Conditions(self._conditions)
        wanted = [part for part in found.parts if conditions.wants_file(part)]
        result: list[InputPartition] = [JournalPartition(group) for group in pack(wanted, self._partition_bytes)]
        if found.problems or not result:
            result.append(JournalPartition((), found.problems))
        return result

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition."""
        return read_partition(partition, self._schema, self._conditions)


class PushingJournalReader(JournalReader):
    """A batch read that takes filters from Spark. Spark may use it for other queries too."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Take what can be evaluated exactly."""
        taken, left = split(filters)
        self._conditions = (*self._conditions, *taken)
        return left


def read_partition(
    partition: InputPartition, schema: StructType, conditions: tuple[Condition, ...]
) -> Iterator[pa.RecordBatch]:
    """Rows of one partition as record batches of exactly the schema that Spark expects."""
    if not isinstance(partition, JournalPartition):
        raise TypeError(type(partition).__name__)
    arrow = to_arrow_schema(schema, timezone="UTC")
    wanted = Conditions(conditions)
    yield from problem_rows(partition.problems, arrow, wanted)
    for part in partition.parts:
        yield from read_part(part, arrow, wanted)


# -- streams -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a directory's journal was read: everything before `byte` of segment (`epoch`, `segment`)."""

    epoch: int = 0
    segment: int = 0
    byte: int = 0

    def encode(self) -> dict[str, int]:
        """As a part of Spark's offset."""
        return {"epoch": self.epoch, "segment": self.segment, "byte": self.byte}


def committed_end(parts: list[Part], *, live: bool) -> Position | None:
    """Where the stable part of a journal ends; None when there is nothing.

    One write is under way at most, and the next begins when it is stable: so everything before the last BATCH record
    of a life is. With `live` false the broker has stopped, and its last write counts too.
    """
    for part in reversed(parts):
        try:
            data, size = contents(Path(part.path))
        except FileNotFoundError:
            continue
        found = scan(data, part.salt, 0, size, final=True, whole=False)
        if not len(found.positions):
            continue
        end = found.last_batch[0] if live and found.last_batch[0] >= 0 else found.end
        if part.limit is not None:
            end = min(end, part.limit)
        return Position(part.epoch, part.segment, end)
    return None


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of journal records, each exactly once; offsets name (epoch, segment, byte) for each directory."""

    def __init__(self, paths: list[str], schema: StructType, *, live: bool, files_per_trigger: int) -> None:
        self._paths = paths
        self._schema = schema
        self._live = live
        self._files_per_trigger = files_per_trigger
        self._target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Before everything."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """`maxFilesPerTrigger`, or everything there is."""
        return ReadMaxFiles(self._files_per_trigger) if self._files_per_trigger else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Remember where the stable part ends now."""
        self._target = self._available()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """How far the next batch reads."""
        end = self._target if self._target is not None else self._available()
        # A position never goes back: a journal that was replaced by an older copy yields nothing until it has more.
        end = {**start, **{name: one for name, one in end.items() if _position(start, name) < _position(end, name)}}
        if isinstance(limit, ReadMaxFiles):
            return self._limited(start, end, max(1, limit.max_files))
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition for each segment between two offsets."""
        result: list[InputPartition] = []
        for name in sorted(end):
            parts, problems = _between(Path(name), _position(start, name), _position(end, name))
            if problems:
                result.append(JournalPartition((), problems))
            result += [JournalPartition((part,)) for part in parts]
        return result

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one segment."""
        return read_partition(partition, self._schema, ())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to let go of: the broker decides when segments are deleted."""

    def stop(self) -> None:
        """Nothing is held open."""

    def _available(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for directory in directories(self._paths):
            end = committed_end(_segments(directory), live=self._live)
            if end is not None:
                found[str(directory)] = end.encode()
        return found

    def _limited(self, start: dict[str, Any], end: dict[str, Any], files: int) -> dict[str, Any]:
        result = dict(start)
        for name in sorted(end):
            before, last = _position(start, name), _position(end, name)
            parts, _ = _between(Path(name), before, last)
            if not parts:
                result[name] = end[name]
                continue
            if not files:
                break
            taken = parts[:files]
            files -= len(taken)
            reached = taken[-1]
            result[name] = (
                end[name]
                if len(taken) == len(parts)
                else Position(reached.epoch, reached.segment, reached.size).encode()
            )
        return result


def _position(offsets: dict[str, Any], name: str) -> Position:
    one = offsets.get(name)
    return Position(one["epoch"], one["segment"], one["byte"]) if one else Position()


def _segments(directory: Path) -> list[Part]:
    return sorted(
        (part for part in plan_directory(directory).parts if part.kind == "journal"),
        key=lambda part: (part.epoch, part.segment),
    )


def _between(directory: Path, start: Position, end: Position) -> tuple[list[Part], tuple[Problem, ...]]:
    """Stretches of segments between two positions, and what is not there any more."""
    first, last = (start.epoch, start.segment), (end.epoch, end.segment)
    parts: list[Part] = []
    if start >= end:
        return [], ()
    for part in _segments(directory):
        key = (part.epoch, part.segment)
        if not first <= key <= last:
            continue
        begin = start.byte if key == first else 0
        stop = end.byte if key == last else part.size
        if begin < stop and begin < part.size:
            parts.append(replace(part, start=begin, end=min(stop, part.size), final=part.final and key == last))
    known = {part.segment for part in parts} | {start.segment, end.segment}
    missing = [number for number in range(start.segment + 1, end.segment) if number not in known]
    words = "segment {} was deleted or lost before it was read; read more often, or read the lake of `ingest`"
    problems = [
        Problem(str(directory), "journal", "missing-segment", words.format(number), segment=number)
        for number in missing[:1000]
        if start.segment or parts
    ]
    return parts, tuple(problems)
