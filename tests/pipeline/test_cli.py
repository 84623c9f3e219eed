"""The command line: what it prints, and its exit codes; a user's mistake and Spark's failures are one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError

from harness.histories import History
from harness.journals import JournalFile
from harness.spark_cluster import SHORT_LIVED, UNCOMPILED
from pollux.formats.ledger import Confirmed, Received, Sent
from pollux_pipeline.cli import Spark, execute, main, running_tasks
from pollux_pipeline.ends import Signalled
from pollux_pipeline.errors import InputError
from pollux_pipeline.progress import Progress
from pollux_pipeline.session import check_master
from pollux_pipeline.sources.inputs import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from pollux.formats.ledger import Entry
    from pollux_pipeline.jobs.base import Result, Run

PIPELINE = (sys.executable, "-m", "pollux_pipeline.cli")
#: For little data.
SMALL = (
    *("--master", "local[2]", "--memory", "1g", "--conf", "spark.sql.shuffle.partitions=1"),
    *("--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}"),
    *(word for name, value in UNCOMPILED.items() for word in ("--conf", f"{name}={value}")),
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline.md"
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


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    """Runs the command line in this process: exit code, standard output and error."""

    def run(*words: str | Path) -> tuple[object, str, str]:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", "")
        monkeypatch.setattr(sys, "argv", ["pollux-pipeline", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return run


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
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, words: tuple[str, ...], message: str, here: Callable[..., tuple[object, str, str]]
) -> None:
    code, _, said = here(*(word.format(tmp=tmp_path) for word in words))
    assert code == 2
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].endswith(message.format(tmp=tmp_path))


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


def test_findings_end_with_3_and_json_tells_them(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: Callable[..., tuple[object, str, str]],
) -> None:
    """In the session of all tests, which is not stopped: the test before this one has Spark started for it."""
    monkeypatch.setattr("pollux_pipeline.session.build_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    ledger = History(CONVERSATION[:2]).write(tmp_path / "ledger.txt")
    code, out, said = here("reconcile", "-i", ledger, "-o", tmp_path / "out", "--json")
    assert code == 3, said
    told = json.loads(out)
    assert (told["result"], told["findings"]["lost"]) == ("findings", 1)
    assert told["findings"] == json.loads((tmp_path / "out" / "result.json").read_text())["findings"]


@pytest.mark.parametrize(("ledger", "code", "told"), [("ledger.txt", 0, "out/report.html\n"), ("nowhere", 2, "")])
def test_the_recipe_for_a_scheduler_tells_findings_apart(tmp_path: Path, ledger: str, code: int, told: str) -> None:
    """The line of docs/pipeline.md, run by a shell that ends at the first failure, as a scheduler's does."""
    found = re.findall(
        r"^    (pollux-pipeline reconcile .* \|\| .*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    (recipe,) = found
    History(CONVERSATION[:2]).write(tmp_path / "ledger.txt")
    notify = tmp_path / "notify"
    notify.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> notified\n')
    notify.chmod(0o755)
    (tmp_path / "notified").touch()
    words = shlex.join(("-i", ledger, *SMALL))
    done = subprocess.run(
        ["sh", "-ec", recipe.replace("-i ...", words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "notified").read_text() == told
    assert (tmp_path / "out" / "report.html").is_file() == bool(told)


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


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(111, "Connection refused"), (1, "its JVM ended in the middle; most often")),
        (Py4JError("java.lang.OutOfMemoryError: Java heap space"), (1, "--memory 2g is not enough for this input")),
        (PermissionError(13, "Permission denied", "/srv/out"), (2, "pollux-pipeline job: /srv/out: Permission denied")),
        (Signalled(), (130, "pollux-pipeline job: interrupted; run it again, it starts over")),
    ],
)
def test_each_end_has_its_code_and_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    expected: tuple[int, str],
) -> None:
    monkeypatch.setattr("pollux_pipeline.session.build_session", lambda *_, **__: Mock())

    def job(_run: Run) -> Result:
        raise error

    with pytest.raises(SystemExit) as ended:
        execute(job, lambda: Inputs((), ()), tmp_path / "out", spark=Spark("local[2]", "2g", None), as_json=False)
    told = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(told)) == (expected[0], 2)
    assert expected[1] in told[1]


@pytest.mark.parametrize(
    ("master", "words"),
    [
        ("lokal[2]", "is none of local[N], spark://HOST:PORT"),
        ("spark://127.0.0.1", "is none of local[N], spark://HOST:PORT"),
        ("spark://127.0.0.1:{free}", "no master answers (127.0.0.1:{free}: Connection refused)"),
    ],
)
def test_a_master_that_is_not_there_is_told_at_once(master: str, words: str) -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))  # and nobody listens
        free = place.getsockname()[1]
        with pytest.raises(InputError, match=re.escape(words.format(free=free))):
            check_master(master.format(free=free))


def test_a_master_whose_host_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of connections that is full answers none, as a firewall that drops them."""
    monkeypatch.setattr("pollux_pipeline.session._ANSWERS", 0.2)
    with socket.socket() as place, contextlib.ExitStack() as waiting:
        place.bind(("127.0.0.1", 0))
        place.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(place.getsockname())
        at = f"127.0.0.1:{place.getsockname()[1]}"
        with pytest.raises(InputError, match=re.escape(f"no master answers ({at}: timed out): is it running there?")):
            check_master(f"spark://{at}")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "yarn", "k8s://https://10.0.0.1:443"])
def test_a_master_that_spark_has_to_ask_is_left_to_it(master: str) -> None:
    check_master(master)
