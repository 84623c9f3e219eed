"""The pipeline: how fast journals are scanned and histories reconciled, and what that takes. Prints tables.

    .venv/bin/python -m benchmarks.pipeline [--sizes 0.1,1,5,10] [--workers 10] [--directory /var/tmp] [--write]

Journals and ledgers of the given sizes (millions of records and entries) are generated, then each measurement runs in a
process of its own: a scan with pruned columns, first cold and then warm (the same session again); `reconcile` of the
ledger; the whole command `pollux-pipeline reconcile`, as a user starts it; and the same reconcile in one process with
pyarrow and pandas, and with DuckDB, the oracle of the tests. 0.1 is what `make demo` has, 33,000 messages. Then the
ledger of `--workers` million entries on a standalone cluster of one worker, and of two (0: left out), with a core each
or, with `--share`, so much of a processor, as if the machine had more: two workers and the driver want three or four.
Memory: "peak" is the highest resident size of the JVM (in local mode driver and executors are one: it fills what it may
have), "held" what its heap still holds after the job and a collection (what a driver would keep of the input), "driver"
the highest resident size of Python's driver.
"CPU s" is what the JVM, Python's workers and the driver used together: where other work runs at the same time it says
what the seconds do not. Sizes are measured in the order given; the table is written after each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from rich.console import Console
from rich.table import Table

from benchmarks.shares import put, share
from harness.journals import large_journal
from harness.oracle import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

MILLION = 1_000_000
COLUMNS = "record_type,message_id,queue_id,timestamp,size"
MEMORY = "2g"
HEADING = "## The pipeline\n\n"


def large_ledger(path: Path, entries: int) -> None:
    """Sent, confirmed and received by two brokers of a pair; 1 in 1,000 messages lost, 1 in 1,000 doubled."""
    messages = entries // 3
    with path.open("w", encoding="ascii", buffering=1 << 20) as stream:
        stream.write("pollux-ledger 1\n")
        for number in range(messages):
            at = number * 0.02
            group = number % 100
            broker, epoch = ("castor", 1) if number < messages // 2 else ("pollux", 2)
            name = f"message-{number}"
            stream.write(
                f"S\t{at:.3f}\t{name}\tp{group % 10}\tgroup-{group}\t{number}\n"
                f"C\t{at + 0.7:.3f}\t{name}\tnode\t{broker}\t{epoch}\n"
            )
            if number % 1000 == 7:
                continue
            received = f"R\t{at + 1.5:.3f}\t{name}\tqueue-{group % 20}\t0\tc{group % 10}\t{broker}\t{epoch}\n"
            stream.write(received)
            if number % 1000 == 8:
                stream.write(received)


# -- what runs in processes of their own ---------------------------------------------------------------------------


def measured_session(master: str, size: int | None = None) -> Any:
    """A quiet session, for so many bytes of input."""
    from pollux_pipeline.cli import quiet_spark
    from pollux_pipeline.session import build_session

    quiet_spark()
    return build_session(master, memory=MEMORY, size=size)


def memory_of_jvm(session: Any) -> int:
    """Highest resident size of the JVM in bytes."""
    pid = int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def heap_held(session: Any) -> int:
    """Bytes that the JVM's heap holds after a collection."""
    runtime = session.sparkContext._jvm.java.lang.Runtime.getRuntime()  # noqa: SLF001
    for _ in range(3):
        session.sparkContext._jvm.java.lang.System.gc()  # noqa: SLF001
    return int(runtime.totalMemory() - runtime.freeMemory())


def cpu_seconds() -> float:
    """Return what this process, its descendants and those of them that have ended have used of the processors."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(used.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def scan(master: str, directory: str, _: str) -> dict[str, Any]:
    """Seconds of a first and of three more scans."""
    session = measured_session(master)
    times = []
    for _round in range(4):
        began, used = time.perf_counter(), cpu_seconds()
        frame = session.read.format("pollux_journal").option("columns", COLUMNS).load(directory)
        frame.write.format("noop").mode("overwrite").save()
        times.append((time.perf_counter() - began, cpu_seconds() - used))
    warm, cpu = (min(each) for each in zip(*times[1:], strict=True))
    return {"cold": times[0][0], "warm": warm, "cpu": cpu, "jvm": memory_of_jvm(session)}


def reconcile(master: str, ledger: str, output: str) -> dict[str, Any]:
    """Seconds of the job, its session's start not included, and what it found."""
    from pollux_pipeline.jobs.base import Run
    from pollux_pipeline.jobs.reconcile import reconcile as job
    from pollux_pipeline.sources.inputs import find

    inputs = find([ledger])
    session = measured_session(master, inputs.size())
    began, used = time.perf_counter(), cpu_seconds()
    result = job(Run(session, inputs, Path(output)))
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - used
    memory = {"jvm": memory_of_jvm(session), "held": heap_held(session)}
    return {"seconds": seconds, "cpu": cpu, "findings": result.findings, "jobs": jobs_of(session), **memory}


def jobs_of(session: Any) -> int:
    """How many jobs a session has run."""
    return int(session._jsparkSession.sparkContext().statusStore().jobsList(None).size())  # noqa: SLF001


def command(master: str, ledger: str, output: str) -> dict[str, Any]:
    """Seconds of the whole command, from the shell's view: Python, the JVM's start and all."""
    words = [sys.executable, "-m", "pollux_pipeline.cli", "reconcile", "-i", ledger, "-o", output]
    began = time.perf_counter()
    done = subprocess.run([*words, "--master", master, "--memory", MEMORY], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return {"seconds": time.perf_counter() - began}


def on_workers(count: str, ledger: str, output: str) -> dict[str, Any]:
    """Seconds of the job on a cluster of so many workers of one core, its session's start not included.

    ``count``: how many, and behind a colon what share of a processor each of them has, so that two and the driver do
    not want more than there is.
    """
    sys.path.append(str(Path(__file__).parents[1] / "tools"))  # of what ends the cluster's processes
    from harness.spark_cluster import SparkCluster
    from pollux_pipeline import spark_settings
    from pollux_pipeline.jobs.base import Run
    from pollux_pipeline.jobs.reconcile import reconcile as job
    from pollux_pipeline.session import build_session
    from pollux_pipeline.sources.inputs import find

    inputs = find([ledger])
    number, _, part = count.partition(":")
    with ExitStack() as stack:
        groups = [stack.enter_context(share(float(part), each)) for each in range(int(number))] if part else []
        cluster = stack.enter_context(SparkCluster(Path(output).parent / f"cluster-{number}", int(number)))
        for group, pid in zip(groups, cluster.workers, strict=bool(part)):
            put(group, pid)
        settings = cluster.settings() | {
            "spark.eventLog.enabled": "false",
            "spark.driver.extraJavaOptions": spark_settings.JVM,
        }
        settings |= {"spark.executor.extraJavaOptions": spark_settings.JVM}
        session = build_session(cluster.master, memory=MEMORY, settings=settings, size=inputs.size())
        began = time.perf_counter()
        result = job(Run(session, inputs, Path(output)))
        seconds = time.perf_counter() - began
        session.stop()
    return {"seconds": seconds, "findings": result.findings}


def pandas(_: str, ledger: str, __: str) -> dict[str, Any]:
    """The same questions (lost, doubled, out of order, latency) with pyarrow and pandas, all of it in memory."""
    import pandas as pd

    began, used = time.perf_counter(), cpu_seconds()
    names = ["kind", "time", "id", "a", "b", "c", "d", "e"]
    options: dict[str, Any] = {"sep": "\t", "names": names, "skiprows": 1, "engine": "c", "quoting": 3}
    lines = pd.read_csv(ledger, dtype=dict.fromkeys(names, "string[pyarrow]") | {"time": "float64"}, **options)
    sent = lines[lines.kind == "S"].drop_duplicates("id", keep="last").set_index("id")
    confirmed = lines[lines.kind == "C"].groupby("id")["time"].min()
    received = lines[lines.kind == "R"].sort_values("time", kind="stable")
    lost = confirmed.index.difference(pd.Index(received.id.unique()))
    again = received[received.duplicated(["id", "a"]) & (received.b == "0")]
    joined = received[received.b == "0"].join(sent[["a", "b", "c"]], on="id", rsuffix="_sent")
    joined["sequence"] = joined.c_sent.astype("int64")
    newest = joined.groupby(["a_sent", "b_sent", "a"])["sequence"].cummax()
    disorder = joined[joined.sequence < newest]
    latency = (confirmed - sent.time).quantile([0.5, 0.99])
    found = {
        "lost": len(lost),
        "duplicated": len(again),
        "order_violations": len(disorder),
        "p99": float(latency[0.99]),
    }
    return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used, "findings": found}


def with_duckdb(_: str, ledger: str, __: str) -> dict[str, Any]:
    """All findings, by the program for DuckDB that is the oracle of the tests."""
    began, used = time.perf_counter(), cpu_seconds()
    read = """create table lines as select row_number() over () as n, line from read_csv(
        ?, columns={'line': 'VARCHAR'}, delim=chr(1), header=false, quote='', escape='', parallel=false)"""
    with duckdb.connect() as connection:
        connection.execute(read, [ledger])
        counted = Counter(finding for finding, *_ in judge(connection))
    names = ("lost", "duplicated", "phantom", "two_lives", "order_violations")
    found = {name: counted[name] for name in names}
    return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used, "findings": found}


STEPS = {
    "scan": scan,
    "reconcile": reconcile,
    "command": command,
    "pandas": pandas,
    "duckdb": with_duckdb,
    "workers": on_workers,
}


def in_process(step: str, master: str, path: Path, output: Path) -> dict[str, Any]:
    """Run a step in a process of its own; its answer and its highest resident size."""
    place = Path(__file__).parents[1]
    command = [sys.executable, "-m", "benchmarks.pipeline", "--step", step, "--master", master]
    command += [str(path.absolute()), str(output.absolute())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    if done.returncode != 0:
        raise SystemExit(f"{step} failed:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# -- the report ----------------------------------------------------------------------------------------------------


def mebibytes(value: float) -> str:
    """For people."""
    return f"{value / (1 << 20):,.0f}"


def measure(sizes: list[float], master: str, directory: Path, console: Console) -> Iterator[tuple[float, list[str]]]:
    """The size (in millions) and the row of the table, as soon as each is known."""
    for size in sizes:
        load = os.getloadavg()[0]
        work = Path(tempfile.mkdtemp(prefix="pollux-pipeline-", dir=directory))
        try:
            console.print(f"{size:g} M: generating")
            records = large_journal(work / "journal", round(size * MILLION))
            large_ledger(work / "ledger.txt", round(size * MILLION))
            console.print(f"{size:g} M: scanning")
            scanned = in_process("scan", master, work / "journal", work / "out")
            shutil.rmtree(work / "journal")
            console.print(f"{size:g} M: reconciling")
            judged = in_process("reconcile", master, work / "ledger.txt", work / "out")
            whole = in_process("command", master, work / "ledger.txt", work / "out")
            console.print(f"{size:g} M: with pandas")
            alone = in_process("pandas", master, work / "ledger.txt", work / "out")
            console.print(f"{size:g} M: with DuckDB")
            other = in_process("duckdb", master, work / "ledger.txt", work / "out")
        finally:
            shutil.rmtree(work, ignore_errors=True)
        for name in ("lost", "duplicated", "order_violations"):
            if judged["findings"][name] != alone["findings"][name]:
                raise SystemExit(f"{name}: reconcile {judged['findings'][name]}, pandas {alone['findings'][name]}")
        for name, count in other["findings"].items():
            if judged["findings"][name] != count:
                raise SystemExit(f"{name}: reconcile {judged['findings'][name]}, DuckDB {count}")
        row = [
            f"{size:g} M",
            f"{load:.1f}",
            f"{records / scanned['cold']:,.0f}",
            f"{records / scanned['warm']:,.0f}",
            f"{records / scanned['cpu']:,.0f}",
            f"{judged['seconds']:.1f}",
            f"{judged['cpu']:.1f}",
            f"{judged['jobs']}",
            f"{whole['seconds']:.1f}",
            f"{size * MILLION / judged['seconds']:,.0f}",
            mebibytes(judged["jvm"]),
            mebibytes(judged["held"]),
            mebibytes(judged["driver"]),
            f"{alone['seconds']:.1f}",
            f"{alone['cpu']:.1f}",
            mebibytes(alone["driver"]),
            f"{other['seconds']:.1f}",
            f"{other['cpu']:.1f}",
            mebibytes(other["driver"]),
        ]
        yield size, row


HEADERS = (
    *("size", "load before", "scan cold, records/s", "scan warm, records/s", "scan warm, records/CPU s", "reconcile s"),
    *("reconcile CPU s", "jobs", "whole command s", "entries/s", "peak MiB", "held MiB", "driver MiB"),
    *("pandas s", "pandas CPU s", "pandas MiB", "DuckDB s", "DuckDB CPU s", "DuckDB MiB"),
)


def compare_workers(size: float, part: float, directory: Path, console: Console) -> str:
    """A line about one worker and two, each of a core or, with ``part``, of that share of a processor."""
    load = os.getloadavg()[0]
    work = Path(tempfile.mkdtemp(prefix="pollux-pipeline-", dir=directory))
    try:
        large_ledger(work / "ledger.txt", round(size * MILLION))
        found = []
        for count in (1, 2):
            console.print(f"{size:g} M: reconciling with {count} worker(s)")
            words = f"{count}:{part:g}" if part else f"{count}"
            found.append(in_process("workers", words, work / "ledger.txt", work / "out"))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if found[0]["findings"] != found[1]["findings"]:
        raise SystemExit(f"one worker finds {found[0]['findings']}, two {found[1]['findings']}")
    one, two = (each["seconds"] for each in found)
    having = f"{part:g} of a processor" if part else "one core"
    return (
        f"`reconcile` of {size:g} M entries on a standalone cluster: {one:.1f} s with one worker of {having}, "
        f"{two:.1f} s with two: {one / two:.2f} times as fast (load before: {load:.1f})."
    )


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.1,1,5,10", help="millions, separated by commas")
    parser.add_argument("--workers", type=float, default=10, help="millions that one worker and two reconcile; 0: none")
    parser.add_argument("--share", type=float, default=0.0, help="of a processor for each worker, as root")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data is made")  # noqa: S108
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        answer = STEPS[given.step](given.master, *given.rest)
        answer["driver"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sys.stdout.write("\n" + json.dumps(answer) + "\n")
        sys.stdout.flush()
        os._exit(0)  # the session's threads need not be waited for
    console = Console()
    found: dict[float, list[str]] = {}
    for size, row in measure([float(size) for size in given.sizes.split(",")], given.master, given.directory, console):
        found[size] = row
        console.print(figures([row]))
        if given.write:
            write_report([found[each] for each in sorted(found)], given.master)
    workers = compare_workers(given.workers, given.share, given.directory, console) if given.workers else ""
    if workers and given.write:
        write_report([found[each] for each in sorted(found)], given.master, workers)
    console.print(f"pipeline, {given.master}, driver {MEMORY}")
    console.print(figures([found[size] for size in sorted(found)]))
    console.print(workers)


def figures(rows: list[list[str]]) -> Table:
    """A table for a terminal of 80 columns: a line for each figure, a column for each of up to four sizes."""
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for _ in rows:
        table.add_column(justify="right", no_wrap=True)
    for line in zip(HEADERS, *rows, strict=True):
        table.add_row(*line)
    return table


def write_report(rows: list[list[str]], master: str, more: str = "") -> None:
    """Put the table between the marks of docs/benchmarks.md, which the first run makes."""
    from benchmarks.report import REPORT, markdown, write_section

    if "<!-- pipeline: written by benchmarks -->" not in REPORT.read_text():
        marks = "<!-- pipeline: written by benchmarks -->\n<!-- end of pipeline -->\n"
        REPORT.write_text(REPORT.read_text().rstrip() + "\n\n" + HEADING + marks)
    lines = [
        f"Measured {datetime.now(UTC):%Y-%m-%d}, `{master}`, driver {MEMORY}.",
        f"Scan: columns {COLUMNS}. Reconcile: a ledger with that many entries; pandas: the same in one process.",
        "",
        markdown(HEADERS, rows),
        *(("", more) if more else ()),
    ]
    write_section("pipeline", "\n".join(lines))


if __name__ == "__main__":
    main()
