"""Ask what the operating system lets this process use: descriptors, memory, and the collector's manners."""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pollux.config.colocated_ports import lives_of
from pollux.logs import event

if TYPE_CHECKING:
    from pollux.config.model import Configuration

logger = logging.getLogger("pollux.broker")

#: Descriptors kept for the store, logs and management when connections use up the rest.
RESERVED_DESCRIPTORS = 256
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def raise_descriptor_limit() -> int:
    """Raise RLIMIT_NOFILE's soft limit to the hard one; returns how many descriptors there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def connection_limit(configured: int) -> int:
    """``max-connections``, or less when the process may not open as many descriptors (said once in the log)."""
    possible = raise_descriptor_limit() - RESERVED_DESCRIPTORS
    if configured > possible:
        event(
            logger,
            logging.WARNING,
            "max-connections is more than the open-files limit allows; raise LimitNOFILE or lower max-connections",
            configured=configured,
            possible=possible,
        )
    return max(1, min(configured, possible))


def memory_limit() -> int:
    """Return the bytes this process may use: the machine's, its control group's or RLIMIT_AS, whichever is least."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in (*_own_cgroup(), *_CGROUP_LIMITS):
        try:
            text = path.read_text("ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    return min(limits)


def share_of_memory(configuration: Configuration) -> int:
    """Return the bytes that this process may use of them: its share, where other lives of its host may serve, too."""
    return memory_limit() // lives_of(configuration)


def _own_cgroup() -> list[Path]:
    """The memory limits of the version 2 control group this process is in, and of those above it."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        if line.startswith("0::/"):
            group = Path("/sys/fs/cgroup") / line[4:]
            return [parent / "memory.max" for parent in (group, *group.parents) if parent.name]
    return []


#: Objects after which the collector looks at the new ones; so many of these before it looks at those that survived one;
#: so many of those before a full collection. What it looks at is looked at twice, however many that is at a time.
COLLECTOR = (500, 1, 60_000)
#: Seconds after which the loop's thread lets another one go on that has come back from the disk: a write of the journal
#: comes back two or three times, and everybody's confirm waits for that.
SWITCH = 0.001
#: The same while somebody asks for more than there is time for: the loop is busy for as long as that lasts.
SWITCH_PRESSED = 0.0002


def resident_bytes() -> int:
    """Return the bytes of this process that are in RAM."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tune_garbage_collector() -> None:
    """Tell the collector that what lives now, after start-up, lives for ever, and to look at the rest rarely.

    Messages and references hold no cycles, so counting frees them; the collector only has to find
    what sessions leave behind, rarely. The collections before a full one look at what is new: that is kept little, as
    each of them stands still for everybody (a million objects, which is ten thousand queues, take half a second).
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR)


def let_writers_in(pressed: bool = False) -> None:
    """Let threads that only write go on soon while the loop is busy; it is all the time when ``pressed``."""
    sys.setswitchinterval(SWITCH_PRESSED if pressed else SWITCH)
