"""Prepared transactions of a broker that is scaled down: each goes whole, with its messages, to one node.

That node has it on its disk, under the same identifier and not decided, before this one forgets it. It knows the
transaction by this node and its number here for good, so that one that is sent again is not there twice; and this one
remembers whom it asked, and asks nobody else: until there is an answer the other one may have it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from pollux.cluster.connection.forwarded import Forwarded, stored, taken, to_send
from pollux.cluster.routes.numbers import Number
from pollux.cluster.scale_down.definitions import QUEUE, definition
from pollux.errors import PolluxError
from pollux.logs import event
from pollux.routing.reference import MessageReference

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pollux.cluster.connection.outgoing import OutgoingLink
    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.scale_down.assignment import Assignment
    from pollux.cluster.scale_down.plan import Peer
    from pollux.engine.post_office import PostOffice
    from pollux.engine.prepared import Waiting
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.large import LargeMessage

logger = logging.getLogger("pollux.cluster")

#: The request's name.
TRANSACTION = "prepared-transaction"
#: Bytes of messages in one at most: it goes as one piece.
LARGEST = 128 << 20
#: Seconds before one that was refused is offered again.
_PATIENCE = 1.0
_NUMBER = Number(bytes(8), 0)


class Carried(Struct, frozen=True, array_like=True):
    """A message of a transaction. ``body``: of a large one. What it is for is in ``message``: queues, failures."""

    message: Forwarded
    body: bytes | None = None


class Moved(Struct, frozen=True, array_like=True):
    """A prepared transaction on its way. ``tx``: its number where it was."""

    tx: int
    xid: bytes
    sends: tuple[Carried, ...]
    acknowledged: tuple[Carried, ...]


class Held(NamedTuple):
    """One that is still here. ``refused``: why."""

    name: str
    messages: int
    refused: str


class Transactions:
    """Hands over the prepared transactions of one broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._post = cluster.post
        self._refused: dict[int, str] = {}
        self._again: dict[int, float] = {}

    @property
    def held(self) -> list[Held]:
        """Return those that are still here. A half is not handed on: its node may hand over all of it again."""
        whole = [
            Held(one.xid.hex(), len(one.sends) + len(one.acknowledged), self._refused.get(one.tx, ""))
            for one in self._post.prepared
        ]
        return whole + [
            Held(
                one.xid.hex(),
                len(one.sends),
                f"half of it came from node {one.node}: that one hands over all of it again, or decide it here",
            )
            for one in self._post.prepared.halves
        ]

    async def hand(self, assignment: Assignment, fitting: Sequence[Peer]) -> None:
        """Hand over all that can be: to the node that gets sessions; what another was asked to take, to that one."""
        clock = self._post.loop.time
        for one in self._post.prepared:
            if self._again.get(one.tx, 0.0) > clock():
                continue
            home = assignment.give_home() if fitting and not one.away else None
            node = bytes.fromhex(one.away) if one.away else home.node if home is not None else b""
            link = self._cluster.peers.to(node)
            if link is None:
                self._say(one, f"node {one.away} may have it already, and is not connected" if one.away else "")
                continue
            try:
                self._say(one, await self._hand(one, link))
            except ConnectionError as error:
                self._say(one, f"node {node.hex()} may have it already: {error}")
            except PolluxError as error:
                self._say(one, str(error))
            self._again[one.tx] = clock() + _PATIENCE

    def _say(self, one: Waiting, refused: str) -> None:
        if refused and self._refused.get(one.tx) != refused:
            event(logger, logging.ERROR, "a prepared transaction stays", xid=one.xid.hex(), reason=refused)
        self._refused[one.tx] = refused

    async def _hand(self, one: Waiting, link: OutgoingLink) -> str:
        """Hand one over; return why it is not taken. Raises ConnectionError: it may have been; PolluxError."""
        post = self._post
        messages = await post.prepared.messages(one)
        size = sum(_size(message) for message in messages.values())
        if size > LARGEST:
            return (
                f"{size} bytes in one transaction are more than the {LARGEST} that can be handed over: decide it here"
            )
        for queue in _queues(one, post.space):
            refused = await link.ask(QUEUE, definition(queue))
            if refused:
                return refused
        content = msgspec.msgpack.encode(await self._moved(one, messages))
        if one not in post.prepared:
            return ""  # it was decided here meanwhile
        # From here on another one must not be asked, also after a crash.
        one.away = link.node.hex()
        post.prepared.ask(one, link.node)
        await post.prepared.stable()
        refused = await link.ask(TRANSACTION, content)
        if refused:
            post.prepared.ask(one, b"")
        else:
            await post.prepared.give_away(one, messages)
            event(logger, logging.WARNING, "a prepared transaction was handed over", xid=one.xid.hex(), to=link.broker)
        return refused

    async def _moved(self, one: Waiting, messages: dict[int, Message]) -> Moved:
        sends, acknowledged = [], []
        for message_id, queue_ids in one.sends.items():
            if message := messages.get(message_id):
                sends.append(await self._carried(message, self._there(queue_ids), 0))
        for message_id, queue_ids in one.acknowledged.items():
            if message := messages.get(message_id):
                failures = max(one.counts.get((queue_id, message_id), 0) for queue_id in queue_ids)
                acknowledged.append(await self._carried(message, self._there(queue_ids), failures))
        return Moved(one.tx, one.xid, tuple(sends), tuple(acknowledged))

    def _there(self, queue_ids: Sequence[int]) -> list[Queue]:
        return [queue for each in queue_ids if (queue := self._post.space.queue_by_id(each)) is not None]

    async def _carried(self, message: Message, queues: list[Queue], failures: int) -> Carried:
        names = tuple(queue.name for queue in queues)
        reference = None
        if failures and queues:
            reference = MessageReference(message, queues[0])
            reference.delivery_count = failures
        sent = to_send(stored(message, "", _NUMBER, names, (self._cluster.node,), reference=reference))
        assert sent is not None  # noqa: S101  (it was made for that)
        return Carried(sent, await self._body(message))

    async def _body(self, message: Message) -> bytes | None:
        if message.large is None:
            return None
        reader = self._post.storage.large.open(message.large)
        body = bytearray()
        try:
            while data := await reader.read(1 << 20):
                body += data
        finally:
            reader.close()
        return bytes(body)


def _size(message: Message) -> int:
    return message.large.size if message.large is not None else len(message.data)


def _queues(one: Waiting, space: AddressSpace) -> list[Queue]:
    """Return the queues that a transaction is about and that are still there."""
    numbers = {each for kept in (one.sends, one.acknowledged) for ids in kept.values() for each in ids}
    return [queue for each in sorted(numbers) if (queue := space.queue_by_id(each)) is not None]


def taker(post: PostOffice) -> Callable[[bytes, bytes], Awaitable[None]]:
    """Return what takes other nodes' prepared transactions. It raises PolluxError or ValueError, in words for them."""

    async def take(node: bytes, content: bytes) -> None:
        try:
            moved = msgspec.msgpack.decode(content, type=Moved)
        except msgspec.MsgspecError as error:
            raise ValueError(f"a prepared transaction cannot be read: {error}") from error
        origin = f"{node.hex()}/{moved.tx}"
        if post.prepared.has_taken(origin):
            return  # also where it was decided since, and a queue of its is gone
        everything = (*moved.sends, *moved.acknowledged)
        queues: dict[str, Queue] = {}
        for name in {name for each in everything for name in each.message.queues}:
            queue = post.space.queue(name)
            if queue is None:
                raise ValueError(f"queue {name!r} of a prepared transaction is not here")
            queues[name] = queue
        bodies: list[LargeMessage] = []
        try:
            sends = [
                (_message(post, each, bodies), [queues[name] for name in each.message.queues]) for each in moved.sends
            ]
            acknowledged: list[tuple[Message, list[Queue], int]] = [
                (_message(post, each, bodies), [queues[name] for name in each.message.queues], each.message.failures)
                for each in moved.acknowledged
            ]
            await post.prepared.take(moved.xid, origin, sends, acknowledged)
        except BaseException:
            for body in bodies:
                post.storage.large.delete(body.id)
            raise

    return take


def _message(post: PostOffice, carried: Carried, bodies: list[LargeMessage]) -> Message:
    """Return the message that was sent, its body in a file of this node where it is large."""
    sent: Any = carried.message
    if carried.body is None:
        return taken(sent)
    writer = post.storage.large.create()
    writer.write(carried.body)
    body = writer.finish(durable=sent.durable)
    bodies.append(body)
    return taken(sent, body)
