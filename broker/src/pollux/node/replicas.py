"""Wire the queue replicas of a node: by what it connects, by what others come in, and what Qpid's tool may ask for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pollux.cluster.link import CoreHub
from pollux.cluster.replicas.service import Replicas
from pollux.errors import InvalidRequestError
from pollux.ha.active_passive.questions import ADMIN, Answerer
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from pollux.cluster.link import Conversation
    from pollux.cluster.link.conversation import Handler
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice

#: Seconds of silence after which a source is taken for dead, at most: Qpid's heartbeat is 120 s.
_LONGEST_SILENCE = 60.0


async def open_replicas(
    configuration: Configuration, node: bytes, post: PostOffice, hub: CoreHub | None
) -> Replicas | None:
    """Return the replicas, which are offered by ``hub``; None where broker.xml does not want any."""
    given = configuration.queue_replication
    if given is None:
        return None
    key = hub.key if hub is not None else None
    if key is None:
        key = await asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
    silence = min(2 * given.link_heartbeat_interval, _LONGEST_SILENCE)
    own = CoreHub(key, name=configuration.name, node_id=node, timeout=silence)
    replicas = Replicas(configuration, given, own, node=node, post=post)
    if hub is not None:
        replicas.offer(hub)
        _Administration(replicas, hub).offer()
    return replicas


class _Administration:
    """Does what ``qpid-ha replicate`` asks for; everything else is for who answered before."""

    def __init__(self, replicas: Replicas, hub: CoreHub) -> None:
        self._replicas = replicas
        self._hub = hub
        self._before = hub.purposes.get(ADMIN)
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self) -> None:
        """Answer from now on."""
        self._hub.purposes[ADMIN] = self._open

    def _open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        if self._before is not None and content.get("ask") != "replicate":
            return self._before(conversation, channel, content)
        answerer = Answerer(conversation, channel, self._do(content))
        task = asyncio.get_running_loop().create_task(answerer.answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return answerer

    async def _do(self, content: dict[str, Any]) -> dict[str, Any]:
        asked = content.get("ask")
        if asked == "replicate":
            return await self._replicas.replicate(str(content.get("queue", "")), str(content.get("source", "")))
        if asked == "status":
            return {"status": "standalone"}
        raise InvalidRequestError(f"this broker is in no cluster: {str(asked)[:32]!r} is nothing that it can do")
