"""STOMP clients of a broker whose disk and full addresses are the test's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.held import HeldBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from harness.sessions.stomp import Client

VERSIONS = ["1.0", "1.1", "1.2"]


@pytest.fixture
async def broker() -> AsyncIterator[HeldBroker]:
    made = HeldBroker()
    await made.start()
    yield made
    await made.stop()


def is_error(client: Client, message: str) -> dict[str, str]:
    """The client got an ERROR with this message as its last frame, and the connection closes."""
    command, headers, body = client.received()[-1]
    assert command == "ERROR"
    assert message in headers["message"]
    assert message in body.decode()
    assert headers["content-type"] == "text/plain"
    assert client.transport.closed
    return headers


async def subscribed(
    broker: HeldBroker, version: str = "1.2", ack: str = "client-individual", extra: str = ""
) -> Client:
    """A client with a subscription of the queue ``a``."""
    client = await broker.connected(version)
    client.send(f"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:{ack}\n{extra}\n\0".encode())
    assert client.received() == []
    return client


async def produce(broker: HeldBroker, *bodies: str, headers: str = "") -> None:
    """Have another client send to the queue ``a``, and all be delivered that can be."""
    client = await broker.connected()
    for body in bodies:
        client.send(f"SEND\ndestination:/queue/a\n{headers}\n{body}\0".encode())
    assert client.received() == []
    await broker.settle()
