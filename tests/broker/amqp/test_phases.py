"""The tables of phases: what may follow what, and what a connection does in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.sessions.amqp import message
from harness.transitions import assert_whole
from pollux.message import Encoding, Message
from pollux.protocols.amqp.consumer import Consumer
from pollux.protocols.amqp.phases import CONNECTION, CONSUMER, ENDING, LOGIN, ConsumerPhase, LoginPhase, Phase
from pollux.wire.amqp.phases import CLOSING, ENGINE, TAKING
from pollux.wire.amqp.phases import Phase as EnginePhase

from .test_transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

    from harness.sessions.amqp import Broker


@pytest.mark.parametrize(
    ("table", "first", "end"),
    [
        (CONNECTION, Phase.LOGIN, Phase.ENDED),
        (LOGIN, LoginPhase.LAYER, LoginPhase.OVER),
        (CONSUMER, ConsumerPhase.ATTACHED, ConsumerPhase.DETACHED),
        (ENGINE, EnginePhase.OPEN, EnginePhase.FREED),
    ],
)
def test_the_tables_are_whole(table: Mapping[Any, frozenset[Any]], first: Enum, end: Enum) -> None:
    assert_whole(table, first, {end})


def test_a_connection_may_be_lost_at_any_time_and_never_comes_back() -> None:
    assert all(Phase.ENDED in allowed for before, allowed in CONNECTION.items() if before is not Phase.ENDED)
    assert all(CONNECTION[phase] <= ENDING for phase in ENDING)
    # A pass does not look these two up.
    assert Phase.RECEIVING in CONNECTION[Phase.IDLE]
    assert Phase.IDLE in CONNECTION[Phase.RECEIVING]
    # Nothing is proven but by a check, a certificate or because nothing has to be.
    assert {before for before, after in LOGIN.items() if LoginPhase.PROVEN in after} == {
        LoginPhase.MECHANISM,
        LoginPhase.CHECKING,
    }


def test_an_engine_whose_input_is_not_looked_at_never_looks_again() -> None:
    assert not any(ENGINE[phase] & TAKING for phase in set(EnginePhase) - TAKING)
    # Our side is closed once.
    assert all(ENGINE[phase] <= CLOSING | {EnginePhase.FREED} for phase in CLOSING)


async def test_a_connection_goes_through_all_phases(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = broker.client()
    session = client.session
    seen = [session.phase]
    accept = broker.post.send

    def send(*arguments: Any) -> None:
        seen.append(session.phase)
        accept(*arguments)

    monkeypatch.setattr(broker.post, "send", send)
    await client.opened()
    seen.append(session.phase)
    sender = await client.sender("orders")
    await client.send_all(sender, [message("x")])
    session.shutdown("bye")
    seen.append(session.phase)
    await client.until(lambda: client.connection.state & client.connection.REMOTE_CLOSED)
    client.drop()
    client.drop()
    seen.append(session.phase)
    assert seen == [Phase.LOGIN, Phase.IDLE, Phase.RECEIVING, Phase.CLOSING, Phase.ENDED]


async def test_a_failed_log_in_closes(broker: Broker) -> None:
    client = broker.client(user="alice", password="wrong", mechanisms="PLAIN")
    await client.until(lambda: client.wire.closed)
    seen = [client.session.phase]
    client.drop()
    seen.append(client.session.phase)
    assert seen == [Phase.CLOSING, Phase.ENDED]


@pytest.mark.parametrize(("retiring", "gone"), [(True, False), (False, True), (True, True)])
async def test_a_consumer_stays_until_its_transaction_ends_and_goes_with_its_queue(
    broker: Broker, retiring: bool, gone: bool
) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    link = await client.receiver("q", credit=1, capabilities=["queue"])
    (consumer,) = (each for each in client.session.links if isinstance(each, Consumer))
    broker.post.send(Message(Encoding.AMQP, "q", bytes(message("x").encode())))
    delivery, _ = await client.receive()
    identifier = await transactions.declare()
    if retiring:
        transactions.retire(delivery, identifier)
        link.close()
        await client.until(lambda: consumer.phase is ConsumerPhase.CLOSING)
    if gone:
        broker.post.delete_queue("q")
        assert consumer.phase is ConsumerPhase.DETACHED
    await transactions.discharge(identifier, fail=gone)
    assert consumer.phase is ConsumerPhase.DETACHED
    assert client.session.phase is Phase.IDLE
