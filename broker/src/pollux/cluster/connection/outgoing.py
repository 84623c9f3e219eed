"""A link to another node: connects, hears which queues it has, and sends what waits for it.

One task for each peer, retried alone and for ever: what one of them refuses stops no other. To its store-and-forward
queue the link is a consumer. A message stays there until the peer has said that it is on its disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from pollux.cluster.connection import payloads, refusals
from pollux.cluster.connection.aside import Aside
from pollux.cluster.connection.forwarded import known, to_send
from pollux.cluster.connection.held import Held
from pollux.cluster.connection.payloads import Kind, Payloads
from pollux.cluster.connection.requests import Asking
from pollux.cluster.connection.send_batch import Packing
from pollux.cluster.connection.sent import Fate, Sent
from pollux.cluster.connection.settings import PURPOSE
from pollux.cluster.connector import UnreachableError
from pollux.cluster.membership import WAS_REMOVED, Member
from pollux.errors import PolluxError
from pollux.logs import event
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.cluster.connection.owner import Sender
    from pollux.cluster.link import Conversation
    from pollux.cluster.link.core_link import CoreLink
    from pollux.cluster.scale_down.plan import About
    from pollux.config.acceptors import Endpoint
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector

logger = logging.getLogger("pollux.cluster")

#: Messages that may be sent and not confirmed.
_IN_FLIGHT = 2000
#: Bytes of a large message's body in one payload.
_PIECE = 64 << 10


class OutgoingLink:
    """The link to one peer. It is the handler of its channel, and the consumer of the queue that it drains.

    What else is sent over such a link says so by its ``purpose`` and, in the log, ``what`` it is.
    """

    purpose = PURPOSE
    what = "cluster link"
    #: What is for an address that is full at the peer waits for itself.
    apart = True
    priority = 0
    selector: Selector | None = None
    browsing = False
    no_local = False
    origin = 0

    def __init__(self, cluster: Sender, name: str, endpoints: tuple[Endpoint, ...]) -> None:
        self.name = name
        self.endpoints = endpoints
        #: Where the peer is reached, too, as it told the nodes; and whether it was found by discovery alone.
        self.told: tuple[Endpoint, ...] = ()
        self.discovered = False
        self.credit = 0
        #: The peer's node id and name, as it said them last; empty before.
        self.node = b""
        self.broker = ""
        #: That of the peer's life.
        self.epoch = 0
        self.connected = self.homes = False
        #: Why it is not.
        self.reason = "not connected yet"
        #: It was reached once, or could not be.
        self.tried = False
        self.sent = 0
        self.confirmed = 0
        self._cluster = cluster
        self._queue: Queue | None = None
        self._link: CoreLink | None = None
        self._channel = 0
        self._payloads = Payloads()
        self._waiting: deque[MessageReference] = deque()
        self._aside = Aside()
        self._sent = Sent()
        self.held = Held()
        self._payloads_out: deque[bytes] = deque()
        #: Sends the body of a large message; and what it waits for: credit.
        self._body: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._planned = False
        #: What the peer tells of itself; None before it did.
        self.about: About | None = None
        self._asking = Asking()
        #: The peer, which is being emptied, knows that nothing waits for it.
        self._said_empty = False
        self._told = ""
        #: It leads to this broker itself; or where another link does.
        self.useless = self.second = False
        #: It stood: by the last connection, and ever.
        self._was_up = self._ever = False
        #: Something is known of the peer that was not when it was tried last.
        self._news = asyncio.Event()
        self._tells_members = self._alike = self._between = False
        #: Bytes that the peer said and was not granted again.
        self._owed = 0

    @property
    def conversation(self) -> Conversation | None:
        """The connection to the peer, for channels of other purposes; None while it is not reached."""
        return self._link.conversation if self._link is not None and self.connected else None

    # -- connecting

    async def run(self) -> None:
        """Connect, and again whenever the connection is gone; until cancelled, or it leads to this node itself."""
        settings = self._cluster.settings
        wait, attempts = settings.retry, 0
        try:
            while not self.useless:
                self._news.clear()
                stood = False
                for endpoint in dict.fromkeys((*self.endpoints, *self.told)):
                    if await self._connection(endpoint):
                        wait, stood, self._ever = settings.retry, True, True
                    if self.useless:
                        return
                attempts = 0 if self.second or stood else attempts + 1
                limit = settings.attempts if self._ever else settings.first_attempts
                if 0 <= limit <= attempts:
                    self._cluster.gave_up(self)
                    await self._news.wait()
                    wait, attempts = settings.retry, 0
                    continue
                # Who is reached by another link is there; but it may be a pair, of which the other one serves later.
                await self._pause(settings.check if self.second else wait)
                wait = min(wait * settings.multiplier, settings.longest_retry)
        finally:
            self._lost("stopped")
            if self._link is not None:
                self._link.close("the broker stops")

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def again(self) -> None:
        """Try at once, and also when it was tried as often as it may be: something new is known of the peer."""
        self._news.set()

    async def _connection(self, endpoint: Endpoint) -> bool:
        """Hold one connection until it ends; return whether there was one."""
        cluster = self._cluster
        try:
            link = await cluster.connector.connect(endpoint, cluster.settings.call_timeout)
        except UnreachableError as error:
            self._unreachable(str(error), error.remedy)
            return False
        peer = link.conversation.peer
        node, epoch = (peer.node_id, peer.epoch) if peer is not None else (b"", 0)
        name = peer.name if peer is not None else ""
        if problem := self._not_to(node, epoch, name, itself=link.conversation.to_itself):
            # Before OPEN: a node takes one link of each peer, the last one.
            self._unreachable(problem)
            link.close("another link leads there")
            return False
        self.epoch = epoch
        self._link = link
        self._was_up = False
        self._payloads = Payloads()
        members = cluster.members
        said: dict[str, Any] = {"member": members.mine} if members is not None else {}
        if cluster.topology is not None:
            said["clients"] = cluster.topology.mine.as_content()
        self._channel = link.conversation.open(
            self,
            self.purpose,
            connection=cluster.settings.name,
            node_id=cluster.node.hex(),
            name=cluster.name,
            hops=cluster.settings.hops,
            addresses=cluster.settings.address,
            window=cluster.settings.window,
            client_id=cluster.settings.client_id,
            **({"apart": True} if self.apart else {}),
            **said,
        )
        await link.over
        self._link = None
        return self._was_up

    def _not_to(self, node: bytes, epoch: int, name: str, *, itself: bool) -> str:
        """Return why nothing is sent to who is reached there; empty: it is."""
        cluster = self._cluster
        self.second = False
        if node == cluster.node:
            self.useless = itself
            if itself:
                return "it leads to this broker itself"
            return refusals.copied(name, epoch, cluster.name, cluster.hub.epoch)
        if not node:
            return "it waits there, and serves nobody"
        if cluster.members is not None and cluster.members.was_removed(node):
            return WAS_REMOVED
        self.node = node
        other = cluster.reached_by(node)
        if other is None or other is self:
            return ""
        if epoch > other.epoch:
            # The other one of a pair: who served before is gone, or cut off, and its connection did not notice yet.
            other.close(f"another broker serves as {other.broker} in epoch {epoch}")
            return ""
        self.second = epoch == other.epoch
        return f"it leads where {other.name} does"

    def close(self, reason: str) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close(reason)

    def _unreachable(self, reason: str, remedy: str = "") -> None:
        self.tried = True
        self._cluster.tried()
        self.reason = reason
        if reason != self._told:
            self._told = reason
            level = logging.WARNING if remedy else logging.INFO
            event(logger, level, f"{self.what} is down", connector=self.name, reason=reason, remedy=remedy or None)

    # -- the channel

    def accepted(self, content: dict[str, Any]) -> None:
        """Begin: the peer said who it is, and what it has of this link."""
        try:
            node = bytes.fromhex(content["node_id"])
            if len(node) != 16:
                self._end(CoreError("protocol", f"a node id of {len(node)} bytes"))
                return
            taken = {bytes(life): int(number) for life, number in content["taken"]}
            broker = str(content["name"])
            self._tells_members = "member" in content
            member = msgspec.convert(content["member"], Member) if self._tells_members else None
        except (LookupError, TypeError, ValueError) as error:
            self._end(CoreError("protocol", f"the answer to OPEN cannot be read: {error!r}"))
            return
        self.node, self.broker = node, broker
        #: The peer looks at duplicate ids for others.
        self.homes = bool(content.get("homes"))
        #: It takes messages that are like others, and messages between the pieces of a large one.
        self._alike, self._between = bool(content.get("alike")), bool(content.get("between"))
        self._sent.begin(node, taken)
        self._cluster.heard_of(node, content.get("clients"))
        self.connected, self.reason, self._told = True, "", ""
        self._was_up = True
        event(logger, logging.INFO, f"{self.what} is up", connector=self.name, broker=broker, node=node.hex())
        self._owed = 0
        self._grant(self._cluster.settings.window)
        self._queue = self._cluster.opened(node, apart=bool(content.get("apart")))
        self.credit = _IN_FLIGHT
        if (members := self._cluster.members) is not None:
            if member is not None:
                self._cluster.told_of((member,))
            self.tell_members(members.all)
        self._said_empty = False
        self._cluster.post.attach(self._queue, self)
        self._cluster.progressed()
        if self._link is not None:
            self._cluster.reached(node, self._link.conversation)
        self.tried = True
        self._cluster.tried()

    @property
    def in_flight(self) -> int:
        """Return how many messages were sent and not confirmed."""
        return self._sent.in_flight

    @property
    def holds(self) -> bool:
        """Whether something was sent that the peer has not said to have, by an earlier connection or this one."""
        return self._sent.holds

    @property
    def sent_numbers(self) -> dict[tuple[bytes, bytes], int]:
        """Return the highest numbers that were ever sent over this link, by node and life."""
        return self._sent.numbers

    def sent_up_to(self, node: bytes, life: bytes) -> int:
        """Return the highest number of a life that was ever sent to a node over this link; 0: none was."""
        return self._sent.highest(node, life)

    def give_up_first(self) -> None:
        """Give up the next message that was sent and not taken."""
        self._sent.gives_up = True

    def _grant(self, size: int) -> None:
        """Let the peer say so much more, when there is some of it: most of what it says is short."""
        self._owed += size
        if self._link is not None and self._owed >= self._cluster.settings.window // 4:
            self._link.conversation.grant(self._channel, self._owed)
            self._owed = 0

    def data(self, payload: bytes) -> None:
        """Take what the peer tells, or what it has stored."""
        self._grant(len(payload))
        try:
            found = self._payloads.decode(payload)
        except CoreError as error:
            self._end(error)
            return
        if found is None:
            return
        kind, content = found
        if kind is Kind.TELLING:
            if self._cluster.heard(self.node, content):  # type: ignore[arg-type]  # decoded as such
                self._payloads_out.append(bytes((Kind.AGAIN,)))
                self._plan()
        elif kind is Kind.CONFIRM:
            self._confirmed(*content)  # type: ignore[misc]  # decoded as such
        elif kind is Kind.ANSWER:
            self._asking.answered(*content)  # type: ignore[misc]  # decoded as such
        elif kind is Kind.ABOUT:
            self.about = content  # type: ignore[assignment]  # decoded as such
            self.say_empty()
            self._cluster.progressed()
        elif kind is Kind.MEMBERS:
            self._cluster.told_of(content)  # type: ignore[arg-type]  # decoded as such
        elif kind is Kind.FULL:
            self._hold_back(content)  # type: ignore[arg-type]  # decoded as such
        else:
            self._end(CoreError("protocol", f"{kind.name} from the side that takes messages"))

    async def ask(self, what: str, content: bytes) -> str:
        """Ask the peer for something; return why it cannot be, empty: it is done, and on the peer's disk.

        Raises ConnectionError when the link ends before the peer has said so.
        """
        if not self.connected or self._link is None:
            raise ConnectionError(self.reason)
        number, answer = self._asking.begin(self._cluster.loop)
        self._payloads_out.extend(payloads.request(number, what, content, self._link.conversation.room()))
        self._plan()
        try:
            return await answer
        finally:
            self._asking.done(number)

    def say_empty(self) -> None:
        """Tell a peer that is being emptied when nothing waits for it any more."""
        if self._said_empty or self.about is None or not self.about.draining or self._queue is None:
            return
        if not self._cluster.post.message_count(self._queue):
            self._said_empty = True
            self._payloads_out.append(bytes((Kind.EMPTY,)))
            self._plan()

    def tell_members(self, news: Sequence[Member]) -> None:
        """Tell the peer of these nodes."""
        if self.connected and self._tells_members and self._link is not None:
            self._payloads_out.extend(payloads.members(news, self._link.conversation.room()))
            self._plan()

    def credited(self) -> None:
        """More may be sent."""
        self._more.set()
        self._plan()

    def closed(self, code: str, text: str) -> None:
        """The connection is gone, or the peer does not want it."""
        self._lost(f"{code}: {text}" if text else code)
        if self._link is not None:
            self._link.close("the link is closed")

    def _end(self, error: CoreError) -> None:
        if self._link is not None:
            self._link.conversation.stop(error.code, str(error))

    def _lost(self, reason: str) -> None:
        was = self.connected
        if self._body is not None:
            self._body.cancel()
            self._body = None
        self.connected = False
        self.about = None
        self._asking.lost(reason)
        self.credit = 0
        self._waiting.clear()
        self._aside.forget()
        self.held, self.selector = Held(), None
        self._sent.end()
        self._payloads_out.clear()
        queue, self._queue = self._queue, None
        if queue is not None:
            self._cluster.post.detach(queue, self)
        if was:
            self._cluster.lost(self.node)
            self._cluster.progressed()
        if not self.useless:
            self._unreachable(reason)

    # -- the queue's consumer

    def deliver(self, references: list[MessageReference]) -> None:
        """Take messages that wait for the peer."""
        self.credit -= len(references)
        self._waiting += references
        self._plan()

    def _hold_back(self, addresses: tuple[str, ...]) -> None:
        """Leave in the queue what is for addresses that are full, until the peer tells of room."""
        if self._queue is None:
            return
        again = self.held.told(addresses)
        self.selector = self.held.selector
        self._aside.give_back(self._waiting)
        back = self.held.sift(self._waiting)
        self.credit += len(back)
        self._cluster.post.release(back, failed=False)
        self._queue.select(self, again=again)
        self._cluster.post.wake(self._queue)

    def queue_deleted(self, _queue: Queue) -> None:
        """Somebody deleted the queue: begin anew, which makes it again."""
        self._queue = None
        self._waiting.clear()
        self._aside.forget()
        self._sent.forget()
        self._end(CoreError("failed", "the store-and-forward queue was deleted"))

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._cluster.loop.call_soon(self._send)

    def _send(self) -> None:
        self._planned = False
        while self._link is not None and (self._body is None or self._between):
            if not self._payloads_out:
                if not self._waiting or self._sent.size >= self._cluster.settings.unconfirmed:
                    return
                if not self._link.conversation.credit(self._channel):
                    return  # what is packed cannot be held back any more
                batch, large = self._batch()
                if large is not None:
                    self._body = self._cluster.loop.create_task(self._send_body(self._link.conversation, large, batch))
                elif batch:
                    self._payloads_out.extend(batch.payloads(self._link.conversation.room()))
                continue
            if not self._link.conversation.credit(self._channel):
                return
            self._link.conversation.send(self._channel, self._payloads_out.popleft())

    async def _send_body(self, conversation: Conversation, reference: MessageReference, batch: Packing) -> None:
        """Send the body of a large message bit by bit, then the message; what must not overtake it waits meanwhile."""
        post, message = self._cluster.post, reference.message
        assert message.large is not None  # noqa: S101  (why this is called)
        reader = post.storage.large.open(message.large)
        try:
            while data := await reader.read(min(_PIECE, conversation.room() - 1)):
                while not conversation.credit(self._channel):
                    self._more.clear()
                    await self._more.wait()
                conversation.send(self._channel, bytes((Kind.BODY,)) + data)
            self._payloads_out.extend(batch.payloads(conversation.room()))
        except PolluxError as error:  # the file is gone, or is not what it was
            self._sent.take_back(batch.life)
            post.set_aside(reference, error)
            self._end(CoreError("failed", str(error)))
        finally:
            reader.close()
            if self._body is asyncio.current_task():  # else the connection is gone
                self._body = None
                self._aside.end(self._waiting)
        self._plan()

    def _batch(self) -> tuple[Packing, MessageReference | None]:
        """Return what is sent next; what the peer has, or is no message of this link, is done with at once.

        A large message is returned alone, with its reference.
        """
        batch = Packing()
        done: list[MessageReference] = []
        large: MessageReference | None = None
        waiting, sent, alike, aside = self._waiting, self._sent, self._alike, self._aside
        while waiting:
            if alike and not aside:
                batch.take(waiting, sent)
                if not waiting:
                    break
            reference = waiting[0]
            message = reference.message
            one = (known(message) if alike else None) or to_send(message)
            if aside and aside.keeps(reference):
                waiting.popleft()
                continue
            if batch.life and (message.large is not None or not batch.fits(one)):
                break
            waiting.popleft()
            if one is None:
                self._cluster.post.reject([reference])
                self.credit += 1
                continue
            fate = sent.next(one, reference)
            if fate is Fate.SEND:
                batch.add(one, message)
                if message.large is not None:
                    large = reference
                    aside.begin(message)
                    break
            elif fate is Fate.DONE:
                done.append(reference)
            else:
                if fate is Fate.RENUMBER:
                    self._cluster.renumber(self.node, reference)
                elif (whole := to_send(message)) is not None:
                    self._cluster.give_up(reference, whole)
                self.credit += 1
        self.sent += len(batch)
        self._said_empty = self._said_empty and not batch
        self._done(done)
        return batch, large

    def _confirmed(self, life: bytes, number: int) -> None:
        done = self._sent.confirmed(life, number)
        self.confirmed += len(done)
        self._done(done)
        self._plan()

    def _done(self, references: list[MessageReference]) -> None:
        if references and self._queue is not None:
            self._cluster.post.acknowledge(references)
            self.credit += len(references)
            self._cluster.post.wake(self._queue)
            self.say_empty()
            self._cluster.progressed()
