"""A store under any sequence of steps, stops, kills and power cuts: hypothesis finds a short one that loses something.

What the promises (:mod:`.promises`) say is the model. The store is a real one with its threads, on a lossy disk or in a
database. What a server of that keeps when its machine dies is the server's affair: there only the broker is killed.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from harness import in_memory
from harness.databases import DATABASES
from harness.disk_account import materialise
from harness.lossy_disk import LossyDisk
from pollux.store.files import DISK
from pollux.store.sql.database import Database
from pollux.store.sql.files import SqlFiles
from pollux.store.store_copy import Store as Stored
from pollux.store.store_copy import copy

from .lives import WEIGHTS, begin, settings_of
from .power_cuts import explained, recover
from .promises import Found, Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from pollux.store.port import Files
    from pollux.store.sql.database import Target

    from .lives import Life

SEEDS = st.integers(0, 1 << 32)


class Store(RuleBasedStateMachine):
    """One store over its lives. How it is kept is said by the classes below."""

    disk: LossyDisk

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.base = in_memory.directory("pollux-model-")
        self.promises = Promises()
        self.bodies: dict[int, bytes] = {}
        self.noted = 0
        self.make()
        self.life = self.begun()

    def make(self) -> None:
        """Make the first, empty disk."""
        raise NotImplementedError

    def copy(self, target: Path) -> None:
        """Put what would be recovered now into a directory that is not there yet."""
        raise NotImplementedError

    def restart(self) -> None:
        """Have what the next process of the broker finds."""

    def run(self, coroutine: Coroutine[object, object, object]) -> None:
        self.runner.run(coroutine)

    def begun(self) -> Life:
        """The next life; what it finds is judged."""
        self.judge()
        life = self.runner.run(begin(self.disk, random.Random(0), self.bodies))  # noqa: S311
        assert life is not None
        (found,) = (one for kind, one in self.notes() if kind == "recovered")
        assert isinstance(found, Found)
        assert not self.promises.wrong(found)
        assert not [damage for damage in life.damage if not explained(damage)]
        self.promises.note("recovered", found)
        return life

    def notes(self) -> list[tuple[str, object]]:
        """Return what was noted since the last time."""
        events, self.noted = self.disk.events[self.noted :], len(self.disk.events)
        return [event.value for event in events if event.kind == "note"]

    def judge(self) -> None:
        """Take in what was promised; look at what a copy of the disk holds, bodies included."""
        for kind, value in self.notes():
            self.promises.note(kind, value)  # type: ignore[arg-type]
        rest = self.base / "copy"
        self.copy(rest)
        assert not recover(rest, self.bodies, self.runner.get_loop()).wrong(self.promises)
        shutil.rmtree(rest)

    @rule(kind=st.sampled_from(sorted(WEIGHTS)), seed=SEEDS)
    def step(self, kind: str, seed: int) -> None:
        self.run(self.life.step(kind, random.Random(seed)))  # noqa: S311

    @rule()
    def wait(self) -> None:
        self.run(self.life.stable())

    @rule()
    def stop(self) -> None:
        self.run(self.life.end(cleanly=True))
        self.restart()
        self.life = self.begun()

    @rule(calls=st.integers(0, 30))
    def kill(self, calls: int) -> None:
        """The process dies at some call; the system, or the database, has what it wrote."""
        self.disk.cut_at = self.disk.calls + calls
        self.run(self.life.end(cleanly=False))
        self.restart()
        self.life = self.begun()

    def teardown(self) -> None:
        self.run(self.life.end(cleanly=False))
        self.runner.close()
        shutil.rmtree(self.base)


class OnDisk(Store):
    """A store on a disk that keeps what was synced."""

    def make(self) -> None:
        self.disks = 0
        self.disk = self.another_disk({})

    def another_disk(self, left: dict[str, bytes | None]) -> LossyDisk:
        root = self.base / str(self.disks)
        self.disks += 1
        root.mkdir()
        materialise(left, root)
        self.noted = 0
        return LossyDisk(root)

    def copy(self, target: Path) -> None:
        shutil.copytree(self.disk.root, target)

    def restart(self) -> None:
        self.disk.power_on()

    @rule(calls=st.integers(0, 30), seed=SEEDS)
    def power_cut(self, calls: int, seed: int) -> None:
        """The machine dies at some call: what was not synced may be gone."""
        self.disk.cut_at = self.disk.calls + calls
        self.run(self.life.end(cleanly=False))
        for kind, value in self.notes():
            self.promises.note(kind, value)  # type: ignore[arg-type]
        self.disk = self.another_disk(self.disk.account.left(random.Random(seed)))  # noqa: S311
        self.life = self.begun()


class InDatabase(Store):
    """A store in a database. Each life has connections of its own, and what it had not committed is gone with it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.database: Database | None = None
        super().__init__()

    def make(self) -> None:
        self.restart()

    def restart(self) -> None:
        if self.database is not None:
            self.judge()  # its notes are on the disk that is given up
            self.database.close()
        self.database = Database(self.target)
        self.database.prepare()
        self.database.begin_life()
        self.disk, self.noted = LossyDisk(self.base, SqlFiles(self.database, self.base), syncs=True), 0

    def copy(self, target: Path) -> None:
        """Copy it as ``pollux store copy`` does, through connections that have nothing but what is committed."""
        target.mkdir()
        database = Database(self.target)
        try:
            files = SqlFiles(database, self.base)
            if not [entry for entry in files.entries(self.base) if entry.name == "journal"]:
                return  # nobody has lived here yet
            copy(stored(files, self.base), stored(DISK, target), lambda _: None)
        finally:
            database.close()

    def teardown(self) -> None:
        super().teardown()
        if self.database is not None:
            self.database.close()


def stored(files: Files, root: Path) -> Stored:
    settings = settings_of(root)
    directories = (settings.journal_directory, settings.bindings_directory)
    return Stored(files, (*directories, settings.large_messages_directory, settings.paging_directory))


TestStore = OnDisk.TestCase
TestStore.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("kind", DATABASES)
def test_a_store_in_a_database(kind: str, targets: Callable[[str], Target]) -> None:
    run_state_machine_as_test(
        lambda: InDatabase(targets(kind)),  # type: ignore[arg-type]  # it is called, whatever it is
        settings=settings(
            max_examples=5, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
