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
from harness.store import message_of, opened, settings_in, stable
from pollux.store.files import make_directories, replace_file
from pollux.store.sql.files import SqlFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def below(files: Files, directory: Path) -> Iterator[Path]:
    """All files in a directory and those below it."""
    for entry in files.entries(directory):
        path = directory / entry.name
        yield from below(files, path) if entry.is_directory else [path]


async def test_what_must_not_outlive_its_process_is_deleted_where_it_is() -> None:
    """Breaks when files of a store without persistence are deleted past the port, at its start or at its end.

    What a killed process left is there at the start; what is not ours stays.
    """
    files, settings = MemoryFiles(NOWHERE), settings_in(NOWHERE, persistence_enabled=False, page_size_bytes=2000)
    large, pages = (NOWHERE / name / "volatile" for name in ("large", "paging"))
    ours = [large / "17.msg", pages / "18" / "address.txt", pages / "18" / "0000000001.page"]
    foreign = [large / "readme.txt", pages / "18" / "notes"]
    for path in ours + foreign:
        make_directories(files, path.parent)
        replace_file(files, path, b"data")
    async with opened(settings, files=files) as one:
        assert sorted(below(files, NOWHERE)) == foreign
        writer = one.storage.large.create()
        writer.write(b"a body")
        writer.finish()
        paging = one.storage.pages.address("a")
        for _ in range(50):
            paging.append(message_of(one.storage, b"p" * 300, address="a", durable=False), [1])
        await stable(one.storage)
        written = {path.suffix for path in below(files, NOWHERE)} - {path.suffix for path in foreign}
        assert written == {".msg", ".page"}
    assert sorted(below(files, NOWHERE)) == foreign
