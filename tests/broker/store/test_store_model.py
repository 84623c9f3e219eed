"""A store under any sequence of steps, stops, kills and power cuts: hypothesis finds a short one that loses something.

What the promises (:mod:`.promises`) say is the model. The store is a real one with its threads, on a lossy disk.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from harness.lossy_disk import LossyDisk, materialise

from .lives import WEIGHTS, begin
from .power_cuts import explained, scratch, wrong_in
from .promises import Found, Promises

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from .lives import Life

SEEDS = st.integers(0, 1 << 32)


class Store(RuleBasedStateMachine):
    """One store over its lives."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.base = scratch()
        self.promises = Promises()
        self.bodies: dict[int, bytes] = {}
        self.disks = 0
        self.disk = self.another_disk({})
        self.life = self.begun()

    def run(self, coroutine: Coroutine[object, object, object]) -> None:
        self.runner.run(coroutine)

    def another_disk(self, left: dict[str, bytes | None]) -> LossyDisk:
        root = self.base / str(self.disks)
        self.disks += 1
        root.mkdir()
        materialise(left, root)
        self.noted = 0
        return LossyDisk(root)

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
        copy = self.base / "copy"
        shutil.copytree(self.disk.root, copy)
        assert not wrong_in(copy, self.promises, self.bodies, self.runner.get_loop())
        shutil.rmtree(copy)

    @rule(kind=st.sampled_from(sorted(WEIGHTS)), seed=SEEDS)
    def step(self, kind: str, seed: int) -> None:
        self.run(self.life.step(kind, random.Random(seed)))  # noqa: S311

    @rule()
    def wait(self) -> None:
        self.run(self.life.stable())

    @rule()
    def stop(self) -> None:
        self.run(self.life.end(cleanly=True))
        self.life = self.begun()

    @rule(calls=st.integers(0, 30))
    def kill(self, calls: int) -> None:
        """The process dies at some call; the system has what it wrote."""
        self.disk.cut_at = self.disk.calls + calls
        self.run(self.life.end(cleanly=False))
        self.disk.power_on()
        self.life = self.begun()

    @rule(calls=st.integers(0, 30), seed=SEEDS)
    def power_cut(self, calls: int, seed: int) -> None:
        """The machine dies at some call: what was not synced may be gone."""
        self.disk.cut_at = self.disk.calls + calls
        self.run(self.life.end(cleanly=False))
        for kind, value in self.notes():
            self.promises.note(kind, value)  # type: ignore[arg-type]
        self.disk = self.another_disk(self.disk.account.left(random.Random(seed)))  # noqa: S311
        self.life = self.begun()

    def teardown(self) -> None:
        self.run(self.life.end(cleanly=False))
        self.runner.close()
        shutil.rmtree(self.base)


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
