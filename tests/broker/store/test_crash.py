"""A real writer is killed at random points, again and again on the same data: confirmed is recovered."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.databases import DATABASES
from harness.store import contents, opened, settings_in
from pollux.formats.names import checkpoint_key
from pollux.store.files import DISK, names_in
from pollux.store.sql.files import SqlFiles

from .crash_writer import FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.port import Files
    from pollux.store.sql.database import Database

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("POLLUX_STORE_KILLS", "25"))


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


async def life(directory: Path, files: Files, seed: int, seconds: float, *, checkpoint_after: int | None) -> bytes:
    """Run the writer and kill it after a while; not before there is a checkpoint of an epoch after the one given."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.broker.store.crash_writer",
        str(directory),
        str(seed),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, FILES: files.handle().hex()},
    )
    assert process.stdout is not None
    # The first line says that recovery is over: kill from then on.
    first = await asyncio.wait_for(process.stdout.readline(), 60)
    reading = asyncio.ensure_future(process.stdout.read())
    await asyncio.wait([reading], timeout=seconds)
    deadline = time.monotonic() + 60
    while checkpoint_after is not None and not has_checkpoint(directory, files, checkpoint_after):
        assert time.monotonic() < deadline, "a minute of writing made no checkpoint"
        await asyncio.wait([reading], timeout=0.05)
    assert process.returncode is None, "the writer ended by itself"
    process.kill()
    output = first + await reading
    await process.wait()
    return output


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
