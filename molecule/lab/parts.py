"""Works out the cost of each part of a failover under pacemaker, from what corosync and it wrote meanwhile. Pure.

Names of parts are those of the plan (docs/active-passive.md). A part that did not happen (a process that ends costs no
token) is not there. Times are milliseconds; lines are those of ``journalctl --output=short-unix`` of all hosts that
could be asked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINE = re.compile(r"(\d+\.\d+) \S+ [^:]+: (.*)")
#: What ends each moment, in the order in which they follow each other; the first one that is said counts.
_MOMENTS = (
    ("token", re.compile(r"A processor failed, forming new configuration")),
    ("consensus", re.compile(r"A new membership .*Members left")),
    (
        "told",
        re.compile(r"Initiating (?:demote|stop|promote) operation pollux|Requesting fencing|Requesting peer fencing"),
    ),
    ("fenced", re.compile(r"was terminated \(reboot|was terminated \(off")),
    ("begins", re.compile(r"Initiating promote operation pollux")),
    ("promoted", re.compile(r"Result of promote operation for pollux.*: ok")),
    ("address", re.compile(r"Result of start operation for pollux-address.*: ok")),
)
#: How long after the blow pacemaker is still busy with it, milliseconds.
WITHIN = 180_000


def moments(lines: Iterable[str], began: float) -> dict[str, float]:
    """When each thing was said first after ``began`` (milliseconds of the wall clock), in milliseconds since then."""
    found: dict[str, float] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        at = float(match[1]) * 1000 - began
        if not 0 <= at <= WITHIN:
            continue
        for name, text in _MOMENTS:
            if text.search(match[2]):
                found[name] = min(at, found.get(name, at))
    return found


def parts(lines: Iterable[str], began: float, rto_ms: float) -> dict[str, int]:
    """Milliseconds of each part of an interruption of ``rto_ms`` that began then; they add up to it."""
    seen = moments(lines, began)
    if seen.get("token", 0.0) > seen.get("told", WITHIN):
        # Pacemaker acted before: healthy nodes missed each other afterwards, on a busy machine.
        del seen["token"]
        seen.pop("consensus", None)
    result: dict[str, float] = {}
    at = 0.0
    for part, ends in (
        ("token", "token"),
        ("consensus", "consensus"),
        ("told", "told"),
        ("fencing", "fenced"),
        ("controller", "begins"),
        ("promotion", "promoted"),
        ("address", "address"),
    ):
        if ends in seen and seen[ends] >= at:
            result[part] = seen[ends] - at
            at = seen[ends]
    result["clients"] = max(rto_ms - at, 0.0)
    return {name: round(value) for name, value in result.items()}
