"""`pollux_journal` in batch: what the rows say is what `pollux journal dump` says, and damage is reported."""

from __future__ import annotations

import re
import shutil
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    Not,
    StringContains,
)

from harness.journals import NODE, JournalFile
from pollux.formats.records import page, segment_end
from pollux.formats.segments import HEADER_SIZE
from pollux.store import inspect
from pollux_pipeline.errors import InputError
from pollux_pipeline.schemas import JOURNAL
from pollux_pipeline.sources.files import plan
from pollux_pipeline.sources.filters import Condition, Conditions, parse_conditions
from pollux_pipeline.sources.journal import JournalPartition, PushingJournalReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, directory: Path, **options: str) -> DataFrame:
    return spark.read.format("pollux_journal").options(**options).load(str(directory))


def rows_of(directory: Path, *filters: Filter) -> list[dict[str, Any]]:
    """The rows as Spark's workers would make them, without Spark."""
    reader = PushingJournalReader([str(directory)], JOURNAL)
    assert list(reader.pushFilters(list(filters))) == []
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def damage(directory: Path) -> list[tuple[str, str, int]]:
    """(damage, file, offset) of each damage row."""
    return sorted((one["damage"], Path(one["file"]).name, one["offset"]) for one in rows_of(directory) if one["damage"])


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two lives, several segments, each kind of record that holds messages."""
    directory = tmp_path / "journal"
    first = JournalFile(directory, size=4096)
    for number in range(60):
        ids = [first.message(f"orders.{number % 3}", [7, 8], bytes(number), timestamp=1_790_000_000_000 + number)]
        ids.append(first.message("ünïcode", [9], b"x", duplicate_id=f"d{number}".encode(), tx=5))
        first.commit(5, 1)
        first.acks(7, ids[:1])
        first.write()
    first.add(page(11, 1 << 24, "ünïcode"))
    first.add(segment_end(first.sequence + 1))
    first.close()
    ends = {(1, number): 4096 for number in range(1, first.sequence)} | dict([first.end()])
    second = JournalFile(directory, epoch=2, first=first.sequence + 1, size=4096, salt=99, ends=ends)
    second.message("orders.1", [7])
    second.close()
    return directory


def test_rows_are_what_the_brokers_own_reader_says(spark: SparkSession, journal: Path) -> None:
    expected = {(Path(one["file"]).name, one["offset"]): one for one in inspect.dump(journal, data=True)}
    rows = read(spark, journal, columns=",".join(JOURNAL.names)).collect()
    assert {(Path(row.file).name, row.offset) for row in rows} == set(expected)
    for row in rows:
        one = expected[Path(row.file).name, row.offset]
        assert (row.record_type, row.epoch, row.segment, row.length) == (
            one["type"],
            one["epoch"],
            one["sequence"],
            one["length"],
        )
        assert row.node_id == NODE.hex()
        assert row.tx == one.get("tx")
        if one["type"] == "MESSAGE":
            assert (row.message_id, row.queue_ids, row.address) == (one["message"], one["queues"], one["address"])
            assert (row.queue_id, row.size, row.body) == (one["queues"][0], one["size"], one["data"])
            assert (row.timestamp, row.durable, row.priority) == (one["timestamp"], one["durable"], one["priority"])
            assert (row.encoding, row.routing_type) == (one["encoding"], one["routing_type"])
            wanted = one.get("duplicate_id")
            assert row.duplicate_id == wanted
        if one["type"] == "ACKS":
            assert (row.queue_id, row.message_ids, row.message_id) == (
                one["queue"],
                one["messages"],
                one["messages"][0],
            )
        if one["type"] == "PAGE":
            assert (row.store, row.page, row.address) == (one["store"], one["page"], one["address"])
        if one["type"] == "SEGMENT_END":
            assert row.number == one["next"]
        if one["type"] in ("BATCH", "COMMIT"):
            assert row["count"] == one.get("size", one.get("records"))


def test_columns_are_pruned_and_unknown_ones_refused(spark: SparkSession, journal: Path) -> None:
    frame = read(spark, journal, columns="size, address")
    assert frame.columns == ["size", "address"]
    # A page's record has its address too, and no size.
    assert frame.filter("address = 'ünïcode' AND size IS NOT NULL").count() == 60
    assert "body" not in read(spark, journal).columns
    with pytest.raises(PySparkException, match="colour"):
        read(spark, journal, columns="colour").collect()


def test_a_segment_that_the_one_before_it_names_and_is_not_there_is_told(tmp_path: Path) -> None:
    """Breaks when only a gap among the segments that there are says that one is missing."""
    one = JournalFile(tmp_path, size=4096)
    one.message("a", [7])
    one.add(segment_end(2))
    one.close()
    assert damage(tmp_path) == [("missing-segment", tmp_path.name, 0)]
    next_one = JournalFile(tmp_path, first=2, size=4096)
    next_one.close()
    assert damage(tmp_path) == []


CONDITIONS = (
    "epoch = 2 and record_type = 'MESSAGE'",
    "record_type in ('ACKS', 'COMMIT')",
    "record_type != 'MESSAGE' and epoch = 2",
    "timestamp >= 1790000000050",
    "timestamp is not null and not timestamp > 1790000000003",
    "timestamp is null and segment = 2",
    "timestamp in (1790000000000, 1790000000001)",
    "timestamp not in (1790000000000, null)",
    "epoch > 2",
    "segment < 2 and record_type = 'START'",
    "record_type not in ('MESSAGE', null)",
)


def test_filters_give_what_spark_alone_would(spark: SparkSession, journal: Path) -> None:
    columns = "epoch,segment,record_type,timestamp"
    counts = [f.count_if(f.expr(one)).alias(one) for one in CONDITIONS]
    expected = read(spark, journal, columns=columns).agg(*counts).first()
    assert expected is not None
    pushed = [
        read(spark, journal, columns=columns, pushdown="true").filter(one).select(f.lit(one).alias("condition"))
        for one in CONDITIONS
    ]
    found = reduce(DataFrame.union, pushed).groupBy("condition").count().collect()
    assert {row.condition: row["count"] for row in found} == {
        name: count for name, count in expected.asDict().items() if count
    }
    assert sum(expected) > 100


def test_explain_shows_what_is_pruned_and_what_was_pushed(
    spark: SparkSession, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/pipeline.md says: the columns that the scan brings, and above it the filters that Spark is left with."""

    def explained(**options: str) -> tuple[list[str], str]:
        frame = read(spark, journal, columns="epoch,address,size", **options)
        frame.filter("epoch = 2 and address like '%x%' and size > length(address)").select("size").explain()
        plan = capsys.readouterr().out
        (scan,) = re.findall(r"BatchScan pollux_journal\[(.*?)\]", plan)
        filters = re.findall(r"Filter (.*)", plan)
        return re.findall(r"(\w+)#", scan), " ".join(filters)

    columns, left = explained()
    assert columns == ["epoch", "address", "size"]
    assert all(one in left for one in ("epoch#", "Contains(address#", "size#"))
    columns, left = explained(pushdown="true")
    assert columns == ["epoch", "address", "size"]
    assert "epoch#" not in left
    assert all(one in left for one in ("Contains(address#", "size#"))


def test_one_frame_in_several_queries_is_not_mixed_up(spark: SparkSession, journal: Path) -> None:
    frame = read(spark, journal, columns="record_type,epoch")
    both = frame.filter("epoch = 2").unionByName(frame.filter("record_type = 'ACKS'"))
    assert both.count() == 4 + 60
    assert frame.count() > both.count()


def test_where_is_evaluated_by_the_source(spark: SparkSession, journal: Path) -> None:
    where = '[["record_type", "in", ["ACKS", "COMMIT"]], ["epoch", "<", 2]]'
    assert read(spark, journal, columns="record_type", where=where).count() == 120


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("epoch = 5", "is not a list like"),
        ('[["size", "=", 1]]', "'size' is not one of"),
        ('[["epoch", "~", 1]]', "'~' is not one of"),
        ('[["epoch", "in", 1]]', "1 does not go with 'in'"),
    ],
)
def test_a_wrong_where_is_explained(where: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_conditions(where)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("epoch",), 2), EqualTo(("record_type",), "MESSAGE")], 1),
        ([In(("record_type",), ("ACKS", "COMMIT"))], 120),
        ([Not(EqualTo(("record_type",), "MESSAGE")), EqualTo(("epoch",), 2)], 3),
        ([GreaterThanOrEqual(("timestamp",), 1_790_000_000_050)], 10),
        ([IsNotNull(("timestamp",)), Not(GreaterThan(("timestamp",), 1_790_000_000_003))], 4 + 61),
        ([GreaterThan(("epoch",), 2)], 0),
        ([Not(In(("record_type",), ("MESSAGE", None)))], 0),
    ],
)
def test_pushed_filters(journal: Path, filters: list[Filter], expected: int) -> None:
    assert len(rows_of(journal, *filters)) == expected


def test_filters_keep_files_from_being_read(journal: Path) -> None:
    reader = PushingJournalReader([str(journal)], JOURNAL, partition_bytes=1)
    before = len(reader.partitions())
    left = list(reader.pushFilters([EqualTo(("epoch",), 2), StringContains(("address",), "x")]))
    assert left == [StringContains(("address",), "x")]
    assert len(reader.partitions()) == 1 < before
    list(reader.pushFilters([GreaterThan(("segment",), 10_000)]))
    (nothing,) = reader.partitions()
    assert isinstance(nothing, JournalPartition)
    assert nothing.parts == ()


def test_a_condition_on_null_holds_for_nothing() -> None:
    assert not Conditions([Condition("timestamp", "EqualTo", 1)]).wants_row({"timestamp": None})
    assert not Condition("epoch", "LessThan", None).holds(1)


# -- damage ----------------------------------------------------------------------------------------------------------


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segment"))


def change(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def records_of(path: Path) -> list[dict[str, Any]]:
    return [one for one in inspect.dump(path.parent) if one["file"] == str(path)]


def test_a_sound_journal_has_no_damage(journal: Path) -> None:
    assert damage(journal) == []


def test_a_flipped_bit_costs_one_record_and_is_reported(journal: Path) -> None:
    path = files(journal)[1]
    record = records_of(path)[4]
    before = len(rows_of(journal))
    change(path, record["offset"] + 20, b"\xff")
    assert damage(journal) == [("corrupt", path.name, record["offset"])]
    assert len(rows_of(journal)) == before  # one record less, one row of damage more


def test_a_torn_tail_of_the_last_write(journal: Path) -> None:
    path = files(journal)[-1]
    last = records_of(path)[-1]
    change(path, last["offset"] + last["length"] - 3, bytes(3))
    assert damage(journal) == [("torn-tail", path.name, last["offset"])]


def test_a_last_write_that_reads_as_zeros_is_torn_too(journal: Path) -> None:
    path = files(journal)[-1]
    last = records_of(path)[-1]
    change(path, last["offset"], bytes(last["length"]))
    assert damage(journal) == [("torn-tail", path.name, last["offset"])]


def test_a_segment_cut_in_the_middle(journal: Path) -> None:
    path = files(journal)[2]
    record = records_of(path)[5]
    with path.open("r+b") as stream:
        stream.truncate(record["offset"] + 10)
    assert damage(journal) == [
        ("corrupt", path.name, record["offset"]),
        ("cut", path.name, record["offset"] + 10),
    ]


def test_a_segment_cut_between_records(journal: Path) -> None:
    path = files(journal)[2]
    record = records_of(path)[5]
    with path.open("r+b") as stream:
        stream.truncate(record["offset"])
    kinds = {kind for kind, _, _ in damage(journal)}
    assert kinds == {"cut"}


def test_an_unknown_version_is_reported_and_the_rest_read(journal: Path) -> None:
    from crc32c import crc32c

    path = files(journal)[1]
    head = bytearray(path.read_bytes()[:64])
    head[8:10] = (7).to_bytes(2, "little")
    head[60:64] = crc32c(bytes(head[:60])).to_bytes(4, "little")
    change(path, 0, bytes(head) * 2)
    assert damage(journal) == [("unknown-version", path.name, 0)]
    assert len(rows_of(journal, EqualTo(("record_type",), "MESSAGE"))) > 60


def test_a_ruined_header(journal: Path) -> None:
    path = files(journal)[1]
    change(path, 0, b"\xff" * HEADER_SIZE)
    assert damage(journal) == [("bad-header", path.name, 0)]


def test_two_nodes_in_one_directory(journal: Path, tmp_path: Path) -> None:
    other = JournalFile(tmp_path / "other", epoch=2, first=len(files(journal)) + 1, node=b"node-of-somebody", size=4096)
    other.message("stray", [1])
    other.close()
    stray = shutil.copy(other.path, journal)
    assert ("foreign-node", Path(stray).name, 0) in damage(journal)
    assert [one["address"] for one in rows_of(journal)].count("stray") == 1


def test_a_missing_segment(journal: Path) -> None:
    files(journal)[2].unlink()
    assert [(kind, name) for kind, name, _ in damage(journal)] == [("missing-segment", "journal")]


def test_writes_of_a_fenced_life_are_marked(journal: Path) -> None:
    path = files(journal)[-2]
    end = records_of(path)[-1]
    life = JournalFile(journal.parent / "late", size=4096)
    life._content = bytearray(path.read_bytes()[: end["offset"] + end["length"]])
    life.sequence = int(path.stem[-10:])
    late = life.message("late", [7], message_id=1 << 44 | 999_999)
    life.close()
    shutil.copy(life.path, path)
    assert [(kind, name) for kind, name, _ in damage(journal)] == [("late-writes", path.name)]
    assert [one["fenced"] for one in rows_of(journal) if one["message_id"] == late] == [True]


def test_a_directory_without_files_is_empty_not_an_error(tmp_path: Path) -> None:
    assert rows_of(tmp_path) == []


def test_a_path_that_does_not_exist_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="does not exist; give a journal directory"):
        read(spark, tmp_path / "nowhere").collect()


def test_only_headers_are_needed_to_plan(journal: Path) -> None:
    found = plan([str(journal)])
    assert [part.segment for part in found.parts] == list(range(1, len(found.parts) + 1))
    assert found.problems == ()
