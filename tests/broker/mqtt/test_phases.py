"""The tables of phases are whole, and a session follows them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.sessions.mqtt import publish
from harness.transitions import assert_whole
from pollux.protocols.mqtt.outlet import Outlet
from pollux.protocols.mqtt.phases import (
    ESTABLISHED,
    EXCHANGE,
    FLOW,
    INTAKE,
    SESSION,
    WAY,
    Exchange,
    Flow,
    Intake,
    Phase,
    Way,
)
from pollux.wire.mqtt.packets import Ack, Disconnect, Filter, PingReq, SubAck, Subscribe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

    from harness.sessions.mqtt import Broker

#: Each table, where it begins, and where nothing follows.
TABLES: list[tuple[Mapping[Any, frozenset[Any]], Enum, set[Enum]]] = [
    (SESSION, Phase.NEW, {Phase.CLOSED}),
    (EXCHANGE, Exchange.IDLE, set()),
    (INTAKE, Intake.TAKING, {Intake.STOPPED}),
    (FLOW, Flow.SENDING, {Flow.STOPPED}),
    (WAY, Way.THROUGH, {Way.STOPPED}),
]


@pytest.mark.parametrize(("table", "first", "ends"), TABLES)
def test_the_tables_are_whole(table: Mapping[Any, frozenset[Any]], first: Enum, ends: set[Enum]) -> None:
    assert_whole(table, first, ends)


async def test_a_connection_goes_through_its_phases(broker: Broker) -> None:
    client = broker.client()
    session = client.session
    seen = [session.phase]
    broker.security.gate = gate = asyncio.Event()
    connecting = broker.loop.create_task(client.connect(user="ann", password=b"secret"))
    await broker.settle()
    seen.append(session.phase)
    gate.set()
    await connecting
    seen.append(session.phase)
    client.write(Subscribe(1, [Filter(f"t/{number}", 1) for number in range(500)]), PingReq())
    seen.append(session.phase)
    assert session.phase in ESTABLISHED
    await client.receive()
    seen.append(session.phase)
    client.write(Disconnect())
    seen.append(session.phase)
    assert seen == [Phase.NEW, Phase.CONNECTING, Phase.OPEN, Phase.BUSY, Phase.OPEN, Phase.CLOSED]


async def test_what_came_before_a_subscribe_is_confirmed_before_it(broker: Broker) -> None:
    client = broker.client()
    await client.connect()
    many = Subscribe(2, [Filter(f"t/{number}", 1) for number in range(500)])
    client.write(publish("a", b"x", 1, 1), many, PingReq())
    kinds = [type(await client.receive()) for _ in range(3)]
    assert kinds.index(Ack) < kinds.index(SubAck)


async def test_a_way_out_that_was_stopped_stays_stopped(broker: Broker) -> None:
    transport = broker.transport()
    outlet = Outlet(cast("Any", transport), broker.post)
    idle: list[None] = []
    outlet.on_idle(lambda: idle.append(None))

    async def job(outlet: Outlet) -> None:
        outlet.stop()

    outlet.run(job)
    await broker.settle()
    outlet.send(b"x")
    assert outlet.phase is Way.STOPPED
    assert not idle
    assert not transport.written
