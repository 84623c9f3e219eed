"""The power of a replica is cut anywhere: a copy that says it is complete holds every file the live was told it has.

And the small file that says so, at any call and on a disk that is full by a few bytes.
"""

from __future__ import annotations

import os
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from harness.disk_account import Account, materialise
from harness.lossy_disk import LossyDisk
from pollux.errors import StoreError
from pollux.formats.segments import Kind, SegmentHeader
from pollux.ha.copies import local
from pollux.ha.copies.backup_side import BackupSide
from pollux.ha.copies.local import LocalState
from pollux.store.mirror import Link, Mirror, Replica
from pollux.store.mirror.first_copy import copy_store, inventory_of
from pollux.store.mirror.operations import ROOTS, decode
from pollux.store.segments import segment_name

if TYPE_CHECKING:
    from pathlib import Path

POINTS = int(os.environ.get("POLLUX_CRASH_POINTS", "90000")) // 9
NODE = "ab" * 16
STATE = LocalState(NODE, 1, 1, complete=False, replica=True)


def roots_in(directory: Path) -> dict[str, Path]:
    return {name: directory / name for name in ROOTS}


def test_a_copy_that_says_it_is_complete_is_whole(tmp_path: Path) -> None:
    draw = random.Random(20261125)  # noqa: S311  (a reproducible test, no secret)
    primary, root = roots_in(tmp_path / "primary"), tmp_path / "replica"
    for path in (*primary.values(), primary["paging"] / "5", root):
        path.mkdir(parents=True)
    names = ["journal/a.segment", "large/1.msg", "paging/5/1.page", "paging/5/address.txt", "bindings/b.segment"]
    for name in names:
        (tmp_path / "primary" / name).write_bytes(draw.randbytes(3000))
    disk = LossyDisk(root)
    mirror = Mirror(primary, on_lost=lambda *_: True)
    link = Link("replica", lambda: None)

    def marked(_: bytes) -> None:
        local.write(root / "journal", local.LocalState(STATE.node_id, 2, 1, complete=True, replica=True), disk)

    replica = Replica(roots_in(root), marked, disk)
    local.write(root / "journal", STATE, disk)

    def carry() -> None:
        while parts := link.take(1 << 12):
            mirror.confirm(link, replica.apply(decode(b"".join(parts))))

    mirror.attach(link)
    copy_store(mirror, link, inventory_of(roots_in(root)))
    carry()
    mirror.admit(link, b"")
    carry()
    replica.close()
    whole = {name: (tmp_path / "primary" / name).read_bytes() for name in names}
    judge_copies(disk, whole, draw)


def judge_copies(disk: LossyDisk, whole: dict[str, bytes], draw: random.Random) -> None:
    account, done = Account(), 0
    for position in sorted(draw.randint(disk.adopted, len(disk.events)) for _ in range(POINTS)):
        for event in disk.events[done:position]:
            account.apply(event)
        done = position
        left = account.left(draw)
        state = left.get("journal/replication.state")
        if state is None or b'"complete": true' not in state:
            continue
        missing = [name for name, data in whole.items() if left.get(name) != data]
        assert not missing, f"after event {position} the copy says it is complete without {missing}"
    assert done > 0


def test_the_state_of_a_copy_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    draw = random.Random(20261125)  # noqa: S311
    root = tmp_path / "disk"
    root.mkdir()
    disk = LossyDisk(root)
    directory = root / "journal"
    for number in range(1, 6):
        local.write(directory, LocalState("ab" * 16, number, 1, complete=True, replica=False), disk)
        disk.note(number)
    account, done, promised = Account(), 0, 0
    for number, position in enumerate(sorted(draw.randint(0, len(disk.events)) for _ in range(POINTS // 10))):
        for event in disk.events[done:position]:
            account.apply(event)
            promised = event.value if event.kind == "note" else promised
        done = position
        target = tmp_path / str(number)
        target.mkdir()
        materialise(account.left(draw), target)
        state = local.read(target / "journal")
        assert (state.sequence if state is not None else 0) in (promised, promised + 1)


STORE = {
    "journal/1.segment": b"records",
    "journal/2.segment": b"more",
    "bindings/b.segment": b"queues",
    "large/1.msg": b"a body",
    "paging/5/1.page": b"a page",
}


@pytest.mark.parametrize(
    "mine", [LocalState(NODE, 3, 2, complete=True, replica=False), None], ids=["state", "no state"]
)
def test_data_that_is_moved_aside_is_never_taken_for_a_whole_store(tmp_path: Path, mine: LocalState | None) -> None:
    """The live takes a member whose data is no beginning of its own; the power goes, again and again."""
    root = tmp_path / "disk"
    for name in ROOTS:
        (root / name).mkdir(parents=True)
    (root / "paging" / "5").mkdir()
    header = SegmentHeader(Kind.JOURNAL, 1, bytes.fromhex(NODE), 3, 1, 0).encode()
    content = {**STORE, "journal/" + segment_name(3, 1): header}
    for name, data in content.items():
        (root / name).write_bytes(data)
    if mine is not None:
        local.write(root / "journal", mine)
    draw = random.Random(20261125)  # noqa: S311
    for life in range(3):
        disk = LossyDisk(root)
        prepare(disk)
        account, choices = Account(), []
        for position, event in enumerate(disk.events):
            account.apply(event)
            for _ in range(20 if position >= disk.adopted else 0):
                left = account.left(draw)
                judge_moved(left, content, mine)
                choices.append(left)
        root = tmp_path / str(life)
        root.mkdir()
        materialise(draw.choice(choices), root)


def prepare(disk: LossyDisk) -> None:
    """Do what a member does when the live takes it."""
    never: Any = None
    following = BackupSide(never, roots_in(disk.root), loop=never, keep=2, on_synced=never, on_end=never, files=disk)
    following._prepare({"node_id": "cd" * 16, "epoch": 9, "prefix": False})
    state = local.read(disk.root / "journal")
    assert state == LocalState("cd" * 16, 0, 9, complete=False, replica=True)


def judge_moved(left: dict[str, bytes | None], content: dict[str, bytes], mine: LocalState | None) -> None:
    there = {name for name, data in content.items() if left.get(name) == data}
    state = left.get("journal/replication.state")
    if state is None or b'"complete": true' in state:
        assert mine is None or state is not None, "the state is gone: what is left would be served with"
        assert there == content.keys(), f"half a store is taken for a whole one: {content.keys() - there} are gone"
    for name, data in content.items():
        top, _, rest = name.partition("/")
        aside = [path for path in left if re.fullmatch(rf"{top}/oldreplica\.[0-9]+/{re.escape(rest)}", path)]
        assert (name in there) + len(aside) == 1, f"{name} is in {aside}"
        assert all(left[path] == data for path in aside)


@pytest.mark.parametrize("room", [0, 1, 40, 100])
def test_a_full_disk_leaves_the_state_as_it_was(tmp_path: Path, room: int) -> None:
    disk = LossyDisk(tmp_path)
    directory = tmp_path / "journal"
    local.write(directory, STATE, disk)
    disk.room = room
    with pytest.raises(OSError, match="No space"):
        local.write(directory, LocalState("cd" * 16, 2, 1, complete=True, replica=False), disk)
    try:
        assert local.read(directory) == STATE
    except StoreError as error:
        pytest.fail(f"nobody serves at the next start: {error}")
