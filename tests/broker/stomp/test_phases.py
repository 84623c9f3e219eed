"""The tables of phases are whole, and a session follows them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from harness.transitions import assert_whole
from pollux.protocols.stomp import StompSession
from pollux.protocols.stomp.phases import (
    ENDED,
    SESSION,
    SUBSCRIPTION,
    SessionPhase,
    SubscriptionPhase,
)
from pollux.protocols.stomp.subscription import Subscription

if TYPE_CHECKING:
    from harness.sessions.held import HeldBroker


def test_the_tables_are_whole() -> None:
    assert_whole(SESSION, SessionPhase.GREETING, {SessionPhase.CLOSED})
    assert_whole(SUBSCRIPTION, SubscriptionPhase.ACTIVE, {SubscriptionPhase.DETACHED, SubscriptionPhase.QUEUE_DELETED})


def test_who_has_ended_does_not_begin_again() -> None:
    assert all(SESSION[phase] <= ENDED for phase in ENDED)
    assert all(SessionPhase.CLOSED in SESSION[phase] for phase in SESSION if phase is not SessionPhase.CLOSED)


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All phases that sessions and subscriptions of the test come to."""
    seen: list[Any] = []

    def setattr_and_note(self: Any, name: str, value: Any) -> None:
        if name == "phase":
            seen.append(value)
        object.__setattr__(self, name, value)

    for kind in (StompSession, Subscription):
        monkeypatch.setattr(kind, "__setattr__", setattr_and_note)
    return seen


async def test_a_session_passes_its_phases_and_its_subscription_waits_for_a_transaction(
    broker: HeldBroker, passed: list[Any]
) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client\n\n\0SEND\ndestination:/queue/a\n\nx\0")
    await broker.settle()
    number = client.received()[0][1]["ack"]
    client.send(f"BEGIN\ntransaction:t\n\n\0ACK\nid:{number}\ntransaction:t\n\n\0UNSUBSCRIBE\nid:s\n\n\0".encode())
    assert passed[-1] == SubscriptionPhase.DRAINING
    client.send(b"COMMIT\ntransaction:t\n\n\0DISCONNECT\nreceipt:r\n\n\0")
    assert passed[-1] == SessionPhase.ENDING
    await broker.settle()
    client.lose()
    assert [phase for phase in passed if isinstance(phase, SessionPhase)] == [
        *(SessionPhase.GREETING, SessionPhase.LOGGING_IN, SessionPhase.CONNECTED),
        *(SessionPhase.ENDING, SessionPhase.SAID, SessionPhase.CLOSED),
    ]
    assert [phase for phase in passed if isinstance(phase, SubscriptionPhase)] == [
        *(SubscriptionPhase.ACTIVE, SubscriptionPhase.DRAINING, SubscriptionPhase.DETACHED)
    ]


@pytest.mark.parametrize("lost", ["before CONNECT", "during the login", "connected", "after ERROR"])
async def test_a_connection_may_be_lost_in_any_phase(broker: HeldBroker, lost: str, passed: list[Any]) -> None:
    client = broker.client()
    if lost == "connected":
        await client.connect()
    elif lost != "before CONNECT":
        client.send(b"CONNECT\naccept-version:1.2\nlogin:user\npasscode:secret\n\n\0")
    if lost == "after ERROR":
        client.session.shutdown("the broker stops")  # while the login is decided, which then changes nothing
        await asyncio.sleep(0)
    client.lose()
    await asyncio.sleep(0)
    assert passed[-1] is SessionPhase.CLOSED
    assert all(after in SESSION[before] for before, after in pairwise(passed))
    assert not broker.security.open


async def test_a_deleted_queue_ends_its_subscription(broker: HeldBroker, passed: list[Any]) -> None:
    client = await broker.connected()
    client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\n\n\0")
    broker.post.delete_queue("a")
    await asyncio.sleep(0)
    assert passed[-3:] == [SubscriptionPhase.QUEUE_DELETED, SessionPhase.ENDING, SessionPhase.SAID]
