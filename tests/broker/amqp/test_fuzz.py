"""Hostile bytes: no crash, no memory beyond the bounds, and the protocol's own error at the end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sessions.amqp import Broker, message
from pollux.wire.amqp.codec import (
    Array,
    DecodeError,
    Described,
    Symbol,
    UInt,
    ULong,
    decode_value,
    encode_value,
    skip_value,
)
from pollux.wire.amqp.guard import FrameError, Guard
from pollux.wire.amqp.phases import Phase as EnginePhase
from pollux.wire.amqp.sasl import SaslError, SaslReader, parse_plain
from pollux.wire.amqp.sections import inspect, plain_header, walk

AMQP = b"AMQP\x00\x01\x00\x00"
SOURCE, TARGET, COORDINATOR = 0x28, 0x29, 0x30


def frame(code: int, fields: list[object], *, channel: int = 0, payload: bytes = b"", kind: int = 0) -> bytes:
    body = b"\x00S" + bytes([code]) + encode_value(fields) + payload
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def transfer(handle: int, number: int, payload: bytes, *, more: bool = False, settled: bool = False) -> bytes:
    fields: list[object] = [UInt(handle), UInt(number), b"%d" % number, UInt(0), settled, more]
    return frame(0x14, fields, payload=payload)


def conversation() -> list[bytes]:
    """The frames of a client that uses everything."""
    queue = Described(TARGET, ["q", UInt(0), None, None, False, None, Array([Symbol("queue")])])
    source = Described(
        SOURCE, ["q", UInt(0), None, None, False, None, None, None, None, None, Array([Symbol("queue")])]
    )
    selecting = Described(
        SOURCE,
        ["t", UInt(2), Symbol("never"), None, False, None, None,
         {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")}, None, None, [Symbol("topic")]],
    )  # fmt: skip
    coordinator = Described(COORDINATOR, [])
    body = bytes(message("hello", properties={"a": 1}, group_id="g", id="i").encode())
    plain = b"\x00Sp\xc0\x02\x01A\x00Su\xa0\x05hello"
    return [
        frame(0x10, ["client", "host", UInt(65536), None, UInt(30000)]),
        frame(0x11, [None, UInt(0), UInt(2048), UInt(2048), UInt(1023)]),
        frame(0x12, ["s", UInt(0), False, None, None, Described(SOURCE, ["here"]), queue, None, None, UInt(0)]),
        frame(0x12, ["r", UInt(1), True, None, None, source, Described(TARGET, ["here"])]),
        frame(0x12, ["d", UInt(2), True, None, None, selecting, Described(TARGET, ["here"])]),
        frame(0x12, ["c", UInt(3), False, None, None, Described(SOURCE, []), coordinator, None, None, UInt(0)]),
        frame(0x13, [UInt(0), UInt(2048), UInt(0), UInt(2048), UInt(1), UInt(0), UInt(10)]),
        transfer(0, 0, plain),
        transfer(0, 1, body),
        transfer(0, 2, plain[:9], more=True),
        transfer(0, 2, plain[9:]),
        transfer(3, 3, b"\x00Sw" + encode_value(Described(0x31, [None]))),
        transfer(0, 4, plain, settled=True),
        frame(0x15, [True, UInt(0), UInt(1), True, Described(0x24, [])]),
        frame(0x15, [True, UInt(2), None, True, Described(0x27, [True, False, {Symbol("x"): 1}])]),
        frame(0x15, [False, UInt(0), UInt(4), True, Described(0x24, [])]),
        frame(0x13, [UInt(0), UInt(2048), UInt(5), UInt(2048), UInt(1), UInt(0), UInt(10), None, True]),
        frame(0x16, [UInt(1), True]),
        frame(0x16, [UInt(0), True]),
        frame(0x17, []),
        frame(0x18, []),
    ]  # fmt: skip


async def feed(broker: Broker, pieces: list[bytes]) -> Any:
    session, wire = broker.session()
    for piece in pieces:
        if wire.closed:
            break
        session.data_received(piece)
    for _ in range(3):
        await asyncio.sleep(0)
    return session, wire


def written(wire: Any) -> bytes:
    return bytes(wire.written)


async def test_the_unchanged_conversation_is_fine(broker: Broker) -> None:
    frames = conversation()
    session, wire = await feed(broker, [AMQP, *frames[:13]])
    await broker.settle()
    session.data_received(b"".join(frames[13:]))
    await broker.settle()
    assert wire.closed
    assert b"amqp:" not in written(wire).replace(b"amqp:local-transactions", b"").replace(
        b"amqp:multi-txns-per-ssn", b""
    ).replace(b"amqp:multi-ssns-per-txn", b"")


_VALUES: list[object] = [
    None, True, False, UInt(0), UInt(1), UInt(2), UInt(3), UInt(0x7FFFFFFF), UInt(0xFFFFFFFF), ULong(0), b"", b"t" * 40,
    "", "s", "r", "x" * 300, Symbol("s"), [], [UInt(1)], {}, {Symbol("a"): [b"b"]}, Array([Symbol("topic")]), -1,
    Described(0x24, []), Described(0x25, [Described(0x1D, [Symbol("a:b"), "why"])]), Described(0x26, []),
    Described(0x27, [True, True, {Symbol("x"): "y"}]), Described(0x34, [b"tx", Described(0x24, [])]),
    Described(Symbol("amqp:accepted:list"), []), Described(0x23, [UInt(1), ULong(2)]), Described(0x99, [1, 2]),
    Described(0x28, ["q", UInt(2), Symbol("never")]), Described(0x29, [None]), Described(0x29, ["q"]),
    Described(0x28, [None, UInt(0), None, None, True]), Described(0x29, [None, UInt(0), None, None, True]),
    Described(Symbol("amqp:coordinator:list"), []),
]  # fmt: skip


def other_field(data: bytes, chance: random.Random) -> bytes:
    """The frame with one field replaced by some valid value: gets past every check of form."""
    try:
        value, end = decode_value(data, 8)
    except DecodeError:
        return data
    if not isinstance(value, Described) or not isinstance(value.value, list) or not isinstance(value.descriptor, int):
        return data
    size, _, kind, channel = struct.unpack_from(">IBBH", data)
    fields = [UInt(each) if type(each) is int and each >= 0 else each for each in value.value] or [None]
    at = chance.randrange(len(fields) + 1)
    fields[at : at + 1] = [chance.choice(_VALUES)]
    code = chance.choice((value.descriptor,) * 12 + (0x12, 0x13, 0x14, 0x15, 0x16, 0x17))
    channel = channel if chance.random() < 0.95 else chance.randrange(4)
    return frame(code & 0xFF, fields, channel=channel, payload=data[end:size], kind=kind)


def mutated(frames: list[bytes], chance: random.Random) -> list[bytes]:
    """Frames with bytes changed, dropped, repeated or swapped; sizes are put right half of the time."""
    result = list(frames)
    for _ in range(chance.randint(1, 4)):
        index = chance.randrange(len(result))
        data = bytearray(result[index])
        if not data:
            continue
        action = chance.randrange(8)
        if action >= 6:
            result[index] = other_field(bytes(data), chance)
            continue
        if action == 0:
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] = chance.choice((0, 1, 0x40, 0x45, 0x7F, 0xFF, chance.randrange(256)))
        elif action == 1:
            del data[chance.randrange(len(data)) :]
        elif action == 2:
            at = chance.randrange(len(data))
            data[at:at] = bytes(chance.choice((0, 0xC0, 0xD0, 0xFF)) for _ in range(chance.randint(1, 40)))
        elif action == 3:
            result.insert(chance.randrange(len(result)), bytes(data))
            continue
        elif action == 4:
            del result[index]
            if not result:
                return frames
            continue
        else:
            other = chance.randrange(len(result))
            result[index], result[other] = result[other], result[index]
            continue
        if chance.random() < 0.7 and len(data) >= 4:
            data[:4] = len(data).to_bytes(4, "big")
        result[index] = bytes(data)
    return result


@pytest.mark.parametrize("seed", range(8))
async def test_mutated_conversations(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  (repeatable, not secret)
    frames = conversation()
    for _ in range(60):
        session, wire = await feed(broker, [AMQP, *mutated(frames, chance)])
        session.connection_lost(None)
        assert session.engine is None or session.engine.phase is EnginePhase.FREED
        assert len(written(wire)) < 1 << 20
    broker.sessions.clear()
    # The broker still serves others.
    client = await broker.client("after").opened()
    sender = await client.sender("after", capabilities=["queue"])
    await client.send_all(sender, [message("x")])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_codec_on_any_bytes(data: bytes) -> None:
    try:
        value, end = decode_value(data)
    except DecodeError:
        return
    assert 0 < end <= len(data)
    assert skip_value(data, 0) == end
    assert repr(value)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 8))
def test_sections_on_any_bytes(data: bytes, kind: int) -> None:
    data = b"\x00S" + bytes([0x70 + kind]) + data
    for reader in (walk, inspect, plain_header):
        try:
            reader(data)
        except DecodeError:
            continue
    walk(data, partial=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_sasl_on_any_bytes(pieces: list[bytes]) -> None:
    reader = SaslReader()
    try:
        for piece in pieces:
            reader.feed(piece)
            while reader.next() is not None:
                pass
    except SaslError:
        pass
    with contextlib.suppress(SaslError):
        parse_plain(b"".join(pieces))


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 50))
def test_guard_does_not_depend_on_how_bytes_arrive(chance: random.Random, size: int) -> None:
    data = b"".join(mutated(conversation(), chance))

    def run(step: int) -> tuple[bytes, str | None]:
        guard = Guard(max_frame=65536, max_sessions=10, max_handles=10)
        passed = b""
        try:
            for at in range(0, len(data), step):
                passed += guard.check(data[at : at + step])
        except FrameError as error:
            return b"", error.condition
        return passed, None

    assert run(size) == run(len(data))


ATTACH = frame(
    0x12, ["x", UInt(0), False, None, None, Described(SOURCE, ["h"]), Described(TARGET, ["q"]), None, None, UInt(0)]
)
NESTED = b"\x00" * 2000 + b"\x40"
OPENED = [conversation()[0], conversation()[1]]


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        ([frame(0x11, [None, UInt(0), UInt(1), UInt(1)])], "amqp:not-allowed"),
        ([frame(0x10, ["c", "h", UInt(100)])], "amqp:invalid-field"),
        ([*OPENED, OPENED[0]], "amqp:not-allowed"),
        ([*OPENED, OPENED[1]], "amqp:not-allowed"),
        ([OPENED[0], frame(0x11, [None, UInt(0), UInt(1), UInt(1)], channel=9999)], "amqp:connection:framing-error"),
        ([*OPENED, frame(0x11, [UInt(0), UInt(0), UInt(1), UInt(1)], channel=1)], "amqp:invalid-field"),
        ([*OPENED, ATTACH, ATTACH], "amqp:session:handle-in-use"),
        ([*OPENED, transfer(5, 0, b"x")], "amqp:session:unattached-handle"),
        ([*OPENED, conversation()[3], transfer(1, 0, b"x")], "amqp:not-allowed"),
        ([OPENED[0], transfer(0, 0, b"x")], "amqp:not-allowed"),
        ([*OPENED, frame(0x16, [UInt(4), True])], "amqp:session:unattached-handle"),
        ([*OPENED, struct.pack(">IBBH", 20, 2, 1, 0) + b"\x00S\x41" + bytes(9)], "amqp:connection:framing-error"),
        ([*OPENED, struct.pack(">IBBH", 1 << 30, 2, 0, 0)], "amqp:connection:framing-error"),
        ([*OPENED, struct.pack(">IBBH", 4, 2, 0, 0)], "amqp:connection:framing-error"),
        ([*OPENED, struct.pack(">IBBH", 8 + len(NESTED), 2, 0, 0) + NESTED], "amqp:decode-error"),
        ([*OPENED, frame(0x99, [])], "amqp:not-implemented"),
        ([*OPENED, ATTACH, frame(0x14, [ULong(0), UInt(0), b"t"])], "amqp:decode-error"),
        ([*OPENED, ATTACH, struct.pack(">IBBH", 19, 2, 0, 0) + b"\x00S\x14\xc0\xf0\x03Cxxxx"], "amqp:decode-error"),
        ([*OPENED, frame(0x18, []), ATTACH], "amqp:connection:framing-error"),
    ],
)  # fmt: skip
async def test_breaches_and_their_conditions(broker: Broker, frames: list[bytes], condition: str) -> None:
    session, wire = await feed(broker, [AMQP, *frames])
    assert wire.closed
    assert condition.encode() in written(wire) or frames[-2:-1] == [frame(0x18, [])]
    session.connection_lost(None)


async def test_transfer_with_a_deeply_nested_state(broker: Broker) -> None:
    for depth in (40, 100, 60000):
        state = b"\x00" * depth + b"\x40" * (depth + 1)
        fields = b"\x43\x43\xa0\x01t\x40\x42\x42\x40" + state
        body = b"\x00S\x14\xd0" + struct.pack(">II", len(fields) + 4, 8) + fields
        data = struct.pack(">IBBH", len(body) + 8, 2, 0, 0) + body
        _, wire = await feed(broker, [AMQP, *OPENED, ATTACH, data])
        assert wire.closed
        assert b"amqp:decode-error" in written(wire)


async def test_a_peer_cannot_make_us_hold_links_or_sessions_without_bound(broker: Broker) -> None:
    source, target = Described(SOURCE, ["h"]), Described(TARGET, ["q"])
    attaches = [
        frame(0x12, [str(i), UInt(i), False, None, None, source, target, None, None, UInt(0)]) for i in range(1100)
    ]
    session, wire = await feed(broker, [AMQP, *OPENED, b"".join(attaches)])
    assert wire.closed
    assert b"amqp:resource-limit-exceeded" in written(wire)
    session.connection_lost(None)


async def test_attach_and_detach_again_and_again_leaks_nothing(broker: Broker) -> None:
    session, wire = await feed(broker, [AMQP, *OPENED])
    cycle = ATTACH + transfer(0, 0, b"\x00Su\xa0\x01x") + frame(0x16, [UInt(0), True])
    number = 0

    def run(times: int) -> None:
        nonlocal number
        for _ in range(times):
            data = cycle.replace(transfer(0, 0, b"\x00Su\xa0\x01x"), transfer(0, number, b"\x00Su\xa0\x01x"))
            number += 1
            session.data_received(data)
            wire.written.clear()

    run(500)
    await broker.settle()
    before = in_use()
    run(2000)
    await broker.settle()
    assert not wire.closed
    assert in_use() - before < 1 << 20
    session.connection_lost(None)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t) for name in ["arena", "a", "b", "c", "d", "e", "f", "uordblks", "fordblks", "keepcost"]
    ]


def in_use() -> int:
    """Bytes allocated with malloc: exact, where the resident size is not."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    return int(libc.mallinfo2().uordblks)


async def test_many_connects_leak_nothing(broker: Broker) -> None:
    frames = b"".join(conversation())

    async def run(times: int) -> None:
        for i in range(times):
            pieces = [AMQP + frames[: len(frames) - (i % 3) * 60]]
            session, _ = await feed(broker, pieces)
            session.connection_lost(None)
        broker.sessions.clear()
        await broker.settle()
        for queue in list(broker.post.space.queues):
            broker.post.purge(queue)
        await broker.settle()

    await run(100)
    before = in_use()
    await run(400)
    assert in_use() - before < 400 * 256


async def test_an_idle_connection_is_small(broker: Broker) -> None:
    clients = [await broker.client(str(i)).opened() for i in range(2)]
    before = in_use()
    sessions = len(broker.sessions)
    for i in range(200):
        _, wire = await feed(broker, [AMQP, frame(0x10, [f"c{i}", "host"]), conversation()[1]])
        wire.written.clear()
    assert len(broker.sessions) - sessions == 200
    each = (in_use() - before) / 200
    assert each < 40_000, each
    assert clients


@pytest.mark.parametrize("body", [b"\0", b"\0S"])
def test_a_frame_too_short_for_a_performative_is_not_completed_by_the_next_one(body: bytes) -> None:
    """Breaks when a look at a frame's first bytes may go past its end."""
    short = (8 + len(body)).to_bytes(4, "big") + b"\2\0\0\0" + body
    following = b"\x10\xc0\x01\0"  # read behind `body`, this would be an open
    for data in (short, short + following, short + short):
        guard = Guard(max_frame=65536, max_sessions=10, max_handles=10)
        with pytest.raises(FrameError) as caught:
            guard.check(data)
        assert caught.value.condition == "amqp:decode-error"
