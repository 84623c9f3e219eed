"""A life of a store under a load that is drawn by seed.

Messages, transactions up to three times the buffer and in two phases, acknowledgements, delivery counts and times,
bindings, large messages, pages, checkpoints. What is asked for, and what is confirmed, is noted on its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from harness.store import abandon, message_of, settings_in
from pollux.errors import StoreError
from pollux.store import checkpointer
from pollux.store.files import FileOperations
from pollux.store.storage import Storage

from .holdings import Held, holdings
from .promises import Place, Unit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.lossy_disk import LossyDisk
    from pollux.message import Message
    from pollux.store.address_pages import AddressPages
    from pollux.store.checkpointer import Job, Result
    from pollux.store.port import Files
    from pollux.store.recovered import Damage
    from pollux.store.settings import StoreSettings

BUFFER = 4 << 10
SEGMENT = 16 << 10
PAGE = 4 << 10
#: Messages that are kept unacknowledged.
_HELD = 60
QUEUES = (1, 2, 3)
_KEYS = ("a", "b", "c")


def settings_of(directory: Path) -> StoreSettings:
    """Small files, so that all that happens with files happens often."""
    return settings_in(
        directory,
        journal_file_size=SEGMENT,
        journal_buffer_size=BUFFER,
        page_size_bytes=PAGE,
        full_disk_timeout=1000,
    )


#: The steps of a life, and how often each is taken.
WEIGHTS = {
    "plain": 6,
    "transaction": 5,
    "acknowledge": 5,
    "bind": 2,
    "large": 2,
    "page": 4,
    "drop": 1,
    "prepare": 1,
    "decide": 2,
    "number": 2,
    "checkpoint": 3,
}


class Life:
    """Drives one storage by seed, noting what it asks for and what is confirmed."""

    def __init__(self, storage: Storage, disk: LossyDisk, draw: random.Random, bodies: dict[int, bytes]) -> None:
        self._storage = storage
        self._disk = disk
        self._draw = draw
        self._bodies = bodies
        self._unit = 0
        #: What it found damaged when it began.
        self.damage: list[Damage] = []
        self.held: deque[Held] = deque()
        #: Prepared transactions whose outcome is open, by xid: the number, and what they add and remove.
        self.prepared: dict[bytes, tuple[int, tuple[Place, ...], tuple[Place, ...]]] = {}

    async def run(self, steps: int) -> None:
        """Take some steps; ends early when the store fails."""
        draw = self._draw
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        for _ in range(steps):
            if not await self.step(draw.choices(kinds, weights)[0]):
                return
            if draw.random() < 0.5:
                await self.stable()
            elif draw.random() < 0.5:
                await asyncio.sleep(0)
        await self.stable()

    async def step(self, kind: str, draw: random.Random | None = None) -> bool:
        """Take one step (WEIGHTS); False: the store has failed."""
        self._draw = draw or self._draw
        try:
            done = getattr(self, f"_{kind}")()
            if asyncio.iscoroutine(done):
                await done
        except (StoreError, OSError):
            return False
        return True

    async def end(self, *, cleanly: bool) -> None:
        """End the threads, with or without what a stop writes."""
        await _end(self._storage, cleanly=cleanly)

    async def stable(self) -> None:
        """Wait until everything asked for is confirmed, or the store has failed."""
        done = asyncio.get_running_loop().create_future()
        self._storage.when_stable(done.set_result)
        await asyncio.wait_for(done, 30)

    def _do(self, unit: Unit, held: list[Held], then: Callable[[], object] = lambda: None) -> None:
        """Have what was appended for a unit just now noted when it is confirmed."""

        def confirmed(error: StoreError | None) -> None:
            if error is None:
                self._disk.note(("confirmed", unit))
                self.held.extend(held)
                then()

        self._storage.when_stable(confirmed)

    def _begun(self, **values: Any) -> Unit:
        self._unit += 1
        unit = Unit(self._unit, **values)
        self._disk.note(("begun", unit))
        return unit

    def _message(self, **values: Any) -> Message:
        body = self._draw.randbytes(self._draw.choice((10, 100, 600, 1500)))
        message = message_of(self._storage, body, **values)
        self._bodies[message.id] = body
        return message

    def _plain(self) -> None:
        for _ in range(self._draw.randint(1, 4)):
            duplicate = self._draw.randbytes(8) if self._draw.random() < 0.3 else None
            deliver_at = self._draw.choice((0, 0, 0, 1 << 41))
            message = self._message(duplicate_id=duplicate, deliver_at=deliver_at)
            queues = self._draw.sample(QUEUES, self._draw.randint(1, 2))
            places = tuple((queue, message.id) for queue in queues)
            puts = tuple((("schedule", place), message.deliver_at) for place in places if message.deliver_at)
            unit = self._begun(adds=places, duplicates=(duplicate,) if duplicate else (), whole=True, puts=puts)
            self._storage.append_message(message, queues)
            self._do(unit, [Held(place, 0) for place in places])

    def _transaction(self) -> None:
        tx = self._storage.next_id()
        size = self._draw.randint(1, 3 * BUFFER)
        messages: list[Message] = []
        while size > 0:
            messages.append(self._message())
            size -= len(messages[-1].data)
        gone = [one for one in self._take(self._draw.randint(0, 4)) if not one.page]
        places = tuple((self._draw.choice(QUEUES), message.id) for message in messages)
        if self._draw.random() < 0.1:
            self._undone(tx, places, messages, gone)
            return
        paged = self._message(address="paged") if self._draw.random() < 0.3 else None
        more = ((2, paged.id),) if paged is not None else ()
        unit = self._begun(adds=(*places, *more), removes=tuple(one.place for one in gone), whole=True)
        for (queue, _), message in zip(places, messages, strict=True):
            self._storage.append_message(message, [queue], tx)
        for queue, message_id in unit.removes:
            self._storage.append_acks(queue, [message_id], tx)
        held = [Held(place, 0) for place in places]
        if paged is not None:
            held.append(Held((2, paged.id), self._pages().append(paged, [2], tx)))
        self._storage.append_commit(tx)
        self._do(unit, held)

    def _undone(self, tx: int, places: tuple[Place, ...], messages: list[Message], gone: list[Held]) -> None:
        for (queue, _), message in zip(places, messages, strict=True):
            self._storage.append_message(message, [queue], tx)
        for one in gone:
            self._storage.append_acks(one.place[0], [one.place[1]], tx)
        self._storage.append_rollback(tx)
        self.held.extend(gone)

    def _prepare(self) -> None:
        """The first phase: it survives this life until its outcome is known."""
        tx = self._storage.next_id()
        # Nobody prepares two transactions with one xid, however often a step is drawn.
        xid = tx.to_bytes(8)
        messages = [self._message() for _ in range(self._draw.randint(1, 3))]
        adds = tuple((self._draw.choice(QUEUES), message.id) for message in messages)
        gone = [one for one in self._take(self._draw.randint(0, 2)) if not one.page]
        removes = tuple(one.place for one in gone)
        unit = self._begun(adds=adds, removes=removes, xid=xid, outcome="prepare")
        for (queue, _), message in zip(adds, messages, strict=True):
            self._storage.append_message(message, [queue], tx)
        for queue, message_id in removes:
            self._storage.append_acks(queue, [message_id], tx)
        self._storage.append_prepare(tx, xid)
        self._do(unit, [], lambda: self.prepared.update({xid: (tx, adds, removes)}))

    def _decide(self) -> None:
        """The second phase, also of an earlier life's transaction."""
        if not self.prepared:
            return
        xid = self._draw.choice(sorted(self.prepared))
        tx, adds, removes = self.prepared.pop(xid)
        if self._draw.random() < 0.6:
            unit = self._begun(adds=adds, removes=removes, whole=True, xid=xid, outcome="commit")
            self._storage.append_commit(tx)
            self._do(unit, [Held(place, 0) for place in adds])
        else:
            unit = self._begun(xid=xid, outcome="rollback")
            self._storage.append_rollback(tx)
            self._do(unit, [Held(place, 0) for place in removes])

    def _number(self) -> None:
        """A failed delivery, or another time of delivery."""
        if not self.held:
            return
        one = self._draw.choice(self.held)
        if one.page:
            return
        if self._draw.random() < 0.5:
            count = self._draw.randint(1, 9)
            unit = self._begun(puts=((("count", one.place), count),))
            self._storage.append_delivery_count(*one.place, count)
        else:
            at = self._draw.choice((0, 1 << 42))
            unit = self._begun(puts=((("schedule", one.place), at or None),))
            self._storage.append_schedule(*one.place, at)
        self._do(unit, [])

    def _take(self, count: int) -> list[Held]:
        return [self.held.popleft() for _ in range(min(count, len(self.held)))]

    def _acknowledge(self) -> None:
        for one in self._take(max(self._draw.randint(1, 6), len(self.held) - _HELD)):
            unit = self._begun(removes=(one.place,))
            queue, message_id = one.place
            if one.page:
                self._pages().acknowledge(queue, one.page, [message_id])
            else:
                self._storage.append_acks(queue, [message_id])
            self._do(unit, [])

    def _bind(self) -> None:
        key = self._draw.choice(_KEYS)
        value = self._draw.randbytes(self._draw.choice((5, 2000))) if self._draw.random() < 0.8 else None
        unit = self._begun(puts=((key, value),))
        self._storage.put("k", key, value)
        self._do(unit, [])

    async def _large(self) -> None:
        writer = self._storage.large.create()
        body = b""
        for _ in range(self._draw.randint(1, 4)):
            part = self._draw.randbytes(self._draw.choice((100, 3000)))
            body += part
            writer.write(part)
            if self._draw.random() < 0.5:
                await asyncio.sleep(0.001)
        if self._draw.random() < 0.2:
            writer.abort()
            return
        paged = self._draw.random() < 0.4
        address = "paged" if paged else "an.address"
        message = message_of(self._storage, body[:50], large=writer.finish(), address=address)
        self._bodies[message.id] = body
        place = (self._draw.choice(QUEUES), message.id)
        unit = self._begun(adds=(place,))
        page = 0
        if paged:
            page = self._pages().append(message, [place[0]])
        else:
            self._storage.append_message(message, [place[0]])
        self._do(unit, [Held(place, page)])

    def _pages(self) -> AddressPages:
        return self._storage.pages.address("paged")

    def _page(self) -> None:
        for _ in range(self._draw.randint(1, 4)):
            durable = self._draw.random() < 0.7
            duplicate = self._draw.randbytes(8) if durable and self._draw.random() < 0.3 else None
            message = self._message(address="paged", durable=durable, duplicate_id=duplicate)
            place = (self._draw.choice(QUEUES), message.id)
            if not durable:
                # Nothing is promised of it: it may be there until the life ends, and is never asked for again.
                self._begun(adds=(place,))
                self._pages().append(message, [place[0]])
                continue
            unit = self._begun(adds=(place,), duplicates=(duplicate,) if duplicate else ())
            self._do(unit, [Held(place, self._pages().append(message, [place[0]]))])

    def _drop(self) -> None:
        # Not while something is under way that puts messages there.
        gone = [one for one in self.held if one.place[0] == 3]
        self.held = deque(one for one in self.held if one.place[0] != 3)
        for one in gone:
            unit = self._begun(removes=(one.place,))
            if one.page:
                self._pages().acknowledge(3, one.page, [one.place[1]])
            else:
                self._storage.append_acks(3, [one.place[1]])
            self._do(unit, [])

    async def _checkpoint(self) -> None:
        maintenance = self._storage._maintenance
        assert maintenance is not None
        maintenance.consider(urgent=True)
        if self._draw.random() < 0.5 and maintenance._task is not None:
            await asyncio.wait([maintenance._task], timeout=30)


def fold_on(disk: Files) -> Callable[[Job], Result]:
    """The checkpointer, in this process and on this disk."""

    def fold(job: Job) -> Result:
        job.broker = 0
        return checkpointer.run(job, disk)

    return fold


async def begin(
    disk: LossyDisk,
    draw: random.Random,
    bodies: dict[int, bytes],
    *,
    elsewhere: tuple[Path, Files] | None = None,
) -> Life | None:
    """A life on ``disk`` that has recovered, and noted what it found; None where the power or the disk fails before.

    ``elsewhere``: it is there, and only its notes are on the disk (of a replica).
    """
    root, files = elsewhere or (disk.root, disk)
    loop = asyncio.get_running_loop()
    storage: Storage | None = None
    try:
        storage = await Storage.open(settings_of(root), loop=loop, on_failure=lambda _: None, files=files)
        recovered = await storage.recover()
    except (StoreError, OSError):
        if storage is not None:
            await _end(storage, cleanly=False)
        return None
    maintenance = storage._maintenance
    assert maintenance is not None
    fold = fold_on(disk if elsewhere is None else FileOperations())

    async def in_thread(segments: list[checkpointer.Source]) -> Result:
        return await asyncio.to_thread(fold, maintenance._job(segments))

    maintenance._fold = in_thread  # type: ignore[method-assign]
    found, held, _ = holdings(storage, recovered)
    disk.note(("recovered", found))
    one = Life(storage, disk, draw, bodies)
    one.damage = recovered.damage
    for xid, (adds, removes) in found.prepared.items():
        (tx,) = (prepared.tx for prepared in recovered.prepared if prepared.xid == xid)
        one.prepared[xid] = (tx, tuple(sorted(adds)), tuple(sorted(removes)))
    taken = {place for _, _, removes in one.prepared.values() for place in removes}
    one.held.extend(message for message in held if message.place not in taken)
    return one


async def live(disk: LossyDisk, seed: int, bodies: dict[int, bytes], *, steps: int) -> None:
    """One life on ``disk``, to its end or to that of the power."""
    draw = random.Random(seed)  # noqa: S311  (a reproducible test, no secret)
    one = await begin(disk, draw, bodies)
    if one is None:
        return
    if (room := draw.choice((None,) * 15 + (draw.randrange(1 << 16),))) is not None:
        # A full disk, and for some of them room again later.
        disk.room = room
        if draw.random() < 0.7:
            asyncio.get_running_loop().call_later(0.3, disk.make_room)
    await one.run(steps)
    await one.end(cleanly=draw.random() < 0.3)


async def _end(storage: Storage, *, cleanly: bool) -> None:
    """End the threads, with or without what a stop writes."""
    with contextlib.suppress(StoreError, OSError):
        await (storage.close() if cleanly else abandon(storage))
