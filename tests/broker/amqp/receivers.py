"""The common part of tests of receiving clients."""

from __future__ import annotations

from typing import Any

import proton

from harness.sessions.amqp import Broker, Client, message

ACCEPTED = proton.Delivery.ACCEPTED


async def filled(broker: Broker, queue: str, *bodies: Any, **fields: Any) -> Client:
    client = await broker.client("filler").opened()
    sender = await client.sender(queue, capabilities=["queue"])
    await client.send_all(sender, [message(body, **fields) for body in bodies])
    return client


def durable(link: proton.Receiver) -> None:
    link.source.durability = proton.Terminus.DELIVERIES
    link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER


def filters(**values: Any) -> Any:
    """A preparation of a receiver: its filter map."""

    def prepare(link: proton.Receiver) -> None:
        described = {
            proton.symbol(name): proton.Described(proton.symbol(descriptor), value)
            for name, (descriptor, value) in values.items()
        }
        link.source.filter.put_dict(described)

    return prepare


def filters_told(link: proton.Receiver) -> dict[str, tuple[str, Any]]:
    """Return the filters of a receiver in the broker's answer, by name: descriptor and value of each."""
    data = link.remote_source.filter
    data.rewind()
    told = data.get_dict() if data.next() is not None else {}
    return {str(name): (str(each.descriptor), each.value) for name, each in told.items()}


def selector(text: str, descriptor: Any = "apache.org:selector-filter:string") -> Any:
    def prepare(link: proton.Receiver) -> None:
        kind = proton.symbol(descriptor) if isinstance(descriptor, str) else proton.ulong(descriptor)
        link.source.filter.put_dict({proton.symbol("jms-selector"): proton.Described(kind, text)})

    return prepare
