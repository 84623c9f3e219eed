"""The broker creates for a client by the same permissions over every protocol: no more, and no less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import proton
import pytest

from broker.security.hub import Hub, frames, setting
from harness.sessions.amqp import message
from harness.sessions.mqtt import publish
from pollux.message import RoutingType
from pollux.wire.mqtt.packets import Ack, Connect, Publish, Will

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

PERMISSIONS = ("send", "consume", "createAddress", "createDurableQueue", "createNonDurableQueue")
NAME = "made"
#: Above min-large-message-size.
LARGE = b"x" * 600_000


def name_of(hub: Hub) -> str:
    """Of a client that is none of those before it."""
    return f"client {hub.connections}"


async def amqp_sends(hub: Hub, *capabilities: str, to: str | None = NAME) -> bool:
    client = await hub.amqp("ann", name_of(hub))
    sender = await client.sender(to, capabilities=list(capabilities))
    if not sender.state & proton.Endpoint.REMOTE_ACTIVE or sender.remote_condition:
        return False
    (delivery,) = await client.send_all(sender, [message("x", address=NAME)])
    accepted: bool = delivery.remote_state == proton.Delivery.ACCEPTED
    return accepted


async def amqp_receives(hub: Hub, *capabilities: str, durable: bool = False) -> bool:
    def prepare(link: Any) -> None:
        if durable:
            link.source.durability = proton.Terminus.DELIVERIES
            link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER

    client = await hub.amqp("ann", name_of(hub))
    receiver = await client.receiver(NAME, "sub", capabilities=list(capabilities), prepare=prepare)
    return bool(receiver.state & proton.Endpoint.REMOTE_ACTIVE) and not receiver.remote_condition


async def stomp_asks(hub: Hub, command: str, *lines: str, body: bytes = b"") -> bool:
    client = await hub.stomp("ann", name_of(hub))
    head = "\n".join([command, "receipt:r", *lines])
    client.send(f"{head}\n\n".encode() + body + b"\0")
    commands = [each for each, _, _ in await frames(client, hub)]
    return "RECEIPT" in commands


async def mqtt_publishes(hub: Hub, qos: int = 1, expiry: int = 0, *, retain: bool = False) -> bool:
    client = await hub.mqtt("ann", name_of(hub), expiry=expiry)
    client.write(publish(NAME, b"x", qos, 1, retain=retain))
    answer = await client.receive(Ack)
    if retain and answer.reason >= 0x80:
        assert not await retained(hub), "refused and kept all the same"
    return int(answer.reason) < 0x80


async def mqtt_retains(hub: Hub) -> bool:
    return await mqtt_publishes(hub, retain=True)


async def retained(hub: Hub) -> bool:
    """Whether a message is kept for whoever subscribes later, seen by somebody who may."""
    hub.grant(setting("#"))
    client = await hub.mqtt("bob", name_of(hub))
    await client.subscribe(NAME, "marker")
    await client.publish("marker", b"")
    first: Publish = await client.receive(Publish)
    return first.topic == NAME


async def mqtt_subscribes(hub: Hub, expiry: int = 0) -> bool:
    client = await hub.mqtt("ann", name_of(hub), expiry=expiry)
    (reason,) = await client.subscribe(NAME)
    return reason < 0x80


async def mqtt_wills(hub: Hub) -> bool:
    client = await hub.mqtt("ann", connect=False)
    client.write(Connect(name_of(hub), will=Will(NAME, b"x")))
    found = await client.receive()
    if getattr(found, "reason", 0x80) >= 0x80:
        return False
    client.session.connection_lost(None)
    return True


class Row(NamedTuple):
    """``there``: what the address is before, None: it is not there. ``needs``: what is asked for, and no more."""

    name: str
    there: RoutingType | None
    needs: set[str]
    act: Callable[[Hub], Awaitable[bool]]


ADDRESS, DURABLE, PASSING = "createAddress", "createDurableQueue", "createNonDurableQueue"
ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST
TABLE = [
    Row("amqp to a topic", None, {"send", ADDRESS}, lambda hub: amqp_sends(hub, "topic")),
    Row("amqp to a topic", MULTICAST, {"send"}, lambda hub: amqp_sends(hub, "topic")),
    Row("amqp to a queue", None, {"send", ADDRESS, DURABLE}, lambda hub: amqp_sends(hub, "queue")),
    Row("amqp to a queue", ANYCAST, {"send", DURABLE}, lambda hub: amqp_sends(hub, "queue")),
    Row("amqp to a queue", MULTICAST, {"send", ADDRESS, DURABLE}, lambda hub: amqp_sends(hub, "queue")),
    Row("amqp to anything", None, {"send", ADDRESS}, lambda hub: amqp_sends(hub, to=None)),
    Row("amqp to anything", ANYCAST, {"send", DURABLE}, lambda hub: amqp_sends(hub, to=None)),
    Row("amqp from a queue", None, {"consume", ADDRESS, DURABLE}, lambda hub: amqp_receives(hub, "queue")),
    Row("amqp from a queue", ANYCAST, {"consume", DURABLE}, lambda hub: amqp_receives(hub, "queue")),
    Row("amqp from a topic", None, {"consume", ADDRESS, PASSING}, lambda hub: amqp_receives(hub, "topic")),
    Row("amqp from a topic", MULTICAST, {"consume", PASSING}, lambda hub: amqp_receives(hub, "topic")),
    Row("amqp from a topic", ANYCAST, {"consume", ADDRESS, PASSING}, lambda hub: amqp_receives(hub, "topic")),
    Row("amqp durably", None, {"consume", ADDRESS, DURABLE}, lambda hub: amqp_receives(hub, "topic", durable=True)),
    Row("amqp durably", MULTICAST, {"consume", DURABLE}, lambda hub: amqp_receives(hub, "topic", durable=True)),
    Row("stomp to a topic", None, {"send", ADDRESS}, lambda hub: stomp_asks(hub, "SEND", f"destination:/topic/{NAME}")),
    Row("stomp to a topic", MULTICAST, {"send"}, lambda hub: stomp_asks(hub, "SEND", f"destination:/topic/{NAME}")),
    *(
        Row("stomp to a queue", there, needs, lambda hub: stomp_asks(hub, "SEND", f"destination:/queue/{NAME}"))
        for there, needs in (
            (None, {"send", ADDRESS, DURABLE}),
            (ANYCAST, {"send", DURABLE}),
            (MULTICAST, {"send", ADDRESS, DURABLE}),
        )
    ),
    *(
        Row(
            "stomp a large one to a queue",
            there,
            needs,
            lambda hub: stomp_asks(hub, "SEND", f"destination:/queue/{NAME}", "content-length:600000", body=LARGE),
        )
        for there, needs in ((None, {"send", ADDRESS, DURABLE}), (ANYCAST, {"send", DURABLE}))
    ),
    *(
        Row("stomp from a queue", there, needs, lambda hub: stomp_subscribes(hub, "queue"))
        for there, needs in ((None, {"consume", ADDRESS, DURABLE}), (ANYCAST, {"consume", DURABLE}))
    ),
    *(
        Row("stomp from a topic", there, needs, lambda hub: stomp_subscribes(hub, "topic"))
        for there, needs in (
            (None, {"consume", ADDRESS, PASSING}),
            (MULTICAST, {"consume", PASSING}),
            (ANYCAST, {"consume", ADDRESS, PASSING}),
        )
    ),
    *(
        Row("stomp durably", there, needs, lambda hub: stomp_subscribes(hub, "topic", "durable-subscription-name:d"))
        for there, needs in ((None, {"consume", ADDRESS, DURABLE}), (MULTICAST, {"consume", DURABLE}))
    ),
    *(
        Row(f"mqtt with qos {qos}", there, needs, lambda hub, qos=qos: mqtt_publishes(hub, qos))  # type: ignore[misc]
        for qos in (1, 2)
        for there, needs in ((None, {"send", ADDRESS}), (MULTICAST, {"send"}), (ANYCAST, {"send", DURABLE}))
    ),
    Row("mqtt with qos 2, durably", None, {"send", ADDRESS}, lambda hub: mqtt_publishes(hub, 2, 60)),
    Row("mqtt retained", None, {"send", ADDRESS}, mqtt_retains),
    Row("mqtt with a will", None, {"send", ADDRESS}, mqtt_wills),
    Row("mqtt with a will", MULTICAST, {"send"}, mqtt_wills),
    Row("mqtt with a will", ANYCAST, {"send", DURABLE}, mqtt_wills),
    Row("mqtt subscribed", None, {"consume", ADDRESS, PASSING}, mqtt_subscribes),
    Row("mqtt subscribed", MULTICAST, {"consume", PASSING}, mqtt_subscribes),
    Row("mqtt subscribed", ANYCAST, {"consume", ADDRESS, PASSING}, mqtt_subscribes),
    Row("mqtt subscribed durably", None, {"consume", ADDRESS, DURABLE}, lambda hub: mqtt_subscribes(hub, 60)),
    Row("mqtt subscribed durably", MULTICAST, {"consume", DURABLE}, lambda hub: mqtt_subscribes(hub, 60)),
]


async def stomp_subscribes(hub: Hub, kind: str, *lines: str) -> bool:
    return await stomp_asks(hub, "SUBSCRIBE", "id:1", f"destination:/{kind}/{NAME}", *lines)


def rule(*granted: str) -> Any:
    """For all only these."""
    return setting("#", **{name: "all" if name in granted else "" for name in PERMISSIONS})


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path)
    await made.start()
    yield made
    await made.stop()


def prepared(hub: Hub, row: Row) -> tuple[object, ...]:
    """The state before, which is made."""
    if hub.post.space.address(NAME) is not None:
        hub.post.address_manager.delete_address(NAME, force=True)
    if row.there is not None:
        hub.post.address_manager.create_address(NAME, (row.there,))
    return state(hub)


def state(hub: Hub) -> tuple[object, ...]:
    """The parts of the address that are there."""
    address = hub.post.space.address(NAME)
    if address is None:
        return (None,)
    return (set(address.routing_types), sorted(queue.name for queue in address.queues))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.name}, {row.there.name if row.there else 'missing'}")
async def test_what_is_created_needs_its_permissions(row: Row, hub: Hub) -> None:
    """With all but one of them nothing is created, nor left behind of what was begun; and they are enough."""
    for missing in sorted(row.needs):
        before = prepared(hub, row)
        hub.grant(rule(*(set(PERMISSIONS) - {missing})))
        assert not await row.act(hub), f"without {missing}"
        await hub.settle()
        assert state(hub) == before or row.act is mqtt_retains, f"without {missing}"
    prepared(hub, row)
    hub.grant(rule(*row.needs))
    assert await row.act(hub)
    await hub.settle()
    assert hub.post.space.address(NAME) is not None
