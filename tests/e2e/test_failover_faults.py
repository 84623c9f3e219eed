"""Every fault a group on a shared store must survive, under traffic over three protocols, judged by the ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import stomp
from harness.broker import PASSWORD, USER
from harness.failover import BACKUP, PATIENCE, PRIMARY, Group, wait_until
from harness.loadclient.stomp import StompConnection
from harness.loadclient.target import Target
from pollux.formats.segments import HEADER_SIZE

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from harness.failover import Member

pytestmark = pytest.mark.timeout(600)
RUNNER = str(Path(__file__).with_name("failover_runner.py"))
SHUTDOWN = "<failover-on-shutdown>true</failover-on-shutdown>"
RESTART = "<restart-backup>true</restart-backup>"
FENCED = 10


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Group]:
    """A live and a backup that is ready, under traffic."""
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(RESTART)) as group:
        start(group)
        yield group


def start(group: Group) -> tuple[Member, Member]:
    """Start a pair and its traffic."""
    live, backup = group.members
    live.start()
    backup.spawn()
    backup.wait_for("ready")
    group.start_traffic()
    group.wait_for_confirms(30)
    return live, backup


def test_kill_of_the_live(pair: Group) -> None:
    live, backup = pair.members
    pair.fault("kill -9")
    live.kill()
    backup.wait_for("live")
    pair.wait_for_confirms(30)
    assert backup.activation["epoch"] == 2
    verdict = pair.finish()
    assert verdict.rto_ms[0] is not None
    history = json.loads(backup.command("history", "--json", "--config", str(backup.configuration)))
    assert [(one["epoch"], one["from"], one["to"]) for one in history] == [(1, None, "m0"), (2, "m0", "m1")]
    assert all(one["duration_ms"] is not None for one in history)


def test_a_clean_stop_leaves_the_store_paused(pair: Group) -> None:
    live, backup = pair.members
    assert live.stop() == 0
    assert pair.state()["state"] == "PAUSED"
    wait_until(lambda: "PAUSED" in backup.activation.get("reason", ""), "the backup knows")
    time.sleep(1.0)
    assert backup.phase == "joining"
    live.start()
    pair.wait_for_confirms(30)
    assert live.activation["epoch"] == 2
    pair.finish()


def test_a_clean_stop_with_failover_on_shutdown(tmp_path: Path) -> None:
    with Group(tmp_path, PRIMARY.format(SHUTDOWN), BACKUP.format("")) as group:
        live, backup = start(group)
        group.fault("SIGTERM")
        assert live.stop() == 0
        backup.wait_for("live")
        group.wait_for_confirms(30)
        group.finish()


def test_a_last_checkpoint_is_written_only_where_nobody_waits_to_serve(tmp_path: Path) -> None:
    """It is for the next start, and takes longer than a whole takeover: clients would wait for it."""
    with Group(tmp_path, PRIMARY.format(SHUTDOWN), BACKUP.format("")) as group:
        live, backup = group.members
        live.start()
        backup.spawn()
        backup.wait_for("ready")
        send_one(live)
        assert live.stop() == 0
        backup.wait_for("live")
        assert not checkpoints(group)
        assert backup.stop() == 0
        assert checkpoints(group)


def checkpoints(group: Group) -> list[Path]:
    return list((group.shared / "journal").glob("*.checkpoint"))


def send_one(broker: Member) -> None:
    with stomp.connect(broker) as client:
        client.send("one", "1", persistent="true")


def test_failback_to_the_preferred_broker(pair: Group) -> None:
    live, backup = pair.members
    live.kill()
    backup.wait_for("live")
    pair.wait_for_confirms(30)
    live.spawn()
    live.wait_for("live")
    backup.wait_for("ready")
    pair.wait_for_confirms(30)
    pair.finish()
    reasons = [one["reason"] for one in pair.state()["history"]]
    assert "failback" in reasons[-1]


def test_a_live_killed_while_failing_back_strands_nobody(pair: Group) -> None:
    live, backup = pair.members
    live.kill()
    backup.wait_for("live")
    for delay in (0.0, 0.05, 0.3):
        live.spawn()
        wait_until(
            lambda: pair.state()["state"] == "FAILING_BACK" or pair.state()["holder"]["name"] == "m0",
            "the live asks for the store",
        )
        time.sleep(delay)
        live.kill()
        assert pair.wait_for_live() is backup
        pair.wait_for_confirms(10)
    pair.finish()


def test_a_backup_killed_while_it_activates(pair: Group) -> None:
    live, backup = pair.members
    live.kill()
    wait_until(lambda: "to=activating" in backup.text(), "it activates")
    backup.kill()
    backup.spawn()
    live.spawn()
    pair.wait_for_live()
    pair.wait_for_confirms(30)
    pair.finish()


@pytest.mark.parametrize("first", [0, 1])
def test_both_killed_and_started_in_either_order(pair: Group, first: int) -> None:
    for member in pair.members:
        member.kill()
    pair.members[first].spawn()
    time.sleep(0.5)
    pair.members[1 - first].spawn()
    pair.wait_for_live()
    pair.wait_for_confirms(30)
    pair.finish()


def test_a_paused_live_is_replaced_and_changes_nothing_when_it_wakes(pair: Group) -> None:
    live, backup = pair.members
    zombie = StompConnection(Target("127.0.0.1", live.port, USER, PASSWORD))
    zombie.send(b"SEND\ndestination:other\npersistent:true\nreceipt:before\n\nx\0")
    assert b"before" in zombie.socket.recv(4096)
    epoch = live.activation["epoch"]
    live.signal(signal.SIGSTOP)
    pair.fault("SIGSTOP")
    # The kernel takes these for the process that stands still: it reads them when it wakes.
    for number in range(50):
        zombie.send(f"SEND\ndestination:other\npersistent:true\nreceipt:late-{number}\n\nlate {number}\0".encode())
    backup.wait_for("live")
    assert backup.activation["epoch"] > epoch
    pair.wait_for_confirms(30)
    live.signal(signal.SIGCONT)
    assert live.wait_for_end() == FENCED
    assert b"late-" not in everything_from(zombie.socket)
    zombie.close()
    # Whatever it still wrote is behind the recorded ends: neither this life nor the next one replays it.
    assert messages_in(backup, "other") == 1
    backup.kill()
    backup.spawn()
    backup.wait_for("live")
    assert messages_in(backup, "other") == 1
    consume_all(backup, "other", 1)
    pair.finish()


def everything_from(connection: socket.socket) -> bytes:
    """Read until the other side has closed."""
    connection.settimeout(PATIENCE)
    found = b""
    with suppress(ConnectionError):
        while chunk := connection.recv(65536):
            found += chunk
    return found


def messages_in(member: Member, queue: str) -> int:
    """How many messages management sees in a queue."""
    return int(member.api(f"/api/v1/queues/{queue}")["messages"])


def consume_all(member: Member, queue: str, count: int) -> None:
    """Remove all messages of a queue."""
    assert member.api(f"/api/v1/queues/{queue}/purge", method="POST")["count"] == count


def test_a_deleted_lock_file_stops_the_live_and_is_made_again(pair: Group) -> None:
    live, backup = pair.members
    pair.fault("lock file deleted")
    (pair.node / "live.lock").unlink()
    assert live.wait_for_end() == FENCED
    backup.wait_for("live")
    assert (pair.node / "live.lock").exists()
    live.spawn()
    pair.wait_for_confirms(30)
    pair.finish()


def test_a_damaged_state_file_is_written_anew_by_the_live(pair: Group) -> None:
    live, backup = pair.members
    for damage in (b"", b"{}", b"\0" * 300, (pair.node / "state.json").read_bytes()[:-20]):
        (pair.node / "state.json").write_bytes(damage)
        wait_until(lambda: b"crc32c" in (pair.node / "state.json").read_bytes(), "written anew")
    (pair.node / "state.json").unlink()
    wait_until((pair.node / "state.json").exists, "written anew")
    (pair.node / "state.json").write_bytes(b"damaged again")
    live.kill()
    backup.wait_for("live")
    pair.wait_for_confirms(30)
    pair.finish()


def test_a_state_file_damaged_while_all_are_down(pair: Group) -> None:
    live, backup = pair.members
    epoch = live.activation["epoch"]
    live.kill()
    backup.kill()
    (pair.node / "state.json").write_bytes(b"\0" * 100)
    backup.spawn()
    wait_until(lambda: "damaged" in backup.activation.get("reason", ""), "the backup says why it waits")
    live.spawn()
    live.wait_for("live")
    assert live.activation["epoch"] > epoch
    pair.wait_for_confirms(30)
    pair.finish()


def test_a_store_that_hangs_stops_the_live_within_five_seconds(tmp_path: Path) -> None:
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), runner=RUNNER) as group:
        live, backup = start(group)
        (live.directory / "faults").mkdir()
        cut = StompConnection(Target("127.0.0.1", live.port, USER, PASSWORD))
        hang = live.directory / "faults" / "hang"
        hang.touch()
        group.fault("the store hangs for the live")
        everything_from(cut.socket)
        assert live.wait_for_end() == FENCED
        # The bound is the broker's promise, so its own clock judges it: a busy machine may keep this test waiting.
        fenced = live.logged("to=fenced") - hang.stat().st_mtime
        assert fenced < 5.0, f"clients were cut off after {fenced:.1f} s"
        backup.wait_for("live")
        group.wait_for_confirms(30)
        group.finish()


class Filler(threading.Thread):
    """Somebody else's program that takes a disk, all but ``left`` bytes, and what becomes free, until it is stopped."""

    def __init__(self, directory: Path, left: int) -> None:
        super().__init__(daemon=True)
        self.path = directory / "somebody-elses-data"
        self.left = left
        self.stopping, self.full = threading.Event(), threading.Event()

    def run(self) -> None:
        with self.path.open("wb", buffering=0) as stream:
            while not self.stopping.is_set():
                with suppress(OSError):
                    while (free := self.free()) > self.left and not self.stopping.is_set():
                        stream.write(bytes(min(free - self.left, 1 << 20)))
                self.full.set()
                self.stopping.wait(0.005)

    def settle(self) -> None:
        """Wait until it has taken what became free so far; nobody else may write or delete meanwhile."""
        self.full.clear()
        for _ in range(2):  # the first time may have looked before the last deletion
            assert self.full.wait(30)
            self.full.clear()

    def free(self) -> int:
        """Bytes that are free."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def end(self) -> None:
        """Give everything back."""
        self.stopping.set()
        self.join()
        self.path.unlink()


def use_up(journal: Path) -> None:
    """Take what a store has set aside for a full disk: the reserve, and prepared segments nothing was written to."""
    (journal / "pollux.reserve").unlink(missing_ok=True)
    for segment in journal.glob("*.segment"):
        if not segment.read_bytes()[HEADER_SIZE:].strip(b"\0"):
            segment.unlink()


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of its own of 64 MiB."""
    if os.geteuid():
        pytest.skip("mounting a small file system needs root")
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "pollux-test", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.mark.parametrize(
    ("left", "phase"),
    [(0, "ready"), (40 << 10, "activating"), (256 << 10, "live")],
    ids=["no room for the state file", "no room for the bindings", "room with what was set aside"],
)
def test_a_full_shared_disk(tmp_path: Path, left: int, phase: str) -> None:
    """The live dies on a full disk; whoever takes over, or starts again, waits for room and loses nothing."""
    core = "<disk-scan-period>200</disk-scan-period>"
    roles = PRIMARY.format(""), BACKUP.format(RESTART)
    with small_disk(tmp_path / "shared") as shared, Group(tmp_path, *roles, core=core) as group:
        live, backup = start(group)
        filler = Filler(shared, left)
        filler.start()
        assert filler.full.wait(30)
        group.fault("the disk is full")
        wait_until(lambda: "disk is full: producers are blocked" in live.text(), "the live notices")
        group.fault("kill -9")
        backup.signal(signal.SIGSTOP)  # it must not be quicker than the filler with what becomes free now
        live.kill()
        if phase != "live":
            use_up(shared / "journal")
        filler.settle()
        backup.signal(signal.SIGCONT)
        backup.wait_for(phase)
        wait_until(lambda: phase == "live" or "No space left" in backup.text(), "it says why it does not serve")
        live.spawn()
        wait_until(lambda: live.phase, "it has started")
        time.sleep(2.0)  # long enough for whatever gives up on a full disk
        assert live.running, live.log_tail(3000)
        assert backup.running, backup.log_tail(3000)
        filler.end()
        group.fault("there is room again")
        group.wait_for_live()
        group.wait_for_confirms(30)
        assert live.running, live.log_tail(3000)
        assert backup.running, backup.log_tail(3000)
        group.finish()


def test_switchover_and_back(pair: Group) -> None:
    live, backup = pair.members
    config = ("--config", str(live.configuration))
    assert "live" in live.command("status", "--expect", "live", *config)
    answer = json.loads(live.command("switchover", "--json", *config))
    assert answer["to"] == "m1"
    assert answer["interruption_ms"] < 2000
    live.wait_for("ready")
    assert "ready" in live.command("status", "--expect", "backup", "--wait", "10", *config)
    pair.wait_for_confirms(30)
    time.sleep(1.0)
    assert backup.phase == "live", "the preferred broker does not take it back by itself"
    backup.command("failback", "--config", str(backup.configuration))
    assert live.phase == "live"
    backup.wait_for("ready")
    pair.wait_for_confirms(30)
    pair.finish()


def test_several_backups(tmp_path: Path) -> None:
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), BACKUP.format("")) as group:
        live = group.members[0]
        group.begin()
        live.kill()
        second = group.wait_for_live()
        group.wait_for_confirms(30)
        live.spawn()
        wait_until(lambda: "only for a pair" in live.activation.get("reason", ""), "failback is refused")
        second.kill()
        group.wait_for_live()
        group.wait_for_confirms(30)
        group.finish()


def test_a_stop_that_comes_while_a_broker_begins_its_next_life_is_a_stop(tmp_path: Path) -> None:
    """Breaks when the signal is one of the life that is over: the process begins anew, and nobody stops it."""
    runner = str(Path(__file__).with_name("late_stop_runner.py"))
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(RESTART), runner=runner) as pair:
        live, backup = pair.members
        live.start()
        backup.spawn()
        backup.wait_for("ready")
        live.kill()
        backup.wait_for("live")
        (backup.directory / "faults").mkdir()
        (backup.directory / "faults" / "late").touch()
        live.spawn()  # the backup hands the store over, and would wait as a backup again
        live.wait_for("live")
        assert backup.wait_for_end() == 0
        assert not (backup.directory / "faults" / "late").exists(), "it was asked"


def test_a_stop_waits_for_no_thread_that_hangs_on_the_store(tmp_path: Path) -> None:
    """Breaks when the process is there until the service manager kills it, long after "broker stopped"."""
    # The guard would end it before, with another code.
    own = "<px:lease-guard>20000</px:lease-guard>"
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), own=own, bad_disk=True) as group:
        live, backup = group.members
        live.start()
        backup.spawn()
        backup.wait_for("ready")
        backup.disk.hang(group.shared / "journal" / "pollux.lock")
        live.kill()
        backup.wait_for("activating")
        assert backup.stop() == 0
        assert "the process ends without them" in backup.text()


def test_a_store_that_hangs_as_it_is_taken_keeps_neither_questions_nor_the_guard_waiting(tmp_path: Path) -> None:
    """Breaks when the loop touches the store: nobody learns where the broker is, and it never ends."""
    # Longer than a busy machine may keep a proof waiting that is not meant to fail.
    own = "<px:lease-guard>10000</px:lease-guard>"
    # Who comes back waits until the other one is gone: with failback it would be "ready" for some milliseconds.
    roles = PRIMARY.format(""), BACKUP.format("<allow-failback>false</allow-failback>")
    with Group(tmp_path, *roles, own=own, bad_disk=True) as group:
        live, backup = group.members
        live.start()
        for one, other in ((live, backup), (backup, live)):
            other.spawn()
            other.wait_for("ready")
            other.disk.hang(group.shared / "journal" / "pollux.lock")
            one.kill()
            other.wait_for("activating")
            if other is backup:
                other.disk.mend()
                other.wait_for("live")
        live.disk.hang(group.shared)
        assert live.wait_for_end() == FENCED
