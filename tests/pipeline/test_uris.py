"""Paths may be URIs: what is in other file systems is read and written through Spark's, by every job that says so.

The file system of these tests is Hadoop's `viewfs:`, whose paths lead to directories of this machine and which only
Hadoop's classes can follow: a path that is opened, made or looked at by Python is not there.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from harness.histories import History
from harness.journals import JournalFile
from pollux.formats.ledger import Confirmed, Received, Sent
from pollux_pipeline.cli import main
from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs.manifest import NAME, Manifest
from pollux_pipeline.places import Remote, here, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pollux.formats.ledger import Entry

CONVERSATION: list[Entry] = [Sent(1, "m1", "p"), Confirmed(2, "m1", "n", "castor", 1), Received(3, "m1", "q")]


@pytest.fixture
def far(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The directory that `viewfs://lab/far` leads to."""
    directory = tmp_path / "mounted"
    directory.mkdir()
    known = spark.sparkContext._jsc.hadoopConfiguration()
    name = "fs.viewfs.mounttable.lab.link./far"
    known.set(name, directory.as_uri())
    known.set("fs.viewfs.impl.disable.cache", "true")
    yield directory
    known.unset(name)


@pytest.fixture
def command(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """The command line in the session of all tests and an empty directory: exit code, standard output and error."""
    place = tmp_path / "cwd"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr("pollux_pipeline.session.build_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
        monkeypatch.setattr(sys, "argv", ["pollux-pipeline", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert list(place.iterdir()) == [], "nothing is made on this machine"
        return (ended.value.code, *capsys.readouterr())

    return run


def test_a_history_is_judged_from_one_file_system_into_the_other(
    spark: SparkSession, far: Path, command: Callable[..., tuple[object, str, str]]
) -> None:
    """Ledgers by a pattern and a directory; run twice; what somebody else has there stays."""
    for name, entries in (("one", CONVERSATION), ("two", CONVERSATION[:1])):
        (far / name).mkdir()
        History(entries).write(far / name / "a host.ledger")
    words = ("reconcile", "-i", "viewfs://lab/far/on*", "-i", "viewfs://lab/far/two/a host.ledger")
    for _ in range(2):
        code, out, said = command(*words, "-o", "viewfs://lab/far/out")
        assert code == 0, said
        assert out.splitlines()[-1] == "report: viewfs://lab/far/out/report.html"
    assert json.loads((far / "out" / "result.json").read_text())["facts"]["confirmed"] == 1
    assert "<html" in (far / "out" / "report.html").read_text()
    assert [row.id for row in spark.read.parquet(str(far / "out" / "messages")).collect()] == ["m1"]
    assert spark.read.parquet(str(far / "out" / "by_broker")).count() == 2, "written without Spark"
    assert not (far / "out" / "_stage").exists()
    (far / "mine" / "messages").mkdir(parents=True)
    (far / "mine" / "messages" / "mail").touch()
    code, _, said = command(*words, "-o", "viewfs://lab/far/mine")
    assert (code, (far / "mine" / "messages" / "mail").exists()) == (2, True)
    assert "viewfs://lab/far/mine/messages: is there, and pollux-pipeline did not write it" in said.splitlines()[-1]


def test_a_run_that_was_killed_while_it_replaced_its_manifest_is_taken_for_ours(
    spark: SparkSession, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such file systems replace nothing by renaming: for a moment there is no manifest."""
    output = Remote(spark, "viewfs://lab/far/out")
    output.mkdir()
    Manifest(output).claim("messages")
    (far / "out" / "messages").mkdir()
    (far / "out" / "messages" / "part-0").touch()
    delete = Remote.unlink

    def killed(file: Remote, *, missing_ok: bool = False) -> None:
        delete(file, missing_ok=missing_ok)
        raise KeyboardInterrupt

    manifest = Manifest(output)
    with monkeypatch.context() as during:
        during.setattr(Remote, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            manifest.claim("findings")
    assert not (far / "out" / NAME).exists()
    Manifest(output).claim("messages", "findings")
    assert json.loads((far / "out" / NAME).read_text())["wrote"] == ["findings", "messages"]


@pytest.mark.parametrize("half", ["", '{"pollux_pipeline": 1, "wr', "[]"])
def test_a_first_manifest_that_was_half_written_says_nothing(tmp_path: Path, half: str) -> None:
    (tmp_path / "_pollux.tmp").write_text(half)
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "mail").touch()
    with pytest.raises(InputError, match="messages: is there, and pollux-pipeline did not write it"):
        Manifest(tmp_path).claim("messages")


def test_a_lake_in_another_file_system_gets_each_record_once(
    spark: SparkSession, far: Path, tmp_path: Path, command: Callable[..., tuple[object, str, str]]
) -> None:
    journal = JournalFile(tmp_path / "data")
    for _ in range(5):
        journal.message("a", [7])
    journal.close()
    for _ in range(2):
        code, _, said = command("ingest", "-i", str(tmp_path / "data"), "-o", "viewfs://lab/far/lake")
        assert code == 0, said
    records = spark.read.parquet(str(far / "lake" / "journal"))
    assert records.filter("record_type = 'MESSAGE'").count() == 5
    # A copy has another path every time, so that all of it would be new.
    code, _, said = command("ingest", "-i", "viewfs://lab/far/data", "-o", str(far / "other"))
    assert (code, "what was read already is known by its path" in said) == (2, True), said


def test_what_is_not_there_and_what_has_no_file_system_is_one_line(
    far: Path, command: Callable[..., tuple[object, str, str]]
) -> None:
    History(CONVERSATION).write(far / "host.ledger")
    ledger = ("reconcile", "-i", str(far / "host.ledger"))
    code, _, said = command("reconcile", "-i", "viewfs://lab/far/nowhere", "-o", "viewfs://lab/far/out")
    assert (code, said.splitlines()[-1].endswith("--input viewfs://lab/far/nowhere: does not exist")) == (2, True), said
    # Asked for is the class that hadoop-aws has, and the line says how Spark gets it.
    code, _, said = command(*ledger, "-o", "s3a://bucket/out")
    assert (code, "Traceback" in said) == (2, False)
    told = said.splitlines()[-1]
    assert "--output s3a://bucket/out: Spark has no file system for s3a:" in told
    assert "org.apache.hadoop.fs.s3a.S3AFileSystem not found" in told
    assert "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in told
    code, _, said = command(*ledger, "-o", "hdfs:///out")
    assert (code, "--output hdfs:///out: " in said.splitlines()[-1]) == (2, True), said
    code, _, said = command(*ledger, "-o", "viewfs://lab/far/out", "--delta")
    assert (code, "--delta: a log is written on this machine's paths alone" in said) == (2, True), said


def test_a_path_of_this_machine_may_be_a_uri() -> None:
    for text in ("file:///srv/a%20b", "file:/srv/a%20b", "file://localhost/srv/a%20b"):
        assert str(here(text)) == "/srv/a b"
        assert not is_remote(text)
    assert str(here("out/messages")) == "out/messages"
    assert all(is_remote(text) for text in ("s3a://bucket/out", "hdfs:///out", "hdfs://name:8020/out", "gs://b/o"))
    assert not is_remote("C:messages")
