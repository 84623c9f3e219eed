"""Faults on virtual machines begin when nothing else of the suite keeps this machine busy.

Such machines are emulated where there is no KVM: what they take, and what others take from them, decides whether a
lease holds. Booting and deploying them may take long without harm, so that is done beside the scenarios on
containers. While these run, the suite holds a lock on a file, and the first drill on machines waits for it.
"""

from __future__ import annotations

import fcntl
import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: The environment variable that names the file; where there is none, nobody waits.
VARIABLE = "POLLUX_LAB_QUIET"


def noise(path: Path) -> IO[str]:
    """Drills on machines wait until what this returns is closed, or this program has ended."""
    file = path.open("w", encoding="ascii")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def wait() -> None:
    """Wait until it is quiet. A scenario's own limit ends it when that never comes."""
    if path := os.environ.get(VARIABLE):
        with open(path, "a", encoding="ascii") as file:  # noqa: PTH123
            fcntl.flock(file, fcntl.LOCK_EX)
