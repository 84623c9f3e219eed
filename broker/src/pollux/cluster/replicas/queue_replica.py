"""A replica: connects to its source, tells what it has, and puts in and takes out what the source says.

Each message carries where it is from: the source's node and its id there. So what is held is known after a restart, or
a failover, without anything else being kept, and nothing is there twice.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from pollux.cluster.connection import payloads
from pollux.cluster.connection.forwarded import Forwarded, taken
from pollux.cluster.connection.payloads import Kind, Payloads
from pollux.cluster.connector import UnreachableError
from pollux.cluster.reconnection import Reconnection
from pollux.cluster.replicas.feed import (
    ALL_HELD,
    GONE,
    HELD,
    IDS,
    PURPOSE,
    WHOLE,
    WINDOW,
    contents,
    credit,
    packed,
    stable,
    unpacked,
)
from pollux.errors import PolluxError, StoreError
from pollux.logs import event
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.cluster.connector import ClusterConnector
    from pollux.cluster.link.core_link import CoreLink
    from pollux.config.acceptors import Endpoint
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.store.large import LargeMessage, LargeWriter

logger = logging.getLogger("pollux.replica")

#: The annotation of a message of a replica: the source's node, and the message's id there.
ORIGIN = "_AMQ_REPLICA_OF"
_ORIGIN = struct.Struct("<16sQ")
#: Messages read from disk at a time.
_READ = 500
#: Seconds to connect and prove who one is.
_CONNECT = 10.0
#: Taking messages out looks at all that there are: no more than a part of the time is spent with that.
_REST = 4


def origin_of(message: Message) -> tuple[bytes, int] | None:
    """Return from which node a message is, and its id there; None: it is no copy."""
    note = (message.annotations or {}).get(ORIGIN)
    if not isinstance(note, bytes) or len(note) != _ORIGIN.size:
        return None
    node, number = _ORIGIN.unpack(note)
    return node, number


class _Ended(Exception):  # noqa: N818  (no error: it is how a connection ends)
    """The connection is of no use any more."""


class _Session:
    """One channel to the source: what came by it, in order, and whether it is over."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.inbox: deque[bytes] = deque()
        self.more = asyncio.Event()
        self.over = False
        self.reason = ""

    def accepted(self, content: dict[str, Any]) -> None:
        """The source has such a queue."""
        if not self.opened.done():
            self.opened.set_result(content)

    def data(self, payload: bytes) -> None:
        """Keep what came until its turn."""
        self.inbox.append(payload)
        self.more.set()

    def credited(self) -> None:
        """More may be told."""
        self.more.set()

    def closed(self, code: str, text: str) -> None:
        """The connection is gone, or the source does not feed this queue."""
        self.over = True
        self.reason = text if code == "refused" else f"{code}: {text}" if text else code
        self.more.set()
        if not self.opened.done():
            self.opened.set_result(None)


class QueueReplica(Reconnection):
    """One replica of this broker. All methods are called in the loop's thread."""

    logger = logger
    kind, down = "queue", "source is not followed"

    def __init__(
        self,
        post: PostOffice,
        queue: Queue,
        source: str,
        endpoints: Sequence[Endpoint],
        *,
        name: str,
        node: bytes,
        connector: ClusterConnector,
        pause: float,
    ) -> None:
        """``source``: the queue's name there. ``pause``: seconds between two rounds of attempts."""
        super().__init__(queue.name, post.loop, endpoints, retry=pause)
        self.queue = queue
        self.source = source
        #: Everything was here once since the connection stands.
        self.whole = False
        self.broker = ""
        self.put_in = self.taken_out = 0
        self._post = post
        self._broker = name
        self._node = node
        self._connector = connector
        #: The source's node, and its ids -> those here; None: not known yet.
        self._origin = b""
        self._ids: dict[int, int] | None = None
        self._payloads = Payloads()
        self._body: LargeWriter | None = None

    # -- connecting

    async def hold(self, endpoint: Endpoint) -> bool:
        """Follow the source there until the connection is gone; the next endpoint is tried at once."""
        link: CoreLink | None = None
        try:
            link = await self._connector.connect(endpoint, _CONNECT)
            await self._follow(link)
        except UnreachableError as error:
            self.lost(str(error), error.remedy)
        except _Ended as end:
            self.lost(str(end))
        except (CoreError, PolluxError, ValueError) as error:
            self.lost(str(error), "see the log of both brokers")
        except Exception as error:
            logger.exception("a replica failed")
            self.lost(repr(error))
        finally:
            self.connected = self.whole = False
            self._drop_body()
            if link is not None:
                link.close("not followed any more")
        return False

    async def _follow(self, link: CoreLink) -> None:
        """Do what the source says until the connection is gone: _Ended says why."""
        session, conversation = _Session(), link.conversation
        channel = conversation.open(
            session,
            PURPOSE,
            queue=self.source,
            target=self.queue.name,
            node_id=self._node.hex(),
            name=self._broker,
        )
        content = await session.opened
        if content is None:
            raise _Ended(session.reason)
        self._payloads = Payloads()
        self._origin, self.broker = bytes.fromhex(content["node_id"]), str(content["name"])[:255]
        self._ids = await self._known()
        held = list(self._ids)
        for start in range(0, len(held) + 1, IDS):
            what = HELD if start + IDS < len(held) else ALL_HELD
            for piece in payloads.request(0, what, packed(held[start : start + IDS]), conversation.room()):
                await credit(conversation, channel, session.more)
                if session.over:
                    raise _Ended(session.reason)
                conversation.send(channel, piece)
            if what == ALL_HELD:
                break
        conversation.grant(channel, WINDOW)
        self.reached()
        event(logger, logging.INFO, "source is followed", queue=self.queue.name, broker=self.broker, held=len(held))
        while True:
            while not (session.inbox or session.over):
                session.more.clear()
                await session.more.wait()
            if session.inbox:
                size = sum(map(len, session.inbox))
                arrived, session.inbox = session.inbox, deque()
                await self._apply(arrived)
                conversation.grant(channel, size)
            else:
                raise _Ended(session.reason)

    async def _known(self) -> dict[int, int]:
        """Return the ids that this queue has of its source; what is of another source, or of none, is taken out."""
        here = contents(self._post.queue(self.queue.name))
        known: dict[int, int] = {}
        strange: set[int] = set()
        numbers = sorted(here)
        for start in range(0, len(numbers), _READ):
            some = numbers[start : start + _READ]
            cold = [number for number in some if here[number] is None]
            if cold:
                here.update(zip(cold, await self._post.storage.read_messages(cold), strict=True))
            for number in some:
                message = here.pop(number)
                origin = origin_of(message) if message is not None else None
                if origin is None or origin[0] != self._origin or origin[1] in known:
                    strange.add(number)
                else:
                    known[origin[1]] = number
            await asyncio.sleep(0)
        if strange:
            self._post.take_out(self.queue, strange)
            await stable(self._post)
        return known

    # -- what the source says

    async def _apply(self, arrived: Sequence[bytes]) -> None:
        """Do all of it, and wait until it is on disk. Raises StoreError when it cannot be."""
        assert self._ids is not None  # noqa: S101  (it was told)
        ids = self._ids
        added: dict[int, Message] = {}
        out: set[int] = set()
        whole = self.whole
        try:
            for payload in arrived:
                found = self._payloads.decode(payload)
                if found is None:
                    continue
                kind, content = found
                if kind is Kind.BODY:
                    await self._take_body(content)  # type: ignore[arg-type]  # decoded as such
                elif kind is Kind.MESSAGES:
                    for one in content:  # type: ignore[attr-defined]  # decoded as such
                        added[one.number] = self._message(one)
                elif kind is Kind.REQUEST:
                    request: tuple[int, str, bytes] = content  # type: ignore[assignment]  # decoded as such
                    _, what, data = request
                    whole = whole or what == WHOLE
                    for number in unpacked(data) if what == GONE else ():
                        message_gone = added.pop(number, None)
                        if message_gone is not None:
                            self._forget(message_gone)
                        elif number in ids:
                            out.add(ids.pop(number))
                else:
                    raise CoreError("protocol", f"{kind.name} from a source")
            began = self._post.loop.time()
            if out:
                self._post.take_out(self._post.queue(self.queue.name), out)
                self.taken_out += len(out)
            spent = self._post.loop.time() - began
            while added:
                number, message = next(iter(added.items()))
                self._post.copy_in(message, self.queue)
                del added[number]
                ids[number] = message.id
                self.put_in += 1
        finally:
            for message in added.values():
                self._forget(message)
        await stable(self._post)
        self.whole = whole
        if out:
            await asyncio.sleep(spent * _REST)

    def _message(self, one: Forwarded) -> Message:
        message = taken(one, self._finish_body(one))
        message.address, message.routing_type = self.queue.address, self.queue.routing_type
        message.annotations = {**(message.annotations or {}), ORIGIN: _ORIGIN.pack(self._origin, one.number)}
        return message

    async def _take_body(self, data: bytes) -> None:
        if self._body is None:
            self._body = self._post.storage.large.create()
        self._body.write(data)
        if self._body.full:
            drained = asyncio.Event()
            self._body.on_drain(drained.set)
            await drained.wait()

    def _finish_body(self, one: Forwarded) -> LargeMessage | None:
        body, self._body = self._body, None
        if (one.large is None) != (body is None):
            raise CoreError("protocol", "a body without a large message, or one without a body")
        if body is None or one.large is None:
            return None
        large = body.finish(durable=one.durable)
        if one.large[0] != large.size or one.large[1] not in (None, large.checksum):
            self._post.storage.large.delete(large.id)
            raise StoreError(f"a body of {large.size} bytes is not the one of {one.large[0]} that was sent")
        return large

    def _forget(self, message: Message) -> None:
        if message.large is not None:
            self._post.storage.large.delete(message.large.id)

    def _drop_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.abort()

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "name": self.queue.name,
            "queue": self.source,
            "source": self.queue.replica_of.rpartition("@")[2],
            "connected": self.connected,
            "whole": self.whole,
            "broker": self.broker or None,
            "messages": self._post.message_count(self.queue),
            "putIn": self.put_in,
            "takenOut": self.taken_out,
            "reason": self.reason or None,
        }
