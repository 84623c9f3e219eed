"""The common parts of all jobs: inputs, an output directory, tables as Parquet, a result, progress."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType

from pollux_pipeline.jobs import delta
from pollux_pipeline.jobs.manifest import STAGE, Manifest
from pollux_pipeline.places import remove, write_text
from pollux_pipeline.spark_settings import STRETCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from pollux_pipeline.places import Output
    from pollux_pipeline.sources.inputs import Inputs

#: Rows that a report or a summary shows of one table at most.
SHOWN = 50
#: Bytes of input for each file of a large table, and how many files there are at most. Not a matter of how many
#: tasks there are: a cluster writes the same files as one machine.
_FILE_BYTES, _MOST_FILES = STRETCH, 512
#: Damage every crash leaves behind; told, but no finding.
NORMAL_DAMAGE = ("torn-tail", "late-writes")


def count_where(condition: str) -> Column:
    """How many rows of a group a SQL condition holds for."""
    return f.count_if(f.expr(condition))


def table(spark: SparkSession, rows: Iterable[tuple[Any, ...]], columns: str) -> DataFrame:
    """A table of what is known here. Spark plans with its rows: where there are none, what reads them is left out.

    `columns`: their names and types, as in SQL.
    """
    return spark.createDataFrame(_arrow(list(rows), columns))


def _arrow(rows: list[tuple[Any, ...]], columns: str) -> pa.Table:
    schema = to_arrow_schema(cast("StructType", DataType.fromDDL(columns)), timezone="UTC")
    arrays = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)]
    return pa.table(arrays, schema=schema)


@contextmanager
def at_once() -> Iterator[ThreadPoolExecutor]:
    """Threads for jobs that do not need each other: one is planned while another one's tasks run.

    They have ended afterwards, but where this one failed or was interrupted: then nothing is waited for.
    """
    pool = ThreadPoolExecutor()
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


@dataclass(slots=True)
class Result:
    """Hold what a job found. `findings`: name -> how many; all zero is clean, unless some history was not seen."""

    job: str
    output: Output
    findings: dict[str, int] = field(default_factory=dict)
    #: Figures that are neither good nor bad.
    facts: dict[str, Any] = field(default_factory=dict)
    report: Output | None = None
    #: Behind what the history begins that was seen, where checkpoints have folded the rest away.
    compacted: str = ""

    @property
    def found(self) -> bool:
        """Whether there is something to look into."""
        return any(self.findings.values())

    @property
    def clean(self) -> bool:
        """Whether there is nothing to look into, and everything was seen."""
        return not self.found and not self.compacted

    @property
    def word(self) -> str:
        """clean, findings, or compacted: nothing was found in what is left of the history."""
        return "findings" if self.found else "compacted" if self.compacted else "clean"

    @property
    def verdict(self) -> str:
        """One line."""
        found = [f"{count} {name.replace('_', ' ')}" for name, count in self.findings.items() if count]
        facts = ", ".join(
            f"{value:,} {name.replace('_', ' ')}" for name, value in self.facts.items() if type(value) is int
        )
        parts = [f"FINDINGS: {', '.join(found)}"] if found else []
        parts += [f"history compacted before {self.compacted}"] if self.compacted else []
        return f"{self.job}: {'; '.join(parts) or 'clean'}" + (f" ({facts})" if facts else "")

    def as_dict(self) -> dict[str, Any]:
        """For --json and result.json."""
        return {
            "format": 1,
            "job": self.job,
            "result": self.word,
            "compacted_before": self.compacted or None,
            "findings": self.findings,
            "facts": self.facts,
            "output": str(self.output),
            "report": str(self.report) if self.report else None,
        }


class Run:
    """One run of a job. Tables are written under the output directory; `result.json` comes last.

    Raises InputError where something would be replaced there that no run of ours has written.
    """

    def __init__(
        self,
        spark: SparkSession,
        inputs: Inputs,
        output: Output,
        options: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.spark = spark
        self.inputs = inputs
        self.output = output
        self.options = options or {}
        if self.options.get("delta"):
            delta.check(output)
        self._tell = tell or (lambda _: None)
        #: What was counted of tables while they were written, by table and name.
        self.counts: dict[str, dict[str, int]] = {}
        self._asked: list[tuple[DataFrame, list[dict[str, Any]]]] = []
        self._started = time.monotonic()
        output.mkdir(parents=True, exist_ok=True)
        self.manifest = Manifest(output)
        self.manifest.claim("report.html", "result.json")
        (output / "result.json").unlink(missing_ok=True)

    def step(self, text: str) -> None:
        """Say what is being done now."""
        self._tell(text)

    def write(
        self,
        name: str,
        frame: DataFrame,
        *,
        spread: str | None = None,
        key: Sequence[str] | None = None,
        count: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """Write a table and read it back. Replaces the table of a run before. `count`: SQL for whole numbers about its
        rows, by name; they are in `counts` afterwards, and take no pass of their own.

        The same rows give the same files, byte for byte, however many tasks and machines there are: they are sorted by
        all columns, or by those of `key` where these tell every row from all others, in one file, or with `spread` in
        as many as the input's size asks for, by that column's hash. Only Spark's UUID in their names, and the order in
        which a Parquet footer lists a column's encodings, are of one run.
        """
        split = self.spread(frame, spread) if spread else frame.repartition(1)
        split = split.sortWithinPartitions(*(key or frame.columns))
        if not count:
            return self._write(name, split)
        # By the tasks that write, each of which counts once however often it or another one had to be done again.
        seen = Observation(name)
        written = self._write(name, split.observe(seen, *(f.expr(sql).alias(each) for each, sql in count.items())))
        self.counts[name] = {each: int(value or 0) for each, value in seen.get.items()}
        return written

    def write_rows(self, name: str, rows: Iterable[tuple[Any, ...]], columns: str) -> DataFrame:
        """Write a table of what is known here, as `write` does but without Spark, for which it would be a job; and what
        reads it needs none. `columns`: as of `table`."""
        listed = sorted(rows, key=lambda row: [(value is not None, value) for value in row])
        self.manifest.claim(name)
        frame = table(self.spark, listed, columns)
        place = self.output / name
        remove(place)
        place.mkdir(parents=True)
        with (place / "part-00000.snappy.parquet").open("wb") as stream:
            pq.write_table(_arrow(listed, columns), stream)
        (place / "_SUCCESS").touch()
        if self.options.get("delta"):
            delta.publish(place, frame.schema)
        return frame

    def spread(self, frame: DataFrame, column: str) -> DataFrame:
        """The rows as `write` spreads them. What groups a large table by a key that contains `column` does it on these:
        Spark then moves and sorts each row once, for all that is computed of them up to their table."""
        return frame.repartition(self._files, column)

    def stage(self, name: str, frame: DataFrame) -> DataFrame:
        """Write a table that is needed several times on the way, in whatever order, and read it back."""
        return self._write(f"{STAGE}/{name}", frame)

    def _write(self, name: str, frame: DataFrame) -> DataFrame:
        self.manifest.claim(name.partition("/")[0])
        path = str(self.output / name)
        frame.write.mode("overwrite").option("partitionOverwriteMode", "static").parquet(path)
        if self.options.get("delta") and not name.startswith(STAGE):
            delta.publish(self.output / name, frame.schema)
        return self.spark.read.schema(frame.schema).parquet(path)

    def part(self, name: str, columns: str) -> DataFrame:
        """Return a table that has been written, with some of its columns and of their fields. `columns`: as SQL.

        Spark leaves columns out by itself, but not fields where rows of a list are taken apart.
        """
        return self.spark.read.schema(columns).parquet(str(self.output / name))

    @cached_property
    def _files(self) -> int:
        """How many files a large table gets."""
        return min(max(1, self.inputs.size() // _FILE_BYTES), _MOST_FILES)

    def first(self, frame: DataFrame, count: int = SHOWN) -> list[dict[str, Any]]:
        """The first rows of an ordered table, for the report. Never more than `count`."""
        return [row.asDict(recursive=True) for row in frame.limit(count).collect()]

    def ask(self, frame: DataFrame, count: int = SHOWN) -> list[dict[str, Any]]:
        """Return as `first` does, but later: the list is empty until `answer` fills it. They are one Spark job."""
        rows: list[dict[str, Any]] = []
        self._asked.append((frame.limit(count), rows))
        return rows

    def answer(self) -> None:
        """Fill the lists of all that was asked."""
        asked, self._asked = self._asked, []
        if not asked:
            return
        # A column for each question, which holds its rows, so that every value keeps its type.
        kinds = [frame.schema for frame, _ in asked]
        parts = [
            frame.select(
                f.lit(number).alias("question"),
                *(
                    (f.struct(*frame.columns) if one == number else f.lit(None).cast(kind)).alias(f"rows_{one}")
                    for one, kind in enumerate(kinds)
                ),
            )
            for number, (frame, _) in enumerate(asked)
        ]
        for row in reduce(DataFrame.unionAll, parts).collect():
            asked[row.question][1].append(row[f"rows_{row.question}"].asDict(recursive=True))

    def finish(self, result: Result) -> Result:
        """Delete what was needed on the way and write result.json. A run without it did not finish."""
        self.manifest.claim(STAGE)
        remove(self.output / STAGE)
        result.facts["seconds"] = round(time.monotonic() - self._started, 3)
        write_text(self.output / "result.json", json.dumps(result.as_dict(), indent=2, default=str) + "\n")
        return result
