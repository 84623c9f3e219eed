"""Pairs of stores of one node id that parted in known ways, really written: what both comparers have to agree on.

Each builder leaves the stores `a` and `b` below a directory; `PARTED` says which of them is the newest.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from harness.store import message_of, opened, segments, settings_in, stable, until
from pollux.formats import checkpoint as layout
from pollux.formats.records import acks
from pollux.formats.segments import frame
from pollux.store.checkpoint import read_checkpoint, write_checkpoint
from pollux.store.files import FileOperations

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from random import Random

    from pollux.store.storage import Storage

QUEUE = 7
SMALL = 4 << 10


def bind(storage: Storage) -> None:
    """Make the queue known by its name."""
    storage.put("queue", "orders", msgspec.msgpack.encode({"id": QUEUE, "spec": {}}))


async def send(storage: Storage, count: int, *, size: int = 300) -> list[int]:
    """Messages into the queue; their ids."""
    sent = [message_of(storage, b"m" * size) for _ in range(count)]
    for message in sent:
        storage.append_message(message, [QUEUE])
    await stable(storage)
    return [message.id for message in sent]


async def take(storage: Storage, ids: list[int]) -> None:
    """Acknowledge these messages, and wait until that is on disk."""
    storage.append_acks(QUEUE, ids)
    await stable(storage)


async def copied(base: Path) -> None:
    """A copy is the same."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL), crash=True) as one:
        bind(one.storage)
        await send(one.storage, 30)
    shutil.copytree(base / "a", base / "b")


async def went_on(base: Path) -> None:
    """A backup that was lost: the live went on without it, over several segments."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL), crash=True) as one:
        bind(one.storage)
        ids = await send(one.storage, 10)
        shutil.copytree(base / "a", base / "b")
        await send(one.storage, 30)
        await take(one.storage, ids[:4])


async def single_record(base: Path) -> None:
    """One acknowledgement that the other has not."""
    async with opened(settings_in(base / "a"), crash=True) as one:
        bind(one.storage)
        ids = await send(one.storage, 3)
        shutil.copytree(base / "a", base / "b")
        await take(one.storage, ids[:1])


async def later_life(base: Path) -> None:
    """The backup served, and nothing happened."""
    async with opened(settings_in(base / "a"), crash=True) as one:
        bind(one.storage)
        await send(one.storage, 3)
    shutil.copytree(base / "a", base / "b")
    async with opened(settings_in(base / "b"), crash=True):
        pass


async def both_served(base: Path, *, clean: bool) -> None:
    """Both took epoch 2, so the ids of different messages are the same: they are told apart by the lives' salts."""
    async with opened(settings_in(base / "a"), crash=True) as one:
        bind(one.storage)
        await send(one.storage, 3)
    shutil.copytree(base / "a", base / "b")
    for side, count in (("a", 2), ("b", 5)):
        async with opened(settings_in(base / side, journal_compact_min_files=1), crash=not clean) as one:
            await send(one.storage, count)


async def consumed_and_folded(base: Path) -> None:
    """The newer side consumed everything and folded its segments away: what is left of the older one is not new."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL, journal_compact_min_files=1)) as one:
        bind(one.storage)
        ids = await send(one.storage, 20)
        shutil.copytree(base / "a", base / "b")
        await take(one.storage, ids)


async def folded_on_both(base: Path) -> None:
    """A copy of a running live has a checkpoint with messages; the live went on, consumed all, and stopped in order."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL, journal_compact_min_files=1)) as one:
        bind(one.storage)
        ids = await send(one.storage, 20)
    async with opened(settings_in(base / "a", journal_file_size=SMALL, journal_compact_min_files=1)) as one:
        ids += await send(one.storage, 20)
        shutil.copytree(base / "a", base / "b")
        await take(one.storage, ids)
        await take(one.storage, await send(one.storage, 20))


async def alone_then_later_life(base: Path, *, alone: int, stopped: bool) -> None:
    """The live went on alone (`stopped`: in order at the end), then the backup was made to serve with older data; its
    checkpoint, after a stop in order, is behind all that."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL), crash=not stopped) as one:
        bind(one.storage)
        await send(one.storage, 5)
        shutil.copytree(base / "a", base / "b")
        await send(one.storage, alone)
    folding = settings_in(base / "b", journal_file_size=SMALL, journal_compact_min_files=1)
    async with opened(folding) as one:
        await send(one.storage, 60)


async def alone_and_stopped(base: Path, *, alone: int) -> None:
    """The live went on alone and stopped in order; the backup, made to serve with older data, was killed: the live has
    nothing but a checkpoint, and the backup's next life says with how much of its last segment it began."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL)) as one:
        bind(one.storage)
        await send(one.storage, 5)
        shutil.copytree(base / "a", base / "b")
        await send(one.storage, alone)
    async with opened(settings_in(base / "b", journal_file_size=64 << 10), crash=True) as one:
        await send(one.storage, 60)


async def alone_then_killed(base: Path, *, deleted: bool) -> None:
    """As `alone_then_later_life`, but the backup has a checkpoint of the life before and was killed: what its life
    began with is there still. `deleted`: the segments that the checkpoint holds are gone, not about to be."""
    async with opened(settings_in(base / "a", journal_file_size=SMALL), crash=True) as one:
        bind(one.storage)
        await send(one.storage, 5)
        shutil.copytree(base / "a", base / "b")
        await send(one.storage, 40)
    folding = settings_in(base / "b", journal_file_size=64 << 10, journal_compact_min_files=1)
    before = segments(folding)[0]
    kept = before.read_bytes()
    async with opened(folding, crash=True) as one:
        maintenance = one.storage._maintenance
        assert maintenance is not None
        maintenance.consider(urgent=True)
        await until(lambda: any((base / "b" / "journal").glob("*.checkpoint")) and not before.exists())
        await send(one.storage, 60)
    if not deleted:
        before.write_bytes(kept)


async def ancestor(base: Path, *, stopped: bool) -> None:
    """An older copy of what served on: two more lives consumed everything, and stopped in order. `stopped`: so had the
    life that the copy is of, with messages that only a checkpoint tells of."""
    folding = {"journal_file_size": SMALL, "journal_compact_min_files": 1}
    async with opened(settings_in(base / "a", **folding), crash=not stopped) as one:
        bind(one.storage)
        ids = await send(one.storage, 30)
        await take(one.storage, ids[::2])
    shutil.copytree(base / "a", base / "b")
    for taken in (ids[1::2], ()):
        async with opened(settings_in(base / "b", **folding)) as one:
            await take(one.storage, [*taken, *await send(one.storage, 20)])


async def parted_and_stopped(base: Path) -> None:
    """Both served what the first life left, consumed some of it, and stopped in order, twice."""
    folding = {"journal_file_size": SMALL, "journal_compact_min_files": 1}
    async with opened(settings_in(base / "a", **folding)) as one:
        bind(one.storage)
        ids = await send(one.storage, 30)
    shutil.copytree(base / "a", base / "b")
    for side, taken, count in (("a", ids[:10], 3), ("b", ids[5:], 4)):
        for gone in (taken, ()):
            async with opened(settings_in(base / side, **folding)) as one:
                await take(one.storage, [*gone])
                await send(one.storage, count)


async def one_snapshot(base: Path) -> None:
    """The same life went on twice: epoch and salt are the same, the records are not."""
    async with opened(settings_in(base / "a"), crash=True) as one:
        bind(one.storage)
        ids = await send(one.storage, 3)
        shutil.copytree(base / "a", base / "b")
        await take(one.storage, ids[:1])
    segment = segments(settings_in(base / "b"))[0]
    data = bytearray(segment.read_bytes())
    salt = int.from_bytes(data[12:16], "little")
    end = len(bytes(data).rstrip(b"\0"))
    added = frame(acks(QUEUE, ids[1:], 0), salt)
    data[end : end + len(added)] = added
    segment.write_bytes(data)


async def drawn(base: Path, random: Random) -> tuple[str, dict[str, int]]:
    """Stores that parted between two lives, each life killed or stopped in order: which is the newest, and what their
    one queue has, as `QueueRow` names it."""

    async def live(side: str, held: list[int]) -> list[int]:
        settings = settings_in(base / side, journal_file_size=SMALL, journal_compact_min_files=random.choice((1, 4)))
        async with opened(settings, crash=random.random() < 0.3) as one:
            bind(one.storage)
            sent: list[int] = []
            for _ in range(random.randrange(4)):
                sent += await send(one.storage, random.randrange(1, 12))
                every = held + sent
                await take(one.storage, gone := random.sample(every, random.randrange(len(every))))
                held, sent = [id_ for id_ in held if id_ not in gone], [id_ for id_ in sent if id_ not in gone]
            return held + sent

    common: list[int] = []
    for _ in range(random.randrange(1, 4)):
        common = await live("a", common)
    shutil.copytree(base / "a", base / "b")
    lives = {side: random.choice((0, 1, 2, 3)) for side in "ab"}
    held = {side: list(common) for side in "ab"}
    for side, count in lives.items():
        for _ in range(count):
            held[side] = await live(side, held[side])
    shared = set(common)
    a, b = (shared & set(held[side]) for side in "ab")
    row = {
        "messages_a": len(held["a"]),
        "messages_b": len(held["b"]),
        "only_a": len(set(held["a"]) - shared),
        "only_b": len(set(held["b"]) - shared),
        "taken_by_a": len(b - a),
        "taken_by_b": len(a - b),
    }
    newest = "diverged" if lives["a"] and lives["b"] else "a" if lives["a"] else "b" if lives["b"] else "same"
    return newest, {name: value for name, value in row.items() if value}


def without_history(path: Path) -> None:
    """Make a checkpoint what a version that noted no history would have written."""
    data = path.read_bytes()
    count = layout.HEADER.unpack_from(data)[3]
    sections: list[tuple[int, bytes | memoryview]] = []
    for section, _, offset, length in layout.ENTRY.iter_unpack(data[layout.HEADER.size :][: layout.ENTRY.size * count]):
        part = data[offset : offset + length]
        if section == layout.STATE:
            values = msgspec.msgpack.decode(part)
            del values["history"]
            part = msgspec.msgpack.encode(values)
        sections.append((section, part))
    old = read_checkpoint(path, None)
    write_checkpoint(FileOperations(), path.parent, old.node_id, old.key, sections)


#: name -> how it is made, which is the newest.
PARTED: dict[str, tuple[Callable[[Path], Coroutine[Any, Any, None]], str]] = {
    "a copy": (copied, "same"),
    "went on in the same life": (went_on, "a"),
    "a single record": (single_record, "a"),
    "a later life": (later_life, "b"),
    "both served and were killed": (partial(both_served, clean=False), "diverged"),
    "both served and stopped": (partial(both_served, clean=True), "diverged"),
    "consumed and folded": (consumed_and_folded, "a"),
    "folded on both": (folded_on_both, "a"),
    "went on alone, killed": (partial(alone_then_later_life, alone=40, stopped=False), "diverged"),
    "went on alone, stopped": (partial(alone_then_later_life, alone=40, stopped=True), "diverged"),
    "went on alone in one segment": (partial(alone_then_later_life, alone=2, stopped=True), "diverged"),
    "went on alone, the other folded": (partial(alone_then_killed, deleted=True), "diverged"),
    "went on alone, the other was about to fold": (partial(alone_then_killed, deleted=False), "diverged"),
    "a checkpoint against a killed life": (partial(alone_and_stopped, alone=40), "diverged"),
    "a checkpoint within a segment": (partial(alone_and_stopped, alone=2), "diverged"),
    "one snapshot twice": (one_snapshot, "diverged"),
    "an ancestor, killed": (partial(ancestor, stopped=False), "b"),
    "an ancestor, stopped": (partial(ancestor, stopped=True), "b"),
    "parted and stopped": (parted_and_stopped, "diverged"),
}
