"""Filters for a mount of NFS: what /proc/self/mountinfo says of it, and what is wrong. Pure; no brokers here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: How options that the kernel shows in another way than they are given are recognised: given, shown.
_SHOWN = {"vers=4": re.compile(r"vers=4(\.\d+)?"), "vers=4.0": re.compile(r"vers=4(\.0)?")}


def mount_at(mountinfo: str, path: str) -> dict[str, Any] | None:
    """Return the mount at ``path``: ``type``, ``source``, ``options`` (its own and its file system's); None without.

    Of several mounts on one point the last one is what one sees.
    """
    found = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        if _unescaped(fields[4]) == (path.rstrip("/") or "/"):
            options = list(dict.fromkeys([*fields[5].split(","), *rest[2].split(",")]))
            found = {"type": rest[0], "source": _unescaped(rest[1]), "options": options}
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_problems(mount: Mapping[str, Any] | None, source: str, options: Sequence[str]) -> list[str]:
    """Return why a mount (of :func:`mount_at`) is not what the inventory wants; empty when it is."""
    if mount is None:
        return ["nothing is mounted there"]
    problems = []
    if mount["type"] != "nfs4":
        problems.append(f"it is {mount['type']}, not nfs4")
    if mount["source"].rstrip("/") != source.rstrip("/"):
        problems.append(f"it is {mount['source']}, not {source}")
    missing = [
        option
        for option in options
        if not any(shown == option or _SHOWN.get(option, _NEVER).fullmatch(shown) for shown in mount["options"])
    ]
    if missing:
        problems.append(f"its options lack {', '.join(missing)} (they are {','.join(mount['options'])})")
    return problems


_NEVER = re.compile(r"(?!)")


def unit_name(path: str) -> str:
    """Return the name that systemd gives the mount unit of a path, without its suffix (as systemd-escape -p)."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "-"
    text = "/".join(parts)
    return "".join(
        "-" if character == "/" else character if _plain(character, index) else _hexadecimal(character)
        for index, character in enumerate(text)
    )


def _plain(character: str, index: int) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9:_]", character)) or (character == "." and index > 0)


def _hexadecimal(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_mount_at": mount_at,
            "pollux_mount_problems": mount_problems,
            "pollux_unit_name": unit_name,
        }
