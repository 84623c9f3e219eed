"""The data source `pollux_audit`: brokers' audit trails (docs/audit-format.md) as rows, in batch and as a stream.

```python
spark.read.format("pollux_audit").load("/var/lib/pollux/data/audit")
```

One row for each message event, each event of a broker, and each damaged stretch. Options: `path`, `paths`, `columns` as
for `pollux_journal`. A stream's offset is, for each file, the byte behind the last complete block; files are only
appended to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pollux.formats.audit import MAGIC, AuditError, Event, Flag, Kind, Messages, decode_header, decode_messages, scan
from pollux_pipeline.errors import InputError
from pollux_pipeline.schemas import AUDIT
from pollux_pipeline.sources.files import once, walk
from pollux_pipeline.sources.journal import check_options, paths_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

#: Where the map of a header begins.
_LENGTH_END = 20
#: Rows of a record batch at most.
BATCH_ROWS = 65_536
OPTIONS = ("path", "paths", "columns")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A file and which of its blocks are read: those that start at `start` to before `end`."""

    path: str
    start: int
    end: int
    #: The last file of a process: an incomplete block at its end is a write under way, or was cut off by a kill.
    newest: bool


class AuditPartition(InputPartition):
    """Hold what one task reads."""

    def __init__(self, stretches: tuple[Stretch, ...]) -> None:
        super().__init__(None)
        self.stretches = stretches


class AuditSource(DataSource):
    """`spark.dataSource.register(AuditSource)` makes the format known to a session."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "pollux_audit"

    def schema(self) -> StructType:
        """The columns of option `columns`, or all."""
        from pyspark.sql.types import StructType

        text = self.options.get("columns")
        if text is None:
            return AUDIT
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in AUDIT.names]
        if unknown or not names:
            raise InputError(f"columns: {', '.join(unknown) or text!r}: the columns are {', '.join(AUDIT.names)}")
        return StructType([AUDIT[name] for name in names])

    def reader(self, schema: StructType) -> AuditReader:
        """For `spark.read`."""
        check_options(self.options, OPTIONS)
        return AuditReader(paths_of(self.options), schema)

    def streamReader(self, schema: StructType) -> AuditStreamReader:  # noqa: N802  (Spark's name)
        """For `spark.readStream`."""
        check_options(self.options, OPTIONS)
        return AuditStreamReader(paths_of(self.options), schema)


def files_of(paths: Sequence[str]) -> list[Stretch]:
    """Every audit file at and below the paths, whole. Raises InputError."""
    found: list[Path] = []
    for name in paths:
        if not Path(name).is_dir():
            raise InputError(f"{name}: is not a directory; give an audit directory or an instance's data directory")
        found += [place / file for place, names in walk(name) for file in names if file.endswith(".audit")]
    found = [path for path in once(found) if path.is_file()]
    # The last file of each process of a broker: it may have been killed while it wrote.
    last = {(path.parent, path.name.rsplit("-", 1)[0]): path for path in found}
    newest = set(last.values())
    return [Stretch(str(path), 0, path.stat().st_size, path in newest) for path in found]


class AuditReader(DataSourceReader):
    """A batch read: one partition for each file."""

    def __init__(self, paths: list[str], schema: StructType) -> None:
        self._paths = paths
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """One for each file."""
        return [AuditPartition((one,)) for one in files_of(self._paths)] or [AuditPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition."""
        return read_partition(partition, self._schema)


class AuditStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of audit events, each once."""

    def __init__(self, paths: list[str], schema: StructType) -> None:
        self._paths = paths
        self._schema = schema
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Before everything."""
        return {}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Remember what is there now."""
        self._target = self._available()

    def latestOffset(self, start: dict[str, int], _limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Everything there is; files that were deleted keep their place."""
        end = self._target if self._target is not None else self._available()
        return {name: max(start.get(name, 0), end.get(name, 0)) for name in sorted({*start, *end})}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One for each file that grew."""
        grown = [name for name in sorted(end) if end[name] > start.get(name, 0) and Path(name).exists()]
        return [AuditPartition((Stretch(name, start.get(name, 0), end[name], newest=False),)) for name in grown]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one file's stretch."""
        return read_partition(partition, self._schema)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to let go of."""

    def stop(self) -> None:
        """Nothing is held open."""

    def _available(self) -> dict[str, int]:
        return {one.path: _complete_end(one) for one in files_of(self._paths)}


def _complete_end(stretch: Stretch) -> int:
    """Behind the last complete block of a file."""
    data = Path(stretch.path).read_bytes()
    try:
        _, salt, end = decode_header(data, stretch.path)
    except AuditError:
        return 0 if _is_unfinished(data) else len(data)  # reported by the read
    for block in scan(data, end, salt):
        if block.damage != "torn":
            end = block.offset + block.length
    return end


def _is_unfinished(data: bytes) -> bool:
    """Whether a file ends within its header."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        return False
    return len(data) < _LENGTH_END or len(data) < _LENGTH_END + int.from_bytes(data[16:20], "little") + 4


def read_partition(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of exactly the schema that Spark expects."""
    if not isinstance(partition, AuditPartition):
        raise TypeError(type(partition).__name__)
    arrow = to_arrow_schema(schema, timezone="UTC")
    for stretch in partition.stretches:
        for columns, count in _read_file(stretch):
            for start in range(0, count, BATCH_ROWS):
                size = min(BATCH_ROWS, count - start)
                arrays = [_array(columns.get(field.name), field.type, start, size) for field in arrow]
                yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _array(values: Any, kind: pa.DataType, start: int, count: int) -> pa.Array:
    """A column: a constant, a list or an Arrow array; nulls when there is nothing."""
    if values is None or isinstance(values, (str, int, bool)):
        return pa.repeat(pa.scalar(values, kind), count)
    if isinstance(values, pa.Array):
        return values.slice(start, count).cast(kind)
    return pa.array(values[start : start + count], kind)


def _read_file(stretch: Stretch) -> Iterator[tuple[dict[str, Any], int]]:
    """Columns and how many rows they have, block by block."""
    where: dict[str, Any] = {"file": stretch.path}
    try:
        data = Path(stretch.path).read_bytes()[: stretch.end]
        about, salt, begin = decode_header(data, stretch.path)
    except FileNotFoundError:
        yield {**where, "damage": "vanished", "detail": "deleted while it was read", "event": "DAMAGE", "offset": 0}, 1
        return
    except AuditError as error:
        if not data:
            return  # it was made and not written yet, or its broker was killed between the two
        if stretch.newest and _is_unfinished(data):
            words = f"{len(data)} bytes are no whole header"
            yield {**where, "damage": "torn-tail", "detail": words, "event": "DAMAGE", "offset": 0}, 1
            return
        kind = "unknown-version" if "format version" in str(error) else "bad-header"
        yield {**where, "damage": kind, "detail": str(error), "event": "DAMAGE", "offset": 0}, 1
        return
    where |= {"broker": about.get("broker"), "node_id": about.get("node_id"), "epoch": about.get("epoch")}
    names: list[str] = []
    expected, damaged = 0, False
    for block in scan(data, begin, salt):
        wanted = block.offset >= stretch.start
        here = {**where, "offset": block.offset}
        if block.damage is not None:
            normal = block.damage == "torn" and stretch.newest
            kind = "torn-tail" if normal else "corrupt"
            if wanted:
                yield {**here, "event": "DAMAGE", "damage": kind, "detail": f"{block.length} bytes are no block"}, 1
            damaged = True
            continue
        # What is not there any more, and was not told of as bytes that are no block.
        if block.number != expected and wanted and not damaged:
            words = f"{block.number - expected} blocks are missing before this one"
            yield {**here, "event": "DAMAGE", "damage": "corrupt", "detail": words}, 1
        expected, damaged = block.number + 1, False
        try:
            if block.kind == Kind.NAMES:
                names += msgspec.msgpack.decode(block.payload, type=list[str])
            elif wanted and block.kind == Kind.EVENTS:
                yield _events(here, msgspec.msgpack.decode(block.payload, type=list[tuple[int, str, dict[str, Any]]]))
            elif wanted and block.kind == Kind.MESSAGES:
                yield _messages(here, decode_messages(block.payload, block.time, names))
        except (AuditError, msgspec.MsgspecError) as error:
            yield {**here, "event": "DAMAGE", "damage": "corrupt", "detail": str(error)}, 1


def _events(here: dict[str, Any], events: list[tuple[int, str, dict[str, Any]]]) -> tuple[dict[str, Any], int]:
    columns = {
        **here,
        "time": [time for time, _, _ in events],
        "event": [event for _, event, _ in events],
        "fields": [json.dumps(fields, default=str, sort_keys=True) for _, _, fields in events],
    }
    return columns, len(events)


def _messages(here: dict[str, Any], found: Messages) -> tuple[dict[str, Any], int]:
    runs = found.runs
    counts = np.array([run.messages for run in runs], np.int64)
    total = int(counts.sum())
    of = np.repeat(np.arange(len(runs)), counts)
    accepted = np.repeat(np.array([run.event == Event.ACCEPTED for run in runs], np.bool_), counts)
    row = pa.array(of)

    def spread(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(row)

    def of_accepted(values: list[int]) -> pa.Array:
        filled = np.zeros(total, np.int64)
        filled[accepted] = values
        return pa.array(filled, mask=~accepted)

    duplicates = dict(found.duplicate_ids)
    ids = [duplicates.get(number) for number in found.ids] if duplicates else None
    known = {int(event): event.name for event in Event}
    columns = {
        **here,
        "time": spread([run.time for run in runs], pa.int64()),
        "event": spread([known.get(run.event, f"UNKNOWN({run.event})") for run in runs], pa.string()),
        "address": spread([run.address for run in runs], pa.string()),
        "queue": spread([run.queue for run in runs], pa.string()),
        "target": spread([run.target for run in runs], pa.string()),
        "message_id": pa.array(np.array(found.ids, np.uint64).astype(np.int64)),
        "size": of_accepted(found.sizes),
        "producer": of_accepted(found.producers),
        "consumer": spread([run.consumer or None for run in runs], pa.int64()),
        "failed": spread([bool(run.flags & Flag.FAILED) for run in runs], pa.bool_()),
        "paged": spread([bool(run.flags & Flag.PAGED) for run in runs], pa.bool_()),
        "duplicate_id": ids,
    }
    return columns, total
