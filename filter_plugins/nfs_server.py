"""Filters of the role nfs_server: what no failover survives, and what a server says when it runs. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def refusals(exports: Sequence[Mapping[str, Any]], others: Sequence[str], lease: int, grace: int) -> list[str]:
    """Return a line for each export and setting that is refused; ``lease`` and ``grace`` are seconds.

    ``others`` are the versions of NFS that are wanted and not offered.
    """
    lines = [
        f"{export['path']}: async is refused, what was confirmed might be in the memory of the server only; use sync"
        for export in exports
        if "async" in export.get("options", ())
    ]
    lines += [
        f"{export['path']}: a path is absolute, without blanks"
        for export in exports
        if not re.fullmatch('/[^ "]*', export["path"])
    ]
    if grace < lease:
        lines.append(
            f"nfs_server_grace_seconds {grace} is shorter than the lease of {lease} s: clients would lose locks that"
            " they still have a right to; raise it"
        )
    if not 5 <= lease <= 3600:
        lines.append(f"nfs_server_lease_seconds {lease} is not between 5 and 3600")
    return lines + [
        f"nfs_server_versions: {version} is refused: version 3 keeps the lock of a dead broker for ever;"
        " use 4.1 and 4.2"
        for version in others
    ]


def directories(exports: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the directories that are exported, as pollux_files makes them."""
    return [
        {
            "path": str(export["path"]),
            "owner": str(export.get("owner", 0)),
            "group": str(export.get("group", 0)),
            "mode": str(export.get("mode", "0755")),
        }
        for export in exports
    ]


def runs_with(versions: Sequence[str], offered: Sequence[str], lease: int, grace: int) -> list[str]:
    """Return what a server that runs with these settings says: lease and grace time, and a sign with each version."""
    signs = [f"{'+' if version in versions else '-'}{version}" for version in offered]
    return [f"lease={lease}", f"grace={grace}", "-3", "+4", *signs]


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_nfs_refusals": refusals,
            "pollux_nfs_directories": directories,
            "pollux_nfs_runs_with": runs_with,
        }
