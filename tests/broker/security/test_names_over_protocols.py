"""A monitor on a pattern changes nothing of what a send over any protocol creates, and where the message is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.security.hub import Hub, frames
from harness.sessions.amqp import message
from pollux.config.address_settings import AddressSetting
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from pollux.routing.queue import Queue

Send = "Callable[[Hub, str], Awaitable[None]]"


def by_amqp(*capabilities: str, anonymous: bool = False) -> Any:
    async def send(hub: Hub, name: str) -> None:
        client = await hub.amqp("ann")
        sender = await client.sender(None if anonymous else name, capabilities=list(capabilities))
        await client.send_all(sender, [message("x", durable=True, **({"address": name} if anonymous else {}))])

    return send


def by_stomp(prefix: str = "", *lines: str) -> Any:
    async def send(hub: Hub, name: str) -> None:
        client = await hub.stomp("ann")
        head = "\n".join(["SEND", f"destination:{prefix}{name}", "persistent:true", "receipt:r", *lines])
        client.send(f"{head}\n\nx\0".encode())
        assert (await frames(client, hub))[0][0] == "RECEIPT"

    return send


def by_mqtt(qos: int, *, retain: bool = False) -> Any:
    async def send(hub: Hub, name: str) -> None:
        client = await hub.mqtt("ann")
        await client.publish(name.replace(".", "/"), b"x", qos, retain=retain)

    return send


async def in_transaction(hub: Hub, name: str) -> None:
    client = await hub.stomp("ann")
    send = f"SEND\ndestination:/queue/{name}\npersistent:true\ntransaction:t\n\nx\0"
    client.send(f"BEGIN\ntransaction:t\n\n\0{send}COMMIT\ntransaction:t\nreceipt:r\n\n\0".encode())
    assert (await frames(client, hub))[0][0] == "RECEIPT"


WAYS = {
    "AMQP": by_amqp(),
    "AMQP queue": by_amqp("queue"),
    "AMQP topic": by_amqp("topic"),
    "AMQP anonymous": by_amqp(anonymous=True),
    "STOMP": by_stomp(),
    "STOMP queue": by_stomp("/queue/"),
    "STOMP topic": by_stomp("/topic/"),
    "STOMP anycast": by_stomp("", "destination-type:ANYCAST"),
    "STOMP transaction": in_transaction,
    "MQTT 1": by_mqtt(1),
    "MQTT 2": by_mqtt(2),
    "MQTT retained": by_mqtt(1, retain=True),
}


async def what_is_made(
    directory: Path, send: Callable[[Hub, str], Awaitable[None]], name: str, *, usual: RoutingType, monitored: bool
) -> tuple[dict[str, set[RoutingType]], dict[str, tuple[str, RoutingType, int]], int]:
    """Addresses, queues with their messages, and the monitor's messages."""
    directory.mkdir()  # noqa: ASYNC240  (a test of its own)
    hub = Hub(directory, address_settings=(AddressSetting("#", {"default_address_routing_type": usual}),))
    await hub.start()
    monitor: Queue | None = None
    if monitored:
        spec = QueueSpec("monitor", "#", routing_type=RoutingType.MULTICAST, durable=False, temporary=True)
        monitor = hub.post.create_queue(spec)
    await send(hub, name)
    await hub.settle()
    copies = 0 if monitor is None else monitor.message_count
    await hub.restart()  # the monitor is gone, and what only it had
    addresses = {each.name: set(each.routing_types) for each in hub.post.space.addresses if not each.wildcard}
    queues = {each.name: (each.address, each.routing_type, each.message_count) for each in hub.post.space.queues}
    await hub.stop()
    return addresses, queues, copies


@pytest.mark.parametrize("usual", [RoutingType.ANYCAST, RoutingType.MULTICAST])
@pytest.mark.parametrize("way", WAYS)
async def test_a_monitor_changes_nothing(tmp_path: Path, way: str, usual: RoutingType) -> None:
    for number, name in enumerate(["orders.b", "x::q"]):
        if "::" in name and "MQTT" in way:
            continue
        alone = await what_is_made(tmp_path / f"a{number}", WAYS[way], name, usual=usual, monitored=False)
        among = await what_is_made(tmp_path / f"b{number}", WAYS[way], name, usual=usual, monitored=True)
        assert among[:2] == alone[:2]
        anycast = "queue" in way or "anycast" in way or "transaction" in way
        copied = "::" not in name and not anycast
        assert (alone[2], among[2]) == (0, int(copied))
        kept = sum(count for _, _, count in alone[1].values())
        multicast = "topic" in way or (not anycast and usual is RoutingType.MULTICAST)
        assert kept == (0 if multicast and "::" not in name else 1)
