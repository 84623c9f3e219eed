"""Clients of python-qpid-proton's own blocking API over loopback sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import proton
import pytest
from proton.utils import BlockingConnection, LinkDetached

from pollux.engine.peer import Peer
from pollux.protocols.amqp import AmqpSession

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from harness.sessions.amqp import Broker

#: Nothing here takes this long; a test that waits for it has failed. Seconds.
PATIENCE = 30


class SocketProtocol(asyncio.Protocol):
    """The least a server must do for a session."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.loop = broker.loop
        self.peer = Peer(0, "127.0.0.1", 0)
        self.session: AmqpSession
        self.transport: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.broker.connections += 1
        self.peer = Peer(self.broker.connections, "127.0.0.1", 0)
        for name in ("write", "close", "abort", "pause_reading", "resume_reading"):
            setattr(self, name, getattr(transport, name))
        self.session = AmqpSession(cast("Any", self), self.broker.services(), self.broker.containers)

    def data_received(self, data: bytes) -> None:
        self.session.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.connection_lost(exc)

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()


@asynccontextmanager
async def serving(broker: Broker) -> AsyncIterator[str]:
    server = await broker.loop.create_server(lambda: SocketProtocol(broker), "127.0.0.1", 0)
    try:
        yield f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def exchange(url: str) -> list[Any]:
    connection = BlockingConnection(url, timeout=PATIENCE, user="alice", password="secret", allowed_mechs="PLAIN")
    try:
        sender = connection.create_sender("examples")
        receiver: Any = connection.create_receiver("examples", credit=10)
        bodies = []
        for body in ("text", {"a": 1}, [1, 2], b"bytes", "x" * 300_000):
            sender.send(proton.Message(body=body, durable=True))
            received = receiver.receive(timeout=PATIENCE)
            receiver.accept()
            bodies.append(bytes(received.body) if isinstance(received.body, memoryview) else received.body)
        return bodies
    finally:
        connection.close()


def denied(url: str) -> str:
    connection = BlockingConnection(url, timeout=PATIENCE, allowed_mechs="ANONYMOUS")
    try:
        connection.create_sender("secret")
    except LinkDetached as error:
        return str(error.condition)
    finally:
        connection.close()
    return "let in"


def request(url: str) -> Any:
    """A client with a dynamic reply queue, and a server that answers through an anonymous relay."""
    serving_side = BlockingConnection(url, timeout=PATIENCE)
    asking_side = BlockingConnection(url, timeout=PATIENCE)
    try:
        requests: Any = serving_side.create_receiver("service", credit=1)
        replies = serving_side.create_sender(None)
        answers: Any = asking_side.create_receiver(None, dynamic=True, credit=1)
        reply_to = answers.link.remote_source.address
        asking_side.create_sender("service").send(proton.Message(body="ping", reply_to=reply_to))
        received = requests.receive(timeout=PATIENCE)
        requests.accept()
        replies.send(proton.Message(body=f"{received.body} pong", address=received.reply_to))
        answer = answers.receive(timeout=PATIENCE)
        answers.accept()
        return answer.body
    finally:
        asking_side.close()
        serving_side.close()


async def test_blocking_client(broker: Broker) -> None:
    async with serving(broker) as url:
        bodies = await asyncio.wait_for(asyncio.to_thread(exchange, url), 2 * PATIENCE)
    assert bodies == ["text", {"a": 1}, [1, 2], b"bytes", "x" * 300_000]


async def test_blocking_client_without_permission(broker: Broker) -> None:
    broker.security.denied.add(("send", "secret"))
    async with serving(broker) as url:
        assert "amqp:unauthorized-access" in await asyncio.wait_for(asyncio.to_thread(denied, url), 2 * PATIENCE)


@pytest.mark.parametrize("rounds", [3])
async def test_request_and_reply(broker: Broker, rounds: int) -> None:
    broker.post.address_manager.ensure_sendable("service", None)
    async with serving(broker) as url:
        for _ in range(rounds):
            assert await asyncio.wait_for(asyncio.to_thread(request, url), 2 * PATIENCE) == "ping pong"
