"""Stores that were really written, faults in their files, and what a start makes of them: for the fuzz of recovery.

A store is made once with a ledger of what was confirmed; each case copies it, breaks one thing in one file, starts and
verifies. The ledger knows nothing of what the code under test thinks.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from harness.store import abandon, contents, files_below, message_of, opened, settings_in, stable
from pollux.errors import LostBodyError, StoreError
from pollux.formats.names import checkpoint_key
from pollux.store.page_files import ADDRESS_FILE
from pollux.store.recovered import NORMAL_DAMAGE
from pollux.store.storage import Storage
from pollux.store.verify import Report, StoreLayout, verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

    from pollux.store.settings import StoreSettings

#: Ids of the queues every store has; the last two have paged messages only.
QUEUES = (1, 2, 3, 4)
SETTINGS: dict[str, Any] = {"journal_file_size": 8 << 10, "page_size_bytes": 4 << 10, "journal_min_files": 1}
#: What a file name on a disk may be and UTF-8 is not.
ODD_NAME = b"\xff\xfe.\xe9"


class Ledger(Struct):
    """The messages and bindings that were confirmed."""

    #: (queue, message) -> the message's bytes.
    messages: dict[tuple[int, int], bytes] = field(default_factory=dict)
    #: address -> (queue, message) of its pages -> the message's bytes.
    paged: dict[str, dict[tuple[int, int], bytes]] = field(default_factory=dict)
    #: What the bindings have, but for the queues.
    bindings: dict[tuple[str, str], bytes] = field(default_factory=dict)
    #: (queue, message) of what was taken out again, and of what nobody was told whether it is there.
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    open: set[tuple[int, int]] = field(default_factory=set)


class Store(Struct):
    """One store, and what is in it."""

    name: str
    root: Path
    ledger: Ledger
    files: list[Path] = field(default_factory=list)


# -- writing -------------------------------------------------------------------------------------------------------


class _Writer:
    """Traffic of one life."""

    def __init__(self, storage: Storage, ledger: Ledger, draw: Random) -> None:
        self.storage = storage
        self.ledger = ledger
        self.draw = draw

    def body(self) -> bytes:
        return self.draw.randbytes(self.draw.randint(20, 400))

    def send(self, queues: list[int], tx: int = 0) -> None:
        message = message_of(self.storage, self.body())
        self.storage.append_message(message, queues, tx)
        self.ledger.messages |= {(queue, message.id): message.data for queue in queues}

    async def send_large(self, queue: int, address: str | None = None) -> None:
        writer = self.storage.large.create()
        data = self.draw.randbytes(self.draw.randint(3000, 9000))
        writer.write(data)
        message = message_of(self.storage, data[:100], large=writer.finish(), address=address or "an.address")
        if address is None:
            self.storage.append_message(message, [queue])
            self.ledger.messages[queue, message.id] = data
        else:
            self.storage.pages.address(address).append(message, [queue])
            self.ledger.paged.setdefault(address, {})[queue, message.id] = data
        await stable(self.storage)

    def page(self, address: str, queue: int, tx: int = 0) -> None:
        message = message_of(self.storage, self.body(), address=address)
        self.storage.pages.address(address).append(message, [queue], tx)
        self.ledger.paged.setdefault(address, {})[queue, message.id] = message.data

    async def acknowledge(self, count: int) -> None:
        for queue, message in self.draw.sample(sorted(self.ledger.messages), count):
            self.storage.append_acks(queue, [message])
            del self.ledger.messages[queue, message]
            self.ledger.acknowledged.add((queue, message))

    async def acknowledge_page(self, address: str, queue: int) -> None:
        pages = self.storage.pages.addresses().get(address)
        number = pages.next_page(queue) if pages is not None else None
        if pages is None or number is None:
            return
        gone = [one.message.id for one in await pages.read(number) if queue in one.queue_ids]
        pages.acknowledge(queue, number, gone)
        for message in gone:
            self.ledger.paged[address].pop((queue, message), None)
            self.ledger.acknowledged.add((queue, message))

    async def live(self) -> None:
        """Write some of everything, all of it confirmed."""
        storage, draw = self.storage, self.draw
        for queue in QUEUES:
            value = msgspec.msgpack.encode({"id": queue, "spec": {"name": f"q{queue}", "address": f"q{queue}"}})
            storage.put("queue", f"q{queue}", value)
            storage.append_queue(queue, value)
        for _ in range(3):
            for _ in range(draw.randint(5, 15)):
                self.send([1] if draw.random() < 0.8 else [1, 2])
            await stable(storage)
            tx = storage.next_id()
            for _ in range(draw.randint(2, 8)):
                self.send([2], tx)
            storage.append_commit(tx)
            for _ in range(draw.randint(5, 20)):
                self.page("pages.a", 3)
                self.page("pages/ü", 4)
            await stable(storage)
            await self.send_large(1)
            await self.send_large(3, "pages.a")
            await self.acknowledge(4)
            await self.acknowledge_page("pages/ü", 4)
            await stable(storage)

    async def bind(self) -> None:
        """Make the last change of the bindings that is confirmed."""
        key, value = ("kept", str(self.draw.randrange(3))), self.draw.randbytes(40)
        self.storage.put(*key, value)
        await stable(self.storage)
        self.ledger.bindings[key] = value

    async def end(self) -> None:
        """Begin a last write that nobody was told of: what a crash may tear."""
        for queue in (1, 2):
            message = message_of(self.storage, b"last")
            self.storage.append_message(message, [queue])
            self.ledger.open.add((queue, message.id))
        for address, queue in (("pages.a", 3), ("pages/ü", 4)):
            message = message_of(self.storage, b"last", address=address)
            self.storage.pages.address(address).append(message, [queue])
            self.ledger.open.add((queue, message.id))
        await self.bind()


async def make_store(name: str, root: Path, lives: str, draw: Random) -> Store:
    """A store after so many lives: c ended by a crash, s by a stop (with a checkpoint)."""
    ledger = Ledger()
    settings = settings_in(root, **SETTINGS)
    for life in lives:
        async with opened(settings, crash=life == "c") as one:
            writer = _Writer(one.storage, ledger, draw)
            await writer.live()
            await writer.bind()
            if life == "c":
                await writer.end()
    return Store(name, root, ledger, [path for path in files_below(root, "*") if path.suffix != ".reserve"])


# -- breaking ------------------------------------------------------------------------------------------------------


def _content(path: Path) -> bytearray:
    return bytearray(path.read_bytes())


def _flip(path: Path, draw: Random, count: int) -> str:
    data = _content(path)
    used = len(data.rstrip(b"\0")) or len(data)
    layout = [draw.randrange(used if draw.random() < 0.9 else len(data)) for _ in range(count)] if data else []
    for place in layout:
        data[place] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return f"bits flipped at {layout}"


def _flip_one(path: Path, draw: Random) -> str:
    return _flip(path, draw, 1)


def _flip_some(path: Path, draw: Random) -> str:
    return _flip(path, draw, draw.randint(2, 6))


def _cut(path: Path, draw: Random) -> str:
    data = _content(path)
    used = len(data.rstrip(b"\0"))
    end = draw.randrange(used if draw.random() < 0.8 else len(data)) if used else 0
    os.truncate(path, end)
    return f"cut to {end} of {len(data)}"


def _empty(path: Path, _: Random) -> str:
    os.truncate(path, 0)
    return "cut to nothing"


def _delete(path: Path, _: Random) -> str:
    path.unlink()
    return "deleted"


def _rename(path: Path, _: Random) -> str:
    os.rename(path, os.path.join(os.fsencode(path.parent), ODD_NAME + os.fsencode(path.suffix)))  # noqa: PTH104, PTH118
    return "renamed to a name that is not UTF-8"


def _behead(path: Path, draw: Random) -> str:
    """Both copies of a segment's header."""
    data = _content(path)
    for place in (draw.randrange(64), 64 + draw.randrange(64)):
        if place < len(data):
            data[place] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    return "both headers damaged"


FAULTS: tuple[tuple[float, Callable[[Path, Random], str]], ...] = (
    (6, _flip_one),
    (3, _flip_some),
    (4, _cut),
    (1, _empty),
    (2, _delete),
    (1, _rename),
    (1, _behead),
)


def kind_of(path: Path) -> str:
    """Return the kind of a file, for an even draw."""
    if path.name == ADDRESS_FILE:
        return "address"
    if checkpoint_key(path.name) is not None:
        return "checkpoint"
    return "bindings" if path.name.startswith("bindings") else path.suffix


def break_one(store: Store, root: Path, draw: Random) -> tuple[Path, str]:
    """Break one file of a copy at ``root``: (which, how)."""
    kinds: dict[str, list[Path]] = {}
    for path in store.files:
        kinds.setdefault(kind_of(path), []).append(path)
    victim = draw.choice(kinds[draw.choice(sorted(kinds))])
    path = root / victim.relative_to(store.root)
    (fault,) = draw.choices([fault for _, fault in FAULTS], [weight for weight, _ in FAULTS])
    return path, fault(path, draw)


# -- starting ------------------------------------------------------------------------------------------------------


class Outcome(Struct):
    """The findings of a start."""

    refused: str | None = None
    #: Reports that are no normal trace of a crash.
    reports: list[str] = field(default_factory=list)
    messages: dict[tuple[int, int], bytes] = field(default_factory=dict)
    paged: dict[str, dict[tuple[int, int], bytes]] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)
    bindings: dict[tuple[str, str], bytes] = field(default_factory=dict)


async def start(settings: StoreSettings) -> Outcome:
    """Start, read everything, end. Whatever is raised but a StoreError is a crash of the start."""
    outcome = Outcome()
    storage: Storage | None = None
    try:
        storage = await Storage.open(settings, loop=asyncio.get_running_loop(), on_failure=lambda _: None)
        recovered = await storage.recover()
    except StoreError as error:
        outcome.refused = str(error)
        if storage is not None:
            await storage.close(checkpoint=False)
        return outcome
    try:
        names = {key for kind, key in recovered.bindings if kind == "queue"}
        told = {msgspec.msgpack.decode(value)["spec"]["name"] for value in recovered.queue_records.values()}
        outcome.queues = names | told
        outcome.bindings = recovered.bindings
        held = contents(recovered)
        ids = sorted({one for found in held.values() for one in found})
        read = dict(zip(ids, await storage.read_messages(ids), strict=True))
        bodies = {one: await _body(storage, message) for one, message in read.items() if message is not None}
        outcome.messages = {
            (queue, one): bodies[one] for queue, there in held.items() for one in there if one in bodies
        }
        for name, pages in storage.pages.addresses().items():
            found = outcome.paged.setdefault(name, {})
            for number in list(pages.pages):
                for paged in await pages.read(number):
                    body = await _body(storage, paged.message)
                    found |= {(queue, paged.message.id): body for queue in paged.queue_ids}
        outcome.reports = [str(one) for one in storage.damage if one.kind not in NORMAL_DAMAGE]
    finally:
        await abandon(storage)
    return outcome


async def _body(storage: Storage, message: Any) -> bytes:
    """Return what a consumer gets of a body: without the body's end where that is found to be damaged."""
    if message.large is None:
        return bytes(message.data)
    reader = storage.large.open(message.large)
    body = b""
    try:
        async for chunk in reader:
            body += chunk
    except LostBodyError:
        pass
    finally:
        reader.close()
    return body


def wrong(store: Store, victim: Path, outcome: Outcome, report: Report) -> list[str]:
    """Return what the start, or verify, should have said and did not."""
    ledger = store.ledger
    found: list[str] = []
    words = [outcome.refused] if outcome.refused else outcome.reports
    told = any(str(victim.parent) in text for text in words)
    if outcome.refused:
        found.append(f"the start refused: {outcome.refused}")
    if not outcome.refused and not told:
        expected = {"queue": ledger.messages} | ledger.paged
        got = {"queue": outcome.messages} | outcome.paged
        for name, messages in expected.items():
            here = got.get(name, {})
            lost = [key for key, data in messages.items() if here.get(key) != data]
            if lost:
                found.append(f"{name}: {len(lost)} messages are gone or changed without a word: {lost[:5]}")
            if back := here.keys() & ledger.acknowledged:
                found.append(f"{name}: {len(back)} acknowledged messages are back without a word: {sorted(back)[:5]}")
        if lost_queues := {f"q{queue}" for queue in QUEUES} - outcome.queues:
            found.append(f"queues are gone without a word: {lost_queues}")
        if gone := [key for key, value in ledger.bindings.items() if outcome.bindings.get(key) != value]:
            found.append(f"bindings are gone or changed without a word: {gone}")
    if words and report.sound:
        found.append(f"recovery said {words[0]}, and verify that the store is sound")
    return found


def layout(settings: StoreSettings) -> StoreLayout:
    """The directories of the settings."""
    return StoreLayout(
        settings.journal_directory,
        settings.bindings_directory,
        settings.large_messages_directory,
        settings.paging_directory,
    )


async def run_case(store: Store, root: Path, draw: Random) -> tuple[str, list[str], Outcome]:
    """One case in a copy at ``root``, which is removed: (what was done, what is wrong, what was found)."""
    shutil.copytree(store.root, root)
    settings = settings_in(root, **SETTINGS)
    try:
        victim, how = break_one(store, root, draw)
        report = verify(layout(settings))
        outcome = await start(settings)
        return f"{store.name}: {victim.relative_to(root)}: {how}", wrong(store, victim, outcome, report), outcome
    finally:
        shutil.rmtree(root)
