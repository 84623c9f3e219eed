"""A store goes through its lives on any implementation of the port: on files that the system knows nothing of, here."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.store.lives import begin
from broker.store.power_cuts import explained
from broker.store.promises import Found, Promises
from harness.databases import DATABASES
from harness.lossy_disk import LossyDisk
from harness.memory_files import MemoryFiles
from pollux.store.sql.files import SqlFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.port import Files
    from pollux.store.sql.database import Database

#: Whatever goes past the port finds no such place.
NOWHERE = Path("/nowhere/at/all")
#: How each life ends: by a stop with its checkpoint, or as a killed process does.
CLEANLY = (False, True, False, False, True)


@pytest.mark.parametrize("kind", ["memory", *DATABASES])
def test_a_store_lives_where_the_system_has_no_files(kind: str, databases: Callable[..., Database]) -> None:
    if kind == "memory":
        asyncio.run(lives(MemoryFiles(NOWHERE), 200))
    else:
        database = databases(kind)
        database.begin_life()
        asyncio.run(lives(SqlFiles(database, NOWHERE), 60))
    assert not NOWHERE.exists()


async def lives(files: Files, steps: int) -> None:
    draw = random.Random(5)  # noqa: S311  (a reproducible test, no secret)
    disk, promises = LossyDisk(NOWHERE, files), Promises()
    bodies: dict[int, bytes] = {}
    noted = checkpoints = 0
    for cleanly in CLEANLY:
        life = await begin(disk, draw, bodies)
        assert life is not None
        events, noted = disk.events[noted:], len(disk.events)
        for kind, value in (event.value for event in events if event.kind == "note"):
            if isinstance(value, Found):
                assert not promises.wrong(value)
            promises.note(kind, value)
        assert not [damage for damage in life.damage if not explained(damage)]
        await life.run(steps)
        await life.end(cleanly=cleanly)
        checkpoints += any(".checkpoint" in entry.name for entry in disk.entries(NOWHERE / "journal"))
    assert bodies
    assert checkpoints > 1


@pytest.mark.parametrize("cleanly", [False, True])
@pytest.mark.parametrize("kind", ["memory", *DATABASES])
def test_a_prepared_transaction_waits_for_its_outcome_in_whatever_has_the_store(
    kind: str, cleanly: bool, databases: Callable[..., Database]
) -> None:
    """Through a kill, and a stop; of two of them one is decided by a later life, and the other one still waits."""
    if kind == "memory":
        asyncio.run(prepared(MemoryFiles(NOWHERE), cleanly=cleanly))
    else:
        database = databases(kind)
        database.begin_life()
        asyncio.run(prepared(SqlFiles(database, NOWHERE), cleanly=cleanly))


async def prepared(files: Files, *, cleanly: bool) -> None:
    draw, disk = random.Random(7), LossyDisk(NOWHERE, files)  # noqa: S311  (a reproducible test, no secret)
    waiting: set[bytes] = set()
    for steps in (("prepare", "prepare"), ("decide",), ()):
        life = await begin(disk, draw, {})
        assert life is not None
        assert set(life.prepared) == waiting
        for step in steps:
            assert await life.step(step)
            await life.stable()
        waiting = set(life.prepared)
        await life.end(cleanly=cleanly)
    assert len(waiting) == 1
