"""The shared store's state file: node id, state, epoch, holder and the history of activations.

Small JSON with a checksum, replaced atomically and synced; read and written only while the state lock is held. The
format is in docs/shared-store.md. Decides nothing.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pollux.checksum import crc32c
from pollux.errors import PolluxError
from pollux.store.files import DISK
from pollux.store.locks import StateFile

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files

FORMAT = 1
STATE_FILE = "state.json"
#: Activations kept in the file.
HISTORY = 100


class StateFileError(PolluxError):
    """The state file cannot be used; the text says why and what to do."""


class ForeignStateError(StateFileError):
    """The state file is sound but not for this broker (another format or another node's)."""


class StoreState(StrEnum):
    """The state in which the last holder left the store."""

    NOT_STARTED = "NOT_STARTED"
    #: Somebody serves, or died while serving.
    LIVE = "LIVE"
    #: Stopped on purpose: nobody takes over.
    PAUSED = "PAUSED"
    #: The preferred broker is back and waits for the store.
    FAILING_BACK = "FAILING_BACK"


class Holder(Struct, frozen=True):
    """A member of the group. ``id`` tells it apart; the rest is for people."""

    id: str
    name: str
    host: str
    pid: int
    role: str
    #: Nonce of the member's own lock file, which proves that the process lives; empty before it joined.
    lock: str = ""


class Activation(Struct, frozen=True):
    """One line of history. Times are milliseconds since the Unix epoch and milliseconds."""

    epoch: int
    #: Names of the holder before (empty when there was none) and of the new one.
    previous: str
    holder: str
    reason: str
    at: int
    #: From the moment the store was free to serving; -1 while unknown (died before it served).
    duration_ms: int = -1


class NodeState(Struct, frozen=True):
    """The content of the state file."""

    node_id: bytes
    state: StoreState = StoreState.NOT_STARTED
    epoch: int = 0
    holder: Holder | None = None
    #: Nonce of the live lock file that the holder has locked.
    lock: str = ""
    #: Set by a switchover: the preferred broker does not ask for the store by itself.
    stay: bool = False
    #: Why a failback was refused; empty when it was not.
    refused: str = ""
    history: tuple[Activation, ...] = field(default=())

    @property
    def was_lost(self) -> bool:
        """Whether this is what the journal tells of a store whose state file is gone or damaged: it was served, but
        nothing says by whom last."""
        return self.holder is None and self.epoch > 0

    def activated(self, entry: Activation) -> tuple[Activation, ...]:
        """The history with ``entry`` added, or put in the place of the one of its epoch."""
        kept = tuple(one for one in self.history if one.epoch != entry.epoch)
        return (*kept, entry)[-HISTORY:]

    def asked_for(self) -> NodeState:
        """Return the state after the preferred broker asked for the store; who does not serve is asked nothing."""
        return replace(self, state=StoreState.FAILING_BACK) if self.state is StoreState.LIVE else self

    def refusing(self, reason: str) -> NodeState:
        """Return the state after its holder refused a failback."""
        return replace(self, state=StoreState.LIVE, refused=reason)

    def with_failback(self) -> NodeState:
        """Return the state after which the preferred broker asks for the store by itself again."""
        return replace(self, stay=False, refused="")

    def served_after(self, epoch: int, duration_ms: int) -> NodeState:
        """Return the state with how long the activation of ``epoch`` took; as it is when that is not the last one."""
        entry = next((one for one in self.history if one.epoch == epoch), None)
        if self.epoch != epoch or entry is None:
            return self
        return replace(self, history=self.activated(replace(entry, duration_ms=duration_ms)))

    def left_by(self, holder: Holder, epoch: int, left: StoreState, *, stay: bool) -> NodeState:
        """Return the state after ``holder`` gave up the store of its ``epoch``; as it is when it is not the holder."""
        if self.epoch != epoch or self.holder is None or self.holder.id != holder.id:
            return self
        # Whoever asked for the store while it was being closed still gets it.
        asked = self.state is StoreState.FAILING_BACK and left is StoreState.LIVE
        return replace(self, state=self.state if asked else left, stay=stay)


def encode(state: NodeState) -> bytes:
    """Return the bytes of the state file."""
    holder = state.holder
    value: dict[str, Any] = {
        "format": FORMAT,
        "node_id": state.node_id.hex(),
        "state": state.state.value,
        "epoch": state.epoch,
        "holder": {name: getattr(holder, name) for name in Holder.__struct_fields__} if holder else None,
        "lock": state.lock,
        "stay": state.stay,
        "refused": state.refused,
        "history": [{name: getattr(one, name) for name in Activation.__struct_fields__} for one in state.history],
    }
    body = json.dumps(value, sort_keys=True, ensure_ascii=False)
    value["crc32c"] = crc32c(body.encode())
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def decode(data: bytes, where: str) -> NodeState:
    """The state in ``data``. Raises StateFileError, ForeignStateError."""
    try:
        value = json.loads(data)
        given = value.pop("crc32c")
        version = value["format"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StateFileError(f"{where}: is not a state file, or damaged") from None
    if crc32c(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()) != given:
        raise StateFileError(f"{where}: is damaged (its checksum does not match)")
    if version != FORMAT:
        raise ForeignStateError(f"{where}: has format {version}, this Pollux reads format {FORMAT}; update this broker")
    try:
        state = NodeState(
            bytes.fromhex(value["node_id"]),
            StoreState(value["state"]),
            value["epoch"],
            Holder(**value["holder"]) if value["holder"] else None,
            value["lock"],
            value["stay"],
            value["refused"],
            tuple(Activation(**one) for one in value["history"]),
        )
        newest = max((one.epoch for one in state.history), default=0)
        later = newest > state.epoch
    except (ValueError, KeyError, TypeError) as error:
        raise StateFileError(f"{where}: is damaged ({error!r})") from None
    if later:
        raise StateFileError(f"{where}: is damaged (epoch {state.epoch}, although epoch {newest} was served before)")
    return state


def read_state(directory: Path, files: Files = DISK) -> NodeState | None:
    """The state in ``directory``; None when there is no file. Raises StateFileError, OSError."""
    path = directory / STATE_FILE
    data = StateFile(path, files).read()
    return decode(data, str(path)) if data is not None else None


def write_state(directory: Path, state: NodeState, files: Files = DISK) -> None:
    """Replace the file; it is on stable storage when this returns. Raises OSError."""
    StateFile(directory / STATE_FILE, files).write(encode(state))


def with_holder(state: NodeState, holder: Holder, epoch: int, lock: str, entry: Activation) -> NodeState:
    """``state`` after ``holder`` took the store in ``epoch``."""
    assert epoch > max(state.epoch, *(one.epoch for one in state.history), 0)  # noqa: S101  (two lives would be one)
    return replace(
        state,
        state=StoreState.LIVE,
        epoch=epoch,
        holder=holder,
        lock=lock,
        refused="",
        history=state.activated(entry),
    )
