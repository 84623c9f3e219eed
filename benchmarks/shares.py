"""A share of a processor for each of several processes, as if each had a machine of its own that is so much slower.

On a machine of two processors a cluster and its clients share these, and a rate says more of that than of the cluster.
Where each node has its share and there is more than all of them take, the rate is that of the busiest node, as between
machines. Needs root and Linux's control groups, of either version.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.failover import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS = Path("/sys/fs/cgroup")
#: Microseconds in which a share is used up or not: short, so that nobody waits for long when it is.
_PERIOD = 10_000


class NoSharesError(RuntimeError):
    """The machine gives no shares."""


@contextmanager
def share(processors: float, number: int) -> Iterator[Path]:
    """Give a group that has so much of a processor; :func:`put` has processes run in it, which must end before it does.

    Raises NoSharesError.
    """
    quota = round(processors * _PERIOD)
    unified = (_GROUPS / "cgroup.controllers").exists()
    group = (_GROUPS if unified else _GROUPS / "cpu") / f"pollux-{os.getpid()}-{number}"
    limits = {"cpu.max": f"{quota} {_PERIOD}"} if unified else {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": quota}
    try:
        if unified:
            (_GROUPS / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        for file, limit in limits.items():
            (group / file).write_text(str(limit))
    except OSError as error:
        raise NoSharesError(f"no shares of a processor: {error} (they need root, and control groups)") from error
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "whoever ran in it is gone")
        group.rmdir()


def put(group: Path, pid: int) -> None:
    """Have a process, with all threads and what it starts from now on, run in a group."""
    (group / "cgroup.procs").write_text(str(pid))
