"""A real writer is killed at random points, again and again on the same data: confirmed is recovered.

On a server it also stands still, for `POLLUX_STORE_STOPS=50` times, while another life takes over.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from harness.databases import DATABASES
from harness.store import contents, opened, settings_in
from pollux.formats.names import checkpoint_key
from pollux.store.files import DISK, names_in
from pollux.store.sql.files import SqlFiles

from .crash_writer import FILES

if TYPE_CHECKING:
    from asyncio import StreamReader
    from asyncio.subprocess import Process
    from collections.abc import Callable

    from pollux.store.port import Files
    from pollux.store.sql.database import Database

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("POLLUX_STORE_KILLS", "25"))
STOPS = int(os.environ.get("POLLUX_STORE_STOPS", "2"))


class Ledger:
    """All that the writer said it sent, and said was confirmed, over all its lives."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.confirmed: set[int] = set()
        self.acked: set[int] = set()
        self.ack_sent: set[int] = set()
        self.transactions: list[tuple[int, int]] = []
        self.binding: tuple[int, int] = (0, 0)

    def read(self, output: bytes) -> None:
        """Take in one life's lines; the last may be cut off."""
        for line in output.decode().split("\n")[:-1]:
            if not line:
                continue
            kind, *numbers = line.split()
            first, last = int(numbers[0]), int(numbers[-1])
            match kind:
                case "s":
                    self.sent.add(first)
                case "u":
                    self.sent.update(range(first, last + 1))
                    self.transactions.append((first, last))
                case "+":
                    self.confirmed.add(first)
                case "t":
                    self.confirmed.update(range(first, last + 1))
                case "a":
                    self.ack_sent.add(first)
                case "-":
                    self.acked.add(first)
                case "k":
                    self.binding = (first, last)

    def check(self, found: list[int]) -> None:
        """Compare with what was recovered."""
        recovered = set(found)
        assert len(recovered) == len(found), "a message is in the queue twice"
        assert not self.confirmed - self.ack_sent - recovered, "confirmed messages are lost"
        assert not recovered & self.acked, "acknowledged messages came back"
        assert not recovered - self.sent, "messages nobody sent"
        for first, last in self.transactions:
            whole = set(range(first, last + 1)) - self.ack_sent
            assert whole <= recovered or not whole & recovered, "half a transaction"


def has_checkpoint(directory: Path, files: Files, epoch: int) -> bool:
    """Whether a life after this epoch wrote one: the checkpointer of a killed life may end when it counts no more."""
    keys = [checkpoint_key(name) for name in names_in(files, directory / "journal")]
    return any(key is not None and key[0] > epoch for key in keys)


async def started(directory: Path, files: Files, seed: int) -> tuple[Process, StreamReader, bytes]:
    """Start the writer; its output, of which the first line was read, and says that recovery is over."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.broker.store.crash_writer",
        str(directory),
        str(seed),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, FILES: files.handle().hex()},
    )
    assert process.stdout is not None
    return process, process.stdout, await asyncio.wait_for(process.stdout.readline(), 60)


async def life(directory: Path, files: Files, seed: int, seconds: float, *, checkpoint_after: int | None) -> bytes:
    """Run the writer and kill it after a while; not before there is a checkpoint of an epoch after the one given."""
    process, output, first = await started(directory, files, seed)
    reading = asyncio.ensure_future(output.read())
    try:
        await asyncio.wait([reading], timeout=seconds)
        deadline = time.monotonic() + 60
        while checkpoint_after is not None and not has_checkpoint(directory, files, checkpoint_after):
            assert time.monotonic() < deadline, "a minute of writing made no checkpoint"
            await asyncio.wait([reading], timeout=0.05)
        assert process.returncode is None, "the writer ended by itself"
    finally:
        if process.returncode is None:
            process.kill()
    said = first + await reading
    await process.wait()
    return said


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "kills"), [("disk", KILLS), ("sqlite", KILLS // 8), ("postgresql", KILLS // 8)])
async def test_kill_the_writer_at_random_points(
    kind: str, kills: int, databases: Callable[..., Database], tmp_path: Path
) -> None:
    database = databases(kind) if kind in DATABASES else None
    files = SqlFiles(database, tmp_path) if database is not None else DISK
    draw = random.Random(20_261_120)  # noqa: S311  (a reproducible test, no secret)
    ledger = Ledger()
    checkpoints = epoch = 0
    for number in range(kills):
        wanted = epoch if number >= kills // 2 else None
        ledger.read(await life(tmp_path, files, number, draw.uniform(0.0, 0.5), checkpoint_after=wanted))
        if database is not None:
            database.begin_life()
        async with opened(settings_in(tmp_path, journal_file_size=64 << 10), crash=True, files=files) as one:
            found = contents(one.recovered).get(1, [])
            ledger.check(found)
            assert {damage.kind for damage in one.recovered.damage} <= {"torn-tail"}
            checkpoints += one.recovered.checkpoint is not None
            epoch = one.storage.epoch
            if ledger.binding[1]:
                assert ("k", "key") in one.recovered.bindings
            bodies = await one.storage.read_messages(found)
            assert [message.id if message else None for message in bodies] == found
    assert checkpoints >= kills - kills // 2
    assert len(ledger.confirmed) > (100 if database is None else 10) * kills


@pytest.mark.processes
@pytest.mark.timeout(120 + 30 * STOPS)
async def test_a_writer_that_stood_still_has_written_nothing_since_the_takeover(
    databases: Callable[..., Database], tmp_path: Path
) -> None:
    """It stands still between the statements of a batch and its commit, and is told when it goes on."""
    database = databases("postgresql")
    files = SqlFiles(database, tmp_path)
    ledger = Ledger()
    for number in range(STOPS):
        process, output, said = await started(tmp_path, files, number)
        while said.count(b"+") < 20:
            said += await asyncio.wait_for(output.readline(), 60)
        reading = asyncio.ensure_future(output.read())
        await stopped_within_a_transaction(process, database)
        await asyncio.to_thread(database.begin_life)  # the server ends that transaction
        epoch = database.epoch
        async with opened(settings_in(tmp_path, journal_file_size=64 << 10), crash=True, files=files) as one:
            assert {damage.kind for damage in one.recovered.damage} <= {"torn-tail"}
            before = written_before(one.storage.epoch, database)
            process.send_signal(signal.SIGCONT)
            ledger.read(said + await reading)
            assert process.stderr is not None
            errors = (await process.stderr.read()).decode()
            assert await process.wait() == 1
            assert re.search(rf"fenced: epoch \d+ is over, the store is at epoch {epoch}", errors), errors
            assert written_before(one.storage.epoch, database) == before
            ledger.check(contents(one.recovered).get(1, []))
    assert len(ledger.confirmed) >= 20 * STOPS


async def stopped_within_a_transaction(process: Process, database: Database) -> None:
    """Have the writer stand still where the server waits for it to go on."""
    waits = text("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE :its AND state LIKE 'idle in %'")
    deadline = time.monotonic() + 60
    while True:
        process.send_signal(signal.SIGSTOP)
        its = {"its": f"pollux {process.pid} %"}
        if await asyncio.to_thread(database.look, lambda one, its=its: one.execute(waits, its).scalar_one()):
            return
        process.send_signal(signal.SIGCONT)
        assert time.monotonic() < deadline, "it never stood still within a transaction"


def written_before(epoch: int, database: Database) -> set[tuple[str, int, str]]:
    """Return (file, offset, digest) of each piece that the journal of lives before an epoch has."""
    pieces = text(
        "SELECT name, start, md5(data) FROM messages JOIN node_manager_store_files AS files ON files.id = file"
        " WHERE name LIKE 'pollux-%' AND CAST(split_part(name, '-', 2) AS INTEGER) < :epoch"
    )
    return {tuple(row) for row in database.look(lambda one: one.execute(pieces, {"epoch": epoch}).all())}
