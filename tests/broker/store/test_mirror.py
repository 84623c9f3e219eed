"""A mirror repeats every change: the copy is the original, whatever happens while it is made; syncs wait for it."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.engine.conftest import Office, Receiver
from broker.store.mirrored import TIMEOUT, Pair, contents, roots_in, write
from pollux.errors import StoreError
from pollux.store.files import FileOperations
from pollux.store.mirror import Link, Operation, OperationType, Replica, first_copy
from pollux.store.mirror.first_copy import adopt, copy_store
from pollux.store.mirror.operations import MAXIMUM_DATA, ROOTS, decode, encode, path_of, pieces
from pollux.store.mirror.pieces import PIECE
from pollux.store.mirror.replica import INCOMPLETE_SYNC
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        yield made
    finally:
        made.pump.close()


operations = st.builds(
    Operation,
    st.sampled_from(list(OperationType)),
    st.text(max_size=20),
    st.integers(0, (1 << 64) - 1),
    st.binary(max_size=50),
    st.booleans(),
    st.integers(0, (1 << 64) - 1),
)


@given(st.lists(operations, max_size=5))
def test_operations_come_back(given_: list[Operation]) -> None:
    assert list(decode(b"".join(part for each in given_ for part in encode(each)))) == given_


@given(operations, st.data())
def test_incomplete_operations_are_refused(operation: Operation, data: st.DataObject) -> None:
    whole = b"".join(encode(operation))
    with pytest.raises(StoreError):
        list(decode(whole[: data.draw(st.integers(1, len(whole) - 1))]))


def test_large_writes_are_split_and_synced_once() -> None:
    body = os.urandom(2 * MAXIMUM_DATA + 5)
    parts = list(pieces(Operation(OperationType.WRITE, "journal/a", 100, body, synced=True)))
    assert [part.value for part in parts] == [100, 100 + MAXIMUM_DATA, 100 + 2 * MAXIMUM_DATA]
    assert b"".join(part.data for part in parts) == body
    assert [part.synced for part in parts] == [False, False, True]


@pytest.mark.parametrize(
    "name", ["journal/../x", "etc/passwd", "journal", "journal/", "/journal/a", "journal/a/b", "paging/a/../b", ""]
)
def test_no_path_leaves_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not a file of a store"):
        path_of(roots_in(tmp_path), name)


def test_a_store_in_use_is_copied_exactly(pair: Pair) -> None:
    """A thread changes files at random while they are copied; afterwards both sides are the same, byte for byte."""
    chance = random.Random(4711)  # noqa: S311
    names = [f"{root}/{number}.{'page' if root == 'paging' else 'segment'}" for root in ROOTS for number in range(6)]
    names = [name.replace("paging/", "paging/7/") for name in names]
    (pair.roots["paging"] / "7").mkdir()
    for name in names[::2]:
        path_of(pair.roots, name).write_bytes(chance.randbytes(3 * PIECE + 17))
    stop = threading.Event()
    #: The copy begins when changes are under way.
    changing = threading.Event()

    def change() -> None:
        while not stop.is_set():
            name = chance.choice(names)
            path = path_of(pair.roots, name)
            step = chance.randrange(10)
            if step == 0:
                pair.files.unlink(path)
            elif step == 1:
                with suppress(FileNotFoundError):
                    pair.files.rename(path, path_of(pair.roots, chance.choice([n for n in names if n[:5] == name[:5]])))
            elif step == 2:
                write(pair, name, chance.randbytes(100), flags=os.O_CREAT | os.O_TRUNC)
            else:
                data = chance.randbytes(chance.choice((1, 5000, 2 * PIECE)))
                write(pair, name, data, offset=chance.randrange(3 * PIECE), sync=step == 3)
            changing.set()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert changing.wait(TIMEOUT)
        pair.pump.join()
    finally:
        stop.set()
        thread.join()
    pair.settled()
    assert contents(pair.pump.roots) == contents(pair.roots)
    assert pair.pump.marks == [b"in sync"]
    assert pair.losses == []


def test_only_what_differs_is_sent_again(pair: Pair) -> None:
    body = os.urandom(10 * PIECE)
    for roots in (pair.roots, pair.pump.roots):
        (roots["journal"] / "1.segment").write_bytes(body)
    (pair.pump.roots["journal"] / "old.segment").write_bytes(b"gone on the primary")
    with (pair.roots["journal"] / "1.segment").open("r+b") as stream:
        stream.seek(4 * PIECE)
        stream.write(b"new")
    sent = 0
    take = pair.pump.link.take

    def counted(limit: int) -> list[bytes]:
        nonlocal sent
        parts = take(limit)
        sent += sum(map(len, parts))
        return parts

    pair.pump.link.take = counted  # type: ignore[method-assign]
    pair.pump.join()
    pair.settled()
    assert contents(pair.pump.roots) == contents(pair.roots)
    assert PIECE < sent < 2 * PIECE


class Syncing(FileOperations):
    """Notes which files are put on stable storage."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []

    def fdatasync(self, fd: int) -> None:
        self.synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        super().fdatasync(fd)


def test_a_replica_syncs_for_whoever_waits(tmp_path: Path) -> None:
    """Before its copy is complete nobody does: one sync for much is enough. The mark comes when everything is safe."""
    files = Syncing()
    told: list[list[str]] = []
    replica = Replica(roots_in(tmp_path), lambda _: told.append(files.synced.copy()), files)

    def synced(name: str, size: int = 1) -> Operation:
        return Operation(OperationType.WRITE, f"journal/{name}.segment", data=bytes(size), synced=True)

    replica.apply([synced("1"), Operation(OperationType.SYNC, "journal/2.segment")])
    assert files.synced == []
    replica.apply([synced("3", MAXIMUM_DATA)] * (INCOMPLETE_SYNC // MAXIMUM_DATA))
    assert sorted(files.synced) == ["1.segment", "2.segment", "3.segment"]
    replica.apply([synced("4")])
    replica.apply([Operation(OperationType.MARK, "", data=b"mark"), synced("5")])
    assert [names[3:] for names in told] == [["4.segment"]]
    assert files.synced[4:] == ["5.segment"]
    replica.apply([synced("6")])
    assert files.synced[5:] == ["6.segment"]
    replica.close()


def test_a_replica_has_no_group_on_its_disk_without_the_one_before_it(tmp_path: Path) -> None:
    """Its live writes on before a group is confirmed, but never before it is synced there."""
    files = Syncing()
    replica = Replica(roots_in(tmp_path), lambda _: None, files)
    seen: list[tuple[int, int]] = []
    pwrite = files.write

    def write(fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        seen.append((offset, len(files.synced)))
        return pwrite(fd, data, offset, sync=sync)

    files.write = write  # type: ignore[method-assign]
    replica.apply([Operation(OperationType.MARK, "", data=b"mark")])
    replica.apply(
        Operation(OperationType.WRITE, "journal/1.segment", offset, b"group", synced=synced)
        for offset, synced in ((0, True), (5, False), (10, True), (15, True))
    )
    assert seen == [(0, 0), (5, 1), (10, 1), (15, 2)]
    assert len(files.synced) == 3
    replica.close()


@pytest.mark.parametrize("served", [True, False])
def test_a_copy_is_slower_while_clients_change_something(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(first_copy, "time", SimpleNamespace(sleep=sleep))
    pair.mirror.clock = lambda: now
    pace = first_copy.Pace(pair.mirror)
    for _ in range(100):
        pace.wait(1_800_000)
        if served:
            write(pair, "journal/1.segment", b"record")
    assert now == pytest.approx(99 * 0.01 if served else 0.0)


def test_a_sync_waits_for_the_replica(pair: Pair) -> None:
    pair.pump.join()
    pair.settled()
    pair.pump.open.clear()
    finished = threading.Event()

    def send() -> None:
        write(pair, "journal/1.segment", b"record", sync=True)
        finished.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not finished.wait(0.3)
    assert (pair.roots["journal"] / "1.segment").read_bytes() == b"record"
    pair.pump.open.set()
    assert finished.wait(TIMEOUT)
    thread.join()
    assert (pair.pump.roots["journal"] / "1.segment").read_bytes() == b"record"


def test_a_replica_that_is_not_in_sync_holds_nobody_up(pair: Pair) -> None:
    pair.pump.open.clear()
    pair.mirror.attach(pair.pump.link)
    write(pair, "journal/1.segment", b"record", sync=True)
    pair.pump.open.set()


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_lost_replica_is_made_known_before_anybody_goes_on(tmp_path: Path, how: str) -> None:
    pair = Pair(tmp_path, patience=0.3 if how == "silent" else TIMEOUT)
    pair.pump.join()
    pair.settled()
    pair.pump.open.clear()
    order: list[str] = []
    known = threading.Event()

    def settle(link: Link, reason: str) -> bool:
        known.wait(TIMEOUT)
        order.append("known")
        return True

    pair.mirror._on_lost = settle

    def send() -> None:
        write(pair, "journal/1.segment", b"record", sync=True)
        order.append("confirmed")

    sender = threading.Thread(target=send)
    sender.start()
    loser = threading.Thread(target=pair.mirror.lose, args=(pair.pump.link, "the connection broke"))
    if how == "gone":
        loser.start()
    sender.join(1.0)
    assert order == []
    known.set()
    sender.join(TIMEOUT)
    assert order == ["known", "confirmed"]
    if how == "gone":
        loser.join(TIMEOUT)
    write(pair, "journal/1.segment", b"alone", sync=True)
    pair.pump.open.set()
    pair.pump.close()
    # What was sent after the loss never reaches it.
    copy = pair.pump.roots["journal"] / "1.segment"
    assert not copy.exists() or copy.read_bytes() != b"alone"


def test_a_replica_that_is_only_slow_is_lost_too(tmp_path: Path) -> None:
    """It confirms a little all the time, and would need minutes: nobody waits longer than the bound for it."""
    pair = Pair(tmp_path, patience=0.3)
    pair.pump.join()
    pair.settled()
    pair.pump.open.clear()
    link = pair.pump.link
    for number in range(5000):
        write(pair, "journal/1.segment", b"%d" % number)

    def confirm() -> None:
        while link.lost is None:
            pair.mirror.confirm(link, link.confirmed + 1)
            time.sleep(0.02)

    slow = threading.Thread(target=confirm)
    slow.start()
    write(pair, "journal/1.segment", b"record", sync=True)
    slow.join(TIMEOUT)
    assert pair.losses == ["it was waited for longer than 0.3 s"]
    pair.pump.open.set()
    pair.pump.close()


def test_two_that_hang_are_waited_for_once(tmp_path: Path) -> None:
    """Neither is told of the other one's loss: that would take as long again."""
    pair = Pair(tmp_path, patience=0.3)
    told: list[tuple[str, list[str]]] = []

    def lost(link: Link, _reason: str) -> bool:
        told.append((link.name, [each.name for each in pair.mirror.in_sync]))
        pair.mirror.mark(b"the other one is lost")
        return True

    pair.mirror._on_lost = lost
    links = [Link(name, lambda: None) for name in ("pollux", "helena")]
    for link in links:
        pair.mirror.attach(link)
        assert pair.mirror.admit(link, b"in sync")
    write(pair, "journal/1.segment", b"record", sync=True)
    assert told == [("pollux", []), ("helena", [])]
    pair.pump.close()


def test_a_mark_is_confirmed_before_it_counts(pair: Pair) -> None:
    """Whoever is told of a loss has written it down when that is over."""
    pair.pump.join()
    pair.settled()
    pair.pump.open.clear()
    marked = threading.Thread(target=pair.mirror.mark, args=(b"again",))
    marked.start()
    marked.join(0.2)
    assert marked.is_alive()
    pair.pump.open.set()
    marked.join(TIMEOUT)
    assert not marked.is_alive()
    assert pair.pump.link.confirmed == pair.pump.link.last


def test_a_loss_that_cannot_be_made_known_ends_all_syncs(pair: Pair) -> None:
    pair.pump.join()
    pair.settle = False
    pair.mirror.lose(pair.pump.link, "the connection broke")
    with pytest.raises(OSError, match=r"replica pollux is lost \(the connection broke\)"):
        write(pair, "journal/1.segment", b"record", sync=True)
    with pytest.raises(OSError, match="could not be made known"):
        pair.settled()


def test_memory_is_bounded_by_waiting(tmp_path: Path) -> None:
    pair = Pair(tmp_path, maximum_queue=4 * PIECE)
    pair.pump.join()
    pair.settled()
    pair.pump.open.clear()
    most = 0

    def send() -> None:
        for number in range(40):
            write(pair, "large/1.msg", bytes(PIECE), offset=number * PIECE)

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(50):
        most = max(most, pair.pump.link.queued)
        thread.join(0.01)
    assert thread.is_alive()
    pair.pump.open.set()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert most < 6 * PIECE
    pair.settled()
    pair.pump.close()
    assert contents(pair.pump.roots) == contents(pair.roots)


def test_a_copy_is_given_up_when_the_replica_takes_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path, patience=0.2)
    (pair.roots["large"] / "1.msg").write_bytes(os.urandom(12 << 20))
    pair.pump.open.clear()
    pair.mirror.attach(pair.pump.link)
    with pytest.raises(StoreError, match="took nothing"):
        copy_store(pair.mirror, pair.pump.link, {})
    pair.mirror.lose(pair.pump.link, "given up")
    pair.pump.close()
    assert pair.losses == []  # it never counted


def test_files_of_other_processes_are_adopted_whole(pair: Pair) -> None:
    pair.pump.join()
    made = pair.roots["journal"] / "9.checkpoint"
    made.write_bytes(os.urandom(3 * PIECE))
    adopt(pair.mirror, made)
    pair.settled()
    assert contents(pair.pump.roots) == contents(pair.roots)
    adopt(pair.mirror, pair.roots["journal"] / "not-there.bodies")
    pair.settled()
    assert sorted(path.name for path in pair.pump.roots["journal"].iterdir()) == ["9.checkpoint", "last.segment"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (threads)
            await asyncio.sleep(0.01)


async def test_a_broker_goes_on_from_the_copy(tmp_path: Path) -> None:
    """Messages, acknowledgements, pages and checkpoints of a store in use: the copy recovers to the same."""
    pair = Pair(tmp_path)
    office = Office(tmp_path)
    roots = pair.roots
    loop = asyncio.get_running_loop()

    def settings(where: dict[str, Path]) -> StoreSettings:
        return StoreSettings(
            where["journal"],
            where["bindings"],
            where["large"],
            where["paging"],
            node_id=b"n" * 16,
            journal_file_size=1 << 16,
            journal_compact_min_files=2,
            page_size_bytes=1 << 14,
        )

    async def open_on(where: dict[str, Path], **more: object) -> None:
        office.storage = await Storage.open(settings(where), loop=loop, on_failure=office.failures.append, **more)  # type: ignore[arg-type]
        recovered = await office.storage.recover()
        office.attach(recovered)

    office.settings("paged", max_size_bytes=20_000, page_size_bytes=16_384)
    await open_on(roots, files=pair.files)
    office.queue()
    office.queue("paged")
    await office.send(*[b"early %d" % number for number in range(300)])
    joined = loop.run_in_executor(None, pair.pump.join)
    receiver = Receiver()
    office.post.attach(office.post.queue("orders"), receiver)
    sent = 0
    while not joined.done() or sent < 3000:
        await office.send(*[b"late %d " % (sent + number) + bytes(200) for number in range(50)])
        await office.send(*[b"page %d " % (sent + number) + bytes(300) for number in range(10)], address="paged")
        sent += 50
        office.post.acknowledge(receiver.got[:40])
        del receiver.got[:40]
    await joined
    await until(lambda: office.storage._maintenance is not None and office.storage._maintenance.checkpoints >= 2)
    await office.stable()
    expected = {name: office.post.message_count(office.post.queue(name)) for name in ("orders", "paged")}
    await loop.run_in_executor(None, pair.settled)
    await office.post.close()
    # The primary is gone from one moment to the next: nothing of what it would still do reaches the copy.
    await loop.run_in_executor(None, pair.mirror.lose, pair.pump.link, "power cut")
    await loop.run_in_executor(None, pair.pump.close)
    with suppress(StoreError, OSError):
        await office.storage.close()
    await open_on(pair.pump.roots)
    assert office.failures == []
    found = {name: office.post.message_count(office.post.queue(name)) for name in ("orders", "paged")}
    assert found == expected
    assert expected["orders"] > 0
    assert expected["paged"] == sent // 5
    again = Receiver()
    office.post.attach(office.post.queue("paged"), again)
    await again.wait(expected["paged"])
    numbers = [start + number for start in range(0, sent, 50) for number in range(10)]
    assert again.bodies == [b"page %d " % number + bytes(300) for number in numbers]
    await office.close()
