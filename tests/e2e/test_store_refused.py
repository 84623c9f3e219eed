"""A shared directory that is not the right one: `pollux run` refuses it with the reason and writes nothing to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from harness.broker import POLLUX
from harness.failover import BACKUP, PRIMARY, Group, Member, wait_until
from harness.files import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)
REFUSED = 11
LOCKED = 5
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a directory read-only, or gives up root's rights")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Group(tmp_path, PRIMARY.format("")) as group:
        yield group


def add(group: Group, name: str, shared: Path, role: str = BACKUP, own: str = "") -> Member:
    """One more member, on a directory of its own."""
    member = Member(group.directory / name, shared, name, role.format(""), own=own)
    group.members.append(member)
    return member


def run(member: Member, *before: str) -> tuple[int, str]:
    """Run it until it ends by itself: exit status and log."""
    words: Sequence[str] = (*before, POLLUX, "run", str(member.configuration))
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=member.directory)
    return done.returncode, done.stdout + done.stderr


def refused(member: Member, *before: str) -> str:
    """Run it, see it refused and nothing written; the line that says why."""
    shared = member.shared
    untouched = snapshot(shared)
    code, text = run(member, *before)
    assert code == REFUSED, text
    assert snapshot(shared) == untouched
    assert "Traceback" not in text
    (line,) = [one for one in text.splitlines() if " ERROR " in one]
    return line


def peers(member: Member) -> str:
    """Name the members' management ports."""
    return f"<px:peers>http://127.0.0.1:{member.management_port}</px:peers>"


@as_root
@pytest.mark.parametrize("used", [False, True])
def test_a_read_only_store(group: Group, used: bool) -> None:
    (live,) = group.members
    if used:
        live.start().stop()
    # A mount namespace of its own: nobody else sees the store read-only.
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    line = refused(live, "unshare", "--mount", "--propagation", "private", "sh", "-c", mount, str(group.shared))
    assert f"{group.shared / 'journal'}: the shared store is read-only for this broker; mount it read-write" in line
    live.start()
    assert live.stop() == 0, "the same store is fine when it can be written"


@as_root
def test_a_store_whose_user_is_another_one(group: Group) -> None:
    (live,) = group.members
    live.start().stop()
    # Without the rights of root the permissions count.
    for path in (group.shared, *group.shared.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    line = refused(live, "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--reuid=0", "--clear-groups")
    assert "give the directory to the broker's user" in line


@pytest.mark.parametrize("part", ["state", "bindings", "journal"])
def test_a_directory_of_another_node(group: Group, tmp_path: Path, part: str) -> None:
    (live,) = group.members
    live.start().stop()
    stranger = add(group, "stranger", tmp_path / "other", PRIMARY)
    stranger.start().stop()
    mine, theirs = (one["node_id"] for one in (group.state(), state_of(stranger)))
    if part == "state":
        shutil.copy(stranger.shared / "journal/node/state.json", group.node)
    else:
        my_files, their_files = ([*(one / part).glob("*-*-*")] for one in (group.shared, stranger.shared))
        assert my_files
        assert their_files
        for path in my_files:
            path.unlink()
        for path in their_files:
            shutil.copy(path, group.shared / part)
    line = refused(live)
    assert mine in line
    assert theirs in line
    assert str(group.shared) in line
    assert "must stay together" in line


def state_of(member: Member) -> dict[str, str]:
    """Its state file."""
    return Group.state_in(member.shared)


def test_a_directory_that_does_not_exist_on_this_host(group: Group, tmp_path: Path) -> None:
    """The other host's mount is missing: the path is an empty local directory, or none."""
    live = group.members[0].start()
    elsewhere = tmp_path / "elsewhere"
    for exists in (False, True):
        if exists:
            (elsewhere / "journal").mkdir(parents=True)
        other = add(group, f"other{exists}", elsewhere, own=peers(live))
        line = refused(other)
        assert f"{elsewhere / 'journal/node'}: is not shared with m0, whose store is not there" in line
        assert "mount the same directory on both hosts" in line
    assert live.phase == "live"


def test_a_copy_of_the_store(group: Group, tmp_path: Path) -> None:
    """The copy's own member files name the broker that serves: nothing has to be configured to find that out."""
    live = group.members[0].start()
    live.stop()  # files of one that serves come and go while they are copied
    copy = tmp_path / "copy"
    shutil.copytree(group.shared, copy)
    live.start()
    line = refused(add(group, "other", copy))
    assert f"{copy / 'journal/node'}: is not shared with m0" in line
    assert "one of the two is a copy" in line
    assert f"inode {(copy / 'journal/node').stat().st_ino}" in line
    assert live.phase == "live"


def test_another_store(group: Group, tmp_path: Path) -> None:
    live = group.members[0].start()
    own = tmp_path / "own"
    add(group, "owner", own, PRIMARY).start().stop()
    line = refused(add(group, "other", own, own=peers(live)))
    assert "is not shared with m0: here is the store" in line


def test_members_that_share_it_are_not_refused(group: Group) -> None:
    live = group.members[0].start()
    other = add(group, "other", group.shared, own=peers(live))
    other.spawn()
    other.wait_for("ready")
    live.kill()
    other.wait_for("live")
    live.spawn()  # finds m1's file, and m1 alive
    live.wait_for("live", "ready")


def test_two_that_are_live_with_one_node_id_are_warned_about(group: Group, tmp_path: Path) -> None:
    live = group.members[0].start()
    live.stop()
    copy = tmp_path / "copy"
    shutil.copytree(group.shared, copy)
    other = add(group, "other", copy, PRIMARY, own=peers(live)).start()
    live.start()
    wait_until(lambda: "duplicate-node-id" in other.text(), "it is warned about")
    node = group.state()["node_id"]
    (warning,) = other.activation["warnings"]
    assert f"duplicate node id {node}: m0 is live with it in epoch 2, this broker in epoch 2" in warning
    assert "one of the two is a copy" in warning
    live.stop()
    wait_until(lambda: not other.activation["warnings"], "it is over")
    assert other.text().count(" duplicate-node-id reason=") == 1, "told once, not every five seconds"
    assert other.phase == "live"


def test_a_member_that_waits_no_longer_than_it_may(group: Group, tmp_path: Path) -> None:
    live = group.members[0].start()
    limit = "<journal-lock-acquisition-timeout>500</journal-lock-acquisition-timeout>"
    other = Member(tmp_path / "other", group.shared, "other", BACKUP.format(""), core=limit)
    code, text = run(other)
    assert code == LOCKED, text
    assert "live.lock: the store's lock was not free within journal-lock-acquisition-timeout (0.5 s): m0 has it" in text
    assert live.phase == "live"
