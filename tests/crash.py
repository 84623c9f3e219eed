"""Cut the power of stores for as long as one likes: `make crash HOURS=8`. See docs/testing.md, "The lossy disk".

    .venv/bin/python tests/crash.py [--hours H] [--seed N] [--keep DIRECTORY]
    .venv/bin/python tests/crash.py --again FILE

Each seed is a chain of lives on a lossy disk; how many power cuts it had is printed every minute. A failure is kept in
a file, which `--again` judges once more. Exit status: 0 nothing was lost, 1 something was.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import secrets
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
# As pytest has them: a failure of a test is repeated here.
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "broker")]

from store.power_cuts import again, chain, cut, kept  # type: ignore[import-not-found]  # noqa: E402

LIVES = 8
POINTS = 600
_EVERY_SECONDS = 60.0


def run(hours: float, first: int, keep: Path) -> int:
    """Go through seeds until the time is over; the number of failures."""
    began = said = time.monotonic()
    points = failures = 0
    for seed in itertools.count(first):
        for number, recording in enumerate(chain(seed, LIVES)):
            for failure in cut(recording, seed + number, POINTS):
                failures += 1
                print(f"seed {seed}: {kept(recording, failure, keep / f'power-cut-{seed}-{number}.pickle')}")
                break
            points += POINTS
            now = time.monotonic()
            if now - said > _EVERY_SECONDS:
                said = now
                print(
                    f"{(now - began) / 3600:.2f} h: seed {seed}, {points} power cuts, {failures} failures", flush=True
                )
            if now - began > hours * 3600:
                print(f"{points} power cuts from seed {first} to {seed}, {failures} failures")
                return failures
    return failures


def main() -> int:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 40))
    parser.add_argument("--keep", type=Path, default=Path(".pollux/crash"))
    parser.add_argument("--again", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.again is not None:
        words = again(options.again)
        print("\n".join(words) or "nothing is wrong")
        return bool(words)
    print(f"seed {options.seed}", flush=True)
    return bool(run(options.hours, options.seed, options.keep))


if __name__ == "__main__":
    sys.exit(main())
