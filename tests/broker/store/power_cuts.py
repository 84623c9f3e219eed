"""A store on a lossy disk: recorded lives, and what a power cut anywhere in them leaves.

A life is a real Storage with its threads on a :class:`LossyDisk`, under a load drawn by seed: messages, transactions up
to three times the buffer, acknowledgements, bindings, large messages, pages, checkpoints. Its events are replayed into
an account, the power is cut between any two of them, and what is left is recovered and judged by the promises noted
among the events. The next life begins on such a rest, or on the whole disk (its predecessor was killed).
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pollux.errors import StoreError
from pollux.store import checkpointer
from pollux.store.files import FileOperations
from pollux.store.index import plan, records_of
from pollux.store.large import LargeMessage
from pollux.store.records import decode_message
from pollux.store.storage import Storage
from support.lossy_disk import Account, Event, LossyDisk, materialise

from .helpers import abandon, contents, message_of, settings_in
from .promises import Found, Place, Promises, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from pollux.message import Message
    from pollux.store.checkpointer import Job, Result
    from pollux.store.pages import AddressPages, PagedMessage
    from pollux.store.recovered import Damage, Recovered
    from pollux.store.settings import StoreSettings

T = TypeVar("T")
BUFFER = 4 << 10
SEGMENT = 16 << 10
PAGE = 4 << 10
#: Messages that are kept unacknowledged.
_HELD = 60
QUEUES = (1, 2, 3)
_KEYS = ("a", "b", "c")
#: Damage that a power cut alone explains: of writes that were never confirmed.
_NORMAL = {"torn-tail", "late-writes"}


def settings_of(directory: Path) -> StoreSettings:
    """Small files, so that all that happens with files happens often."""
    return settings_in(
        directory,
        journal_file_size=SEGMENT,
        journal_buffer_size=BUFFER,
        page_size_bytes=PAGE,
        full_disk_timeout=1000,
    )


def scratch() -> Path:
    """A directory in memory where there is one: nothing of this has to survive a real power cut."""
    memory = Path("/dev/shm")  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="pollux-power-", dir=memory if memory.is_dir() else None))


class InMemory(FileOperations):
    """Syncs cost nothing: what is recovered is looked at once."""

    def fdatasync(self, fd: int) -> None:
        """Nothing."""

    def fsync(self, fd: int) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


# -- a life


class Held(NamedTuple):
    """A message that may be acknowledged; ``page`` of its address, 0: it is in the journal."""

    place: Place
    page: int


class Life:
    """Drives one storage by seed, noting what it asks for and what is confirmed."""

    def __init__(self, storage: Storage, disk: LossyDisk, draw: random.Random, bodies: dict[int, bytes]) -> None:
        self._storage = storage
        self._disk = disk
        self._draw = draw
        self._bodies = bodies
        self._unit = 0
        self.held: deque[Held] = deque()

    async def run(self, steps: int) -> None:
        """Some steps; ends early when the store fails."""
        draw = self._draw
        kinds: list[tuple[Callable[[], Any], int]] = [
            (self._plain, 6),
            (self._transaction, 5),
            (self._acknowledge, 5),
            (self._bind, 2),
            (self._large, 2),
            (self._page, 4),
            (self._drop, 1),
            (self._checkpoint, 3),
        ]
        for _ in range(steps):
            (step,) = draw.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            try:
                done = step()
                if asyncio.iscoroutine(done):
                    await done
            except (StoreError, OSError):
                return
            if draw.random() < 0.5:
                await self._stable()
            elif draw.random() < 0.5:
                await asyncio.sleep(0)
        await self._stable()

    async def _stable(self) -> None:
        done = asyncio.get_running_loop().create_future()
        self._storage.when_stable(done.set_result)
        await asyncio.wait_for(done, 30)

    def _do(self, unit: Unit, held: list[Held]) -> None:
        """What was appended for a unit just now is to be confirmed."""

        def confirmed(error: StoreError | None) -> None:
            if error is None:
                self._disk.note(("confirmed", unit))
                self.held.extend(held)

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
            message = self._message(duplicate_id=duplicate)
            queues = self._draw.sample(QUEUES, self._draw.randint(1, 2))
            places = tuple((queue, message.id) for queue in queues)
            unit = self._begun(adds=places, duplicates=(duplicate,) if duplicate else (), whole=True)
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


def fold_on(disk: FileOperations) -> Callable[[Job], Result]:
    """The checkpointer, in this process and on this disk."""

    def fold(job: Job) -> Result:
        job.broker = 0
        return checkpointer.run(job, disk)

    return fold


async def live(disk: LossyDisk, seed: int, bodies: dict[int, bytes], *, steps: int) -> None:
    """One life on ``disk``, to its end or to that of the power."""
    draw = random.Random(seed)  # noqa: S311  (a reproducible test, no secret)
    failures: list[StoreError] = []
    loop = asyncio.get_running_loop()
    storage: Storage | None = None
    try:
        storage = await Storage.open(settings_of(disk.root), loop=loop, on_failure=failures.append, files=disk)
        recovered = await storage.recover()
    except (StoreError, OSError):
        if storage is not None:
            await _end(storage, cleanly=False)
        return
    maintenance = storage._maintenance
    assert maintenance is not None
    fold = fold_on(disk)

    async def in_thread(segments: list[checkpointer.Source]) -> Result:
        return await asyncio.to_thread(fold, maintenance._job(segments))

    maintenance._fold = in_thread  # type: ignore[method-assign]
    found, held, _ = inventory(storage, recovered)
    disk.note(("recovered", found))
    one = Life(storage, disk, draw, bodies)
    one.held.extend(held)
    await one.run(steps)
    await _end(storage, cleanly=draw.random() < 0.3)


async def _end(storage: Storage, *, cleanly: bool) -> None:
    """End the threads, with or without what a stop writes."""
    with contextlib.suppress(StoreError, OSError):
        await (storage.close() if cleanly else abandon(storage))


# -- what is left


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but its turn."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def paged_messages(storage: Storage) -> Iterator[tuple[int, PagedMessage, int]]:
    """(queue, message, page) of what the pages hold that is not acknowledged."""
    body_lost = storage.pages.body_lost
    storage.pages.body_lost = _not_asked
    for pages in storage.pages.addresses().values():
        for page in pages.pages.values():
            data = page.path.read_bytes()[: page.size]
            for one in run_now(pages._decode(page, data)):
                for queue in one.queue_ids:
                    if queue in page.remaining and one.message.id not in page.acknowledged.get(queue, ()):
                        yield queue, one, page.number
    storage.pages.body_lost = body_lost


async def _not_asked(_: object) -> str | None:
    """Bodies are looked at here."""
    return None


def inventory(storage: Storage, recovered: Recovered) -> tuple[Found, list[Held], dict[int, Message]]:
    """What a store holds, as places and as messages."""
    held: list[Held] = []
    messages: dict[int, Message] = {}
    wanted: set[int] = set()
    for queue, ids in contents(recovered).items():
        held += [Held((queue, message_id), 0) for message_id in ids]
        wanted.update(ids)
    runs, _ = plan(storage._indexes, sorted(wanted))
    for run in runs:
        data = storage._reader.read(run)
        for _, record in records_of(run, data) if data is not None else ():
            if record is not None:
                message = decode_message(record, LargeMessage)[0]
                messages[message.id] = message
    for queue, one, number in paged_messages(storage):
        held.append(Held((queue, one.message.id), number))
        messages[one.message.id] = one.message
    duplicates = frozenset(value for kept in recovered.duplicates.values() for value in kept)
    bindings = {key: value for (_, key), value in recovered.bindings.items()}
    return Found(frozenset(one.place for one in held), bindings, duplicates), held, messages


def wrong_in(
    directory: Path, promises: Promises, bodies: dict[int, bytes], loop: asyncio.AbstractEventLoop
) -> list[str]:
    """Recover what is left in ``directory`` and judge it."""
    settings = settings_of(directory)
    for path in (
        settings.journal_directory,
        settings.bindings_directory,
        settings.large_messages_directory,
        settings.paging_directory,
    ):
        path.mkdir(exist_ok=True)
    storage = Storage(settings, epoch=1 << 16, loop=loop, on_failure=lambda _: None, files=InMemory())
    try:
        recovered = storage._replay()
        found, held, messages = inventory(storage, recovered)
    except StoreError as error:
        return [f"it does not start: {error}"]
    finally:
        storage._bindings.close()
        storage._reader.close()
    words = promises.wrong(found)
    words += [str(damage) for damage in recovered.damage if not _explained(damage)]
    for message_id in {one.place[1] for one in held}:
        message = messages.get(message_id)
        if message is None:
            words.append(f"message {message_id} has no body")
        elif isinstance(message.large, LargeMessage):
            path = settings.large_messages_directory / f"{message.large.id}.msg"
            if not path.exists() or path.read_bytes() != bodies[message_id]:
                words.append(f"large message {message_id}: its file is missing or not whole")
        elif message.data != bodies[message_id]:
            words.append(f"message {message_id} has another body")
    return words


def _explained(damage: Damage) -> bool:
    """Whether a power cut alone leaves it.

    A page does not tell which of its writes was the last; and a hole in a write that was never confirmed cannot be told
    from damage any more once a later life has recorded where the segment ends. Both are reported rather than hidden.
    """
    return damage.kind in _NORMAL or damage.file.suffix == ".page" or "reading went on" in damage.detail


class Failure(NamedTuple):
    """A power cut whose rest breaks a promise. The events up to ``position`` and the seed repeat it."""

    position: int
    seed: int
    words: list[str]


class Recording(NamedTuple):
    """A life's events, what was promised before it, and the bodies that were sent."""

    events: list[Event]
    #: How many of them tell what was there before.
    adopted: int
    promises: Promises
    bodies: dict[int, bytes]


def cut(
    recording: Recording,
    seed: int,
    points: int,
    judge: Callable[[Path, Promises, dict[int, bytes], asyncio.AbstractEventLoop], list[str]] = wrong_in,
) -> Iterator[Failure]:
    """Cut the power ``points`` times at places spread over a recording; what is wrong then, by ``judge``."""
    draw = random.Random(seed)  # noqa: S311
    events = recording.events
    positions = sorted(draw.randint(recording.adopted, len(events)) for _ in range(points))
    account, promises, done = Account(), recording.promises.copy(), 0
    loop = asyncio.new_event_loop()
    base = scratch()
    try:
        for number, position in enumerate(positions):
            for event in events[done:position]:
                account.apply(event)
                if event.kind == "note":
                    promises.note(*event.value)
            done = position
            one = draw.randrange(1 << 62)
            left = account.left(random.Random(one))  # noqa: S311
            target = base / str(number)
            target.mkdir()
            materialise(left, target)
            if words := judge(target, promises, recording.bodies, loop):
                yield Failure(position, one, words)
            shutil.rmtree(target)
    finally:
        loop.close()
        shutil.rmtree(base)


# -- chains of lives


async def recorded(
    disk: LossyDisk, promises: Promises, seed: int, bodies: dict[int, bytes], *, steps: int
) -> Recording:
    """One to three lives on a disk; all but the last are killed at some call, which loses nothing."""
    draw = random.Random(seed)  # noqa: S311
    for _number in range(draw.choice((1, 1, 2, 3))):
        disk.power_on()
        if draw.random() < 0.5:
            disk.cut_at = disk.calls + int(draw.expovariate(1 / 150)) + 1
        await live(disk, draw.randrange(1 << 62), bodies, steps=steps)
    return Recording(list(disk.events), disk.adopted, promises, bodies)


def chain(seed: int, lives: int, *, steps: int = 40) -> Iterator[Recording]:
    """Recordings, each of which begins with what a power cut left of the one before."""
    draw = random.Random(seed)  # noqa: S311
    base = scratch()
    bodies: dict[int, bytes] = {}
    promises = Promises()
    left: dict[str, bytes | None] = {}
    try:
        for number in range(lives):
            root = base / str(number)
            root.mkdir()
            materialise(left, root)
            recording = asyncio.run(recorded(LossyDisk(root), promises, draw.randrange(1 << 62), bodies, steps=steps))
            shutil.rmtree(root)
            yield recording
            account, promises = Account(), promises.copy()
            for event in recording.events[: draw.randint(recording.adopted, len(recording.events))]:
                account.apply(event)
                if event.kind == "note":
                    promises.note(*event.value)
            left = account.left(draw)
    finally:
        shutil.rmtree(base)


def kept(recording: Recording, failure: Failure, path: Path) -> str:
    """Keep what repeats a failure; the words for whoever has to look into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps((recording, failure)))
    words = "\n  ".join(failure.words[:10])
    return (
        f"after event {failure.position} of {len(recording.events)} a power cut leaves:\n  {words}\n"
        f"again: .venv/bin/python tests/crash.py --again {path}"
    )


def again(path: Path) -> list[str]:
    """What is wrong in a failure that was kept. Leaves the directory that was judged in ``path``.left."""
    recording, failure = pickle.loads(path.read_bytes())  # noqa: S301  (a file of our own)
    account, promises = Account(), recording.promises.copy()
    for event in recording.events[: failure.position]:
        account.apply(event)
        if event.kind == "note":
            promises.note(*event.value)
    target = path.with_suffix(".left")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    materialise(account.left(random.Random(failure.seed)), target)  # noqa: S311
    loop = asyncio.new_event_loop()
    try:
        return wrong_in(target, promises, recording.bodies, loop)
    finally:
        loop.close()
