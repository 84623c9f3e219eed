"""A run costs so much: how many jobs it makes of Spark, and how Spark is set for the size of its input."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from harness.histories import History, generate
from harness.journals import JournalFile
from pollux_pipeline import spark_settings
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MIB = 1 << 20


def jobs_of(spark: SparkSession) -> int:
    """How many jobs a session has run."""
    context = spark._jsparkSession.sparkContext()
    return int(context.statusStore().jobsList(None).size())


def jobs_taken(spark: SparkSession, directory: Path) -> int:
    """How many jobs `reconcile` runs over what is in a directory."""
    before = jobs_of(spark)
    result = reconcile(Run(spark, find([str(directory / "in")]), directory / "out"))
    assert not result.clean, "it had something to do"
    return jobs_of(spark) - before


def test_a_ledger_takes_at_most_8_jobs(spark: SparkSession, tmp_path: Path) -> None:
    history = History()
    for number in range(8):
        history.entries += generate(Random(number), f"h{number}", 40).entries  # noqa: S311
    (tmp_path / "in").mkdir()
    history.write(tmp_path / "in" / "ledger.txt")
    assert jobs_taken(spark, tmp_path) <= 8
    rows = [spark.read.parquet(str(tmp_path / "out" / name)) for name in ("ledgers", "throughput", "by_broker")]
    assert all(one.count() for one in rows), "what is written without Spark is there for it"


def test_a_ledger_and_a_journal_take_at_most_15_jobs(spark: SparkSession, tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "in" / "journal")
    ids = [journal.message("a", [7], duplicate_id=f"h-{number}".encode()) for number in range(20)]
    journal.acks(7, ids[:10])
    journal.close()
    generate(Random(1), "h", 40).write(tmp_path / "in" / "ledger.txt")  # noqa: S311
    assert jobs_taken(spark, tmp_path) <= 15


def test_a_small_input_is_not_compiled_for_long_and_a_large_one_is() -> None:
    small, large = (spark_settings.settings(size, local=True) for size in (4 * MIB, 500 * MIB))
    options = "spark.driver.extraJavaOptions"
    assert "TieredStopAtLevel=1" in small[options]
    assert all("-XX:-DontCompileHugeMethods" in one[options] for one in (small, large)), "the one of each row is huge"
    assert "TieredStopAtLevel" not in large[options]


def test_tasks_follow_from_the_input_and_not_from_the_cores() -> None:
    partitions = "spark.sql.shuffle.partitions"
    assert [spark_settings.settings(size * MIB, local=True)[partitions] for size in (0, 4, 44, 460)] == [
        "1",
        "1",
        "2",
        "28",
    ]
    assert spark_settings.settings(460 * MIB, local=False)[partitions] == "28"
    assert partitions not in spark_settings.settings(None, local=False), "Spark finds out"
    assert spark_settings.settings(None, local=False)["spark.sql.adaptive.enabled"] == "true"


def test_a_cluster_of_the_site_keeps_its_own_options_for_the_jvm() -> None:
    assert "spark.driver.extraJavaOptions" not in spark_settings.settings(4 * MIB, local=False)
