"""`ingest`, `archive` and `sizing` on a real session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from harness import tables
from harness.histories import History
from harness.journals import JournalFile
from harness.trails import TrailFile
from pollux.formats.ledger import Confirmed, Sent
from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs.archive import archive
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.ingest import ingest
from pollux_pipeline.jobs.sizing import sizing
from pollux_pipeline.sources.inputs import Inputs, find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CREATED = 1_790_000_000_000


def days(*places: Path) -> set[str]:
    """The days that tables have."""
    return {path.name for place in places for path in place.glob("date=*")}


def test_a_lake_holds_each_record_once_and_is_packed(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    trail = TrailFile(data / "audit")
    trail.events((CREATED, "broker-live", {"epoch": 3}), (CREATED + 5, "client-connected", {"connection": 9}))
    trail.close()
    History([Sent(1, "m", "p"), Confirmed(2, "m", "n", "b", 1)]).write(data / "ledger.txt")
    journal = JournalFile(data, size=2048, created=CREATED)
    sent: list[int] = []
    for number in range(9):
        sent.append(journal.message(f"a.{number % 2}", [7], bytes(200)))
        journal.write()
    journal.close()
    inputs = find([str(data)])
    assert ingest(Run(spark, inputs, lake, {"delta": True})).clean

    def logged(table: str) -> int:
        return int(DeltaTable(str(lake / table)).to_pyarrow_table().num_rows)

    def same_in_log() -> bool:
        tables = ("journal", "audit", "ledger")
        return [logged(one) for one in tables] == [spark.read.parquet(str(lake / one)).count() for one in tables]

    assert same_in_log()

    def held() -> list[int]:
        rows = spark.read.parquet(str(lake / "journal")).filter("record_type = 'MESSAGE'").collect()
        return sorted(row.message_id for row in rows)

    assert held() == sent
    ends = {(1, number): 2048 for number in range(1, journal.sequence)} | dict([journal.end()])
    later = JournalFile(data, epoch=2, first=journal.sequence + 1, size=2048, salt=4, ends=ends, created=CREATED)
    sent.append(later.message("a.0", [7]))
    later.close()
    assert ingest(Run(spark, inputs, lake)).clean
    assert held() == sorted(sent)
    assert same_in_log(), "a log that is there is kept true without being asked for"
    accepted = spark.read.parquet(str(lake / "journal")).filter("record_type = 'MESSAGE'")
    assert accepted.filter("at = timestamp_millis(timestamp)").count() == len(sent)
    day = datetime.fromtimestamp(CREATED / 1000, UTC).date()
    assert days(lake / "journal") == days(lake / "audit") == {f"date={day}"}
    columns = {table: dict(spark.read.parquet(str(lake / table)).dtypes) for table in ("journal", "audit", "ledger")}
    assert columns == {table: tables.columns("ingest", table) for table in columns}
    options = {"lake": str(lake), "keep_days": 30, "drop_days": 60, "today": day + timedelta(days=31)}
    # A run that was killed when it had taken the day's journal from the lake.
    (lake / "archive" / "journal").mkdir(parents=True)
    (lake / "journal" / f"date={day}").rename(lake / "archive" / "journal" / f"_taken-date={day}")
    result = archive(Run(spark, Inputs((), ()), tmp_path / "out", options))
    assert result.facts["days_packed"] == 2
    packed = spark.read.parquet(str(lake / "archive" / "journal" / f"date={day}"))
    assert sorted(row.message_id for row in packed.filter("record_type = 'MESSAGE'").collect()) == sorted(sent)
    trails = spark.read.parquet(str(lake / "archive" / "audit" / f"date={day}"))
    assert sorted(row.event for row in trails.collect()) == ["broker-live", "client-connected"]
    for table, frame in (("journal", packed), ("audit", trails)):
        assert dict(frame.dtypes) == {name: kind for name, kind in columns[table].items() if name != "date"}
    assert days(lake / "journal", lake / "audit") == set()
    assert (logged("journal"), logged("audit"), logged("ledger")) == (0, 0, 2)
    # Every day is packed and nothing is new: that is no failure.
    assert ingest(Run(spark, inputs, lake)).facts["records"] == 0
    options["today"] = day + timedelta(days=61)
    assert archive(Run(spark, Inputs((), ()), tmp_path / "out", options)).facts["days_deleted"] == 2
    assert [path for path in (lake / "archive").rglob("*") if path.is_file()] == []
    with pytest.raises(InputError, match="neither journal/ nor audit/ in it"):
        archive(Run(spark, Inputs((), ()), tmp_path / "out", {**options, "lake": str(tmp_path)}))


def test_sizing_counts_seconds_addresses_and_pairs(spark: SparkSession, tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "data")
    for second, count in enumerate((3, 10, 5)):
        for number in range(count):
            one = journal.message(f"a.{number}", [7], bytes(100), timestamp=CREATED + second * 1000 + number)
            if number % 2:
                journal.acks(7, [one])
    journal.close()
    options = {"load": 30, "capacity": 10}
    result = sizing(Run(spark, find([str(tmp_path / "data")]), tmp_path / "out", options))
    assert (result.facts["messages"], result.facts["busiest_second"]) == (18, 10)
    assert result.facts["pairs"] >= 3
    depth = spark.read.parquet(str(tmp_path / "out" / "depth")).collect()
    # One row a second: what came in, less what was acknowledged, on top of what was there.
    assert [(row.at_ms, row.change, row.depth) for row in sorted(depth)] == [
        (CREATED, 3 - 1, 2),
        (CREATED + 1000, 10 - 5, 7),
        (CREATED + 2000, 5 - 2, 10),
    ]
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") >= 3
