"""Ends a program that leads a session of its own, and everything in it. Without /proc only the leader is waited for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

#: Seconds to end after each signal.
END_LIMIT = 30.0


def end_session(process: subprocess.Popen[Any], limit: float = END_LIMIT) -> None:
    """Interrupt a process that leads a session and everything in it; kill what is left after ``limit`` seconds."""
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + limit
        while session_lives(process) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not session_lives(process):
            break


def session_lives(process: subprocess.Popen[Any]) -> bool:
    """Whether the process, or another one of its group, is left."""
    if process.poll() is None:
        return True
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if int(group) == process.pid and state != "Z":  # a zombie that nobody waits for does nothing any more
            return True
    return False
