"""Filters for the tables of files that the action pollux_files writes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def wanted_paths(files: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths of the entries that are wanted."""
    return [str(entry["path"]) for entry in files if entry.get("wanted", True)]


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pollux_wanted_paths": wanted_paths}
