"""A real standalone cluster (a master, two workers) writes what two threads of this process write, byte for byte."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from harness import cluster_jobs
from harness.histories import History, generate
from harness.journals import JournalFile
from harness.spark_cluster import UNCOMPILED, SparkCluster, without_spark
from pollux_pipeline.jobs import base

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

#: Spark's writer puts a UUID into the name of each file that it writes in one go.
UUID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SEGMENT = 16 << 10
TABLES = {
    "reconcile": {"messages", "findings", "activations", "latency", "throughput", "waiting", "report.html"},
    "split_brain": {"messages", "plan", "by_queue", "plan.jsonl", "report.html"},
}


def make_traffic(directory: Path) -> None:
    """A ledger of many nodes with all kinds of faults, and the journals of two nodes."""
    random = Random(20261122)  # noqa: S311
    history = History()
    for number in range(40):
        history.entries += generate(random, f"h{number}", random.randrange(20, 60)).entries
    for node in (b"node-of-the-east", b"node-of-the-west"):
        journal = JournalFile(directory / node.decode(), node=node, size=SEGMENT)
        ids = [journal.message("a", [7], bytes(60), duplicate_id=f"h1-{number}".encode()) for number in range(200)]
        journal.acks(7, random.sample(ids, 150))
        journal.close()
    ledger = history.write(directory / "ledger.txt")
    assert ledger.stat().st_size > int(*cluster_jobs.STRETCH.values()), "more than one task reads it"


def make_side(directory: Path, salt: int, messages: int, step: int) -> None:
    """A life that both sides have, and one that this side has alone, with every ``step``th shared message consumed."""
    first = JournalFile(directory, size=SEGMENT)
    held = [first.message(f"orders.{number % 7}", [number % 7], bytes(50)) for number in range(200)]
    first.close()
    ends = {(1, number): SEGMENT for number in range(1, first.sequence)} | dict([first.end()])
    later = JournalFile(directory, epoch=2, first=first.sequence + 1, size=SEGMENT, salt=salt, ends=ends)
    for number in range(messages):
        later.message(f"orders.{number % 7}", [number % 7], f"{directory.name} {number}".encode())
    for number in range(0, 200, step):
        later.acks(number % 7, [held[number]])
    later.close()


def run_on(cluster: SparkCluster, data: Path, output: Path) -> None:
    """The jobs, by a driver of its own."""
    settings = {**cluster.settings(), **UNCOMPILED, "spark.sql.shuffle.partitions": "3"}
    program = [sys.executable, cluster_jobs.__file__, cluster.master, json.dumps(settings), str(data), str(output)]
    scratch = str(cluster.directory / "driver")
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
        env={**without_spark(), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": scratch},
    )
    assert done.returncode == 0, done.stderr


def contents(output: Path) -> dict[str, Any]:
    """Return the contents of each table, the plan and the report: the bytes of files by their names without UUIDs."""
    found: dict[str, Any] = {}
    for path in sorted(output.rglob("*")):
        if path.suffix in (".parquet", ".jsonl", ".html"):
            name = UUID.sub("", str(path.relative_to(output)))
            assert name not in found
            content = path.read_bytes().replace(bytes(output), b"OUTPUT")
            found[name] = divided(content) if path.suffix == ".parquet" else content
    return found


def divided(content: bytes) -> tuple[bytes, int, dict[str, Any]]:
    """A Parquet file: all bytes of its columns, and how long its footer is and what that says.

    Of each column the footer lists the encodings. That is a set, in whatever order a JVM happens to give it.
    """
    length = int.from_bytes(content[-8:-4], "little")
    metadata = pq.read_metadata(io.BytesIO(content))
    footer: dict[str, Any] = {**metadata.to_dict(), "metadata": metadata.metadata}
    for group in footer["row_groups"]:
        for column in group["columns"]:
            column["encodings"] = sorted(column["encodings"])
    return content[: -8 - length], length, footer


def test_a_cluster_of_two_workers_writes_the_same_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    make_traffic(data / "traffic")
    make_side(data / "a", salt=4, messages=300, step=3)
    make_side(data / "b", salt=9, messages=200, step=5)
    with SparkCluster(tmp_path / "cluster") as cluster:
        run_on(cluster, data, tmp_path / "there")
        (tasks,) = cluster.tasks()
    assert sorted(tasks) == ["0", "1"], "both workers' executors did a part"

    monkeypatch.setattr(base, "_FILE_BYTES", cluster_jobs.FILE_BYTES)
    # A plan that adapts leaves out what it finds to be empty, and then knows that a column has no nulls.
    as_there = cluster_jobs.STRETCH | {"spark.sql.adaptive.enabled": "true"}
    before = {name: str(spark.conf.get(name)) for name in as_there}
    for name, value in as_there.items():
        spark.conf.set(name, value)
    try:
        results = cluster_jobs.run_jobs(spark, data, tmp_path / "here")
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    found = results["split_brain"].findings
    # Every 3rd of the 200 was consumed there, every 15th here too.
    assert (found["to_send"], found["to_remove"]) == (300, 67 - 14)
    assert results["reconcile"].findings["lost"] > 0
    for job, tables in TABLES.items():
        here, there = contents(tmp_path / "here" / job), contents(tmp_path / "there" / job)
        assert sorted(there) == sorted(here)
        assert [name for name in here if there[name] != here[name]] == []
        assert {name.partition("/")[0] for name in here} >= tables
        assert sum(name.startswith("messages/part-") for name in here) > 1, "large tables are several files"
