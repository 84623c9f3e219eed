"""The other nodes of a cluster as MQTT sessions see them: :class:`pollux.protocols.mqtt.neighbours.Neighbours`.

A session has one home: the node its client was connected to last. When it comes to another one, that node asks all
it reaches; the home ends the connection it has (link stealing), hands the session over, and once that is on the other's
disk sends what its queues hold after it and ends them. Retained messages are at every node.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from pollux.cluster.mqtt.beyond import Beyond, answers, latest
from pollux.cluster.mqtt.channels import PURPOSE, Answering, Asking
from pollux.cluster.mqtt.retained import KIND, Version, Versions
from pollux.cluster.mqtt.words import Entry, Given
from pollux.errors import LimitError, NotPermittedError
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.link import Conversation, CoreHub, Handler
    from pollux.cluster.mqtt.words import Passed, Reached, Take
    from pollux.engine.post_office import PostOffice
    from pollux.protocols.mqtt.neighbours import MovingSession
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.cluster")

#: Seconds that other nodes have to let go of a client, and to have heard of a subscription.
_TAKE, _KNOWN = 2.0, 1.0
#: Seconds after the start in which clients wait until all nodes were tried: one that moved may come back here first.
_START = 2.0
#: Seconds between two looks whether queues that leave are empty.
_LOOK = 1.0
#: Seconds after which what a queue that leaves holds is nobody's: all nodes are there, and none has its subscription.
_ALONE = 600.0
#: Clients asked for at a time.
_SOME = 200


class Cluster(Protocol):
    """The cluster connections as this module needs them."""

    node: bytes
    post: PostOffice
    hub: CoreHub

    def waiting(self, node: bytes) -> int:
        """Return how many messages wait for a node."""

    def tell_now(self) -> None:
        """Tell the other nodes of changed queues now."""

    def all_tried(self) -> bool:
        """Whether every node was reached once since the start, or could not be."""

    def complete(self) -> bool:
        """Whether every node that is known of is reached, and reaches this one."""

    def elsewhere(self, queue: Queue) -> bool:
        """Whether a node that is reached has a queue of the same group."""

    def leave(self, queue: Queue) -> None:
        """Send what a queue holds to the others of its group, and put nothing into it any more."""

    def stay(self, queue: Queue) -> None:
        """Keep a queue after all."""

    def leaving(self) -> Iterable[Queue]:
        """Return the queues that leave."""

    def hops(self, connection: str) -> int:
        """Return how far a cluster connection goes (max-hops)."""


class MqttNeighbours:
    """The other nodes. All methods are called in the loop's thread."""

    def __init__(self, cluster: Cluster, sessions: MqttSessions) -> None:
        self._cluster = cluster
        self._sessions = sessions
        #: By the cluster connection's name and the node: one may be reached by several.
        self._asking: dict[tuple[str, bytes], Asking] = {}
        self._answering: dict[tuple[str, bytes], Answering] = {}
        self._beyond = Beyond(cluster, self._reached, self._listening)
        #: By the same: life and number of its changes heard last.
        self._heard: dict[tuple[str, bytes], tuple[bytes, int]] = {}
        self._life = os.urandom(8)
        self._versions = Versions(cluster.node, lambda topic, value: sessions.put(KIND, topic, value))
        #: Client id -> the nodes that gave its session.
        self._givers: dict[str, list[Asking]] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Queues that leave, and since when no other node has one of their group (the loop's clock).
        self._alone: dict[str, float] = {}
        #: Until when clients wait for nodes that were not tried yet (the loop's clock).
        self._patience = 0.0
        self._changed = asyncio.Event()

    def start(self) -> None:
        """Be the neighbours of the sessions from now on."""
        sessions, store = self._sessions, self._sessions.retained.store
        for (kind, topic), value in self._cluster.post.recovered.items():
            if kind == KIND:
                self._versions.restore(topic, value, retained=store.get(topic) is not None)
        for one in store.match("#", sessions.wall_ms()):
            # Of a time before there was a cluster.
            if self._versions.get(one.topic) is None:
                self._versions.change(one.topic, 1, retained=True)
        sessions.neighbours = sessions.subscriptions.neighbours = self
        sessions.retained.changed = self._retained
        self._cluster.hub.purposes[PURPOSE] = self._open
        loop = asyncio.get_running_loop()
        self._patience = loop.time() + _START
        self._task = loop.create_task(self._look())

    def stop(self) -> None:
        """Ask and answer nothing any more."""
        for task in (self._task, *self._tasks):
            if task is not None:
                task.cancel()
        self._sessions.neighbours = self._sessions.subscriptions.neighbours = None

    # -- channels

    def reached(self, name: str, node: bytes, conversation: Conversation) -> None:
        """Start to ask a node, which is reached by the cluster connection ``name`` from now on."""
        key = name, node
        before = self._asking.get(key)
        if before is not None:
            self._heard[key] = before.life, before.number
        heard = self._heard.get(key, (b"", 0))
        self._asking[key] = Asking(
            self, node, conversation, heard=heard, connection=name, hops=self._cluster.hops(name)
        )

    def _open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        peer = conversation.peer
        if peer is None or len(peer.node_id) != 16:
            conversation.refuse(channel, "a node of a cluster says its id")
            return None
        self._answering = {key: one for key, one in self._answering.items() if not one.ended}
        connection, hops = str(content.get("connection") or ""), content.get("hops")
        hops = hops if isinstance(hops, int) else 1
        end = Answering(self, conversation, channel, peer=peer.node_id, connection=connection, hops=hops)
        key = connection, peer.node_id
        before = self._answering.get(key)
        if before is not None:
            before.closed("replaced", "another connection of this node takes its place")
        self._answering[key] = end
        try:
            number = int(content.get("number") or 0) if bytes(content.get("life") or b"") == self._life else 0
        except (TypeError, ValueError):
            number = 0
        end.begin(self._life, dict.fromkeys(self._versions.since(number)), self._versions.number)
        return end

    def _reached(self) -> list[Asking]:
        return [one for one in self._asking.values() if one.accepted_now and not one.ended]

    def _listening(self) -> list[Answering]:
        return [one for one in self._answering.values() if not one.ended]

    # -- pollux.protocols.mqtt.neighbours.Neighbours

    async def take(self, client_id: str, user: str | None, *, clean: bool) -> MovingSession | None:
        """Take a client's place at all nodes that are reached; return its latest session."""
        await self._all_tried()
        passed, hops = self._beyond.begin(_TAKE), self._cluster.hops
        asked = {one.take(client_id, user, passed(hops(one.connection)), clean=clean): one for one in self._reached()}
        session, givers, late = await answers(asked, _TAKE)
        for one in late:
            peer = one.peer.hex()
            event(
                logger, logging.WARNING, "a node did not say whether it has a session", node=peer, client_id=client_id
            )
        if givers:
            self._givers[client_id] = givers
        return session

    async def _all_tried(self) -> None:
        """Wait after the start until every node can be asked, or cannot be reached."""
        clock = asyncio.get_running_loop().time
        while (left := self._patience - clock()) > 0 and not (
            self._cluster.all_tried() and all(one.accepted_now or one.ended for one in self._asking.values())
        ):
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def changed(self) -> None:
        """Look again who can be asked."""
        self._changed.set()

    def joined(self, asking: Asking) -> None:
        """Ask a node that is reached again for the clients that have come here meanwhile, and have others do so."""
        self._ask_again(asking)
        self._beyond.reached(asking)

    def reached_beyond(self, told: Reached, by: Asking) -> None:
        """Ask for the clients that are here: there is somebody new to be asked by way of another node."""
        if self._beyond.told(told, by):
            self._ask_again(by)

    def _ask_again(self, asking: Asking) -> None:
        task = asyncio.get_running_loop().create_task(self._reclaim(asking))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reclaim(self, asking: Asking) -> None:
        """Take what a node has of clients that are connected here and came later: some at a time."""
        here = [state for state in self._sessions.sessions.values() if state.connection is not None]
        hops = self._cluster.hops(asking.connection)
        for start in range(0, len(here), _SOME):
            asked = {
                asking.take(
                    state.client_id,
                    state.user,
                    self._beyond.begin(_TAKE)(hops),
                    clean=not state.durable,
                    came=state.connected_at,
                ): state
                for state in here[start : start + _SOME]
                if state.connection is not None
            }
            for future, state in asked.items():
                given = await future
                if given is not None and given.session is not None and state.connection is not None:
                    asking.taken(state.client_id)

    def taken(self, client_id: str) -> None:
        """Have those that gave a session give it up."""
        for one in self._givers.pop(client_id, ()):
            one.taken(client_id)

    async def known(self) -> None:
        """Wait until the nodes that are connected know this one's queues."""
        waiting = self._sync()
        if waiting:
            await asyncio.wait(waiting, timeout=_KNOWN)

    def _sync(self) -> list[asyncio.Future[int]]:
        """Ask who hears of this node's queues whether they have, and how many messages wait for it there."""
        self._cluster.tell_now()
        passed = self._beyond.begin(_KNOWN)
        return [one.sync(passed(one.hops)) for one in self._listening()]

    def leaves(self, queue: Queue) -> None:
        """Have a queue sent after its session."""
        self._cluster.leave(queue)

    def stays(self, queue: Queue) -> None:
        """Keep a queue after all."""
        self._cluster.stay(queue)

    def elsewhere(self, queue: Queue) -> bool:
        """Whether another node that is reached has a queue of this subscription."""
        return self._cluster.elsewhere(queue)

    # -- channels.Node

    def waiting(self, node: bytes) -> int:
        """Return how many messages wait for a node."""
        return self._cluster.waiting(node)

    async def give(self, asked: Take, by: Answering) -> Given:
        """Let go of a client that has come to another node, here and beyond."""
        if not self._beyond.is_new(asked.passed):
            return Given(asked.number, None)
        beyond = self._beyond.ask(asked, by)
        try:
            session = self._sessions.give(asked.client_id, asked.user, asked.came, clean=asked.clean)
        except NotPermittedError as error:
            return Given(asked.number, None, str(error))
        if (
            asked.clean
            and (session is not None or not asked.came)
            and (ending := self._sessions.vacate(asked.client_id, clean_start=True)) is not None
        ):
            await asyncio.shield(ending)
        try:
            found = await answers(beyond, asked.passed.within)
        except NotPermittedError as error:
            return Given(asked.number, None, str(error))
        self._beyond.gave(asked.client_id, by, found.givers)
        return Given(asked.number, None if asked.clean else latest(filter(None, (session, found.session))))

    def given(self, client_id: str, to: Answering) -> None:
        """Give up a session that another node has, here and beyond."""
        self._sessions.given(client_id)
        self._beyond.given(client_id, to)

    async def synced(self, passed: Passed, by: Asking) -> int:
        """Return how many messages are on their way to a node, when those behind this one have heard of its queues."""
        return await self._beyond.synced(passed, by)

    # -- retained messages

    def _retained(self, topic: str) -> None:
        retained = self._sessions.retained.store.get(topic) is not None
        self._versions.change(topic, self._sessions.wall_ms(), retained=retained)
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        for one in self._listening():
            one.changed(topic, self._versions.number)

    def entry(self, topic: str) -> Entry | None:
        """Return what is retained here, or that it was cleared."""
        version = self._versions.get(topic)
        if version is None:
            return None
        found = self._sessions.retained.store.get(topic)
        expiration, data = (found.expiration, found.data) if found is not None else (0, None)
        return Entry(topic, version.at, version.node, expiration, data)

    def merge(self, entries: tuple[Entry, ...], of: Asking) -> None:
        """Retain what another node does, where that is newer."""
        retained, now = self._sessions.retained, self._sessions.wall_ms()
        for one in entries:
            version = Version(one.at, one.node)
            if len(one.node) != 16 or not self._versions.is_new(one.topic, version):
                continue
            kept = one.data is not None and not 0 < one.expiration <= now
            try:
                if kept and one.data is not None:
                    retained.keep(one.topic, one.data, one.expiration)
                else:
                    retained.store.clear(one.topic)
            except LimitError as error:
                event(
                    logger, logging.WARNING, "what another node retains has no room here", topic=one.topic, reason=error
                )
                continue
            self._versions.keep(one.topic, version, retained=kept)
            self._beyond.tell_on(one.topic, self._versions.number, of)

    # -- queues that leave

    async def _look(self) -> None:
        """End the queues that are empty once nothing can be on its way to them."""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await self._end_empty()
            except Exception:
                logger.exception("queues of MQTT sessions that moved could not be looked after")

    def _end_deserted(self) -> None:
        """End the queues whose subscription no node has any more: their client has begun anew, and not subscribed."""
        now, before, self._alone = asyncio.get_running_loop().time(), self._alone, {}
        for queue in self._cluster.leaving():
            if self._cluster.elsewhere(queue) or not self._cluster.complete():
                continue
            self._alone[queue.name] = before.get(queue.name, now)
            if now - self._alone[queue.name] >= _ALONE:
                event(logger, logging.INFO, "a subscription that moved is no node's any more", queue=queue.name)
                self._cluster.stay(queue)
                self._sessions.subscriptions.delete_queue(queue.name)

    async def _end_empty(self) -> None:
        post = self._cluster.post
        self._end_deserted()
        empty = [queue for queue in self._cluster.leaving() if not post.message_count(queue)]
        if not empty or not self._cluster.complete():
            return
        asked = self._sync()
        if asked:
            await asyncio.wait(asked, timeout=_KNOWN)
        if not self._cluster.complete() or any(not one.done() or one.result() for one in asked):
            return
        leaving = {queue.id for queue in self._cluster.leaving()}
        for queue in empty:
            if queue.id in leaving and not post.message_count(queue) and not queue.consumer_count:
                self._cluster.stay(queue)
                self._sessions.subscriptions.delete_queue(queue.name)
