"""A store's files that stand still while they are copied: what a copy has is what a kill at one moment leaves.

Without it the writer's thread goes on while the files are copied one after the other, and a copy may have what came
later in one file and lack what came before it in another.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any

from pollux.store.files import FileOperations

if TYPE_CHECKING:
    from collections.abc import Callable

_CHANGES = (
    *("open", "write", "fdatasync", "fsync", "sync_directory", "fill", "allocate", "truncate", "rename", "unlink"),
    *("make_directory", "remove_directory"),
)


class HeldDisk(FileOperations):
    """Every change is made under ``still``; who holds it sees the files between two changes."""

    def __init__(self) -> None:
        super().__init__()
        self.still = threading.RLock()


def _held(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def make(disk: HeldDisk, *values: Any, **named: Any) -> Any:
        with disk.still:
            return change(disk, *values, **named)

    return make


for _name in _CHANGES:
    setattr(HeldDisk, _name, _held(getattr(FileOperations, _name)))
