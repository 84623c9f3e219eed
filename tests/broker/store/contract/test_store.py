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
