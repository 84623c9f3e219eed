"""The next release of the broker, as this one changed: its number, where that stands, and one that does not start."""

from __future__ import annotations

import re

#: Where the broker has the version that it tells.
VERSION_FILE = "pollux/version.py"
#: Takes the place of the broker's entry in a release that is meant to fail: it starts, and never becomes ready.
BROKEN = (
    "\nif __import__('sys').argv[1:2] == ['run']:\n"
    "    raise SystemExit('this release is broken on purpose: it does not become ready')\n"
)


def raised(version: str) -> str:
    """The next version after this one: its last number plus one."""
    match = re.fullmatch(r"(.*?)(\d+)", version)
    if match is None:
        raise ValueError(f"version {version!r} does not end with a number")
    return f"{match[1]}{int(match[2]) + 1}"
