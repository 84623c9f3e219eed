"""One bridge of this broker: what feeds it (:mod:`pollux.cluster.bridges.feeder`), and the link that sends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.cluster.bridges.feeder import Feeder, Sending
from pollux.cluster.bridges.settings import PURPOSE
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.discovery import DiscoveryError
from pollux.logs import event
from pollux.routing.selector import parse
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from pollux.cluster.bridges.settings import BridgeSettings
    from pollux.cluster.discovery import Others
    from pollux.cluster.link import CoreHub
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message, RoutingType
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.bridge")


class BridgeLink(OutgoingLink):
    """The link of a bridge: to whichever of its brokers answers, the one that was reached last first."""

    purpose = PURPOSE
    what = "bridge"
    apart = False

    def __init__(self, bridge: Bridge, others: Others) -> None:
        super().__init__(bridge, bridge.given.name, others.endpoints)
        #: Attempts were used up.
        self.stopped = False
        self._bridge = bridge
        self._others = others
        self._ups = 0
        self._failed = 0

    async def run(self) -> None:
        """Connect, and again whenever the connection is gone; until cancelled, or attempts are used up."""
        given, settings = self._bridge.given, self._bridge.settings
        wait = settings.retry
        try:
            self._others.start()
            await self._others.first()
            while not self.useless:
                before = self._ups
                for endpoint in self._in_order():
                    await self._connection(endpoint)
                    if self._ups > before or self.useless:
                        break
                if self._ups > before:
                    self._failed, wait = 0, settings.retry
                else:
                    self._failed += 1
                    allowed = given.again if self._ups else given.initial
                    if 0 <= allowed <= self._failed:
                        self._give_up()
                        return
                await self._others.pause(wait)
                wait = min(wait * settings.multiplier, settings.longest_retry)
        except DiscoveryError as error:
            self._unreachable(str(error), "set local-bind-address of the discovery-group, and start the broker again")
        finally:
            self._lost("stopped")
            self._others.stop()
            if self._link is not None:
                self._link.close("the broker stops")

    def _in_order(self) -> list[Any]:
        """The broker that was reached last is tried first."""
        endpoints = list(self._others.endpoints)
        last = self._last_endpoint
        return sorted(endpoints, key=lambda endpoint: endpoint != last)

    _last_endpoint: object = None

    async def _connection(self, endpoint: Any) -> bool:
        before = self._ups
        found = await super()._connection(endpoint)
        if self._ups > before:
            self._last_endpoint = endpoint
        return found

    def _give_up(self) -> None:
        self.stopped = True
        event(
            logger,
            logging.ERROR,
            "bridge stopped: its attempts to connect are used up",
            bridge=self.name,
            attempts=self._failed,
            reason=self.reason,
            remedy="start this broker again when the other one can be reached, or set reconnect-attempts to -1",
        )

    def accepted(self, content: dict[str, Any]) -> None:
        """Begin, unless it is another broker and the one that has part of the messages may come back soon."""
        wanted = self._bridge.wanted
        node = content.get("node_id")
        if wanted and node != wanted.hex() and self._failed < self._bridge.given.same_node:
            self._end(CoreError("stopping", "the broker that was reached last is waited for"))
            return
        self._ups += 1
        super().accepted(content)

    def _done(self, references: list[MessageReference]) -> None:
        super()._done(references)
        if references:
            self._bridge.more()


class _BridgeFeeder(Feeder):
    """The consumer of a bridge's queue."""

    def __init__(self, bridge: Bridge) -> None:
        given = bridge.given
        super().__init__(bridge, given.queue, parse(given.filter) if given.filter else None)
        self._given = given

    def target(self, message: Message) -> tuple[str, RoutingType | None, tuple[bytes, ...]]:
        """Return the bridge's forwarding-address, else where a message was sent to; and its routing type."""
        return self._given.address or message.address, self._given.routing_type(message.routing_type), ()


class Bridge(Sending):
    """One bridge, and what its link belongs to. All methods are called in the loop's thread."""

    def __init__(self, given: BridgeSettings, hub: CoreHub, others: Others, node: bytes, post: PostOffice) -> None:
        """``post`` was restored; ``node`` is this node's id."""
        super().__init__(given.link, hub.name, node, post, ClusterConnector(hub))
        self.given = given
        hub.node_id, hub.epoch = node, post.storage.epoch
        self.hub = hub
        self.feeder = _BridgeFeeder(self)
        self.feeders = (self.feeder,)
        self.link = BridgeLink(self, others)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and send from now on."""
        self.restore()
        self._task = self.loop.create_task(self.link.run())

    async def stop(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.feeder.detach()

    @property
    def wanted(self) -> bytes:
        """The broker that was reached last, or has part of the messages since before this start; empty: any."""
        if self.last:
            return self.last
        waiting = (node for node, outlet in self.outlets.items() if self.post.message_count(outlet.queue))
        return next(waiting, b"")

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        link = self.link
        source = self.post.space.queue(self.given.queue)
        reason = link.reason or self.feeder.reason
        return {
            "name": self.given.name,
            "queue": self.given.queue,
            "forwardingAddress": self.given.address,
            "filter": self.given.filter,
            "connected": link.connected,
            "stopped": link.stopped,
            "reason": reason or None,
            "node": link.broker or None,
            "nodeId": link.node.hex() or None,
            "waiting": self.post.message_count(source) if source is not None else 0,
            "onTheWay": self.on_the_way,
            "inFlight": link.in_flight,
            "sent": link.sent,
            "confirmed": link.confirmed,
        }
