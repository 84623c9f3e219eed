"""The replication stream between two ends on a real socket: copying, following, losing, coming back."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from broker.store.mirrored import contents, roots_in
from harness.store import FaultyFiles
from pollux.cluster.link import Conversation, CoreHub
from pollux.formats.segments import Kind, SegmentHeader
from pollux.ha.copies import local
from pollux.ha.copies.backup_side import PURPOSE, WINDOW, BackupSide
from pollux.ha.copies.live_side import LiveSide
from pollux.ha.copies.local import LocalState
from pollux.ha.copies.old_replicas import move_aside
from pollux.store.mirror import Mirror, MirroredFiles
from pollux.store.mirror.pieces import SETTLED, KnownPieces
from pollux.store.segments import segment_name
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pollux.store.mirror import Link

#: Generous: a machine under load.
TIMEOUT = 60.0
KEY = ClusterKey("cluster", "twins")
NODE = "0a" * 16


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (threads and sockets)
            await asyncio.sleep(0.01)


class End(asyncio.Protocol):
    """A socket with a conversation."""

    def __init__(self, hub: CoreHub, *, initiator: bool) -> None:
        self.hub = hub
        self.initiator = initiator
        self.ready = asyncio.Event()
        self.ended: list[tuple[str, str]] = []
        self.transport: asyncio.Transport
        self.conversation: Conversation

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.conversation = Conversation(
            self.hub,
            transport,
            asyncio.get_running_loop(),
            initiator=self.initiator,
            on_ready=lambda _: self.ready.set(),
            on_end=lambda code, text: self.ended.append((code, text)),
        )

    def data_received(self, data: bytes) -> None:
        self.conversation.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.conversation.end("failed", str(exc or "closed"))


class Live:
    """A store's files under a mirror, and a port for backups."""

    def __init__(self, directory: Path, *, patience: float = TIMEOUT) -> None:
        self.roots = roots_in(directory)
        self.sequence = 1
        self.lost: list[str] = []
        self.mirror = Mirror(self.roots, on_lost=self._lost, patience=patience)
        self.files = MirroredFiles(self.mirror)
        self.hub = CoreHub(KEY, name="castor", node_id=bytes.fromhex(NODE), timeout=TIMEOUT)
        self.hub.purposes[PURPOSE] = self._open
        self.serving: list[LiveSide] = []
        self.ended: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.prefix = True
        self.admitting = threading.Event()
        self.admitting.set()
        self.server: asyncio.Server

    def _open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> LiveSide:
        self.asked.append(content)
        conversation.accept(channel, node_id=NODE, epoch=7, prefix=self.prefix)
        serving = LiveSide(
            conversation,
            channel,
            "pollux",
            self.mirror,
            loop=asyncio.get_running_loop(),
            admit=self._admit,
            timeout=TIMEOUT,
            on_end=lambda _, reason: self.ended.append(reason),
        )
        self.serving.append(serving)
        return serving

    def _admit(self, link: Link) -> bool:
        assert self.admitting.wait(TIMEOUT)
        mark = {"node_id": NODE, "epoch": 7, "sequence": self.sequence}
        return self.mirror.admit(link, msgspec.msgpack.encode(mark))

    def _lost(self, link: Link, reason: str) -> bool:
        self.sequence += 1
        self.lost.append(reason)
        return True

    async def listen(self) -> int:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: End(self.hub, initiator=False), "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        def change() -> None:
            path = self.roots["journal"] / name
            fd = self.files.open(path, os.O_RDWR | os.O_CREAT)
            self.files.write(fd, data, 0, sync=sync)
            self.files.close(fd)

        async with asyncio.timeout(TIMEOUT):
            await asyncio.to_thread(change)


class Backup:
    """A member that follows."""

    def __init__(self, directory: Path) -> None:
        self.roots = roots_in(directory)
        self.hub = CoreHub(KEY, name="pollux", node_id=b"", timeout=TIMEOUT)
        self.synced: list[LocalState] = []
        self.ended: list[tuple[str, str]] = []
        self.end: End
        self.following: BackupSide
        self.files = FaultyFiles()
        self.pieces = KnownPieces(self.roots, lambda: self.passed)
        self.passed = 0.0

    async def follow(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        _, self.end = await loop.create_connection(lambda: End(self.hub, initiator=True), "127.0.0.1", port)
        async with asyncio.timeout(TIMEOUT):
            await self.end.ready.wait()
        self.following = BackupSide(
            self.end.conversation,
            self.roots,
            loop=loop,
            keep=2,
            on_synced=self.synced.append,
            on_end=lambda code, text: self.ended.append((code, text)),
            files=self.files,
            pieces=self.pieces,
        )
        self.following.begin()

    async def leave(self) -> None:
        self.end.transport.abort()
        await self.following.stop()

    def state(self) -> LocalState | None:
        return local.read(self.roots["journal"])


class Two:
    def __init__(self, directory: Path) -> None:
        self.live = Live(directory / "live")
        self.backup = Backup(directory / "backup")
        self.port = 0


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    made = Two(tmp_path)
    made.port = await made.live.listen()
    yield made
    if hasattr(made.backup, "following"):
        await made.backup.leave()
    made.live.server.close()
    for serving in made.live.serving:
        serving.closed("stopping", "")
    await until(lambda: not made.live.mirror.links)


async def test_a_backup_copies_follows_and_is_marked_complete(two: Two) -> None:
    (two.live.roots["large"] / "1.msg").write_bytes(os.urandom(3 << 20))
    (two.live.roots["journal"] / "1.segment").write_bytes(os.urandom(500_000))
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    expected = LocalState(NODE, 1, 7, complete=True, replica=True)
    assert two.backup.synced == [expected]
    assert two.backup.state() == expected
    assert two.live.asked == [{"node_id": "", "sequence": 0, "replica": True, "stay": False}]
    for number in range(50):
        await two.live.write("2.segment", b"record %d" % number)
        # What is confirmed is in the copy already.
        assert (two.backup.roots["journal"] / "2.segment").read_bytes() == b"record %d" % number
    assert contents(two.backup.roots) == contents(two.live.roots)


async def test_what_was_hashed_is_forgotten_when_a_write_fails(two: Two) -> None:
    """Breaks when bytes that never reached the disk are taken for what is there, as the file's times say."""
    file = two.backup.roots["journal"] / "1.segment"
    (two.live.roots["journal"] / "1.segment").write_bytes(os.urandom(500_000))
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    two.backup.pieces.look()
    two.backup.passed += SETTLED
    two.backup.pieces.look()
    assert two.backup.pieces.of(file) is not None
    two.backup.files.sync_error = errno.EIO
    await two.live.write("2.segment", b"record")
    await until(lambda: bool(two.backup.ended))
    assert two.backup.ended[0][0] == "failed"
    assert two.backup.pieces.of(file) is None


async def test_a_batch_costs_one_frame_each_way(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit is granted again by the window's quarters; and it never runs out."""
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    grants: list[int] = []
    granting = Conversation.grant

    def counted(conversation: Conversation, channel: int, size: int) -> None:
        grants.append(size)
        granting(conversation, channel, size)

    monkeypatch.setattr(Conversation, "grant", counted)
    for number in range(100):
        await two.live.write("2.segment", b"record %d" % number)
    assert grants == []
    for _ in range(20):  # more than a window
        await two.live.write("3.segment", bytes(1 << 20))
    assert 4 <= len(grants) <= 5
    assert min(grants) >= WINDOW // 4
    assert contents(two.backup.roots) == contents(two.live.roots)


async def test_a_copy_that_is_not_finished_is_never_complete(two: Two) -> None:
    (two.live.roots["large"] / "1.msg").write_bytes(os.urandom(3 << 20))
    two.live.admitting.clear()
    await two.backup.follow(two.port)
    copied = two.backup.roots["large"] / "1.msg"
    await until(lambda: copied.exists() and copied.stat().st_size == 3 << 20)
    await two.backup.leave()
    await until(lambda: two.live.serving[0].link.lost is not None)
    two.live.admitting.set()
    assert two.backup.state() == LocalState(NODE, 0, 7, complete=False, replica=True)
    await until(lambda: bool(two.live.ended))
    assert two.backup.synced == []
    assert two.live.lost == []


async def test_a_lost_backup_is_told_apart_before_the_live_goes_on(two: Two) -> None:
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    await two.backup.leave()
    await two.live.write("1.segment", b"alone")
    assert len(two.live.lost) == 1
    assert two.live.sequence == 2
    assert two.backup.state() == LocalState(NODE, 1, 7, complete=True, replica=True)
    await until(lambda: bool(two.live.ended))
    assert two.backup.ended[0][0] in ("failed", "stopping")

    # It comes back: what it has is completed, and it gets the new sequence.
    await two.live.write("2.segment", b"x" * 400_000)
    again = Backup(two.backup.roots["journal"].parent)
    two.backup = again
    await again.follow(two.port)
    await until(lambda: bool(again.synced))
    assert two.live.asked[1] == {"node_id": NODE, "sequence": 1, "replica": True, "stay": False}
    assert again.synced == [LocalState(NODE, 2, 7, complete=True, replica=True)]
    assert contents(again.roots) == contents(two.live.roots)


async def test_data_that_is_no_prefix_is_moved_aside(two: Two) -> None:
    (two.backup.roots["journal"] / "7.segment").write_bytes(b"what this member served alone")
    local.write(two.backup.roots["journal"], LocalState(NODE, 5, 3, complete=True, replica=False))
    two.live.prefix = False
    await two.live.write("1.segment", b"the live's")
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    assert two.live.asked == [{"node_id": NODE, "sequence": 5, "replica": False, "stay": False}]
    assert contents(two.backup.roots) == contents(two.live.roots)
    old = two.backup.roots["journal"] / "oldreplica.1"
    assert (old / "7.segment").read_bytes() == b"what this member served alone"
    assert (old / local.FILE).exists()


async def test_a_backup_that_hangs_is_lost_within_the_bound(tmp_path: Path) -> None:
    live = Live(tmp_path / "live", patience=0.5)
    backup = Backup(tmp_path / "backup")
    await backup.follow(await live.listen())
    await until(lambda: bool(backup.synced))
    backup.end.transport.pause_reading()
    await live.write("1.segment", b"record")
    assert live.lost == ["it was waited for longer than 0.5 s"]
    await backup.leave()
    live.server.close()
    await until(lambda: not live.mirror.links)


async def test_garbage_from_a_proven_peer_ends_its_channel_only(two: Two) -> None:
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    two.backup.end.conversation.send(two.backup.following._channel, b"\xc1 nonsense")
    await until(lambda: bool(two.live.ended))
    assert "cannot be read" in two.live.ended[0]
    assert two.live.server.is_serving()


async def test_an_unreadable_state_is_refused_and_nothing_is_touched(two: Two) -> None:
    (two.backup.roots["journal"] / "1.segment").write_bytes(b"precious")
    (two.backup.roots["journal"] / local.FILE).write_text('{"format": 99}')
    await two.backup.follow(two.port)
    assert two.backup.ended[0][0] == "refused"
    assert "pollux activation list" in two.backup.ended[0][1]
    assert (two.backup.roots["journal"] / "1.segment").read_bytes() == b"precious"
    assert two.live.asked == []


async def test_data_of_a_broker_that_was_not_replicated_is_no_copy(two: Two) -> None:
    """There is no state beside it: it is told whose it is, and that somebody served with it."""
    header = SegmentHeader(Kind.JOURNAL, 1, bytes.fromhex(NODE), 3, 1, 0).encode()
    (two.backup.roots["journal"] / segment_name(3, 1)).write_bytes(header)
    two.live.prefix = False
    await two.live.write("1.segment", b"the live's")
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    assert two.live.asked == [{"node_id": NODE, "sequence": 0, "replica": False, "stay": False}]
    assert (two.backup.roots["journal"] / "oldreplica.1" / segment_name(3, 1)).read_bytes() == header


async def test_a_lost_backup_is_told_and_can_come_back(two: Two) -> None:
    """The live gives it up although its connection stands: it must not believe that it is in sync."""
    await two.backup.follow(two.port)
    await until(lambda: bool(two.backup.synced))
    await asyncio.to_thread(two.live.mirror.lose, two.live.serving[0].link, "too slow")
    await until(lambda: bool(two.backup.ended))
    assert two.backup.ended == [("failed", "too slow")]


def test_files_of_the_process_are_not_moved_aside(tmp_path: Path) -> None:
    roots = roots_in(tmp_path)
    kept = ["pollux.lock", "pollux.session", ".pollux.status.json.tmp", "spare-castor.zeros", local.FILE]
    moved = ["1.segment", "pollux.reserve", "pollux-00000001-0000000001.segment"]
    for name in (*kept, *moved):
        (roots["journal"] / name).write_bytes(b"x")
    assert move_aside(roots, keep=1) == 1
    assert sorted(path.name for path in roots["journal"].iterdir()) == sorted([*kept, "oldreplica.1"])
    assert sorted(path.name for path in (roots["journal"] / "oldreplica.1").iterdir()) == sorted(moved)


def test_saved_copies_are_bounded(tmp_path: Path) -> None:
    roots = roots_in(tmp_path)
    for number in range(4):
        (roots["journal"] / "1.segment").write_bytes(b"%d" % number)
        (roots["paging"] / "7").mkdir()
        (roots["paging"] / "7" / "1.page").write_bytes(b"%d" % number)
        assert move_aside(roots, keep=2) == number + 1
    assert sorted(path.name for path in roots["journal"].iterdir()) == ["oldreplica.3", "oldreplica.4"]
    assert (roots["paging"] / "oldreplica.4" / "7" / "1.page").read_bytes() == b"3"
    assert move_aside(roots, keep=2) is None
    for keep in (3, 5, -1):
        assert move_aside(roots, keep=keep) is None
        assert len(list(roots["journal"].iterdir())) == 2, "there are fewer than may be kept"
    assert move_aside(roots, keep=0) is None
    assert list(roots["journal"].iterdir()) == []
