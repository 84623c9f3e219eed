"""Programs that the lab runs: with a deadline always, and only those it started are ever stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: No command takes longer than this unless something hangs (seconds).
COMMAND_TIMEOUT = 120.0
_TOLD_LINES = 20


def run(
    command: Sequence[str | Path],
    *,
    timeout: float = COMMAND_TIMEOUT,
    check: bool = True,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it said; raises LabError with its last lines when it fails or takes too long."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{' '.join(words[:8])}: no end after {timeout:g} s") from error
    if check and done.returncode != 0:
        told = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_TOLD_LINES:])
        raise LabError(f"{' '.join(words[:8])} ended with {done.returncode}:\n{told}")
    return done


def read_pid(path: Path) -> int | None:
    """The process id in a file, None when there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def is_ours(pid: int, argument: str) -> bool:
    """Whether the process exists and has this argument: ids are given to other processes, command lines are not."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return argument.encode() in words


def processes_with(part: str) -> list[tuple[int, str]]:
    """Processes with an argument that holds a path of ours: (process id, argument); what a crash left, too."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = next((word.decode(errors="replace") for word in words if part.encode() in word), None)
        if mine is not None and is_ours(int(entry.name), mine) and int(entry.name) != os.getpid():
            found.append((int(entry.name), mine))
    return found


def stop(pid: int, argument: str, *, patience: float = 20.0) -> None:
    """End a process of ours: asked first, killed when it does not listen."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        if not is_ours(pid, argument):
            return
        os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while is_ours(pid, argument) and time.monotonic() < deadline:
            time.sleep(0.05)
    if is_ours(pid, argument):
        raise LabError(f"process {pid} ({argument}) does not end")
