"""Power cuts anywhere in the recorded lives of a store, and a judgement on what they leave.

A life (:mod:`.lives`) is a real Storage with its threads on a :class:`LossyDisk`. Its events are replayed into an
account, the power is cut between any two of them, and what is left is recovered and judged by the promises noted
among the events. The next life begins on such a rest, or on the whole disk (its predecessor was killed).
"""

from __future__ import annotations

import asyncio
import pickle
import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

from harness import in_memory
from harness.disk_account import Account, Event, materialise
from harness.lossy_disk import LossyDisk
from pollux.errors import StoreError
from pollux.store.files import FileOperations
from pollux.store.large import LargeMessage
from pollux.store.storage import Storage

from .holdings import holdings
from .lives import live, settings_of
from .promises import Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pollux.store.recovered import Damage

    from .promises import Found

#: Damage that a power cut alone explains: of writes that were never confirmed.
_NORMAL = {"torn-tail", "late-writes"}


class InMemory(FileOperations):
    """Syncs cost nothing: what is recovered is looked at once."""

    def fdatasync(self, fd: int) -> None:
        """Return at once."""

    def fsync(self, fd: int) -> None:
        """Return at once."""

    def sync_directory(self, path: Path) -> None:
        """Return at once."""


class Recovered(NamedTuple):
    """Holds what recovery finds in a directory (None: it does not start), and what is wrong with it in any case."""

    found: Found | None
    words: list[str]

    def wrong(self, promises: Promises) -> list[str]:
        """List the wrongs of it after these promises."""
        return [*(promises.wrong(self.found) if self.found is not None else ()), *self.words]


def recover(directory: Path, bodies: dict[int, bytes], loop: asyncio.AbstractEventLoop) -> Recovered:
    """Recover what is left in ``directory``."""
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
        recovered = storage._opening.replay()
        found, held, messages = holdings(storage, recovered)
    except StoreError as error:
        return Recovered(None, [f"it does not start: {error}"])
    finally:
        storage._bindings.close()
        storage._cold.reader.close()
    words = [str(damage) for damage in recovered.damage if not explained(damage)]
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
    return Recovered(found, words)


def explained(damage: Damage) -> bool:
    """Whether a power cut alone leaves it.

    A page does not tell which of its writes was the last: that is reported rather than hidden.
    """
    return damage.kind in _NORMAL or damage.file.suffix == ".page"


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
    recover: Callable[[Path, dict[int, bytes], asyncio.AbstractEventLoop], Recovered] = recover,
) -> Iterator[Failure]:
    """Cut the power ``points`` times at places spread over a recording; what is wrong with what ``recover`` finds.

    Often the same is left, with more promised: that is recovered once, and judged each time.
    """
    draw = random.Random(seed)  # noqa: S311
    events = recording.events
    positions = sorted(draw.randint(recording.adopted, len(events)) for _ in range(points))
    account, promises, done = Account(), recording.promises.copy(), 0
    loop = asyncio.new_event_loop()
    #: By the hash of all names and contents: bytes keep theirs, and most files are the same object as at the last cut.
    known: dict[int, Recovered] = {}
    target = in_memory.directory("pollux-power-")
    try:
        for position in positions:
            for event in events[done:position]:
                account.apply(event)
                if event.kind == "note":
                    promises.note(*event.value)
            done = position
            one = draw.randrange(1 << 62)
            left = account.left(random.Random(one))  # noqa: S311
            if (recovered := known.get(key := hash(tuple(left.items())))) is None:
                (target / "store").mkdir()
                materialise(left, target / "store")
                recovered = known[key] = recover(target / "store", recording.bodies, loop)
                shutil.rmtree(target / "store")
            if words := recovered.wrong(promises):
                yield Failure(position, one, words)
    finally:
        loop.close()
        shutil.rmtree(target)


# -- chains of lives


async def recorded(
    disk: LossyDisk, promises: Promises, seed: int, bodies: dict[int, bytes], *, steps: int
) -> Recording:
    """One to three lives on a disk; all but the last are killed at some call, which loses nothing.

    Some are on a disk that fails for a while, has little room, or writes less than asked.
    """
    draw = random.Random(seed)  # noqa: S311
    for _number in range(draw.choice((1, 1, 2, 3))):
        disk.power_on()
        # Many of them while a life begins, which needs few calls.
        ends = disk.calls + int(draw.expovariate(1 / draw.choice((20, 150)))) + 1
        fault = draw.random()
        if fault < 0.5:
            disk.cut_at = ends
        elif fault < 0.6:
            disk.failing_calls = range(ends, ends + draw.randint(1, 20))
        elif fault < 0.7:
            disk.short_writes = random.Random(draw.randrange(1 << 62))  # noqa: S311
        await live(disk, draw.randrange(1 << 62), bodies, steps=steps)
    return Recording(list(disk.events), disk.adopted, promises, bodies)


def chain(seed: int, lives: int, *, steps: int = 40) -> Iterator[Recording]:
    """Recordings, each of which begins with what a power cut left of the one before."""
    draw = random.Random(seed)  # noqa: S311
    base = in_memory.directory("pollux-power-")
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
    """Return what is wrong in a failure that was kept. Leaves the directory that was judged in ``path``.left."""
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
        return recover(target, recording.bodies, loop).wrong(promises)
    finally:
        loop.close()
