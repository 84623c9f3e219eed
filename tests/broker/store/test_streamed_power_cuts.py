"""A store that is in use is copied to a replica, and followed by it; the replica's power is cut anywhere.

Where its copy says that it is complete, it is a store that holds everything the live has confirmed.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

from harness.lossy_disk import LossyDisk
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.store.mirror import Link, Mirror, MirroredFiles, Replica
from pollux.store.mirror.first_copy import copy_store, inventory_of
from pollux.store.mirror.operations import ROOTS, decode

from .lives import begin
from .power_cuts import InMemory, Recording, Recovered, cut, recover
from .promises import Promises

if TYPE_CHECKING:
    from pathlib import Path

POINTS = int(os.environ.get("POLLUX_CRASH_POINTS", "90000")) // 120
STATE = LocalState("ab" * 16, 1, 1, complete=False, replica=True)


def roots_in(directory: Path) -> dict[str, Path]:
    return {name: directory / name for name in ROOTS}


class Carrier(threading.Thread):
    """Takes what the live sends to the replica, and back what it confirms."""

    def __init__(self, mirror: Mirror, disk: LossyDisk) -> None:
        super().__init__(daemon=True)
        self.waiting = threading.Event()
        self.link = Link("replica", self.waiting.set)
        self._mirror = mirror
        self._ended = False
        journal = disk.root / "journal"

        def marked(_: bytes) -> None:
            local.write(journal, LocalState(STATE.node_id, 2, 1, complete=True, replica=True), disk)

        self._replica = Replica(roots_in(disk.root), marked, disk)
        local.write(journal, STATE, disk)

    def run(self) -> None:
        while not self._ended:
            self.waiting.wait(0.05)
            self.waiting.clear()
            while parts := self.link.take(1 << 14):
                self._mirror.confirm(self.link, self._replica.apply(decode(b"".join(parts))))

    def end(self) -> None:
        self._ended = True
        self.waiting.set()
        self.join(10)
        self._replica.close()


async def streamed(directory: Path, seed: int) -> Recording:
    """Record what a replica's disk is told while a live is in use, copied and followed."""
    draw = random.Random(seed)  # noqa: S311  (a reproducible test, no secret)
    primary, root = directory / "primary", directory / "replica"
    primary.mkdir()
    root.mkdir()
    disk, mirror = LossyDisk(root), Mirror(roots_in(primary), on_lost=lambda *_: True)
    carrier = Carrier(mirror, disk)
    bodies: dict[int, bytes] = {}
    life = await begin(disk, draw, bodies, elsewhere=(primary, MirroredFiles(mirror, InMemory())))
    assert life is not None
    await life.run(10)

    def copy() -> None:
        mirror.attach(carrier.link)
        copy_store(mirror, carrier.link, inventory_of(roots_in(root)))
        assert mirror.admit(carrier.link, b"")

    carrier.start()
    try:
        await asyncio.gather(asyncio.to_thread(copy), life.run(15))
        await life.run(30)
        await life.end(cleanly=draw.random() < 0.5)
    finally:
        carrier.end()
    return Recording(list(disk.events), disk.adopted, Promises(), bodies)


def recover_where_complete(directory: Path, bodies: dict[int, bytes], loop: asyncio.AbstractEventLoop) -> Recovered:
    """Return what ``recover`` finds in a copy that may serve; of another one nothing is asked."""
    journal = directory / "journal"
    state = local.read(journal) if journal.is_dir() else None
    return recover(directory, bodies, loop) if state is not None and state.complete else Recovered(None, [])


@pytest.mark.parametrize("seed", range(4))
def test_a_complete_copy_holds_what_the_live_confirmed(tmp_path: Path, seed: int) -> None:
    recording = asyncio.run(streamed(tmp_path, seed))
    for failure in cut(recording, seed, POINTS, recover_where_complete):
        pytest.fail(f"after event {failure.position} of {len(recording.events)}: {failure.words[:5]}")
