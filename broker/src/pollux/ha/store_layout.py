"""Where the parts of a shared store are: its directories, and the names of the files in the node directory. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

#: The directory of locks, state and members, in the store's lock directory.
NODE_DIRECTORY = "node"
LIVE_LOCK, BACKUP_LOCK, STATE_LOCK, FAILBACK_LOCK = "live.lock", "backup.lock", "state.lock", "failback.lock"
#: Made once with the store; its content tells stores apart.
STORE_ID = "store.id"


class SharedStoreLayout(NamedTuple):
    """``base`` is where the node directory is; the others are the store's."""

    base: Path
    journal: Path
    bindings: Path
    #: Large messages and pages.
    others: tuple[Path, ...] = ()

    @property
    def node(self) -> Path:
        """Return the node directory."""
        return self.base / NODE_DIRECTORY

    @property
    def directories(self) -> tuple[Path, ...]:
        """Every directory that all members must see, each once."""
        return tuple(dict.fromkeys((self.base, self.journal, self.bindings, *self.others)))
