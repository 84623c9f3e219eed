"""Everything that a program started, by a word in its environment: children have it from their parents.

A process group holds neither what began a session of its own nor, below that, what has lost its parent; the environment
does. Who was started without it is found below one that has it. Only where there is /proc (Linux); elsewhere, nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
#: Seconds that processes get to end when they are asked to.
PATIENCE = 5.0


class Process(NamedTuple):
    """A process: its id is given to another one later, with another beginning."""

    pid: int
    began: str


def carrying(word: str, known: frozenset[Process] = frozenset()) -> frozenset[Process]:
    """Return the processes that have a word (`NAME=value`) in their environment or are `known`, and all below them."""
    found: set[Process] = set()
    below: dict[int, list[Process]] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] == "Z":
                continue
            process = Process(int(entry.name), fields[19])
            below.setdefault(int(fields[1]), []).append(process)
            if process in known or word.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(process)
    to_see = list(found)
    while to_see:
        to_see += (new := set(below.get(to_see.pop().pid, ())) - found)
        found |= new
    return frozenset(found)


def end(word: str, patience: float = PATIENCE) -> None:
    """Ask all of them to end, and kill who does not, or at once when this is interrupted."""
    known = found = carrying(word)
    try:
        _send(found, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while (found := carrying(word, known)) and time.monotonic() < deadline:
            known |= found
            time.sleep(0.05)
    finally:
        while found := carrying(word, known):  # until nobody is left who could have started another one
            known |= found
            _send(found, signal.SIGKILL)
            time.sleep(0.01)


def _send(processes: frozenset[Process], how: signal.Signals) -> None:
    for each in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, how)
