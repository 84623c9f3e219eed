"""`pollux_audit`: rows are what the format's own reader says; torn and damaged blocks are rows too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from harness.trails import TrailFile
from pollux.formats.audit import Event, Messages, Run
from pollux_pipeline.schemas import AUDIT
from pollux_pipeline.sources.audit import AuditReader, AuditStreamReader

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MESSAGES = Messages(
    runs=[
        Run(Event.ACCEPTED, 2, 1010, "orders", "orders", None, 2, 0),
        Run(Event.DELIVERED, 0, 1020, "orders", "orders", None, 2, 9),
        Run(Event.EXPIRED, 0, 1030, "orders", "orders", "EXPIRY", 1, 0),
    ],
    ids=[1, 2, 1, 2, 2],
    sizes=[10, 20],
    producers=[4, 4],
    duplicate_ids=[(1, b"dup")],
)


def trail(directory: Path, number: int = 1, events: int = 1) -> tuple[Path, list[int]]:
    """A file, and where its blocks end: names, messages, then each block of events."""
    file = TrailFile(directory, number=number)
    ends = [0, file.messages(MESSAGES, 1000)]
    ends += [file.events((2000 + each, "activation", {"to": "live"})) for each in range(events)]
    return file.close(), ends


def rows(directory: Path) -> list[dict[str, Any]]:
    reader = AuditReader([str(directory)], AUDIT)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_message_and_broker_events(tmp_path: Path) -> None:
    trail(tmp_path)
    found = rows(tmp_path)
    assert [(one["event"], one["message_id"], one["time"], one["size"], one["consumer"]) for one in found] == [
        ("ACCEPTED", 1, 1010, 10, None),
        ("ACCEPTED", 2, 1010, 20, None),
        ("DELIVERED", 1, 1020, None, 9),
        ("DELIVERED", 2, 1020, None, 9),
        ("EXPIRED", 2, 1030, None, None),
        ("activation", None, 2000, None, None),
    ]
    assert (found[0]["paged"], found[0]["duplicate_id"], found[0]["producer"]) == (True, b"dup", 4)
    assert (found[4]["target"], found[5]["fields"]) == ("EXPIRY", '{"to": "live"}')
    assert {(one["broker"], one["node_id"], one["epoch"]) for one in found} == {("castor", "ab", 3)}


def test_damage(tmp_path: Path) -> None:
    older, ends = trail(tmp_path, 1, events=2)
    newest, _ = trail(tmp_path, 2)
    older.write_bytes(older.read_bytes()[: ends[2] - 1] + b"\xff" + older.read_bytes()[ends[2] :])
    newest.write_bytes(newest.read_bytes()[:-2])
    (tmp_path / "x-20261121T000000000Z-000001.audit").write_bytes(b"PLXAUD\r\n\x09\x00" + bytes(30))
    found = [(one["file"][-12:], one["damage"], one["offset"]) for one in rows(tmp_path) if one["damage"]]
    # One bad block is told once.
    assert found == [
        (older.name[-12:], "corrupt", ends[1]),
        (newest.name[-12:], "torn-tail", ends[1]),
        ("000001.audit", "unknown-version", 0),
    ]


def test_what_a_kill_leaves_is_no_damage(tmp_path: Path) -> None:
    """An empty file, a header that is not whole, a block under way: of each process the last file may have one.

    Breaks when a later process of the same broker makes its predecessor's torn tail a finding.
    """
    first, _ = trail(tmp_path, 1, events=2)
    first = first.rename(tmp_path / "castor-20261121T000000000Z-000001.audit")
    first.write_bytes(first.read_bytes()[:-2])
    second = tmp_path / "castor-20261121T000001000Z-000001.audit"
    second.write_bytes(first.read_bytes()[:30])
    (tmp_path / "castor-20261121T000002000Z-000001.audit").write_bytes(b"")
    found = [(one["file"], one["damage"]) for one in rows(tmp_path) if one["damage"]]
    assert found == [(str(first), "torn-tail"), (str(second), "torn-tail")]
    whole, _ = trail(tmp_path / "later", 1)
    offset = AuditStreamReader([str(tmp_path)], AUDIT).latestOffset({}, ReadAllAvailable())
    assert offset[str(second)] == 0
    second.write_bytes(whole.read_bytes())  # the header of a broker that was only slow
    reader = AuditStreamReader([str(tmp_path)], AUDIT)
    parts = reader.partitions(offset, reader.latestOffset(offset, ReadAllAvailable()))
    read = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["event"] for row in read if row["file"] == str(second)][-1] == "activation"


def test_blocks_that_are_gone_are_told(tmp_path: Path) -> None:
    path, ends = trail(tmp_path, 1, events=3)
    data = path.read_bytes()
    path.write_bytes(data[: ends[1]] + data[ends[2] :])
    found = [(one["damage"], one["detail"]) for one in rows(tmp_path) if one["damage"]]
    assert found == [("corrupt", "1 blocks are missing before this one")]


def test_a_stream_reads_each_block_once_and_waits_for_whole_ones(tmp_path: Path) -> None:
    path, ends = trail(tmp_path, events=3)
    whole = path.read_bytes()
    offset: dict[str, int] = {}
    times = []
    for size in (ends[1], ends[2] + 5, len(whole), len(whole)):
        path.write_bytes(whole[:size])
        reader = AuditStreamReader([str(tmp_path)], AUDIT)
        following = reader.latestOffset(offset, ReadAllAvailable())
        parts = reader.partitions(offset, following)
        times.append([row["time"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()])
        offset = following
    assert times == [[1010, 1010, 1020, 1020, 1030], [2000], [2001, 2002], []]


def test_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    trail(tmp_path)
    frame = spark.read.format("pollux_audit").option("columns", "event,message_id").load(str(tmp_path))
    assert frame.filter("event = 'DELIVERED'").count() == 2
