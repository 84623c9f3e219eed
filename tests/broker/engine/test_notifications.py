"""Management notifications: what is told to whoever listens at activemq.notifications, and that nobody waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.engine.conftest import Receiver
from pollux.audit import Trail
from pollux.engine import notifications
from pollux.engine.notifications import Notifications
from pollux.message import RoutingType
from pollux.routing.selector import parse
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from broker.engine.conftest import Office

pytestmark = pytest.mark.asyncio

ADDRESS = "activemq.notifications"


async def listening(office: Office, **configured: Any) -> tuple[Notifications, Receiver]:
    """A consumer of everything that is told."""
    office.configuration = replace(office.configuration, **configured)
    office.trail = Trail.off()
    post = await office.open()
    told = Notifications(lambda: post.configuration, post.space, post.take, wall_ms=office.wall_ms, loop=post.loop)
    post.trail.listen(told.happened)
    receiver = Receiver()
    office.queue("mine", told.address, routing_type=RoutingType.MULTICAST)
    post.attach(post.queue("mine"), receiver)
    return told, receiver


def seen(receiver: Receiver) -> list[dict[str, Any]]:
    return [dict(content_of(reference.message).properties) for reference in receiver.got]


async def test_queues_and_their_consumers(office: Office) -> None:
    told, receiver = await listening(office)
    queue = office.queue("red", "orders", selector="colour = 'red'")
    eater = Receiver(origin=7, selector=parse("size > 1"))
    office.post.trail.event("client-connected", connection=7, source="10.0.0.1", port=5000, protocol="AMQP")
    office.post.trail.event("client-login", connection=7, source="10.0.0.1", user="alice")
    office.post.attach(queue, eater)
    office.post.detach(queue, eater)
    office.post.delete_queue("red")
    await receiver.wait(7)
    found = {each["_AMQ_NotifType"]: each for each in seen(receiver)}
    assert list(found) == [
        *("ADDRESS_ADDED", "BINDING_ADDED", "CONNECTION_CREATED", "SESSION_CREATED", "CONSUMER_CREATED"),
        *("CONSUMER_CLOSED", "BINDING_REMOVED"),
    ]
    added = found["BINDING_ADDED"]
    assert (added["_AMQ_Address"], added["_AMQ_RoutingName"], added["_AMQ_Binding_ID"]) == ("orders", "red", queue.id)
    assert added["_AMQ_FilterString"] == "colour = 'red'"
    created = found["CONSUMER_CREATED"]
    expected = {
        "_AMQ_Address": "orders",
        "_AMQ_RoutingName": "red",
        "_AMQ_ClusterName": "red",
        "_AMQ_ConsumerCount": 1,
        "_AMQ_FilterString": "size > 1",
        "_AMQ_User": "alice",
        "_AMQ_RemoteAddress": "10.0.0.1:5000",
        "_AMQ_ProtocolName": "AMQP",
        "_AMQ_SessionName": "7",
        "_AMQ_ConnectionName": "7",
        "_AMQ_Distance": 0,
    }
    assert expected.items() <= created.items()
    assert abs(created["_AMQ_NotifTimestamp"] - office.wall_ms()) < 60_000
    assert found["CONSUMER_CLOSED"]["_AMQ_ConsumerCount"] == 0
    assert told.sent == 7


async def test_refusals_and_connections(office: Office) -> None:
    _, receiver = await listening(office)
    trail = office.post.trail
    trail.event("login-failed", user="eve", source="10.0.0.2", port=1, reason="wrong")
    trail.tell("permission-refused", user="bob", permission="send", address="secret")
    trail.event("client-disconnected", connection=9, source="10.0.0.3")
    trail.event("broker-live")  # no notification of Artemis is like that
    await receiver.wait(3)
    login, permission, gone = seen(receiver)
    assert login["_AMQ_NotifType"] == "SECURITY_AUTHENTICATION_VIOLATION"
    assert (login["_AMQ_User"], login["_AMQ_RemoteAddress"]) == ("eve", "10.0.0.2:1")
    assert permission["_AMQ_NotifType"] == "SECURITY_PERMISSION_VIOLATION"
    assert (permission["_AMQ_CheckType"], permission["_AMQ_Address"]) == ("send", "secret")
    assert gone["_AMQ_NotifType"] == "CONNECTION_DESTROYED"
    assert "_AMQ_SessionName" not in gone


async def test_sessions_may_be_left_out_and_the_address_another_one(office: Office) -> None:
    _, receiver = await listening(
        office, suppress_session_notifications=True, management_notification_address="events.here"
    )
    for name in ("client-connected", "client-login", "client-logout", "client-disconnected"):
        office.post.trail.event(name, connection=1, source="::1", user="alice")
    await receiver.wait(2)
    assert [each["_AMQ_NotifType"] for each in seen(receiver)] == ["CONNECTION_CREATED", "CONNECTION_DESTROYED"]
    assert receiver.got[0].message.address == "events.here"


async def test_what_nobody_listens_to_costs_nothing_and_the_listener_is_not_told_of_itself(office: Office) -> None:
    told, receiver = await listening(office)
    office.post.attach(office.queue("another", ADDRESS, routing_type=RoutingType.MULTICAST), Receiver(origin=3))
    await office.stable()
    assert receiver.got == []
    for name in ("mine", "another"):
        office.post.delete_queue(name)
    office.queue("orders")
    await office.stable()
    assert (told.sent, told.dropped) == (0, 0)


async def test_a_queue_that_nobody_takes_from_gets_no_more_than_it_may(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_IN_A_QUEUE", 5)
    monkeypatch.setattr(notifications, "_AT_ONCE", 20)
    told, receiver = await listening(office)
    lazy = office.queue("lazy", ADDRESS, routing_type=RoutingType.MULTICAST)
    for _ in range(4):
        for number in range(30):
            office.post.trail.tell("permission-refused", user=str(number), permission="send", address="a")
        await office.stable()
        await office.stable()
    assert len(receiver.got) == 80
    assert lazy.waiting == 20  # what came at once, and no more
    assert told.dropped == 40


async def test_a_notification_that_cannot_be_made_harms_nobody(
    office: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, receiver = await listening(office)
    monkeypatch.setattr(office.post.space, "queues_of", lambda _name: 1 / 0)
    office.post.trail.event("login-failed", user="eve")
    assert "a notification could not be made" in caplog.text
    monkeypatch.undo()
    office.post.trail.event("login-failed", user="eve")
    await receiver.wait(1)


async def test_who_listens_to_everything_gets_messages_of_clients_alone(office: Office) -> None:
    """A monitor at # would else be told of its own queues, and each of its messages would have to be told apart."""
    told, receiver = await listening(office)
    monitors = {pattern: Receiver() for pattern in ("#", "*.notifications", "activemq.#")}
    for pattern, monitor in monitors.items():
        office.queue(f"monitor {pattern}", pattern, routing_type=RoutingType.MULTICAST)
        office.post.attach(office.post.queue(f"monitor {pattern}"), monitor)
    office.queue("red", "orders")
    await receiver.wait(8)
    await monitors["activemq.#"].wait(1)
    assert not monitors["#"].got
    assert not monitors["*.notifications"].got
    assert told.sent
