"""The names of the files in a data directory, which say of what kind they are, of which life, and in which order.

See docs/journal-format.md. This module is pure: names in, values out.
"""

from __future__ import annotations

import re

#: Journal segments, files with compacted bodies, and bindings: epoch and sequence (or number).
SEGMENT_NAME = re.compile(r"pollux-(\d{8,})-(\d{10,})\.segment")
BODIES_NAME = re.compile(r"pollux-(\d{8,})-(\d{10,})\.bodies")
BINDINGS_NAME = re.compile(r"bindings-(\d{8,})-(\d{10,})\.segment")
#: The page's number.
PAGE_NAME = re.compile(r"([0-9]{10,})\.page", re.ASCII)
_CHECKPOINT_NAME = re.compile(r"pollux-(\d{8,})-(\d{8,})-(\d{10,})\.checkpoint")

#: Beside a journal while a store is being copied to here: some files have their names, and others have not.
UNFINISHED_COPY = "unfinished.copying"

#: (epoch of the writing life, epoch and sequence of the last folded segment)
CheckpointKey = tuple[int, int, int]


def checkpoint_name(key: CheckpointKey) -> str:
    """Return the file name of a checkpoint."""
    return f"pollux-{key[0]:08d}-{key[1]:08d}-{key[2]:010d}.checkpoint"


def checkpoint_key(name: str) -> CheckpointKey | None:
    """Return the key in a checkpoint's file name, None for another file."""
    match = _CHECKPOINT_NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def is_journal_file(name: str) -> bool:
    """Return whether a file of this name is a segment of a journal or a checkpoint."""
    return SEGMENT_NAME.fullmatch(name) is not None or checkpoint_key(name) is not None
