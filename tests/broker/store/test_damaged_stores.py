"""Random damage to stores that were really written: every start goes through or says why not, and nothing is lost
without a word. `POLLUX_DAMAGE_CASES` and `POLLUX_DAMAGE_SEED` ask for more, or for others."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from harness import in_memory

from .damaged_stores import Store, make_store, run_case

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CASES = int(os.environ.get("POLLUX_DAMAGE_CASES", "5000"))
SEED = int(os.environ.get("POLLUX_DAMAGE_SEED", "1"))
#: Stores by the lives they had: c ended by a crash, s by a stop.
STORES = ("c", "s", "cc", "sc", "cs", "scc")
_PARTS = 5


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A directory that needs no disk, where there is one: nothing here is about what a power cut leaves."""
    place = in_memory.directory("pollux-damage-")
    yield place
    shutil.rmtree(place)


async def made(memory: Path, part: int) -> list[Store]:
    draw = random.Random(f"{SEED} {part}")  # noqa: S311  (reproducible)
    return [await make_store(lives, memory / f"{part}-{lives}", lives, draw) for lives in STORES]


@pytest.mark.parametrize("part", range(_PARTS))
async def test_no_damage_crashes_a_start_or_loses_without_a_word(memory: Path, part: int) -> None:
    """Each case: a flipped bit, a cut, a deleted file, a name nobody can read, in any file of a store."""
    stores = await made(memory, part)
    failed: list[str] = []
    for number in range(CASES // _PARTS):
        draw = random.Random(f"{SEED} {part} {number}")  # noqa: S311
        store = stores[number % len(stores)]
        try:
            done, wrong, _ = await run_case(store, memory / "case", draw)
        except Exception as error:
            done, wrong = f"{store.name}", [f"the start crashed: {error!r}"]
        failed += [f"case {part}.{number}: {done}: {words}" for words in wrong]
    assert not failed, f"{len(failed)} of {CASES // _PARTS}:\n" + "\n".join(failed[:40])
