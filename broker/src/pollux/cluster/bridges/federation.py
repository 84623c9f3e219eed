"""Federation, the side that fetches: what this broker wants from others comes over connections that it opens.

It connects, and says which it wants: queues with consumers, addresses with queues (*demand*). Over the same connection
the other broker sends them, as a bridge would: taken from its queue when there is demand and room, numbered, and stored
here once. A message that came through a broker is not sent back to it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from pollux.cluster.bridges.demand import MOST
from pollux.cluster.connector import UnreachableError
from pollux.cluster.link import Idle
from pollux.cluster.reconnection import Reconnection
from pollux.logs import event

if TYPE_CHECKING:
    from pollux.cluster.bridges.demand import Demand, Matching
    from pollux.cluster.connector import ClusterConnector
    from pollux.cluster.link.core_link import CoreLink
    from pollux.config.acceptors import Endpoint
    from pollux.config.federation import Federation, Upstream
    from pollux.engine.post_office import PostOffice

logger = logging.getLogger("pollux.bridge")

#: What a channel on which demand is told is opened for.
FEDERATION = "federation"


class Fetching(Reconnection, Idle):
    """One upstream: connects to it, and tells what is wanted here. The handler of that channel."""

    logger = logger
    purpose = FEDERATION
    kind, down = "upstream", "upstream is not reached"

    def __init__(
        self,
        federation: Federation,
        upstream: Upstream,
        endpoints: tuple[Endpoint, ...],
        *,
        matching: Matching | None,
        name: str,
        node: bytes,
        post: PostOffice,
        connector: ClusterConnector,
    ) -> None:
        super().__init__(
            f"{federation.name}/{upstream.name}",
            post.loop,
            endpoints,
            retry=upstream.retry_interval / 1000,
            multiplier=upstream.retry_interval_multiplier,
            longest=upstream.max_retry_interval / 1000,
        )
        self.told: tuple[Demand, ...] = ()
        self._upstream = upstream
        self._matching = matching
        self._broker = name
        self._node = node
        self._post = post
        self._connector = connector
        self._link: CoreLink | None = None
        self._channel = 0

    async def hold(self, endpoint: Endpoint) -> bool:
        """Tell what is wanted there until the connection is gone."""
        try:
            self._link = await self._connector.connect(endpoint, self._upstream.call_timeout / 1000)
        except UnreachableError as error:
            self.lost(str(error), error.remedy)
            return False
        try:
            self._channel = self._link.conversation.open(
                self, self.purpose, federation=self.name, node_id=self._node.hex(), name=self._broker
            )
            await self._link.over
        except BaseException:
            self._link.close("the broker stops")
            raise
        self._link = None
        return True

    def look(self) -> None:
        """Tell what is wanted now, where that is something else; called once a second."""
        if self._link is None or not self.connected or self._matching is None:
            return
        wanted = tuple(sorted(self._matching.demand(self._post), key=lambda each: (each.address, each.queue)))[:MOST]
        conversation = self._link.conversation
        data = msgspec.msgpack.encode(wanted)
        if wanted == self.told or not conversation.credit(self._channel):
            return
        if len(data) > conversation.room():
            self.lost("more is wanted than can be told", "name fewer queues and addresses in the policies")
            return
        self.told = wanted
        conversation.send(self._channel, data)

    def lost(self, reason: str, remedy: str = "") -> None:
        """Note why nothing is fetched: what was told has to be told again."""
        self.told = ()
        super().lost(reason, remedy)

    # -- the channel

    def accepted(self, content: dict[str, Any]) -> None:  # noqa: ARG002  (a handler's)
        """Tell what is wanted."""
        self.reached()
        event(logger, logging.INFO, f"{self.kind} is reached", **{self.kind: self.name})
        self.look()

    def credited(self) -> None:
        """More may be told."""
        self.look()

    def closed(self, code: str, text: str) -> None:
        """The connection is gone, or the other broker does not want it."""
        self.lost(f"{code}: {text}" if text else code)
        if self._link is not None:
            self._link.close("the channel is closed")

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "name": self.name,
            "connected": self.connected,
            "reason": self.reason or None,
            "queues": [each.queue for each in self.told if each.queue],
            "addresses": [each.address for each in self.told if not each.queue],
        }
