"""Ledgers (the format is in `pollux.formats.ledger`) as a DataFrame, one row for each line, malformed lines included.

Read and split by Spark's own text reader, so that a large ledger is read by many tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pollux_pipeline.sources.inputs import torn_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

#: How many fields a line of each kind has.
_FIELDS = {"S": 6, "C": 6, "R": 8, "F": 3}
#: What of Spark's increasing ids counts rows within a task; a task reads one stretch of one file (see `session`).
_IN_TASK = (1 << 33) - 1


def read_ledgers(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Columns: file, at (orders lines, wherever they are read), kind (S, C, R, F; null: malformed), line, time, id,
    producer, group, sequence, node, broker, epoch, queue, redelivered, consumer, text.

    A last line without its newline is left out, as the format says.
    """
    # Orders entries of the same moment: by ledger, then as they stand in it.
    ledger = f.lit(0).cast("bigint") if len(paths) == 1 else f.xxhash64("_metadata.file_path")
    lines = spark.read.text([Path(path).as_uri() for path in paths]).select(
        f.col("_metadata.file_path").alias("file"),
        f.col("_metadata.file_name").alias("_name"),
        f.struct(
            ledger.alias("ledger"),
            f.col("_metadata.file_block_start").alias("start"),
            f.monotonically_increasing_id().bitwiseAND(_IN_TASK).alias("n"),
        ).alias("at"),
        f.col("value").alias("line"),
    )
    lines = lines.filter(~f.col("line").startswith("pollux-ledger "))
    for path in paths:
        if torn := torn_tail(path):
            lines = lines.filter(~((f.col("_name") == Path(path).name) & (f.col("line") == torn)))
    parts = f.split("line", "\t")
    lines = lines.withColumn("p", parts)

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
    return lines.select(
        "file",
        "at",
        "line",
        f.when(f.coalesce(valid, f.lit(False)), kind).alias("kind"),
        time.alias("time"),
        f.when(kind != "F", word(2)).alias("id"),
        f.when(kind == "S", word(3)).alias("producer"),
        f.when(kind == "S", word(4)).alias("group"),
        sequence.alias("sequence"),
        f.when(kind == "C", word(3)).alias("node"),
        f.when(kind == "C", word(4)).when(kind == "R", word(6)).alias("broker"),
        epoch.alias("epoch"),
        f.when(kind == "R", word(3)).alias("queue"),
        (again == "1").alias("redelivered"),
        f.when(kind == "R", word(5)).alias("consumer"),
        f.when(kind == "F", word(2)).alias("text"),
    )
