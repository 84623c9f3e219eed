"""A conversation between brokers keeps its promises to its channels."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pollux.cluster.link import Conversation, CoreHub
from pollux.wire.core.peer import ClusterKey

KEY = ClusterKey("nodes", "castor and pollux")


class Output:
    """Nobody is at the other end."""

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def close(self) -> None:
        """Nothing to close."""


class Waits:
    """A handler that waits to be told."""

    def __init__(self) -> None:
        self.over: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    def closed(self, code: str, text: str) -> None:
        self.over.set_result((code, text))

    def accepted(self, content: dict[str, Any]) -> None:
        raise AssertionError(content)

    def data(self, payload: bytes) -> None:
        raise AssertionError(payload)

    def credited(self) -> None:
        """Nothing to send."""


async def test_who_opens_a_channel_on_a_connection_that_is_gone_is_told() -> None:
    """The connection may go after it was ready, before whoever waited for it has its turn: a member that opened a
    channel then waited for ever, and followed nobody any more."""
    hub = CoreHub(KEY, name="a", node_id=bytes(16), timeout=5.0)
    ended: list[str] = []
    conversation = Conversation(
        hub,
        Output(),
        asyncio.get_running_loop(),
        initiator=True,
        on_ready=lambda _: None,
        on_end=lambda code, _: ended.append(code),
    )
    conversation.end("failed", "the connection was closed")
    handler = Waits()
    channel = conversation.open(handler, "replication")
    conversation.grant(channel, 1)
    assert not handler.over.done()  # whoever opens has its channel before it is told
    assert await asyncio.wait_for(handler.over, 10) == ("failed", "the connection was closed")
    assert ended == ["failed"]


class Broken(Output):
    """A socket of uvloop's that an error closed: it says so to whoever writes, before it tells its protocol."""

    gone = False

    def write(self, data: bytes) -> None:
        if self.gone:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


@pytest.mark.parametrize("how", ["silence", "end", "bytes"])
async def test_a_socket_that_broke_untold_ends_each_channel(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever had a channel was never told, and followed nobody any more, when the time was up in that moment."""
    loop = asyncio.get_running_loop()
    hub = CoreHub(KEY, name="a", node_id=bytes(16), timeout=0.02 if how == "silence" else 60.0)
    ended: asyncio.Future[str] = loop.create_future()
    output = Broken()
    conversation = Conversation(
        hub,
        output,
        loop,
        initiator=True,
        on_ready=lambda _: None,
        on_end=lambda code, _: ended.set_result(code),
    )
    handler = Waits()
    conversation.open(handler, "replication")
    output.gone = True
    if how == "end":
        conversation.end("failed", "the connection was closed")
    elif how == "bytes":
        conversation.feed(b"no frame of any kind, and longer than its head is allowed to be" * 100)
    assert await asyncio.wait_for(ended, 60)
    assert (await asyncio.wait_for(handler.over, 60))[0] == ended.result()
    assert not caplog.records
