"""A node that is scaled down beside those that get what it has, and what its queues hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.engine.conftest import Receiver
from pollux.cluster.scale_down.drain import Drain
from pollux.cluster.scale_down.plan import Wanted
from pollux.cluster.scale_down.receiver import Receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

ANYBODY = Wanted()


class Scaled:
    """A node that is scaled down, and those that get what it has."""

    def __init__(self, one: Node, others: list[Node], wanted: Wanted) -> None:
        self.one = one
        self.others = others
        self.wanted = wanted
        self.drain: Drain
        for other in others:
            self.receive(other)

    @staticmethod
    def receive(node: Node, *, host: str = "elsewhere", group: str = "") -> Drain:
        """Have a node take what others give. (Its own Drain only tells of it.)"""
        node.cluster.requests.update(Receiving(node.post).requests)
        return Drain([node.cluster], Wanted(enabled=False, group=group), free=lambda: 1 << 40, host=host)

    async def join(self, *, without: Node | None = None) -> None:
        self.drain = Drain([self.one.cluster], self.wanted, free=lambda: 1 << 30, host="here")
        for other in self.others:
            link = self.one.reach(other)
            if other is not without:
                await until(lambda link=link: link.node)  # type: ignore[misc]  # the connector is its own
        self.drain.start()

    async def linked(self) -> None:
        await until(lambda: all(peer.about is not None for peer in self.drain.peers()))

    async def reopen(self, *, without: Node | None = None) -> None:
        """Stop and start the node that is scaled down. ``without``: it cannot be reached."""
        await self.drain.stop()
        await self.one.reopen()
        await self.join(without=without)

    async def reopen_other(self, other: Node) -> None:
        await other.reopen()
        self.receive(other)

    async def done(self) -> None:
        await until(lambda: self.drain.look().state == "drained")


@pytest.fixture
async def scaled(nodes: Make) -> AsyncIterator[Callable[..., Awaitable[Scaled]]]:
    made: list[Scaled] = []

    async def make(others: int = 1, wanted: Wanted = ANYBODY, **more: Any) -> Scaled:
        one, *rest = await nodes(others + 1, **more)
        found = Scaled(one, rest, wanted)
        made.append(found)
        await found.join()
        await found.linked()
        return found

    yield make
    for each in made:
        await each.drain.stop()


def count(node: Node, name: str) -> int:
    queue = node.post.space.queue(name)
    return node.post.message_count(queue) if queue is not None else 0


async def contents(node: Node, name: str) -> list[Any]:
    """Take everything out of a queue."""
    receiver = Receiver()
    queue = node.post.queue(name)
    number = node.post.message_count(queue)
    node.post.attach(queue, receiver)
    found = await receiver.wait(number)
    return [reference.message for reference in found]
