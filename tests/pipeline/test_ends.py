"""A command that ends early says so in one line, takes Spark's JVM with it, and leaves nothing half written."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from harness.histories import History
from harness.spark_cluster import SHORT_LIVED, UNCOMPILED
from pollux.formats.ledger import Confirmed, Received, Sent
from pollux_pipeline.cli import Spark, execute, little_memory
from pollux_pipeline.jobs.manifest import STAGE, Manifest, sweep
from pollux_pipeline.sources.inputs import Inputs
from pollux_pipeline.startup import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pollux.formats.ledger import Entry
    from pollux_pipeline.jobs.base import Result, Run

PIPELINE = (sys.executable, "-m", "pollux_pipeline.cli")
#: For little data.
SMALL = (
    *("--master", "local[2]", "--memory", "1g", "--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}"),
    *(word for name, value in UNCOMPILED.items() for word in ("--conf", f"{name}={value}")),
)


class Command:
    """A command that has got as far as a step that it tells of; `spark` becomes readable when its JVM has ended."""

    def __init__(self, words: list[str], step: str, **environment: str) -> None:
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen(
            [*PIPELINE, *words], stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
        )
        assert self.process.stderr is not None
        self.said = ""
        for line in self.process.stderr:
            self.said += line
            if step in line:
                break
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.spark = [os.pidfd_open(int(pid)) for pid in children]

    def rest(self) -> str:
        """Wait for its end; what it still said."""
        assert self.process.stderr is not None
        told = self.process.stderr.read()
        self.process.wait()
        return told

    def spark_has_ended(self) -> bool:
        """Whether there was a JVM, which has ended."""
        return bool(self.spark) and select.select(self.spark, [], [], 0)[0] == self.spark

    def close(self) -> None:
        """End it, whatever it does, and forget it."""
        self.process.kill()
        self.process.communicate()
        for one in self.spark:
            select.select([one], [], [])
            os.close(one)


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    """Closes at the end what a test has started."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("sent", "step", "word"),
    [
        ((os.killpg, signal.SIGINT), "reading ledgers", "interrupted"),  # as a terminal does, to Spark's JVM too
        ((os.kill, signal.SIGTERM), "reading ledgers", "terminated"),  # as most schedulers do
        ((os.killpg, signal.SIGTERM), "reading ledgers", "terminated"),  # as systemd does
        ((os.kill, signal.SIGHUP), "WARNING", "hung up"),  # by the JVM, which nobody has a connection to yet
    ],
)
def test_a_signal_ends_the_command_its_jvm_and_what_they_were_writing(
    tmp_path: Path, ended: ExitStack, sent: tuple[Callable[[int, int], None], signal.Signals], step: str, word: str
) -> None:
    entries: list[Entry] = [Sent(1, "m1", "p"), Confirmed(2, "m1", "n", "castor", 1), Received(3, "m1", "q")]
    ledger = History(entries * 200).write(tmp_path / "ledger.txt")
    for_spark = tmp_path / "spark"
    for_spark.mkdir()
    words = ["reconcile", "-i", str(ledger), "-o", str(tmp_path / "out"), *SMALL]
    command = Command(words, step, SPARK_LOCAL_DIRS=str(for_spark))
    ended.callback(command.close)
    send, number = sent
    send(command.process.pid, number)
    assert command.rest() == f"pollux-pipeline reconcile: {word}; run it again, it starts over\n", command.said
    assert command.process.returncode == 128 + number
    assert command.spark_has_ended()
    assert not (tmp_path / "out" / "result.json").exists()
    assert list((tmp_path / "out").glob("*/_temporary")) == list(for_spark.iterdir()) == []


def test_too_little_memory_is_one_line_and_ends_with_1(tmp_path: Path, ended: ExitStack) -> None:
    """A line that does not fit into the heap; which of its threads hears of that first, Spark leaves to chance."""
    ledger = History([Received(1, "m", "q", True, "c" * 60_000_000, "castor", 1)]).write(tmp_path / "ledger.txt")
    little = ("--memory", "100m", "--conf", "spark.testing.reservedMemory=1")  # Spark itself asks for 450 MB
    command = Command(["reconcile", "-i", str(ledger), "-o", str(tmp_path / "out"), *SMALL, *little], "reading ledgers")
    ended.callback(command.close)
    assert command.rest() in [f"pollux-pipeline: Spark failed: {words}\n" for words in little_memory("100m")]
    assert command.process.returncode == 1
    assert not (tmp_path / "out" / "result.json").exists()


def test_prepare_that_is_terminated_keeps_nothing(tmp_path: Path, ended: ExitStack) -> None:
    """Breaks when its JVM writes 200 MB for nobody."""
    command = Command(["prepare"], "WARNING", **{ENVIRONMENT: str(tmp_path / "kept" / "classes.jsa")})
    ended.callback(command.close)
    os.kill(command.process.pid, signal.SIGTERM)
    assert command.rest().splitlines()[-1] == "pollux-pipeline prepare: terminated; nothing was kept"
    assert command.process.returncode == 143
    assert list((tmp_path / "kept").iterdir()) == []


def test_however_a_job_ends_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollux_pipeline.session.build_session", lambda *_, **__: Mock())
    done, half, mine = (tmp_path / name / "part-0" for name in ("ledgers", "messages/_temporary", "others/_temporary"))

    def job(run: Run) -> Result:
        run.manifest.claim("ledgers", "messages", STAGE)
        for place in (done, half, mine, tmp_path / STAGE / "journal"):
            place.mkdir(parents=True)
        raise OSError(28, "No space left on device", "messages")

    with pytest.raises(SystemExit):
        execute(job, lambda: Inputs((), ()), tmp_path, spark=Spark("local[2]", "2g", None), as_json=False)
    assert (done.exists(), mine.exists()) == (True, True), "tables that are whole, and what is no run's of ours"
    assert not half.parent.exists()
    assert not (tmp_path / STAGE).exists()


def test_a_directory_without_a_manifest_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / STAGE).mkdir()
    sweep(tmp_path)
    assert (tmp_path / STAGE).exists()
    Manifest(tmp_path).claim("messages")
    sweep(tmp_path)
    assert (tmp_path / STAGE).exists(), "somebody else's"
