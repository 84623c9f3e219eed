"""Scale a broker down: hand over what it has, queue by queue, until nothing is left.

It is begun, watched, cancelled and resumed.

While it runs clients are served as before: what they send goes the same way as all that waits. That it runs is kept in
the store: after a crash it goes on. What is on the way is in the store-and-forward queue of its node (cluster
connection), which knows what arrived whatever is killed, so a message is there or here and never on both.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pollux.cluster.scale_down.assignment import Assignment
from pollux.cluster.scale_down.contents import Contents
from pollux.cluster.scale_down.definitions import IDS, QUEUE, definition, id_requests
from pollux.cluster.scale_down.every import EveryConnection
from pollux.cluster.scale_down.left import Found, Patience, Subscription, Waiting, sight_of, stays
from pollux.cluster.scale_down.plan import About, Part, Peer, Progress, Sight, nowhere, progress, targets, unfit
from pollux.cluster.scale_down.prepared import TRANSACTION, Transactions
from pollux.cluster.scale_down.transfer import BATCH, Emptying
from pollux.cluster.scale_down.ways import NodeWay
from pollux.errors import InvalidRequestError
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.scale_down.plan import Wanted
    from pollux.cluster.scale_down.states import States
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.cluster")

#: What the store keeps while it runs.
KIND, KEY = "scale-down", "draining"
#: Queues that are emptied at a time.
_QUEUES = 64
#: Seconds between two looks at everything.
_LOOK = 0.2
#: Requests under way at a time, to all nodes.
_REQUESTS = 50


class Drain:
    """The scale-down of one broker. All methods are called in the loop's thread.

    ``clusters``: all its cluster connections; the first hands over what the broker has, of whatever address.
    ``free``: bytes that the store has room for. ``host``: the machine. ``states``: what goes last. ``copied``: another
    broker copies this store and may serve with it; where none does, a stop hands over the rest once this was begun,
    whatever ``wanted`` says of stops.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        wanted: Wanted,
        *,
        free: Callable[[], int],
        host: str,
        states: Sequence[States] = (),
        copied: Callable[[], bool] = lambda: False,
    ) -> None:
        self.wanted = wanted
        self._copied = copied
        cluster = clusters[0]
        self._cluster = cluster
        self._every = EveryConnection(clusters)
        self._post = cluster.post
        self._free = free
        self._host = host
        self._assignment = Assignment(self._post, host, self._every.takers)
        self._contents = Contents(self._post, self._every)
        self._states = states
        self._transactions = Transactions(cluster)
        self._batch = min(BATCH, wanted.interval) if wanted.interval > 0 else BATCH
        self.running = False
        #: No client is left, and none comes: the rest goes, too.
        self._last = False
        self.moved = 0
        self._ways: dict[bytes, NodeWay] = {}
        self._emptying: dict[int, Emptying] = {}
        self._preparing: dict[int, asyncio.Task[None]] = {}
        self._refused: dict[int, str] = {}
        #: (node, address) whose duplicate ids are there.
        self._ids: set[tuple[bytes, str]] = set()
        self._known: set[tuple[bytes, int]] = set()  # (node, queue) of subscriptions that are known there
        #: States that are not handed over, and duplicate ids that are to go once more.
        self._left_states = 0
        self._last_ids_went = False  # duplicate ids, once more at the end
        self._nobody = ""
        self._nowhere = ""  # why a stop would find nobody, as it was said
        self._told = About()
        self._said = Progress("", "")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._every.listen(self.about, self._progressed)

    # -- begun and ended

    def start(self) -> None:
        """Go on with what was begun before the last stop, and tell others of this node from now on."""
        self._assignment.resume()
        if (KIND, KEY) in self._post.recovered:
            event(logger, logging.WARNING, "scale-down goes on, as before the restart")
            self._begin()
        else:
            self._assignment.forget()  # what a life left that ended between the two
        self._task = self._post.loop.create_task(self._run())

    async def stop(self) -> None:
        """Move nothing any more."""
        for emptying in self._emptying.values():
            emptying.stop()
        tasks = [*self._preparing.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self) -> None:
        """Hand over what there is, from now on, also after a restart.

        Raises InvalidRequestError when nobody may get it.
        """
        if self.running:
            return
        found, why = targets(self.peers(), self.wanted)
        if not found:
            raise InvalidRequestError(f"scale-down cannot begin: {why}")
        self._post.storage.put(KIND, KEY, b"")
        event(logger, logging.WARNING, "scale-down begins", targets=[peer.name for peer in found])
        self._begin()

    @property
    def goes_with_a_stop(self) -> bool:
        """Return whether a stop hands over all that is here: broker.xml says so, or an operator began it."""
        return self.wanted.enabled or (self.running and not self._copied())

    @property
    def nothing(self) -> bool:
        """Return whether there is nothing at all to hand over."""
        waiting = any(one.messages for one in self._every.sent(self._ways))
        ids = any(account.duplicates for account in self._post.accounts)
        states = any(True for states in self._states for _ in states.ready())
        held = self._transactions.held
        return not (waiting or ids or states or held or self._contents.queues() or self._subscriptions())

    def _begin(self) -> None:
        self.running = True
        self._every.withdraw(withdrawn=True)
        self._wake.set()

    def cancel(self) -> None:
        """Hand over no more; what is on the way arrives. Raises InvalidRequestError when nothing was begun."""
        if not self.running:
            raise InvalidRequestError("this broker is not being scaled down: there is nothing to cancel")
        self.running = False
        self._post.storage.put(KIND, KEY, None)
        for task in self._preparing.values():
            task.cancel()
        for emptying in self._emptying.values():
            emptying.stop()
        self._emptying.clear()
        self._refused.clear()
        self._assignment.forget()
        self._every.withdraw(withdrawn=False)
        event(logger, logging.WARNING, "scale-down cancelled", moved=self.moved)

    async def finish(self, patience: float, forced: asyncio.Event) -> Progress:
        """Hand over everything that is left, no client being there any more; return how far it came.

        It ends when it is done, when ``forced`` is set, and when nothing moved for ``patience`` seconds.
        """
        clock = self._post.loop.time
        if not self.running and self.nothing:
            return Progress("drained")
        self._last = self._assignment.stopping = True
        for states in self._states:
            states.prepare()
        waiting = Patience(patience, clock())
        if not self.running:
            event(logger, logging.INFO, "scale-down: what is here goes to other nodes before the end")
            self._begin()
        while True:
            now = self.look()
            if now.state == "drained":
                # It is done: a broker that is started again is one like the others.
                self._post.storage.put(KIND, KEY, None)
                self._assignment.forget()
                event(logger, logging.INFO, "scale-down: everything is handed over", moved=self.moved)
                return now
            mark = (self.moved, self._left_states, self._every.confirmed)
            if forced.is_set() or waiting.over(mark, clock()):
                return now
            self._wake.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK / 4):
                    await forced.wait()

    # -- what others are told

    def about(self) -> About:
        """Return what this node tells of itself."""
        free = max(0, self._free())
        coarse = 1 << (free.bit_length() - 1) if free else 0
        self._told = About(self.running, coarse, self.wanted.group, self._host)
        return self._told

    def peers(self) -> list[Peer]:
        """Return the nodes that are linked to, or are to be."""
        return [
            Peer(link.name, link.node, link.broker or link.name, link.connected, link.about, link.reason)
            for link in self._cluster.peers.links
            if link.node != self._cluster.node
        ]

    # -- turns

    def _progressed(self) -> None:
        if self.running:
            for emptying in self._emptying.values():
                emptying.more()
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                if self._told != self.about():
                    self._every.tell_about()
                if self.running:
                    await self._turn()
                elif self.wanted.enabled:
                    self._warn_of_a_stop()
            except Exception:
                logger.exception("scale-down failed, and is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK if self.running else 1.0):
                    await self._wake.wait()
            await asyncio.sleep(0.005)  # what comes together is looked at together

    def _warn_of_a_stop(self) -> None:
        """Say at once what a stop would find out too late."""
        why = nowhere(self.peers(), self.wanted)
        if bool(why) != bool(self._nowhere):
            level, what = (logging.WARNING, "nowhere") if why else (logging.INFO, "somewhere")
            verb = "would have" if why else "has"
            event(logger, level, f"scale-down: a stop {verb} {what} to hand over to", reason=why or None)
        self._nowhere = why

    async def _turn(self) -> None:
        fitting, self._nobody = targets(self.peers(), self.wanted)
        self._assignment.look(fitting)
        for number in [each for each, one in self._emptying.items() if not self._is_for(one)]:
            self._let_go(number)
        left_alone = self._stays()
        for queue in [*self._contents.queues(), *self._subscriptions()]:
            emptying = self._emptying.get(queue.id)
            if emptying is None:
                if fitting and len(self._emptying) + len(self._preparing) < _QUEUES and not left_alone(queue):
                    self._assign(queue)
            elif left_alone(queue):
                self._let_go(queue.id)
            else:
                emptying.more()
                await emptying.take_rest()
        for number in [number for number, each in self._emptying.items() if self._contents.is_empty(each.queue)]:
            self._let_go(number)
        await self._transactions.hand(self._assignment, fitting)
        if self._last and fitting:
            await self._hand_states(fitting)
        self._tell()

    def _stays(self) -> Callable[[Queue], bool]:
        """Return what says whether a queue is left to its consumers, or to its session, until the end."""
        kept = [] if self._last else [states.keeps() for states in self._states]
        return lambda queue: stays(queue, kept, last=self._last)

    def _is_for(self, emptying: Emptying) -> bool:
        """Return whether the rest of a queue still goes to the node that it is emptied for."""
        return self._assignment.node_of(emptying.queue) == self._way(emptying).node

    @staticmethod
    def _way(emptying: Emptying) -> NodeWay:
        assert isinstance(emptying.way, NodeWay)  # noqa: S101  (nothing else is made here)
        return emptying.way

    def _subscriptions(self) -> list[Queue]:
        return self._contents.subscriptions(self._assignment.home, self._known)

    def _let_go(self, number: int) -> None:
        self._emptying.pop(number).stop()

    def _assign(self, queue: Queue) -> None:
        """Have the node that gets a queue get ready."""
        if queue.id in self._preparing:
            return
        peer = self._assignment.give(queue)
        if peer is None:
            return
        task = self._post.loop.create_task(self._prepare(queue, peer))
        self._preparing[queue.id] = task
        task.add_done_callback(lambda _task: self._preparing.pop(queue.id, None))

    async def _prepare(self, queue: Queue, peer: Peer) -> None:
        """Have a node know a queue, and the duplicate ids of its address; then empty it."""
        link = next((link for link in self._cluster.peers.links if link.node == peer.node and link.connected), None)
        if link is None:
            return
        try:
            refused = await link.ask(QUEUE, definition(queue))
            if not refused:
                self._known.add((link.node, queue.id))
                refused = await self._hand_ids(link.node, link.ask, queue.address)
        except ConnectionError:
            return
        if refused:
            if self._refused.get(queue.id) != refused:
                event(logger, logging.ERROR, "a queue is not taken", queue=queue.name, node=peer.name, reason=refused)
            self._refused[queue.id] = refused
            await asyncio.sleep(1.0)  # an operator has to do something
            return
        self._refused.pop(queue.id, None)
        way = self._ways.setdefault(peer.node, NodeWay(self._cluster, link, self._mark))
        way.link = link
        if self.running and not self._contents.is_empty(queue):
            emptying = self._emptying[queue.id] = Emptying(self._post, queue, way, self._counted(way), self._batch)
            emptying.start()
            self._wake.set()

    def _mark(self, reference: MessageReference) -> dict[str, str]:
        """Return what a message takes along for the sake of a session."""
        found: dict[str, str] = {}
        for states in self._states:
            found.update(states.mark(reference))
        return found

    def _counted(self, way: NodeWay) -> Callable[[int], None]:
        def count(messages: int) -> None:
            self.moved += messages
            way.written(messages)

        return count

    async def _hand_ids(
        self, node: bytes, ask: Callable[[str, bytes], Any], address: str, *, again: bool = False
    ) -> str:
        """Hand over the duplicate ids of an address; return why they are not taken."""
        if (node, address) in self._ids and not again:
            return ""
        account = self._post.accounts.of(address)
        for content in id_requests(account.name, account.duplicates or ()):
            refused = str(await ask(IDS, content))
            if refused:
                return refused
        self._ids.add((node, address))
        return ""

    # -- what goes last

    async def _hand_states(self, fitting: Sequence[Peer]) -> None:
        """Hand over sessions, and what duplicate ids came since; once no message or subscription is left."""
        if self._contents.queues() or self._subscriptions():
            self._left_states = max(1, self._left_states)
            return
        links = {link.node: link for link in self._cluster.peers.links if link.connected}
        home = self._assignment.give_home()
        try:
            if self._left_states or not self._last_ids_went:
                for account in list(self._post.accounts):
                    if account.duplicates and not account.name.startswith("$."):
                        for peer in fitting:
                            await self._hand_ids(peer.node, links[peer.node].ask, account.name, again=True)
                self._last_ids_went = True
            left = 0
            for states in self._states:
                left += await self._hand(states, links[home.node].ask) if home else len(list(states.ready()))
            self._left_states = left
        except (ConnectionError, KeyError):
            self._left_states = max(1, self._left_states)

    async def _hand(self, states: States, ask: Callable[[str, bytes], Any]) -> int:
        """Hand over all of these; return how many were not taken."""
        listed = list(states.ready())
        refused = 0
        for start in range(0, len(listed), _REQUESTS):
            some = listed[start : start + _REQUESTS]
            answers = await asyncio.gather(*(ask(states.name, value) for _, value in some), return_exceptions=True)
            for (key, _), answer in zip(some, answers, strict=True):
                if answer == "":
                    states.handed_over(key)
                    continue
                refused += 1
                event(logger, logging.ERROR, "it is not taken", kind=states.name, key=key, reason=answer)
        return refused

    # -- to be seen

    def look(self) -> Progress:
        """Return how far it is."""
        return progress(self.sight())

    def sight(self) -> Sight:
        """Return what is left."""
        left_alone = self._stays()
        waiting = [
            Waiting(
                queue.name,
                self._post.message_count(queue),
                queue.delivering - (emptying.taken if (emptying := self._emptying.get(queue.id)) else 0),
                emptying is not None,
                left_alone(queue),
                self._refused.get(queue.id, "") or self._why_it_waits(queue),
            )
            for queue in self._contents.queues()
        ]
        subscriptions = [
            Subscription(queue.name, left_alone(queue), self._refused.get(queue.id, ""))
            for queue in self._subscriptions()
        ]
        return sight_of(
            Found(
                tuple(waiting),
                tuple(subscriptions),
                self._every.sent(self._ways),
                tuple(Part(one.name, one.messages, 0, one.refused, TRANSACTION) for one in self._transactions.held),
                coming=self._every.coming(),
                subscribers=self._every.subscribers,
                last=self._last,
                states=self._left_states,
                ids_went=self._last_ids_went,
                nobody=self._nobody,
                stops=self.goes_with_a_stop and not self._last,
            )
        )

    def _why_it_waits(self, queue: Queue) -> str:
        node = self._assignment.waits_for(queue)
        if not node:
            return ""
        # After a restart nobody has heard of it yet.
        peer = next((peer for peer in self.peers() if peer.node == node), Peer(node.hex(), node, "", False, None))
        name = peer.name or peer.connector
        return f"node {name} may have a part of it, and is waited for: {unfit(peer, self.wanted)}"

    def _tell(self) -> None:
        now = self.look()
        if now.state != self._said.state or (now.state == "waiting" and now.reason != self._said.reason):
            level = logging.WARNING if now.state == "waiting" else logging.INFO
            event(logger, level, f"scale-down: {now.state}", reason=now.reason or None, moved=self.moved)
        self._said = now

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        sight = self.sight()
        now = progress(sight) if self.running else Progress("off")
        fitting, why = targets(self.peers(), self.wanted)
        return {
            "state": now.state,
            "reason": now.reason or (why if not fitting else "") or None,
            "moved": self.moved,
            "left": sight.left,
            "onTheWay": sight.on_the_way + sum(count for _, count in sight.unreached),
            "targets": [peer.name for peer in fitting],
            "queues": [
                {
                    "name": part.label,
                    "messages": part.messages,
                    "held": part.held,
                    "target": self._target_name(part.queue),
                    "reason": part.refused or None,
                }
                for part in sight.parts
            ],
        }

    def _target_name(self, name: str) -> str | None:
        queue = self._post.space.queue(name)
        emptying = self._emptying.get(queue.id) if queue is not None else None
        return self._way(emptying).link.broker if emptying is not None else None
