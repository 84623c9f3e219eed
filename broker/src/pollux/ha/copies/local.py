"""A member's knowledge of its own data: a small file beside its journal, replaced atomically and synced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict

from pollux.errors import StoreError
from pollux.ha.node_state import HISTORY, Activation
from pollux.store.files import FileOperations, make_directories, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files

FILE = "replication.state"
_FORMAT = 1


class LocalState(Struct, frozen=True):
    """``node_id`` (32 hex digits) of the data; its ``sequence``; the ``epoch`` it comes from.

    ``complete``: the data is a whole copy (or one's own). ``replica``: it was received, and nobody served with it
    since, so that it can be a prefix of the live's. ``stay``: it gave the right to serve away on request, and does not
    ask for it back by itself. ``history``: the activations of this data, oldest first. ``outvoted``: it served with
    this data until it lost the vote on that, or died before it served, so somebody else may serve with a copy of it.
    ``aside``: the number of the copy to which the data is being moved, 0: it is not.
    In an active-passive cluster ``primary`` served with it last, and ``heirs`` are the backups that have all of it.
    """

    node_id: str
    sequence: int
    epoch: int
    complete: bool
    replica: bool
    stay: bool = False
    history: tuple[Activation, ...] = ()
    outvoted: bool = False
    aside: int = 0
    primary: str = ""
    heirs: tuple[str, ...] = ()

    def activated(self, entry: Activation) -> tuple[Activation, ...]:
        """The history with ``entry`` added, or put in the place of the one of its epoch."""
        kept = tuple(one for one in self.history if one.epoch != entry.epoch)
        return (*kept, entry)[-HISTORY:]


def history_of(found: Any) -> tuple[Activation, ...]:
    """Return a history as it was written or received. Raises TypeError, ValueError."""
    return tuple(Activation(**one) for one in found)[-HISTORY:]


def read(directory: Path) -> LocalState | None:
    """The state beside the journal; None where there is none. Raises StoreError for one that cannot be read."""
    path = directory / FILE
    try:
        return _state(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}): what this member's data is worth is not known; see it with "
            "'pollux activation list --local', or move the data away so that it is copied anew"
        ) from error


def _state(found: dict[str, Any]) -> LocalState:
    if found["format"] != _FORMAT:
        raise ValueError("it was written by another version of Pollux")
    if min(int(found[name]) for name in ("sequence", "epoch")) < 0:
        raise ValueError("a sequence and an epoch begin at 0 and only grow")
    return LocalState(
        str(found["node_id"]),
        int(found["sequence"]),
        int(found["epoch"]),
        bool(found["complete"]),
        bool(found["replica"]),
        bool(found.get("stay", False)),
        history_of(found.get("history", ())),
        bool(found.get("outvoted", False)),
        int(found.get("aside", 0)),
        str(found.get("primary", "")),
        tuple(map(str, found.get("heirs", ()))),
    )


def write(directory: Path, state: LocalState, files: Files | None = None) -> None:
    """Replace the state; on stable storage when it returns. Blocking. Raises OSError, with the old state in place."""
    files = files or FileOperations()
    make_directories(files, directory)
    values = {**asdict(state), "history": [asdict(one) for one in state.history]}
    replace_file(files, directory / FILE, json.dumps({"format": _FORMAT, **values}).encode())
