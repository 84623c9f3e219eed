"""Heart-beats: the arithmetic, and a session that keeps to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.protocols.stomp.heartbeat import HeartBeat, negotiate, parse_heart_beat
from pollux.wire.stomp.headers import StompError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from harness.sessions.broker import Transport
    from harness.sessions.held import HeldBroker
    from harness.sessions.stomp import Client


@pytest.mark.parametrize(
    ("text", "offer"),
    [
        (None, (0, 0)),
        ("0,0", (0, 0)),
        ("1000,2000", (1000, 2000)),
        (" 5 , 6 ", (5, 6)),
        ("9" * 18 + ",0", (86_400_000, 0)),
    ],
)
def test_offers(text: str | None, offer: tuple[int, int]) -> None:
    assert parse_heart_beat(text) == offer


@pytest.mark.parametrize("text", ["", "1", "1,2,3", "-1,0", "a,b", "1.5,2", "٣,1", "9" * 30 + ",0"])
def test_bad_offers(text: str) -> None:
    with pytest.raises(StompError, match="heart-beat"):
        parse_heart_beat(text)


def test_negotiation() -> None:
    beat, ours = negotiate((1000, 2000), least=100, tolerance=2.0)
    assert (beat, ours) == (HeartBeat(send=2.0, receive=2.0), (2000, 1000))
    assert negotiate((0, 0), least=100, tolerance=2.0) == (HeartBeat(0, 0), (0, 0))
    assert negotiate((1, 1), least=100, tolerance=3.0) == (HeartBeat(0.1, 0.3), (100, 100))
    assert negotiate((0, 0), least=100, tolerance=2.0, ttl=60_000) == (HeartBeat(0, 60.0), (0, 0))
    assert negotiate((500, 0), least=100, tolerance=2.0, ttl=60_000) == (HeartBeat(0, 1.0), (0, 500))


@given(st.floats(0.05, 100), st.floats(0.05, 100))
def test_looking_when_told_sends_in_time_and_notices_death_soon(send: float, receive: float) -> None:
    """A clock that only moves by ``next_look`` never sends late, nor declares death early."""
    beat = HeartBeat(send, receive)
    now = sent = received = 0.0
    for _ in range(200):
        assert now - sent <= send
        if beat.dead(now, received):
            assert now - received >= receive
            assert now - received <= receive + 0.01
            return
        if beat.must_send(now, sent):
            sent = now
        now += beat.next_look(now, received, sent)
    assert now < receive * 1.01 + 200 * 0.005


class Timer:
    """Stand for the handle that ``call_later`` returns."""

    def __init__(self, at: float, function: Callable[..., None], values: tuple[object, ...]) -> None:
        self.at = at
        self.function = function
        self.values = values
        self.alive = True

    def cancel(self) -> None:
        self.alive = False


class Clock:
    """A loop whose time and timers are the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, function: Callable[..., None], *values: object) -> Timer:
        timer = Timer(self.now + delay, function, values)
        self.timers.append(timer)
        return timer

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers:
            self.timers.sort(key=lambda timer: timer.at)
            if self.timers[0].at > end:
                break
            timer = self.timers.pop(0)
            self.now = max(timer.at, self.now)
            if timer.alive:
                timer.function(*timer.values)
        self.now = end


async def beating(broker: HeldBroker, offer: str) -> tuple[Clock, Transport, Client]:
    clock = Clock()
    client = broker.client()
    client.transport.loop = clock  # type: ignore[assignment]
    client.session.loop = clock  # type: ignore[assignment]
    client.session._received_at = client.session._sent_at = clock.now
    headers = await client.connect("1.2", heart_beat=offer)
    assert headers["heart-beat"] == ",".join(reversed(offer.split(",")))
    clock.advance(0.001)
    return clock, client.transport, client


async def test_newlines_are_sent_when_nothing_else_is(broker: HeldBroker) -> None:
    clock, transport, _client = await beating(broker, "0,1000")
    transport.written.clear()
    for _ in range(10):
        clock.advance(1.0)
    assert set(transport.written) == {10}
    assert 10 <= len(transport.written) <= 14


async def test_a_silent_client_is_dropped_and_any_byte_keeps_it(broker: HeldBroker) -> None:
    clock, transport, client = await beating(broker, "1000,0")
    for _ in range(5):
        clock.advance(1.9)
        client.send(b"\n")
    assert not transport.closed
    clock.advance(2.1)
    assert b"ERROR\nmessage:no heart-beat and no frame came in time" in transport.written
    assert transport.closed


async def test_a_beat_that_came_while_the_broker_stood_still_counts(broker: HeldBroker) -> None:
    clock, transport, client = await beating(broker, "1000,0")
    for timer in clock.timers:
        timer.at = clock.now + 3.0  # it was due after 2 s: the loop stood still
    clock.call_later(3.01, client.send, b"\n")  # sockets are read after timers
    clock.advance(4.5)
    assert not transport.closed
    clock.advance(1.0)
    assert transport.closed, "silence after that is still noticed"


async def test_silence_is_not_held_against_a_client_we_do_not_read(broker: HeldBroker) -> None:
    clock, transport, client = await beating(broker, "1000,0")
    broker.block("b")
    client.send(b"SEND\ndestination:b\n\n" + b"x" * 90_000 + b"\0")
    while transport.reading:
        client.send(b"SEND\ndestination:b\n\n" + b"x" * 90_000 + b"\0")
    clock.advance(60)
    assert not transport.closed
    broker.unblock("b")
    clock.advance(1.5)
    assert not transport.closed
    clock.advance(2.1)
    assert transport.closed


async def test_heart_beats_may_be_late_by_the_acceptors_factor(broker: HeldBroker) -> None:
    broker.parameters["heartBeatToConnectionTtlModifier"] = "5"
    clock, transport, _client = await beating(broker, "1000,0")
    clock.advance(4.9)
    assert not transport.closed
    clock.advance(0.2)
    assert transport.closed


async def test_connection_ttl_is_for_clients_without_heart_beats(broker: HeldBroker) -> None:
    broker.parameters["connectionTtl"] = "30000"
    clock, transport, _client = await beating(broker, "0,0")
    clock.advance(29)
    assert not transport.closed
    clock.advance(2)
    assert transport.closed


async def test_a_client_that_does_not_read_its_receipts_is_not_read_and_then_dropped(broker: HeldBroker) -> None:
    clock, transport, client = await beating(broker, "0,0")
    client.session.pause_writing()
    batch = b"".join(b"SEND\ndestination:a\nreceipt:%0500d\n\n\0" % number for number in range(100))
    for _ in range(20):
        if transport.reading:
            client.send(batch)
            await broker.settle()
    assert not transport.reading
    assert len(transport.written) < 500_000
    clock.advance(61)
    assert transport.aborted


async def test_a_slow_client_that_reads_again_goes_on(broker: HeldBroker) -> None:
    clock, transport, client = await beating(broker, "0,0")
    client.session.pause_writing()
    batch = b"".join(b"SEND\ndestination:a\nreceipt:%0500d\n\n\0" % number for number in range(600))
    client.send(batch)
    await broker.settle()
    assert not transport.reading
    client.session.resume_writing()
    assert transport.reading
    clock.advance(100)
    assert not transport.closed
