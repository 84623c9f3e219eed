"""Spark Connect: the program of docs/pipeline.md, with the session that is shown there, against a real server."""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from harness.journals import JournalFile
from harness.process_sessions import end_session
from harness.spark_cluster import LIMIT, SHORT_LIVED, UNCOMPILED, without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

DOCUMENT = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
_STARTED = re.compile(r"Spark Connect server started at: .*:([1-9]\d*)$")


def _listen(stream: IO[str], port: queue.Queue[str], said: list[str]) -> None:
    """Read all that a server says until it ends; put its port into the queue, or nothing when it ends before."""
    for line in stream:
        said.append(line)
        if found := _STARTED.search(line.strip()):
            port.put(found[1])
    port.put("")


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """The server that the document starts, on any port; the address is HOST:PORT."""
    (words,) = re.findall(r"^    spark-submit (--class .*SparkConnectServer spark-internal)", DOCUMENT, re.MULTILINE)
    confs = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.ui.enabled": "false",
        **UNCOMPILED,
    }
    command = [str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"), "--master", "local[2]"]
    command += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    process = subprocess.Popen(
        [*command, *words.split()],
        cwd=directory,
        env={**without_spark(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    port: queue.Queue[str] = queue.Queue()
    said: list[str] = []
    listener = threading.Thread(target=_listen, args=(process.stdout, port, said))
    listener.start()
    try:
        try:
            number = port.get(timeout=LIMIT)
        except queue.Empty:
            number = ""
        assert number, "".join(said)
        yield f"127.0.0.1:{number}"
    finally:
        end_session(process)
        process.wait()
        listener.join()
        process.stdout.close()


def test_the_program_of_the_documents_runs_over_spark_connect(tmp_path: Path) -> None:
    """Breaks when `register` needs a JVM in this process, or a source something that a server's workers do not have."""
    journal = JournalFile(tmp_path / "data" / "journal")
    for number in range(5):
        journal.message("orders" if number else "other", [7])
    journal.close()
    (program,) = re.findall(r"```python\n# by_address\.py\n(.*?)```", DOCUMENT, re.DOTALL)
    (remote,) = re.findall(r"^spark = SparkSession\.builder\.remote\(.*$", DOCUMENT, re.MULTILINE)
    own = "spark = SparkSession.builder.getOrCreate()"
    assert own in program
    with server(tmp_path) as address:
        (tmp_path / "program.py").write_text(program.replace(own, remote.replace("HOST:15002", address)))
        done = subprocess.run(
            [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "data"), str(tmp_path / "out")],
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
            cwd=tmp_path,
            env=without_spark(),
        )
    assert done.returncode == 0, done.stderr[-3000:]
    written = "".join(path.read_text() for path in sorted((tmp_path / "out").glob("part-*.csv")))
    assert sorted(written.split()) == ["orders,4", "other,1"]
