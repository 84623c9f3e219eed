"""The source of a replica: tells what is in a queue, and then what comes and what leaves.

Whoever connects tells the ids that it has of this queue; it is sent what it lacks, in order, and told what is not here.
Ids are unique for ever (they begin with the epoch), and of two messages of a queue the later one has the greater id. So
nothing is kept here of a replica that is away. Nothing is told that a crash could still undo.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any

from pollux.cluster.connection import payloads
from pollux.cluster.connection.forwarded import Forwarded
from pollux.cluster.connection.payloads import Kind, Payloads
from pollux.cluster.link import Idle
from pollux.errors import LostBodyError, StoreError
from pollux.logs import event
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pollux.cluster.link import Conversation, Handler
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.replica")

#: What a channel to a source is opened for.
PURPOSE = "replica"
#: Bytes that may be told before they are read.
WINDOW = 4 << 20
#: What is said in requests: ids, 8 bytes each.
HELD, ALL_HELD, GONE, WHOLE = "held", "all-held", "gone", "whole"
#: Ids in one request.
IDS = 100_000
_BATCH, _BATCH_BYTES = 200, 256 << 10
_PIECE = 64 << 10
_NO_LIFE = bytes(8)


def packed(ids: Iterable[int]) -> bytes:
    """Return ids as they are sent."""
    return array("Q", ids).tobytes()


def unpacked(data: bytes) -> array[int]:
    """Return ids that were sent. Raises ValueError."""
    found = array("Q")
    found.frombytes(data)
    return found


def contents(queue: Queue) -> dict[int, Message | None]:
    """Return everything that is in a queue by its id; None: it is on disk only. What is in pages is not among it."""
    found: dict[int, Message | None] = dict.fromkeys(queue.cold_ids())
    found.update((reference.message.id, reference.message) for reference in queue.iterate())
    found.update((reference.message.id, reference.message) for _, reference in queue.in_delivery())
    return found


def compared(here: Iterable[int], held: set[int]) -> tuple[list[int], list[int]]:
    """Return which ids a replica that has ``held`` lacks, and which it is to drop, so that its order will be that here.

    What it has behind something that it lacks is dropped, and comes again.
    """
    missing: list[int] = []
    kept = 0
    for number in sorted(here):
        if missing or number not in held:
            missing.append(number)
        else:
            kept += 1
    if kept == len(held):
        return missing, []
    last = missing[0] if missing else None
    there = set(here)
    return missing, [number for number in held if number not in there or (last is not None and number > last)]


def sent_as(message: Message) -> Forwarded:
    """Return what is sent of a message: all of it but its duplicate id, which is known at the source."""
    return Forwarded(
        _NO_LIFE,
        message.id,
        (),
        (),
        int(message.encoding),
        message.address,
        message.data,
        message.durable,
        message.priority,
        message.expiration,
        message.timestamp,
        message.deliver_at,
        message.group,
        message.group_sequence,
        message.last_value,
        None,
        None if message.routing_type is None else int(message.routing_type),
        message.user,
        message.annotations,
        (message.large.size, message.large.checksum) if message.large is not None else None,
    )


class Feed(Idle):
    """One replica that another broker has of a queue here; the handler of its channel, and a watcher of the queue."""

    def __init__(self, feeds: Feeds, queue: Queue, conversation: Conversation, channel: int, name: str) -> None:
        self.name = name
        self.queue = queue
        self.sent = 0
        self._feeds = feeds
        self._post = feeds.post
        self._conversation = conversation
        self._channel = channel
        self._payloads = Payloads()
        self._held: set[int] | None = set()
        #: What is to be sent, in order; and what the other end has, or will have.
        self._unsent: dict[int, Message | None] = {}
        self._known: set[int] = set()
        self._gone: list[int] = []
        self._told_whole = False
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    # -- the channel

    def data(self, payload: bytes) -> None:
        """Take the ids that the other end has."""
        try:
            found = self._payloads.decode(payload)
            if found is not None:
                self._take(*found)
        except (CoreError, ValueError) as error:
            self._conversation.stop("protocol", str(error))
            return
        self._conversation.grant(self._channel, len(payload))

    def _take(self, kind: Kind, content: object) -> None:
        if kind is not Kind.REQUEST or self._held is None:
            raise CoreError("protocol", f"{kind.name} from a replica")
        request: tuple[int, str, bytes] = content  # type: ignore[assignment]  # decoded as such
        _, what, ids = request
        self._held.update(unpacked(ids))
        if what == ALL_HELD:
            self._begin(self._held)

    def credited(self) -> None:
        """More may be sent."""
        self._more.set()

    def closed(self, code: str, text: str) -> None:
        """The replica is gone; it begins anew."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
        self.queue.watchers = tuple(each for each in self.queue.watchers if each is not self)
        self._feeds.ended(self)
        event(logger, logging.INFO, "replica ended", queue=self.queue.name, broker=self.name, reason=f"{code}: {text}")

    def stop(self, reason: str) -> None:
        """Feed nothing any more."""
        self._conversation.stop("stopping", reason)

    # -- the queue

    def arrived(self, references: Sequence[MessageReference]) -> None:
        """Send what came."""
        for reference in references:
            self._unsent[reference.message.id] = reference.message
        self._more.set()

    def left(self, ids: Iterable[int]) -> None:
        """Tell what is gone, or do not send it."""
        for number in ids:
            if number in self._known:
                self._known.discard(number)
                self._gone.append(number)
            else:
                self._unsent.pop(number, None)
        self._more.set()

    def deleted(self) -> None:
        """The replica keeps what it has: nobody consumed that."""
        self._conversation.refuse(self._channel, f"queue {self.queue.name!r} was deleted")
        self.closed("refused", "the queue was deleted")

    # -- sending

    def _begin(self, held: set[int]) -> None:
        self._held = None
        here = contents(self.queue)
        for lost in self._feeds.lost:
            here.pop(lost, None)
        missing, self._gone = compared(here, held)
        self._unsent = {number: here[number] for number in missing}
        self._known = held.difference(self._gone)
        self.queue.watchers = (*self.queue.watchers, self)
        event(
            logger,
            logging.INFO,
            "replica begins",
            queue=self.queue.name,
            broker=self.name,
            held=len(self._known),
            missing=len(missing),
        )
        self._more.set()
        self._task = self._post.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while not self._ended:
                await self._more.wait()
                self._more.clear()
                while self._gone or self._unsent:
                    await self._send_gone()
                    await self._send_some()
                if not self._told_whole:
                    self._told_whole = True
                    await self._say(WHOLE)
        except StoreError as error:
            self._conversation.stop("failed", str(error))
        except Exception as error:
            logger.exception("a replica cannot be fed")
            self._conversation.stop("failed", repr(error))

    async def _send_gone(self) -> None:
        """Tell what left, once that cannot be undone any more."""
        if self._gone:
            gone, self._gone = self._gone, []
            await stable(self._post)
            for start in range(0, len(gone), IDS):
                await self._say(GONE, packed(gone[start : start + IDS]))

    async def _send_some(self) -> None:
        chosen = list(islice(self._unsent.items(), _BATCH))
        cold = [number for number, message in chosen if message is None]
        read = dict(zip(cold, await self._post.storage.read_messages(cold), strict=True)) if cold else {}
        batch: list[Forwarded] = []
        size = 0
        for number, known in chosen:
            message = known if known is not None else read.get(number)
            if number not in self._unsent:
                continue  # it left meanwhile
            if message is None:  # damaged, or gone while it was read
                del self._unsent[number]
                continue
            large = message.large is not None
            if batch and (large or size >= _BATCH_BYTES):
                break
            del self._unsent[number]
            self._known.add(number)
            if large:
                await self._send_body(message)
            batch.append(sent_as(message))
            size += len(message.data)
            if large:
                break
        if batch:
            await self._send(payloads.messages(batch, self._conversation.room()))
            self.sent += len(batch)

    async def _send_body(self, message: Message) -> None:
        assert message.large is not None  # noqa: S101  (why this is called)
        reader = self._post.storage.large.open(message.large)
        try:
            while data := await reader.read(min(_PIECE, self._conversation.room() - 1)):
                await self._send([bytes((Kind.BODY,)) + data])
        except LostBodyError:
            if message.id in self._known:  # nobody consumed it: the next attempt leaves it out
                self._feeds.lost.add(message.id)
            raise
        finally:
            reader.close()

    async def _say(self, what: str, content: bytes = b"") -> None:
        await self._send(payloads.request(0, what, content, self._conversation.room()))

    async def _send(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            await credit(self._conversation, self._channel, self._more)
            if not self._ended:
                self._conversation.send(self._channel, piece)

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "queue": self.queue.name,
            "broker": self.name,
            "waiting": len(self._unsent) + len(self._gone),
            "sent": self.sent,
        }


async def credit(conversation: Conversation, channel: int, more: asyncio.Event) -> None:
    """Wait until something may be sent; ``more`` is set when that may be so, and is set afterwards."""
    waited = False
    while not conversation.ended and not conversation.credit(channel):
        more.clear()
        waited = True
        await more.wait()
    if waited:
        more.set()


async def stable(post: PostOffice) -> None:
    """Wait until all that was done is on disk (and, where there are backups, with them). Raises StoreError."""
    done: asyncio.Future[None] = post.loop.create_future()

    def tell(error: Exception | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    post.when_stable(tell)
    await done


class Feeds:
    """The replicas that others have of queues here. All methods are called in the loop's thread."""

    def __init__(self, name: str, node: bytes, post: PostOffice) -> None:
        self.post = post
        self.all: dict[tuple[str, bytes, str], Feed] = {}
        #: Large messages whose body is not there, by id.
        self.lost: set[int] = set()
        self._name = name
        self._node = node

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        """Feed whoever asks, or refuse; a later connection for the same replica takes the place of one before."""
        try:
            name = str(content["queue"])
            node = bytes.fromhex(content["node_id"])
            broker, target = str(content["name"])[:255], str(content["target"])[:1024]
        except (LookupError, TypeError, ValueError) as error:
            conversation.refuse(channel, f"OPEN cannot be read: {error!r}")
            return None
        queue = self.post.space.queue(name)
        if node == self._node or queue is None or queue.spec.internal:
            reason = "the source is this broker itself" if node == self._node else f"there is no queue {name[:200]!r}"
            conversation.refuse(channel, reason)
            return None
        before = self.all.pop((name, node, target), None)
        if before is not None:
            before.stop("another connection for this replica takes its place")
        conversation.accept(channel, node_id=self._node.hex(), name=self._name)
        feed = self.all[name, node, target] = Feed(self, queue, conversation, channel, broker)
        conversation.grant(channel, WINDOW)
        return feed

    def ended(self, feed: Feed) -> None:
        """A feed is over."""
        for key, each in list(self.all.items()):
            if each is feed:
                del self.all[key]

    def stop(self) -> None:
        """Feed nobody any more."""
        for feed in list(self.all.values()):
            feed.stop("the broker stops")
