"""All bridges of a broker: those that begin here, and those that end here."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.cluster.bridges.receiving import Receiver
from pollux.cluster.bridges.sending import Bridge
from pollux.cluster.bridges.settings import PURPOSE, settings_of
from pollux.cluster.discovery import Discovered, Others, period
from pollux.cluster.link import CoreHub
from pollux.config.acceptors import ConnectorSettings
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.logs import event
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice

logger = logging.getLogger("pollux.bridge")

#: Seconds: whatever no event told of is looked at.
_LOOK = 1.0


class Bridges:
    """The bridges of one broker. All methods are called in the loop's thread."""

    def __init__(self, bridges: list[Bridge], receiver: Receiver) -> None:
        self.bridges = bridges
        self.receiver = receiver
        self._loop = receiver.loop
        self._task: asyncio.Task[None] | None = None

    @staticmethod
    async def make(configuration: Configuration, node: bytes, post: PostOffice) -> Bridges:
        """Return those that broker.xml asks for. The key of each password takes a tenth of a second, in a thread."""
        keys: dict[tuple[str, str], ClusterKey] = {}
        bridges = []
        for one in configuration.bridges:
            given = settings_of(configuration, one)
            secret = (one.user or configuration.cluster_user, one.password or configuration.cluster_password)
            if secret not in keys:
                keys[secret] = await asyncio.to_thread(ClusterKey, *secret)
            key = keys[secret]
            hub = CoreHub(key, name=one.client_id or configuration.name, node_id=node, timeout=given.link.silence)
            others = Others(given.endpoints)
            if given.group is not None:
                # What is announced is reached as this broker's own connectors are: with TLS or without.
                template = next((end.settings for each in configuration.connectors for end in each.endpoints), None)
                others = Discovered(
                    given.group,
                    key,
                    template or ConnectorSettings(),
                    member=node.hex(),
                    period=period(configuration),
                )
            bridges.append(Bridge(given, hub, others, node, post))
        return Bridges(bridges, Receiver(configuration.name, node, post))

    async def hub(self, key: asyncio.Future[ClusterKey]) -> CoreHub:
        """Return what other brokers may ask for of one that is in no cluster."""
        receiver = self.receiver
        silence = receiver.settings.silence
        return CoreHub(await key, name=receiver.name, node_id=receiver.node, timeout=silence)

    def offer(self, hub: CoreHub) -> None:
        """Let others' bridges in by the acceptors that ``hub`` is for."""
        hub.purposes[PURPOSE] = self.receiver.open

    def start(self) -> None:
        """Send from now on."""
        for bridge in self.bridges:
            bridge.start()
        self._tell_of_what_is_left()
        if self.bridges:
            self._task = self._loop.create_task(self._look())

    def _tell_of_what_is_left(self) -> None:
        """Name the queues of bridges that are not in broker.xml any more: nobody sends what they hold."""
        known = tuple(bridge.prefix for bridge in self.bridges)
        for queue in self.receiver.post.space.queues:
            if queue.name.startswith(f"{INTERNAL_PREFIX}bridge.") and not (known and queue.name.startswith(known)):
                event(
                    logger,
                    logging.WARNING,
                    "a bridge that is gone left messages",
                    queue=queue.name,
                    messages=self.receiver.post.message_count(queue),
                    remedy="put the bridge back into broker.xml, or delete the queue: its other broker may have them",
                )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            for bridge in self.bridges:
                try:
                    bridge.look()
                except Exception:
                    logger.exception("bridge %s failed to look after its queue", bridge.given.name)

    async def stop(self) -> None:
        """Send and take nothing any more."""
        if self._task is not None:
            self._task.cancel()
        for bridge in self.bridges:
            await bridge.stop()
        self.receiver.stop()

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "bridges": [bridge.describe() for bridge in self.bridges],
            "incoming": self.receiver.describe(),
        }
