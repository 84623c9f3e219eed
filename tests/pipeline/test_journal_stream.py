"""`pollux_journal` as a stream: every record once, over restarts, and nothing that is not stable yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from harness.journals import JournalFile
from pollux_pipeline.jobs.ingest import finish_stream
from pollux_pipeline.schemas import journal_schema
from pollux_pipeline.sources.journal import JournalStreamReader

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = journal_schema(["epoch", "segment", "offset", "record_type", "message_id", "damage"])
ALL = ReadAllAvailable()


def stream(directory: Path, *, live: bool = True, files: int = 0) -> JournalStreamReader:
    return JournalStreamReader([str(directory)], SCHEMA, live=live, files_per_trigger=files)


def rows(reader: JournalStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    parts = reader.partitions(start, end)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def messages(found: list[dict[str, Any]]) -> list[int]:
    assert [one["damage"] for one in found if one["damage"]] == []
    return [one["message_id"] for one in found if one["record_type"] == "MESSAGE"]


def snapshot(journal: JournalFile) -> None:
    """Copy the files on disk while the broker runs."""
    journal._flush()


def put(journal: JournalFile, size: int = 4) -> int:
    """Write one message in a batch of its own."""
    message_id = journal.message("a", [1], bytes(size))
    journal.write()
    return message_id


def test_the_last_write_waits_until_another_follows(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, size=4096)
    first = journal.message("a", [1])
    journal.write()
    snapshot(journal)
    reader = stream(tmp_path)
    before = reader.latestOffset({}, ALL)
    assert messages(rows(reader, {}, before)) == []
    second = journal.message("a", [1])
    journal.write()
    snapshot(journal)
    after = reader.latestOffset(before, ALL)
    assert messages(rows(reader, before, after)) == [first]
    stopped = stream(tmp_path, live=False)
    end = stopped.latestOffset(after, ALL)
    assert messages(rows(stopped, after, end)) == [second]
    assert stopped.latestOffset(end, ALL) == end
    assert rows(stopped, end, end) == []


def test_batches_over_segments_and_lives_are_everything_once(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, size=2048)
    sent: list[int] = []
    got: list[int] = []
    offset: dict[str, Any] = {}
    for number in range(40):
        sent.append(journal.message("a", [1], bytes(100)))
        journal.write()
        if number % 7 == 0:
            snapshot(journal)
            reader = stream(tmp_path)  # a restart: nothing is remembered but the offset
            following = reader.latestOffset(offset, ALL)
            got += messages(rows(reader, offset, following))
            offset = following
    journal.close()
    ends = {(1, number): 2048 for number in range(1, journal.sequence)} | dict([journal.end()])
    second = JournalFile(tmp_path, epoch=2, first=journal.sequence + 1, size=2048, salt=3, ends=ends)
    sent.append(second.message("a", [1]))
    second.close()
    reader = stream(tmp_path, live=False)
    got += messages(rows(reader, offset, reader.latestOffset(offset, ALL)))
    assert got == sent


def test_a_limit_on_files_takes_the_rest_later(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, size=1024)
    sent = [put(journal, 300) for _ in range(12)]
    journal.close()
    reader = stream(tmp_path, live=False, files=2)
    reader.prepareForTriggerAvailableNow()
    offset: dict[str, Any] = {}
    got: list[int] = []
    batches = 0
    while (following := reader.latestOffset(offset, ReadMaxFiles(2))) != offset:
        got += messages(rows(reader, offset, following))
        offset, batches = following, batches + 1
    assert got == sent
    assert batches == -(-journal.sequence // 2)


def test_now_available_means_now(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, size=4096)
    journal.message("a", [1])
    journal.write()
    snapshot(journal)
    reader = stream(tmp_path, live=False)
    reader.prepareForTriggerAvailableNow()
    target = reader.latestOffset({}, ALL)
    journal.message("a", [1])
    journal.close()
    assert reader.latestOffset(target, ALL) == target


def test_a_segment_that_was_deleted_before_it_was_read_is_reported(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path, size=1024)
    for _ in range(12):
        journal.message("a", [1], bytes(300))
        journal.write()
    snapshot(journal)
    reader = stream(tmp_path)
    first = {str(tmp_path): {"epoch": 1, "segment": 1, "byte": 1024}}
    (tmp_path / "pollux-00000001-0000000003.segment").unlink()
    found = rows(reader, first, reader.latestOffset(first, ALL))
    assert [one["damage"] for one in found if one["damage"]] == ["missing-segment"]


def test_spark_streams_to_parquet_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    source, lake, state = tmp_path / "journal", str(tmp_path / "lake"), str(tmp_path / "state")
    journal = JournalFile(source, size=4096)

    def run() -> list[int]:
        writer = (
            spark.readStream.format("pollux_journal")
            .options(columns="record_type,message_id,offset", live="false")
            .load(str(source))
            .writeStream.format("parquet")
            .option("checkpointLocation", state)
            .trigger(availableNow=True)
        )
        finish_stream(lambda: writer.start(lake))
        found = spark.read.parquet(lake).filter("record_type = 'MESSAGE'").orderBy("message_id").collect()
        return [row.message_id for row in found]

    sent = [put(journal, 500) for _ in range(20)]
    snapshot(journal)
    assert run() == sent
    sent += [journal.message("a", [1]) for _ in range(3)]
    journal.close()
    assert run() == sent
