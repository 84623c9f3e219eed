"""Ledgers (the format is in `pollux.formats.ledger`) as a DataFrame, one row for each line, malformed lines included.

Read and split by Spark's own text reader, so that a large ledger is read by many tasks. Each ledger has a number, for
each has a clock of its own: times of different ledgers are never compared.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark.sql import functions as f

from pollux_pipeline.sources.inputs import is_torn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

#: What a path that is given to Spark would match other names with.
_GLOB = re.compile(r"([\\\[\]{}*?])")
#: How Spark begins the name of a local file, of one that has been looked for with a pattern too.
_SCHEMES = ("file:", "file://")
#: How many fields a line of each kind has.
_FIELDS = {"S": 6, "C": 6, "R": 8, "F": 3}
#: What of Spark's increasing ids counts rows within a task; a task reads one stretch of one file (see `session`).
_IN_TASK = (1 << 33) - 1
#: At how many places of a ledger `rough_span` looks, and how many bytes it reads there.
_LOOKS, _LOOK_BYTES = 16, 4096


def numbered(paths: Sequence[str]) -> list[tuple[int, str]]:
    """The number of each ledger, from 1, in the order of their paths."""
    return list(enumerate(sorted(paths), start=1))


def read_ledgers(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Columns: file (path), ledger (its number), at (orders the lines of one ledger, wherever they are read), kind (S,
    C, R, F; null: malformed), line, time, id, producer, group, sequence, node, broker, epoch, queue, redelivered,
    consumer, text.

    A last line without its newline is left out, as the format says.
    """
    ledgers = numbered(paths)
    # A newline alone ends a line, as the format says: an id may hold a carriage return.
    text = spark.read.option("lineSep", "\n").text([_GLOB.sub(r"\\\1", path) for path in paths])
    start = f.col("_metadata.file_block_start").alias("start")
    lines = text.select(_number(ledgers).alias("ledger"), start, f.col("value").alias("line"))
    lines = lines.filter(~f.col("line").startswith("pollux-ledger ")).withColumn("p", f.split("line", "\t"))
    entries = lines.select(*_columns(ledgers))
    if torn := [number for number, path in ledgers if is_torn(path)]:
        # By its place: a complete line may be the same text.
        last = entries.filter(f.col("ledger").isin(torn)).groupBy("ledger").agg(f.max("at").alias("at"))
        entries = entries.join(f.broadcast(last), ["ledger", "at"], "left_anti")
    return entries


def _columns(ledgers: Sequence[tuple[int, str]]) -> Iterator[Column]:
    """Yield the columns of `read_ledgers` out of `ledger`, `start` (of the stretch), `line` and its parts `p`.

    All at once, with the place among them, for Spark asks no condition before a number that it counts up: a condition
    on the kind would have each line taken apart a second time, to be asked before all others are.
    """
    # A stretch has no more lines than bytes, so what is counted from its first byte on never reaches the next one.
    at = f.col("start") + f.monotonically_increasing_id().bitwiseAND(_IN_TASK)
    files = f.array(*(f.lit(path) for _, path in ledgers))

    def word(number: int) -> Column:
        return f.get("p", f.lit(number))

    kind, size, time = word(0), f.size("p"), word(1).try_cast("double")
    right = f.lit(False)
    for name, count in _FIELDS.items():
        right = right | ((kind == name) & (size == count))
    sequence = f.when(kind == "S", word(5).try_cast("long"))
    epoch_text = f.when(kind == "C", word(5)).when(kind == "R", word(7))
    epoch = f.when(epoch_text != "", epoch_text.try_cast("long"))
    again = f.when(kind == "R", word(4))
    valid = (
        right
        & time.isNotNull()
        & ((kind != "S") | sequence.isNotNull())
        & (epoch_text.isNull() | (epoch_text == "") | epoch.isNotNull())
        & (again.isNull() | again.isin("0", "1"))
    )
    yield f.get(files, f.col("ledger") - 1).alias("file")
    yield f.col("ledger")
    yield at.alias("at")
    yield f.col("line")
    yield f.when(f.coalesce(valid, f.lit(False)), kind).alias("kind")
    yield time.alias("time")
    yield f.when(kind != "F", word(2)).alias("id")
    yield f.when(kind == "S", word(3)).alias("producer")
    yield f.when(kind == "S", word(4)).alias("group")
    yield sequence.alias("sequence")
    yield f.when(kind == "C", word(3)).alias("node")
    yield f.when(kind == "C", word(4)).when(kind == "R", word(6)).alias("broker")
    yield epoch.alias("epoch")
    yield f.when(kind == "R", word(3)).alias("queue")
    yield (again == "1").alias("redelivered")
    yield f.when(kind == "R", word(5)).alias("consumer")
    yield f.when(kind == "F", word(2)).alias("text")


def rough_span(path: str) -> float:
    """About how many milliseconds a ledger tells of: from the times in some places of the file."""
    size = Path(path).stat().st_size
    times: list[float] = []
    with Path(path).open("rb") as stream:
        for look in range(_LOOKS):
            stream.seek(max(0, size - _LOOK_BYTES) * look // (_LOOKS - 1))
            for line in stream.read(_LOOK_BYTES).split(b"\n")[1:-1]:
                kind, _, rest = line.partition(b"\t")
                try:
                    time = float(rest.partition(b"\t")[0])
                except ValueError:
                    continue
                if kind in (b"S", b"C", b"R") and math.isfinite(time):
                    times.append(time)
    return max(times, default=0.0) - min(times, default=0.0)


def _number(ledgers: Sequence[tuple[int, str]]) -> Column:
    """The number of the ledger that a row of Spark's text reader is of."""
    if len(ledgers) == 1:
        return f.lit(1)
    known = f.array(*(f.xxhash64(f.lit(start + _escaped(path))) for start in _SCHEMES for _, path in ledgers))
    found = f.array_position(known, f.xxhash64("_metadata.file_path")).cast("int")
    strange = f.concat(f.lit("not one of the ledgers that were asked for: "), f.col("_metadata.file_path"))
    return f.when(found > 0, f.pmod(found - 1, f.lit(len(ledgers))) + 1).otherwise(f.raise_error(strange).cast("int"))


def _escaped(path: str) -> str:
    """A path as Spark's `_metadata.file_path` writes it: java.net.URI escapes what is no letter and no mark."""
    marks = "/-_.!~'()*,;:$&+=@"
    return "".join(quote(one, safe=marks) if one.isascii() or not one.isprintable() else one for one in path)
