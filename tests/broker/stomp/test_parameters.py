"""The acceptor's parameters that are for STOMP clients act on them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from harness.sessions.stomp import Broker
from pollux.config.model import Configuration, Limits
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def started(path: Path, configuration: Configuration | None = None, **parameters: str) -> AsyncIterator[Broker]:
    broker = Broker(path, configuration, **parameters)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.mark.parametrize(("credit", "sent"), [("2500", 2), ("100", 1), ("-1", 5)])
async def test_bytes_sent_before_a_client_acknowledges(tmp_path: Path, credit: str, sent: int) -> None:
    """A message counts with what the broker needs for it; a client gets one at least."""
    async with started(tmp_path, stompConsumerCredits=credit) as broker:
        client = await broker.connected()
        client.send(b"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:client-individual\n\n\0")
        for _ in range(5):
            client.send(b"SEND\ndestination:/queue/a\n\n" + b"x" * 700 + b"\0")
        await broker.settle()
        first = client.received()
        assert len(first) == sent
        for _, headers, _ in first:
            client.send(f"ACK\nid:{headers['ack']}\n\n\0".encode())
        await broker.settle()
        assert len(client.received()) == min(sent, 5 - sent)


@pytest.mark.parametrize(("size", "files"), [("2000", 1), ("-1", 0)])
async def test_the_size_from_which_a_body_goes_through_a_file(tmp_path: Path, size: str, files: int) -> None:
    async with started(tmp_path, stompMinLargeMessageSize=size) as broker:
        client = await broker.connected()
        for length in (1000, 200_000):
            client.send(b"SEND\ndestination:/queue/a\npersistent:true\n\n" + b"x" * length + b"\0")
        await broker.settle()
        assert len(list((tmp_path / "large").glob("*.msg"))) == files
        assert broker.count("a") == 2


@pytest.mark.parametrize(("disabled", "shown"), [("false", True), ("true", False)])
async def test_the_server_header(tmp_path: Path, disabled: str, shown: bool) -> None:
    async with started(tmp_path, disableStompServerHeader=disabled) as broker:
        client = broker.client()
        headers = await client.connect()
        assert ("server" in headers) is shown


@pytest.mark.parametrize(
    ("parameters", "max_message_size", "most"),
    [({"maxFrameSize": "4096"}, -1, 4096), ({}, 2000, 2000), ({"maxFrameSize": "4096"}, 2000, 2000)],
)
async def test_the_largest_body(tmp_path: Path, parameters: dict[str, str], max_message_size: int, most: int) -> None:
    configuration = Configuration(limits=Limits(max_message_size=max_message_size))
    async with started(tmp_path, configuration, **parameters) as broker:
        client = await broker.connected()
        client.send(b"SEND\ndestination:/queue/a\nreceipt:1\n\n" + b"x" * most + b"\0")
        await broker.settle()
        assert [command for command, _, _ in client.received()] == ["RECEIPT"]
        client.send(b"SEND\ndestination:/queue/a\nreceipt:2\n\n" + b"x" * (most + 1) + b"\0")
        (error,) = client.received()
        assert error[0] == "ERROR"
        assert f"a body has at most {most} bytes" in error[1]["message"]
        assert broker.count("a") == 1


async def test_prefixes_say_the_routing_type(tmp_path: Path) -> None:
    async with started(tmp_path, anycastPrefix="q:,q:jms:", multicastPrefix="t:") as broker:
        client = await broker.connected()
        client.send(b"SUBSCRIBE\nid:1\ndestination:q\\cjms\\ca\n\n\0SUBSCRIBE\nid:2\ndestination:t\\cb\n\n\0")
        await broker.settle()
        assert broker.post.queue("a").routing_type is RoutingType.ANYCAST
        (subscription,) = [queue for queue in broker.post.space.queues if queue.address == "b"]
        assert subscription.routing_type is RoutingType.MULTICAST
