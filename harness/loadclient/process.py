"""Reads the use of a process and its descendants from /proc: CPU seconds and resident memory."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return the process and all processes below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(after_name[1]), []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += parents.get(member, [])
    return found


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process tree, children that ended and were waited for included."""
    total = 0
    for member in descendants(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process tree, shared pages counted once for each process."""
    total = 0
    for member in descendants(pid):
        try:
            lines = Path(f"/proc/{member}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    return total
