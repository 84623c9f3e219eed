"""Node managers of one group in one process, on a real directory, for tests of what they do. Not a test module."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from pollux.ha.machine import Machine, Phase
from pollux.ha.node_state import Holder, StoreState, read_state
from pollux.ha.shared_store.node_manager import NodeManager
from pollux.ha.shared_store.policy import Role, Settings
from pollux.ha.store_layout import SharedStoreLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.errors import PolluxError
    from pollux.ha.lease import Right
    from pollux.ha.node_state import NodeState
    from pollux.store.locks import LockFile

#: Nothing here takes this long; a test that waits for it has failed.
PATIENCE = 30.0


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something that other threads do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


class Party:
    """One member: its node manager, and what the node manager told the server."""

    def __init__(self, store: Path, name: str, settings: Settings) -> None:
        self.machine = Machine(lambda: time.time_ns() // 1_000_000)
        self.rights: list[Right] = []
        self.asked_back: list[str] = []
        self.fences: list[str] = []
        self.refusals: list[PolluxError] = []
        self.granted_once = threading.Event()
        self.end = threading.Event()
        self.node_manager = NodeManager(
            settings,
            SharedStoreLayout(store / "journal", store / "journal", store / "bindings"),
            Holder(f"{name}-id", name, "host", 1, settings.role.value),
            self.machine,
            self,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )

    # -- what the node manager says, from its thread

    def granted(self, right: Right) -> None:
        self.rights.append(right)
        self.granted_once.set()

    def hand_back(self, reason: str) -> None:
        self.asked_back.append(reason)

    def fenced(self, reason: str) -> None:
        self.fences.append(reason)
        self.end.set()

    def refused(self, error: PolluxError) -> None:
        self.refusals.append(error)
        self.end.set()

    # -- what a server does

    def start(self) -> Self:
        self.node_manager.start()
        return self

    def serve(self) -> Self:
        """Wait for the right to serve, and be live."""
        assert self.granted_once.wait(PATIENCE), (self.machine.position, self.refusals)
        self.node_manager.serving().result(PATIENCE)
        return self

    def wait_for(self, phase: Phase) -> Self:
        wait_until(lambda: self.machine.phase is phase, f"{self.node_manager.me.name} is {phase}")
        return self

    def leave(self, state: StoreState, *, stay: bool = False) -> None:
        """Stop in order and leave this in the state file."""
        self.machine.to(Phase.STOPPING, "the test says so")
        self.node_manager.release(state, stay=stay).result(PATIENCE)
        self.node_manager.close()


class Store:
    """A shared directory and its members."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "journal").mkdir(parents=True)
        (path / "bindings").mkdir()
        self.parties: list[Party] = []
        #: Locks that somebody has who is none of them.
        self.held: list[LockFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for party in self.parties:
            party.node_manager.close()
        for lock in self.held:
            lock.close()

    @property
    def node(self) -> Path:
        """The node directory."""
        return self.path / "journal" / "node"

    def state(self) -> NodeState:
        """The state file."""
        found = read_state(self.node)
        assert found is not None
        return found

    def member(self, name: str, settings: Settings) -> Party:
        """A member that was not started yet."""
        self.parties.append(Party(self.path, name, settings))
        return self.parties[-1]


PREFERRED, BACKUP = Settings(Role.LIVE), Settings(Role.BACKUP)
SYMMETRIC = replace(PREFERRED, role=Role.SYMMETRIC)
