"""The command line: what it prints, and its exit codes; a user's mistake and Spark's failures are one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from harness.histories import History
from harness.journals import JournalFile
from harness.spark_cluster import SHORT_LIVED, UNCOMPILED
from pollux.formats.ledger import Confirmed, Received, Sent
from pollux_pipeline.cli import Progress, running_tasks

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pollux.formats.ledger import Entry

PIPELINE = (sys.executable, "-m", "pollux_pipeline.cli")
#: For little data.
SMALL = (
    *("--master", "local[2]", "--memory", "1g", "--conf", "spark.sql.shuffle.partitions=1"),
    *("--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}"),
    *(word for name, value in UNCOMPILED.items() for word in ("--conf", f"{name}={value}")),
)
CONVERSATION: list[Entry] = [Sent(1, "m1", "p"), Confirmed(2, "m1", "n", "castor", 1), Received(3, "m1", "q")]


def pipeline(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PIPELINE, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reconcile", "-i", "{tmp}/nowhere", "-o", "{tmp}/o"), "--input {tmp}/nowhere: does not exist"),
        (("reconcile", "-i", "{tmp}", "-o", "{tmp}/o"), "holds neither a journal nor a ledger nor an audit trail"),
        (("split_brain", "--a", "{tmp}", "--b", "{tmp}", "-o", "{tmp}/o"), "--a and --b are the same directory: {tmp}"),
        (("compare_journals", "--a", "{tmp}/x", "--b", "{tmp}", "-o", "{tmp}/o"), "--a {tmp}/x: is not a directory"),
        (("split_brain", "--a", "x", "--b", "y", "-o", "o", "--keep", "c"), "--keep c: is not one of a, b, auto"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = pipeline(*(word.format(tmp=tmp_path) for word in words))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith(message.format(tmp=tmp_path))


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    ledger = History().write(tmp_path / "ledger.txt")
    done = pipeline("reconcile", "-i", ledger, "-o", tmp_path / "out", PATH="/nonexistent", JAVA_HOME="")
    assert done.returncode == 2
    assert "apt-get install openjdk-17-jre-headless" in done.stderr.splitlines()[-1]


def test_a_clean_run_says_so_and_ends_with_0(tmp_path: Path) -> None:
    ledger = History(CONVERSATION).write(tmp_path / "ledger.txt")
    done = pipeline("reconcile", "-i", ledger, "-o", tmp_path / "out", *SMALL)
    assert done.returncode == 0, done.stderr
    verdict, report = done.stdout.splitlines()
    assert verdict.startswith("reconcile: clean (")
    assert report == f"report: {tmp_path}/out/report.html"
    # Elsewhere than on a terminal each step is a line.
    steps = [line for line in done.stderr.splitlines() if line.startswith("reconcile: ")]
    assert [steps[0], steps[-1]] == ["reconcile: starting Spark (local[2])", "reconcile: writing findings"]


def test_findings_end_with_3_and_json_tells_them(tmp_path: Path) -> None:
    ledger = History(CONVERSATION[:2]).write(tmp_path / "ledger.txt")
    done = pipeline("reconcile", "-i", ledger, "-o", tmp_path / "out", "--json", *SMALL)
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert (told["result"], told["findings"]["lost"]) == ("findings", 1)
    assert told["findings"] == json.loads((tmp_path / "out" / "result.json").read_text())["findings"]


def test_a_failure_of_spark_is_one_line_and_ends_with_1(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "data")
    journal.message("a", [7])
    journal.close()
    done = pipeline(
        "reconcile", "-i", tmp_path / "data", "-o", tmp_path / "out", *SMALL, PYSPARK_PYTHON=str(tmp_path / "python")
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("pollux-pipeline: Spark failed: ")
    assert str(tmp_path / "python") in done.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "result.json").exists(), "it did not finish"


def test_on_a_terminal_a_step_replaces_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress("sizing")
    progress.tell("reading journals")
    progress.tell("counting")
    progress.done()
    assert capsys.readouterr().err.split("\r\x1b[K") == ["", "sizing: reading journals ...", "sizing: counting ...", ""]


def test_on_a_terminal_a_long_step_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    asked = threading.Event()

    def tasks() -> tuple[int, int]:
        asked.set()
        return 3, 8

    progress = Progress("sizing")
    progress.tell("counting")
    progress.watch(tasks)
    assert asked.wait(60)
    progress.done()
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert re.fullmatch(r"sizing: counting \.\.\. \d+ s, 3 of 8 tasks", shown[2])
    assert shown[-1] == ""


def test_spark_says_how_many_of_its_tasks_are_done(spark: SparkSession) -> None:
    assert running_tasks(spark) == (0, 0), "nothing runs between queries"
