"""Every small file that a decision depends on, and a power cut at any call: the old content or the new, never less.

What was said to be written is there. A file that only tells others is left out: nothing depends on it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from harness.disk_account import Account, materialise
from harness.lossy_system import LossySystem
from pollux.cluster import vote_log
from pollux.config.masked import read_key, write_key
from pollux.config.users_editor import UsersEditor
from pollux.config.verifiers import Verifier
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.node_state import NodeState, read_state, write_state
from pollux.ha.replication.coordination import GROUP_NODE, FileCoordinator, group_name
from pollux.store.data_lock import NODE_FILE, node_id
from pollux.store.locks import LockFile, probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NODE = b"node-of-the-test"
VERIFIER = Verifier.create("a password", iterations=4096)
WRITES = 4
DRAWS = 12


class Small(NamedTuple):
    """``write(directory, n)`` for n = 1, 2, ...; ``read`` says which was the last, 0: there is none."""

    write: Callable[[Path, int], object]
    read: Callable[[Path], int]
    #: Whether it is promised that it is there from then on.
    promised: bool = True


def coordinator_in(directory: Path) -> FileCoordinator:
    coordinator = FileCoordinator(directory / "shared" / "group", "identity")
    coordinator.connect(lambda: None)
    return coordinator


def raise_sequence(directory: Path, number: int) -> None:
    coordinator = coordinator_in(directory)
    try:
        assert coordinator.acquire()
        coordinator.change(number - 1, number)
    finally:
        coordinator.close()


def sequence_in(directory: Path) -> int:
    return FileCoordinator(directory / "shared" / "group", "identity").sequence()


def register(directory: Path, number: int) -> None:
    assert coordinator_in(directory).register(f"group {number}", "ab" * 16) == "ab" * 16


def registered_in(directory: Path) -> int:
    """Groups that have a node; each of them has all of its name."""
    names = [group_name(f"group {number}") for number in range(1, WRITES + 1)]
    files = [directory / "shared" / "group" / name / GROUP_NODE for name in names]
    found = [path for path in files if path.exists()]
    assert all(path.read_text() == "ab" * 16 for path in found)
    return counted(path.exists() for path in files)


def counted(there: object) -> int:
    """How many there are, without one missing between them."""
    seen = list(there)  # type: ignore[call-overload]
    assert seen == sorted(seen, reverse=True)
    return sum(seen)


def make_node(directory: Path, number: int) -> None:
    place = directory / f"journal{number}"
    assert node_id(place) == node_id(place)


def nodes_in(directory: Path) -> int:
    return counted(bool(node_id(path)) for path in sorted(directory.glob("journal*")) if (path / NODE_FILE).exists())


def editor_in(directory: Path) -> UsersEditor:
    return UsersEditor(directory / "users.properties", directory / "roles.properties")


def add_user(directory: Path, number: int) -> None:
    editor_in(directory).add(f"user{number}", VERIFIER, frozenset({"admin"}))


def users_in(directory: Path) -> int:
    everyone = editor_in(directory).everyone() if (directory / "users.properties").exists() else {}
    assert all(roles == {"admin"} for roles in everyone.values())
    return counted(f"user{number}" in everyone for number in range(1, WRITES + 1))


def keys_in(directory: Path) -> int:
    for path in directory.glob("*.key"):
        read_key(path)
    return counted((directory / f"{number}.key").exists() for number in range(1, WRITES + 1))


def locks_in(directory: Path) -> int:
    found = [probe(directory / f"{number}.lock") for number in range(1, WRITES + 1)]
    assert all(one is None or one.nonce for one in found)
    return 0


def state_of(number: int) -> LocalState:
    return LocalState(NODE.hex(), number, 1, complete=True, replica=False)


FILES = {
    "the state of a shared store": Small(
        lambda directory, number: write_state(directory, NodeState(NODE, epoch=number)),
        lambda directory: one.epoch if (one := read_state(directory)) is not None else 0,
    ),
    "what a member's data is worth": Small(
        lambda directory, number: local.write(directory, state_of(number)),
        lambda directory: one.sequence if (one := local.read(directory)) is not None else 0,
    ),
    "what other nodes said": Small(
        lambda directory, number: vote_log.write(directory, {"node": number}),
        lambda directory: vote_log.read(directory).get("node", 0),
    ),
    "the sequence in a file": Small(raise_sequence, sequence_in),
    "whose data a group has": Small(register, registered_in),
    "the node's id": Small(make_node, nodes_in),
    "the users": Small(add_user, users_in),
    "the key of masked passwords": Small(
        lambda directory, number: write_key(directory / f"{number}.key", bytes([number]) * 32), keys_in
    ),
    "a lock's nonce": Small(
        lambda directory, number: LockFile.open(directory / f"{number}.lock").close(), locks_in, promised=False
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_power_cut_leaves_the_old_content_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small, root = FILES[name], tmp_path / "disk"
    for number in range(1, WRITES + 1):
        (root / f"journal{number}").mkdir(parents=True)
    with monkeypatch.context() as patched:
        system = LossySystem(root, patched)
        for number in range(1, WRITES + 1):
            small.write(root, number)
            system.note(number)
    account, promised, draw = Account(), 0, random.Random(1)  # noqa: S311  (a reproducible test, no secret)
    seen = set()
    for position, event in enumerate(system.events):
        account.apply(event)
        if event.kind == "note":
            promised = event.value
        for number in range(DRAWS if position >= system.adopted else 0):
            left = tmp_path / f"{position}-{number}"
            left.mkdir()
            materialise(account.left(draw), left)
            for path in (*left.glob("*.key"), *left.glob("*.properties")):
                path.chmod(0o600)
            found = small.read(left)
            seen.add(found)
            assert not small.promised or found in (promised, promised + 1), f"after event {position} of {name}"
    assert seen == (set(range(WRITES + 1)) if small.promised else {0})
