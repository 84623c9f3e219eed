"""Shows a supervisor's lives, in a file of the runtime directory and to the lives themselves."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from pollux.ha.colocated.placement import Host
from pollux.ha.runtime import LIVES_FILE
from pollux.process.status import write_private

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pollux.supervisor.child import Child

#: A life that has told nothing for so long stands still, seconds.
SILENT = 10.0


def lives(children: Iterable[Child], node: str = "") -> list[dict[str, Any]]:
    """Return every life of the host: who it is, how it is, and where it listens.

    ``node``: the id of the host's own live, which that does not say itself while it waits.
    """
    return [
        {
            "life": child.life.key,
            "name": child.told.get("name") or child.life.name,
            "nodeId": child.told.get("node") or child.life.node or node,
            "slot": child.life.slot,
            "state": _state(child),
            "ready": child.ready,
            "pid": child.pid,
            "starts": child.starts,
            "status": child.status,
            "ports": child.told.get("ports", {}),
            "backup": child.told.get("backup"),
        }
        for child in children
    ]


def _state(child: Child) -> str:
    if child.pid is None:
        return "ended"
    if not child.told:
        return "starting"
    return str(child.told["state"]) if time.monotonic() - child.told_at < SILENT else "silent"


def write(directory: Path, shown: list[dict[str, Any]]) -> None:
    """Write them for who asks when no life answers. Raises OSError. Blocking."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    write_private(directory / LIVES_FILE, json.dumps(shown, indent=2) + "\n")


def remove(directory: Path) -> None:
    """Show nothing any more. Blocking."""
    (directory / LIVES_FILE).unlink(missing_ok=True)


def of_host(host: Host) -> dict[str, Any]:
    """Return a host as other brokers are told of it."""
    return {
        "node": host.node.hex(),
        "machine": host.machine,
        "room": host.room,
        "domain": host.domain,
        "group": host.group,
        "backups": sorted(node.hex() for node in host.backups),
        "alone": host.alone,
    }


def host_of(found: Any) -> Host | None:
    """Return the host that another broker told of; None: it cannot be read, or it told of none."""
    try:
        return Host(
            bytes.fromhex(found["node"]),
            str(found["machine"])[:255],
            max(0, int(found["room"])),
            str(found["domain"])[:255],
            frozenset(bytes.fromhex(node) for node in found["backups"]),
            str(found.get("group", ""))[:255],
            alone=bool(found["alone"]),
        )
    except (LookupError, TypeError, ValueError):
        return None
