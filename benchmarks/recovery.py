"""How fast a killed broker's journal is read back, with and without checkpoints. Prints a table.

    .venv/bin/python -m benchmarks.recovery [--messages 1000000] [--size 1024] [--directory /var/tmp] [--write]

A writer process fills a journal (durable messages in one queue) and is killed with SIGKILL; then a fresh process
opens and recovers it. "start to first confirm" goes on until a new message is on stable storage and includes
the interpreter's start and imports. Nothing here is asserted; tests/broker/store checks that it is right.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from pollux.message import Encoding, Message
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage

NODE = b"benchmark-node-1"
COLUMNS = (
    *("checkpoints", "messages left", "acked per message", "journal MiB", "written/s", "records replayed"),
    *("open + recover s", "CPU s", "records/s", "process start to first confirm s"),
)
#: Messages appended between two waits for stability.
_WINDOW = 512


def settings_in(directory: Path, *, checkpoints: bool) -> StoreSettings:
    """The shipped defaults; without checkpoints everything has to be replayed."""
    return StoreSettings(
        directory / "journal",
        directory / "bindings",
        directory / "large",
        directory / "paging",
        node_id=NODE,
        journal_compact_min_files=10 if checkpoints else 0,
        max_disk_usage=-1,
    )


async def stable(storage: Storage) -> None:
    """Wait until everything appended is on stable storage."""
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    storage.when_stable(done.set_result)
    if error := await done:
        raise SystemExit(str(error))


async def open_store(directory: Path, *, checkpoints: bool) -> tuple[Storage, int, int]:
    """Open and recover; (storage, messages, records replayed)."""
    settings = settings_in(directory, checkpoints=checkpoints)
    storage = await Storage.open(settings, loop=asyncio.get_running_loop(), on_failure=lambda e: sys.exit(str(e)))
    recovered = await storage.recover()
    return storage, recovered.message_count, recovered.replayed_records


async def fill(directory: Path, messages: int, size: int, acked: int, *, checkpoints: bool) -> None:
    """Write ``messages`` that stay, and acknowledge ``acked`` more for each of them; then wait to be killed."""
    storage, _, _ = await open_store(directory, checkpoints=checkpoints)
    data = os.urandom(size)
    queue = [storage.next_id()]
    began = time.perf_counter()
    for start in range(0, messages, _WINDOW):
        for _ in range(min(_WINDOW, messages - start)):
            message = Message(Encoding.AMQP, "benchmark", data)
            message.id = storage.next_id()
            storage.append_message(message, queue)
            gone = []
            for _ in range(acked):
                other = Message(Encoding.AMQP, "benchmark", data)
                other.id = storage.next_id()
                storage.append_message(other, queue)
                gone.append(other.id)
            storage.append_acks(queue[0], gone)
        await stable(storage)
    seconds = time.perf_counter() - began
    # A checkpoint under way may end; one that is not due must not be waited for.
    maintenance = storage._maintenance  # noqa: SLF001  (what the table says must not depend on when we kill)
    if checkpoints and maintenance is not None and maintenance._task is not None:  # noqa: SLF001
        await asyncio.wait([maintenance._task])  # noqa: SLF001
    print(f"{seconds:.3f}", flush=True)
    await asyncio.sleep(3600)


async def recover(directory: Path, *, checkpoints: bool) -> None:
    """Open, recover, confirm one message; print the figures and die without a clean stop."""
    began, busy = time.perf_counter(), time.process_time()
    storage, count, replayed = await open_store(directory, checkpoints=checkpoints)
    recovered = time.perf_counter() - began
    used = time.process_time() - busy
    message = Message(Encoding.AMQP, "benchmark", b"first")
    message.id = storage.next_id()
    storage.append_message(message, [1])
    await stable(storage)
    print(f"{recovered:.4f} {used:.4f} {count} {replayed}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def scenario(directory: Path, messages: int, size: int, acked: int, *, checkpoints: bool) -> list[str]:
    """Fill, kill, recover in processes of their own; a row of the table."""
    shutil.rmtree(directory, ignore_errors=True)
    flags = ["--checkpoints"] if checkpoints else []
    arguments = [sys.executable, __file__, "--directory", str(directory), *flags]
    filler = subprocess.Popen(
        [*arguments, "--fill", "--messages", str(messages), "--size", str(size), "--acked", str(acked)],
        stdout=subprocess.PIPE,
        text=True,
    )
    if filler.stdout is None:
        raise SystemExit("no pipe")
    seconds = float(filler.stdout.readline())
    filler.kill()
    filler.wait()
    journal = sum(path.stat().st_size for path in (directory / "journal").iterdir())
    began = time.perf_counter()
    with subprocess.Popen([*arguments, "--recover"], stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise SystemExit("no pipe")
        line = process.stdout.readline()
        confirmed = time.perf_counter() - began
    recovered, used, count, replayed = line.split()
    rate = int(replayed) / float(recovered)
    return [
        "yes" if checkpoints else "no",
        f"{int(count):,}",
        f"{acked}",
        f"{journal / (1 << 20):,.0f}",
        f"{messages * (1 + acked) / seconds:,.0f}",
        f"{int(replayed):,}",
        f"{float(recovered):.3f}",
        f"{float(used):.3f}",
        f"{rate:,.0f}" if int(replayed) > 10_000 else "-",
        f"{confirmed:.3f}",
    ]


def main() -> None:
    """Parse arguments; run the scenarios, or one process of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--acked", type=int, default=0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--recover", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    if options.fill:
        uvloop.run(
            fill(options.directory, options.messages, options.size, options.acked, checkpoints=options.checkpoints)
        )
    elif options.recover:
        uvloop.run(recover(options.directory, checkpoints=options.checkpoints))
    else:
        table = Table(title=f"Recovery after kill -9, messages of {options.size} bytes")
        for title in COLUMNS:
            table.add_column(title, justify="right")
        load = os.getloadavg()[0]
        rows = []
        base = options.directory or Path(tempfile.gettempdir())
        with tempfile.TemporaryDirectory(dir=base) as directory:
            for checkpoints, messages, acked in (
                (False, options.messages, 0),
                (True, options.messages, 0),
                (True, options.messages // 10, 9),
            ):
                # A directory of its own for each: what a killed broker left running must not meet the next one.
                store = Path(directory) / f"store-{acked}-{checkpoints:d}"
                row = scenario(store, messages, options.size, acked, checkpoints=checkpoints)
                table.add_row(*row)
                rows.append(row)
        Console(width=150).print(table)
        if options.write:
            # Not at the top: the processes that are measured would import it too.
            from benchmarks.report import markdown, write_section

            head = (
                f"Measured {datetime.now(UTC):%Y-%m-%d}, messages of {options.size} B, load average before: "
                f"{load:.1f}. Goal: 400,000 messages/s of 1 KiB.\n\n"
            )
            write_section("recovery", head + markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
