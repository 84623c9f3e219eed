"""The power is cut anywhere in a store's lives, a hundred thousand times in CI: what was confirmed is there.

POLLUX_CRASH_POINTS: how many in all; POLLUX_CRASH_SEED: another part of what could happen. A failure is kept in a file
that repeats it (docs/testing.md, "The lossy disk").
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .power_cuts import chain, cut, kept

POINTS = int(os.environ.get("POLLUX_CRASH_POINTS", "90000"))
SEED = int(os.environ.get("POLLUX_CRASH_SEED", "20261125"))
BATCHES = 18
KEPT = Path(__file__).parents[3] / ".pollux" / "crash"
LIVES = 8


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_power_cut_anywhere_in_a_stores_lives_loses_nothing_that_was_confirmed(batch: int) -> None:
    seed = SEED + batch
    for number, recording in enumerate(chain(seed, LIVES)):
        for failure in cut(recording, seed + number, POINTS // BATCHES // LIVES):
            pytest.fail(kept(recording, failure, KEPT / f"power-cut-{seed}-{number}.pickle"))
