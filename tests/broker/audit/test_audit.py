"""The audit trail: what is written can be read, damage is found, and nothing holds up the broker."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.audit import Trail
from pollux.audit.writer import Writer
from pollux.config.extensions import Audit
from pollux.formats.audit import (
    AuditError,
    Block,
    Event,
    Flag,
    Kind,
    Lifecycle,
    Messages,
    Run,
    decode_header,
    decode_messages,
    encode_block,
    encode_header,
    encode_messages,
    file_name,
    read,
    scan,
)
from pollux.message import Encoding, Message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SALT = 77
#: Generous: a machine under load.
TIMEOUT = 20

names = st.text(max_size=12)
runs = st.builds(
    Run,
    event=st.sampled_from(list(Event)).map(int),
    flags=st.integers(0, 3),
    time=st.integers(1000, 1 << 31),
    address=names,
    queue=names,
    target=st.none() | names,
    messages=st.integers(1, 5),
    consumer=st.integers(0, (1 << 64) - 1),
)


@st.composite
def columns(draw: st.DrawFn) -> Messages:
    found = draw(st.lists(runs, min_size=1, max_size=8))
    numbers = st.integers(0, (1 << 64) - 1)
    count = sum(run.messages for run in found)
    accepted = sum(run.messages for run in found if run.event == Event.ACCEPTED)
    ids = draw(st.lists(numbers, min_size=count, max_size=count))
    return Messages(
        found,
        ids,
        draw(st.lists(st.integers(0, (1 << 32) - 1), min_size=accepted, max_size=accepted)),
        draw(st.lists(numbers, min_size=accepted, max_size=accepted)),
        [(ids[0], b"\x00dup")] if accepted else [],
    )


@given(columns())
def test_message_events_come_back(messages: Messages) -> None:
    table: dict[str, int] = {}
    payload = encode_messages(messages, 1000, lambda text: table.setdefault(text, len(table)))
    assert decode_messages(payload, 1000, list(table)) == messages
    assert len(list(messages.each())) == len(messages.ids)


@given(columns(), st.data())
def test_a_contradictory_payload_is_refused_not_believed(messages: Messages, data: st.DataObject) -> None:
    table: dict[str, int] = {}
    payload = encode_messages(messages, 1000, lambda text: table.setdefault(text, len(table)))
    cut = data.draw(st.integers(0, len(payload) - 1 - (10 if messages.duplicate_ids else 0)))
    with pytest.raises(AuditError):
        decode_messages(payload[:cut], 1000, list(table))


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_a_flipped_bit_costs_one_block(payloads: list[bytes], data: st.DataObject) -> None:
    blocks = [encode_block(Kind.EVENTS, number, 5, payload, SALT) for number, payload in enumerate(payloads)]
    whole = b"".join(blocks)
    assert [block.payload for block in scan(whole, 0, SALT)] == payloads
    if not blocks:
        return
    victim = data.draw(st.integers(0, len(blocks) - 1))
    start = sum(map(len, blocks[:victim]))
    at = data.draw(st.integers(start, start + len(blocks[victim]) - 1))
    broken = bytearray(whole)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    found = list(scan(bytes(broken), 0, SALT))
    assert [block.payload for block in found if block.damage is None] == [
        payload for number, payload in enumerate(payloads) if number != victim
    ]
    damaged = [block for block in found if block.damage is not None]
    assert [(block.offset, block.length) for block in damaged] == [(start, len(blocks[victim]))]
    assert damaged[0].damage == ("torn" if victim == len(blocks) - 1 else "corrupt")


def test_a_header_is_checked() -> None:
    header = encode_header(SALT, {"broker": "castor", "epoch": 3})
    assert decode_header(header, "f") == ({"broker": "castor", "epoch": 3}, SALT, len(header))
    with pytest.raises(AuditError, match="f: not an audit file"):
        decode_header(b"PLXSEG\r\n" + header[8:], "f")
    with pytest.raises(AuditError, match="f: format version 2; this Pollux reads version 1 only"):
        decode_header(header[:8] + b"\x02" + header[9:], "f")
    with pytest.raises(AuditError, match="damaged or incomplete"):
        decode_header(header[:-5], "f")


def test_missing_blocks_are_noticed() -> None:
    whole = encode_header(SALT, {}) + encode_block(Kind.EVENTS, 2, 5, b"\x90", SALT)
    assert [found.damage for found in read(whole, "f") if isinstance(found, Block)] == [
        "2 blocks are missing before this one"
    ]


def message(number: int, size: int = 10, duplicate_id: bytes | None = None) -> Message:
    made = Message(Encoding.STOMP, "orders.eu", b"x" * size, duplicate_id=duplicate_id, origin=9)
    made.id = number
    return made


def trail_in(directory: Path, **settings: int) -> Trail:
    return Trail(
        Audit(directory=directory, flush_interval=settings.pop("flush_interval", 10), **settings),  # type: ignore[arg-type]
        "castor-1",
        "1.0",
        lambda address: address.startswith("orders."),
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the writer's thread does to files."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (files have no events)
            await asyncio.sleep(0.01)


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def everything(directory: Path) -> list[Lifecycle | Messages | Block]:
    return [found for path in files(directory) for found in read(path.read_bytes(), path.name)]


def is_written(kind: type, directory: Path) -> bool:
    """Whether the files have such an event; one that the writer's thread has just made has no head yet."""
    with suppress(AuditError):
        return any(isinstance(found, kind) for found in everything(directory))
    return False


async def test_what_is_noted_is_in_the_files(tmp_path: Path) -> None:
    trail = trail_in(tmp_path / "audit")
    trail.event("broker-started", pid=4, nothing=None)
    queue = trail.queue("orders.eu", "orders.q")
    assert queue is not None
    assert trail.queue("other", "other") is None
    trail.start(asyncio.get_running_loop())
    trail.begin_life(bytes(16), 7)
    queue.accepted([message(1, 30, b"d"), message(2)])
    queue.accepted([message(3)], paged=True)
    queue.removed([3])
    queue.unrouted()
    await trail.stop()
    first, second = files(tmp_path / "audit")
    (started,) = read(first.read_bytes(), "f")
    assert isinstance(started, Lifecycle)
    assert started[1:] == ("broker-started", {"pid": 4})
    head, _, _ = decode_header(second.read_bytes(), "f")
    assert (head["broker"], head["node_id"], head["epoch"], head["file"]) == ("castor-1", "00" * 16, 7, 2)
    assert second.name.startswith("castor_1-")
    assert second.stat().st_mode & 0o777 == 0o640
    (messages,) = read(second.read_bytes(), "f")
    assert isinstance(messages, Messages)
    assert [
        (Event(run.event).name, run.flags, number, size, producer) for run, number, size, producer in messages.each()
    ] == [
        ("ACCEPTED", 0, 1, 30, 9),
        ("ACCEPTED", 0, 2, 10, 9),
        ("ACCEPTED", Flag.PAGED, 3, 10, 9),
        ("REMOVED", 0, 3, 0, 0),
        ("UNROUTED", 0, 0, 0, 0),
    ]
    assert messages.duplicate_ids == [(1, b"d")]


async def test_files_rotate_and_only_own_files_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "pollux-20260101T000000000Z-000001.audit").write_bytes(b"another broker's")
    old = tmp_path / file_name("castor-1", "20260101T000000000Z", 1)
    old.write_bytes(b"an old life's")
    trail = trail_in(tmp_path, max_file_size=65536, max_files=3)
    trail.start(asyncio.get_running_loop())
    queue = trail.queue("orders.eu", "q")
    assert queue is not None
    for number in range(12):
        queue.removed(list(range(number * 4000, number * 4000 + 4000)))
        trail.flush()
    await trail.stop()
    left = [path.name for path in files(tmp_path)]
    assert len([name for name in left if name.startswith("castor_1-")]) == 3
    assert "pollux-20260101T000000000Z-000001.audit" in left
    assert old.name not in left
    for path in files(tmp_path):
        if not path.name.startswith("castor_1-"):
            path.unlink()
    kept = [found for found in everything(tmp_path) if isinstance(found, Messages)]
    # Each file stands by itself: names are in it, and the newest events are there.
    assert kept[-1].ids[-1] == 47999
    assert {run.queue for messages in kept for run in messages.runs} == {"q"}


async def test_an_idle_broker_writes_what_it_noted_after_the_interval(tmp_path: Path) -> None:
    trail = trail_in(tmp_path)
    trail.start(asyncio.get_running_loop())
    await asyncio.to_thread(trail.event, "activation", to="live")
    await until(lambda: is_written(Lifecycle, tmp_path))
    await trail.stop()


async def test_a_full_disk_costs_events_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trail = trail_in(tmp_path)
    trail.start(asyncio.get_running_loop())
    queue = trail.queue("orders.eu", "q")
    assert queue is not None
    queue.removed([1])
    trail.flush()
    full = True
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if full and b"PLXAUD" not in data:
            loop.call_soon_threadsafe(tried.set)
            write(descriptor, data[:3])
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    await until(lambda: is_written(Messages, tmp_path))
    monkeypatch.setattr("pollux.audit.writer.os.write", limited)
    queue.removed([2])
    trail.flush()
    async with asyncio.timeout(TIMEOUT):
        await tried.wait()
    full = False

    def goes_on() -> bool:
        queue.removed([3])
        trail.flush()
        return any(isinstance(found, Messages) and found.ids[-1] == 3 for found in everything(tmp_path))

    await until(goes_on)
    await trail.stop()
    found = everything(tmp_path)
    assert not [block for block in found if isinstance(block, Block)]
    lost = [each for each in found if isinstance(each, Lifecycle) and each.event == "audit-lost"]
    assert sum(each.fields["blocks"] for each in lost) >= 1
    ids = [number for each in found if isinstance(each, Messages) for number in each.ids]
    assert ids[0] == 1
    assert 2 not in ids


async def test_a_disk_that_fails_at_every_call_for_a_while_ends_no_trail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the thread ends because what has no header cannot be deleted either."""
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fails(*_: object, **__: object) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    trail = trail_in(tmp_path)
    with monkeypatch.context() as failing:
        for call in ("open", "unlink"):
            failing.setattr(f"pollux.audit.writer.os.{call}", fails)
        trail.start(loop)
        trail.event("activation", to="live")
        trail.flush()
        async with asyncio.timeout(TIMEOUT):
            await tried.wait()

    def goes_on() -> bool:
        trail.event("activation", to="stopping")
        trail.flush()
        return any(isinstance(found, Lifecycle) for found in everything(tmp_path))

    await until(goes_on)
    await trail.stop()


async def test_a_directory_that_is_a_file_is_named_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit").write_text("not ours")
    writer = Writer(tmp_path / "audit", "broker", 3)
    writer.begin(lambda _number: b"header")
    writer.close()
    (line,) = [record.__dict__["fields"] for record in caplog.records]
    assert "it is a file, not a directory: move it away, or give px:audit another directory" in line["reason"]
    assert (tmp_path / "audit").read_text() == "not ours"
