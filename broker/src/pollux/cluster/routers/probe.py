"""The question whether a broker serves, and its answer: a channel of its own each time, by the core protocol.

ACCEPT says the node id, how many clients are connected, and where clients go (:mod:`pollux.cluster.topology`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.cluster import topology
from pollux.cluster.link import Idle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.link import Conversation, Handler
    from pollux.cluster.topology import Announcement

#: The purpose of these channels (docs/core-protocol.md).
PURPOSE = "router"


class Said(NamedTuple):
    """Hold what a broker that serves says of itself. ``where``: None when it did not tell where clients go."""

    node: str
    name: str
    connections: int
    where: Announcement | None


class Asked(Idle):
    """The end of who asks. All calls are in the loop's thread."""

    def __init__(self, conversation: Conversation, loop: asyncio.AbstractEventLoop) -> None:
        self._conversation = conversation
        self._done: asyncio.Future[Said | str] = loop.create_future()
        self._channel = conversation.open(self, PURPOSE)

    async def answer(self, seconds: float) -> Said | str:
        """Return the answer; a text: why there is none. End the connection then: one that is late is no other's."""
        await asyncio.wait([self._done], timeout=seconds)
        return self._done.result() if self._done.done() else f"no answer within {seconds:g} s"

    def _is(self, answer: Said | str) -> None:
        if not self._done.done():
            self._done.set_result(answer)

    # -- the channel

    def accepted(self, content: dict[str, Any]) -> None:
        """Read the answer."""
        try:
            node = bytes.fromhex(content["node_id"]).hex()
            said = Said(
                node,
                str(content["name"])[:255],
                max(0, int(content["connections"])),
                topology.parse(node, content.get("clients")),
            )
        except (LookupError, TypeError, ValueError) as error:
            self._is(f"its answer cannot be read: {error!r}")
        else:
            self._is(said)
        self._conversation.refuse(self._channel, "", "done")

    def closed(self, code: str, text: str) -> None:
        """Note that there is no answer, if there is none yet."""
        self._is(f"{code}: {text}" if text else code)


def answering(
    node: str, name: str, connections: Callable[[], int], where: Announcement
) -> Callable[[Conversation, int, dict[str, Any]], Handler]:
    """Return what answers for this broker, to be put into a hub's purposes once it serves."""

    def answer(conversation: Conversation, channel: int, _content: dict[str, Any]) -> Handler:
        conversation.accept(channel, node_id=node, name=name, connections=connections(), clients=where.as_content())
        return Idle()

    return answer
