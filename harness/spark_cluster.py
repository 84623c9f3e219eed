"""A standalone Spark cluster: a master and workers of one core and 1 GiB, each a process of its own on loopback.

They are started by pyspark's own `spark-class`, bind port 0 and say in their logs which port it became, so that nobody
else can take it in between. Everything they write is below one directory; they and the executors they start are ended
by process id.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pyspark

from harness.process_sessions import end_session

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

#: Seconds until a JVM that was started must have said where it listens, and a worker must be registered.
LIMIT = 120.0
#: For a JVM that is not worth compiling much for: its life is short or it is a small daemon.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: For little data: compiling a query takes longer than interpreting it.
UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:[1-9]\d*)")
_PAGE = re.compile(r"Bound MasterWebUI to 127\.0\.0\.1, and started at http://[^:]*:([1-9]\d*)")


def without_spark() -> dict[str, str]:
    """Return the environment without a user's settings of Spark, or those of a command that ran in this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}


class SparkCluster:
    """Started by `with`; `master` is then what `--master` takes."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        self.master = ""
        self._page = ""
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        log = self._launch("master", "--webui-port", "0")
        self.master = self._said(log, _MASTER)
        self._page = f"http://127.0.0.1:{self._said(log, _PAGE)}"
        for number in range(self._workers):
            name = f"worker-{number}"
            work = str(self.directory / name / "work")
            options = ("--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", work)
            self._launch(name, *options, self.master)
        deadline = time.monotonic() + LIMIT
        while (alive := self.alive()) < self._workers:
            assert time.monotonic() < deadline, f"{alive} of {self._workers} workers registered: {self.directory}"
            self._check()
            time.sleep(0.1)

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers, which start the executors."""
        return [process.pid for process in self._processes[1:]]

    def alive(self) -> int:
        """Workers that the master counts on."""
        with urlopen(f"{self._page}/json/", timeout=LIMIT) as answer:  # noqa: S310  (its address is our master's)
            page = json.load(answer)
        return sum(worker["state"] == "ALIVE" for worker in page["workers"])

    def settings(self) -> dict[str, str]:
        """Properties with which an application takes all workers, and begins when it has them."""
        events = self.directory / "events"
        events.mkdir(exist_ok=True)
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.cores.max": str(self._workers),
            "spark.executor.cores": "1",
            "spark.executor.memory": "1g",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{LIMIT:.0f}s",
            "spark.locality.wait": "0s",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }

    def tasks(self) -> list[Counter[str]]:
        """For each application that has ended, how many tasks each executor did for it."""
        found = []
        for log in sorted((self.directory / "events").iterdir()):
            events = map(json.loads, log.read_text().splitlines())
            ended = (event for event in events if event["Event"] == "SparkListenerTaskEnd")
            found.append(Counter(event["Task Info"]["Executor ID"] for event in ended))
        return found

    def stop(self) -> None:
        """End the workers with their executors, then the master; whatever their state."""
        for process in reversed(self._processes):
            end_session(process)
            process.wait()
        self._processes.clear()

    def _launch(self, name: str, *words: str) -> Path:
        """Start one of them; returns its log."""
        directory = self.directory / name
        directory.mkdir(parents=True)
        log = directory / "log"
        program = Path(pyspark.__path__[0]) / "bin" / "spark-class"
        kind = "Master" if name == "master" else "Worker"
        command = [str(program), f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", "127.0.0.1", "--port", "0"]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*command, *words],
                cwd=directory,
                env=self._environment(directory),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _environment(self, directory: Path) -> dict[str, str]:
        """Nothing of a user's Spark, and this Python for what executors start."""
        return {
            **without_spark(),
            "SPARK_HOME": str(Path(pyspark.__path__[0])),
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "192m",
            # The server that takes applications over HTTP wants a port of its own, and nobody here uses it.
            "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIVED} -Djava.io.tmpdir={directory} -Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
        }

    def _said(self, log: Path, pattern: re.Pattern[str]) -> str:
        """Return what a process says in its log about where it listens."""
        deadline = time.monotonic() + LIMIT
        while (match := pattern.search(log.read_text(errors="replace"))) is None:
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-4000:]
            self._check()
            time.sleep(0.05)
        return match[1]

    def _check(self) -> None:
        for process in self._processes:
            assert process.poll() is None, f"{process.args!r} ended: {self.directory}"
