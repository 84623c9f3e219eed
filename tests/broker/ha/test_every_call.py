"""A system call fails, any one of those between two states, once or for a while: the group has a live again.

Whoever ends (its process is gone then) is started again, as a service manager does it, and then somebody has to serve.
What must not be is a group in which nobody ends and nobody serves.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.ha.group import BACKUP, PREFERRED, SYMMETRIC, Party, Store, wait_until
from harness import system_calls
from harness.system_calls import Faults
from pollux.ha.machine import Phase
from pollux.ha.members import Heartbeat
from pollux.ha.node_state import Holder, NodeState, StoreState, write_state
from pollux.ha.shared_store import node_manager as manager_module
from pollux.ha.store_layout import LIVE_LOCK
from pollux.store.locks import LockFile

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.ha.shared_store.policy import Settings

#: How long calls fail, seconds: the members look much more often than usual, so it is many of their looks.
A_WHILE = 0.3
#: Real seconds, longer than whatever a member waits for before it tries again or gives up: for some of the calls only,
#: which ones is up to the seed.
LONG, SOME = 2.0, 10
SEED = int(os.environ.get("POLLUX_CALL_SEED", "18"))
#: All three: the parameters of a test, and their names.
SPANS = {"once": 0.0, "for a while": A_WHILE, "for 2 s": LONG}
PERIOD = 0.02
TIMES = 3
#: Each in a directory of its own.
AT_A_TIME = 10
#: What a group may take on a busy machine to have a live again, seconds.
BOUND = 15.0
QUICK = {"proof_limit": 0.05, "poll": None}


class Supervised:
    """A member that is started again when it has ended. ``live`` is set while it serves."""

    def __init__(self, store: Store, name: str, settings: Settings) -> None:
        self.store, self.name, self.settings = store, name, settings
        self.lives: list[Party] = []
        self.start()

    def start(self) -> None:
        party = self.store.member(self.name, self.settings)
        party.node_manager._period = PERIOD
        self.lives.append(party.start())

    @property
    def party(self) -> Party:
        return self.lives[-1]

    def look(self) -> bool:
        """Do as a server and its service manager do. Returns whether it serves."""
        party = self.party
        if party.end.is_set():
            party.node_manager.close()
            self.start()
        elif party.asked_back and party.machine.phase is Phase.LIVE:
            party.machine.to(Phase.STOPPING, "the preferred broker asks")
            threading.Thread(target=self._leave, args=(party,), daemon=True).start()
        elif party.granted_once.is_set() and party.machine.phase is Phase.ACTIVATING:
            party.node_manager.serving()
        return party.machine.phase is Phase.LIVE

    def _leave(self, party: Party) -> None:
        """As a server does: what cannot be written is left, the locks go, and the process starts anew."""
        future = party.node_manager.release(StoreState.FAILING_BACK)
        future.exception(5.0)
        party.node_manager.close()
        party.end.set()


def somebody_serves(members: list[Supervised], faults: Faults) -> None:
    """Whoever it is; of several the last one, which is preferred."""

    def served() -> bool:
        return [member.look() for member in members][-1]

    try:
        wait_until(served, "a live", BOUND)
        # And it is one for good: its right was proved again since.
        reader = Heartbeat(members[0].store.node)
        before = reader.read()
        wait_until(lambda: served() and reader.read() != before, "a proof", BOUND)
    except AssertionError as error:
        said = {one.name: one.party.machine.position for one in members}
        raise AssertionError(f"nobody serves after the failure of {faults.failed[:3]}: {said}") from error


def first_start(store: Store, faults: Faults) -> list[Supervised]:
    """The first member on a new store."""
    faults.arm()
    return [Supervised(store, "a", replace(PREFERRED, **QUICK))]


def killed(store: Store, faults: Faults) -> list[Supervised]:
    """The live is gone, a backup is ready."""
    live = store.member("a", PREFERRED).start().serve()
    backup = Supervised(store, "b", replace(BACKUP, **QUICK))
    backup.party.wait_for(Phase.READY)
    live.node_manager.close()
    faults.arm()
    return [backup]


def killed_and_back(store: Store, faults: Faults) -> list[Supervised]:
    """The live is gone, a backup is ready, and the preferred live comes back meanwhile."""
    members = killed(store, faults)
    return [*members, Supervised(store, "a", replace(PREFERRED, **QUICK))]


def released(store: Store, faults: Faults) -> list[Supervised]:
    """The live stops in order; the backup is ready."""
    live = store.member("a", PREFERRED).start().serve()
    backup = Supervised(store, "b", replace(BACKUP, **QUICK))
    backup.party.wait_for(Phase.READY)
    live.machine.to(Phase.STOPPING, "the test says so")
    faults.arm()
    live.node_manager.release(StoreState.LIVE, stay=True).exception(5.0)
    live.node_manager.close()
    return [backup]


def failed_back(store: Store, faults: Faults) -> list[Supervised]:
    """The preferred live comes back and asks for the store."""
    store.member("a", PREFERRED).start().serve().leave(StoreState.LIVE)
    backup = Supervised(store, "b", replace(BACKUP, **QUICK))
    wait_until(backup.look, "it serves")
    faults.arm()
    return [backup, Supervised(store, "a", replace(PREFERRED, **QUICK))]


def symmetric(store: Store, faults: Faults) -> list[Supervised]:
    """Equals: one is gone, another one waits one keep-alive period with the lock in its hand."""
    policy = replace(SYMMETRIC, keep_alive=0.05, proof_limit=0.05)
    live = store.member("a", policy).start().serve()
    other = Supervised(store, "b", policy)
    other.party.wait_for(Phase.READY)
    live.node_manager.close()
    faults.arm()
    return [other]


def silent(store: Store, faults: Faults) -> list[Supervised]:
    """The holder has the lock and gives no sign of life: the lock is broken."""
    store.node.mkdir()
    lock = LockFile.open(store.node / LIVE_LOCK)
    assert lock.try_lock()
    store.held.append(lock)
    holder = Holder("z-id", "z", "host", 1, "live", "nonce")
    write_state(store.node, NodeState(bytes(16), StoreState.LIVE, 3, holder, lock.nonce))
    backup = Supervised(store, "b", replace(BACKUP, lease=0.4, margin=0.2, proof_limit=0.05))
    backup.party.wait_for(Phase.READY)
    faults.arm()
    return [backup]


SCENES = [first_start, killed, killed_and_back, released, failed_back, symmetric, silent]
Scene = Callable[[Store, Faults], list[Supervised]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "STANDBY_PERIOD", PERIOD)
    system_calls.install(monkeypatch)


def play(path: Path, scene: Scene, first: int | None, seconds: float) -> Faults:
    with Faults(path / "journal", first, seconds) as faults, Store(path) as store:
        somebody_serves(scene(store, faults), faults)
    return faults


def often_enough(calls: list[str], seconds: float) -> list[int]:
    """The numbers of those that fail: each call when it is made for the first few times, as looks repeat themselves."""
    found = [number for number, call in enumerate(calls) if calls[:number].count(call) < TIMES]
    return found if seconds < LONG else random.Random(SEED).sample(found, min(SOME, len(found)))  # noqa: S311


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("seconds", SPANS.values(), ids=SPANS)
def test_a_call_that_fails_leaves_no_group_without_a_live(scene: Scene, seconds: float, tmp_path: Path) -> None:
    calls = play(tmp_path / "none", scene, None, 0.0).calls
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        played = [pool.submit(play, tmp_path / str(n), scene, n, seconds) for n in often_enough(calls, seconds)]
        problems = [error for one in played if (error := one.exception()) is not None]
    assert not problems, f"{len(problems)} of {len(calls)}: {problems[:5]}"
