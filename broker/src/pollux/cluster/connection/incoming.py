"""A link from another node: takes its messages in, and tells it of this node's queues.

A message and the number up to which the link's messages were taken in are one transaction. It is confirmed when that is
on disk, and as many bytes are granted again then. A peer is told which addresses are full, and holds back what is for
them; one of an older version is granted nothing until there is room.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pollux.cluster.connection import payloads, refusals
from pollux.cluster.connection.crowded import Crowded
from pollux.cluster.connection.forwarded import is_plain, plainly_taken, taken
from pollux.cluster.connection.local import Prefixes
from pollux.cluster.connection.payloads import Kind, Payloads
from pollux.cluster.membership import Member
from pollux.cluster.routes.numbers import Number
from pollux.cluster.routes.records import Teller
from pollux.errors import PolluxError
from pollux.logs import event
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.owner import Owner
    from pollux.cluster.connection.payloads import Run
    from pollux.cluster.link import Conversation
    from pollux.cluster.routes.numbers import Taken
    from pollux.cluster.routes.records import Key, QueueRecord, Telling
    from pollux.routing.queue import Queue
    from pollux.store.large import LargeMessage, LargeWriter

logger = logging.getLogger("pollux.cluster")

#: Seconds after which it is looked again whether an address has room.
_LOOK_AGAIN = 0.05


class _Batch:
    """One payload: the last number of each life, the addresses, how many were taken, and why no more."""

    __slots__ = ("addresses", "count", "failed", "last")

    def __init__(self) -> None:
        self.last: dict[bytes, int] = {}
        self.addresses: set[str] = set()
        self.count = 0
        self.failed = ""


def _refusal(failure: Exception) -> str:
    """Return in words for a peer why what it asked for is not done."""
    if isinstance(failure, (PolluxError, ValueError)):
        return str(failure) or repr(failure)
    logger.error("what another node asked for failed", exc_info=failure)
    return repr(failure)


class IncomingLink:
    """The channel that a peer opened to send by. ``what`` it is, in the log."""

    what = "cluster link"

    def __init__(self, cluster: Owner, conversation: Conversation, channel: int, content: dict[str, Any]) -> None:
        """Raises ValueError, in words for the peer, when it is not to be accepted."""
        try:
            self.node = bytes.fromhex(content["node_id"])
            self.name = str(content["name"])[:255]
            connection = content["connection"]
            self._prefixes = Prefixes(str(content["addresses"])[:65536])
            self._hops = int(content["hops"])
            window = int(content["window"])
            #: As the peer's broker.xml has it (client-id), and the peer as it says itself; None: it does not.
            self.client_id = str(content.get("client_id", ""))[:255]
            self._member = msgspec.convert(content["member"], Member) if "member" in content else None
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"OPEN cannot be read: {error!r}") from error
        if len(self.node) != 16:
            raise ValueError("a node id has 16 bytes")
        #: That of the peer's life: of two that connect with one node id the later one is right.
        self.epoch = conversation.peer.epoch if conversation.peer is not None else 0
        #: Which process says so, as far as that tells: one of an older version says its name alone.
        self.who = (self.name, conversation.peer.process if conversation.peer is not None else b"")
        if self.node == cluster.node and not conversation.to_itself:
            raise ValueError(refusals.copied(self.name, self.epoch, cluster.name, cluster.post.storage.epoch))
        self.key = self._key(cluster, str(connection))
        self._clients = content.get("clients")
        self.taken = 0
        self._window = max(1, min(window, cluster.settings.window))
        self._cluster = cluster
        self._conversation = conversation
        self._channel = channel
        self._payloads = Payloads()
        self._teller = Teller()
        self._told_all = False
        self._dirty: set[Key] = set()
        self._out: deque[bytes] = deque()
        self._ended = False
        #: Tells which addresses are full; None: the peer does not know what to do then.
        self._crowded = Crowded(cluster.post.accounts, cluster.loop, self._tell_full) if content.get("apart") else None
        #: Bytes to be granted when all was told that is to be told.
        self._later = 0
        self._about_due = True
        #: The peer, which knows that this node is being emptied, has nothing for it.
        self.empty = False
        #: The body of a large message that comes, and the bytes of it that were not granted again yet.
        self._body: LargeWriter | None = None
        self._owed = 0

    def _key(self, cluster: Owner, connection: str) -> str:
        """Return under which name it is stored what was taken in. Raises ValueError: this is no peer of ours."""
        if connection != cluster.settings.name:
            raise ValueError(
                f"this broker's cluster-connection is {cluster.settings.name!r}, not {connection!r}: give both one name"
            )
        return f"{connection}/{self.node.hex()}"

    def begin(self) -> None:
        """Accept it when what was taken in before is on disk: the peer keeps nothing of that."""
        self._cluster.heard_of(self.node, self._clients)
        self._cluster.post.when_stable(lambda error: self._begin() if error is None and not self._ended else None)

    def _begin(self) -> None:
        """Say what was taken in before, and tell everything when there is credit."""
        numbers = [[number.life, number.value] for number in self._cluster.taken_of(self.key).numbers]
        cluster = self._cluster
        members = cluster.members
        said: dict[str, Any] = {"member": members.mine} if members is not None and self._member is not None else {}
        if cluster.topology is not None:
            said["clients"] = cluster.topology.mine.as_content()
        said |= {"node_id": cluster.node.hex(), "name": cluster.name, "taken": numbers, "homes": True, "alike": True}
        said |= {"between": True, "apart": self._crowded is not None}
        self._conversation.accept(self._channel, **said)
        self._conversation.grant(self._channel, self._window)
        event(logger, logging.INFO, f"{self.what} from", broker=self.name, node=self.node.hex())
        if members is not None:
            if self._member is not None:
                cluster.told_of((self._member,))
            self.tell_members(members.all)

    # -- what is told

    def tell_members(self, news: Sequence[Member]) -> None:
        """Tell the peer of these nodes."""
        if self._member is not None and not self._ended:
            self._out.extend(payloads.members(news, self._conversation.room()))
            self._flush()

    def changed(self, keys: Iterable[Key]) -> None:
        """Tell of these queues."""
        self._dirty.update(keys)
        self._flush()

    def digest(self) -> None:
        """Tell what all that was told amounts to."""
        if self._told_all and not self._dirty:
            self._tell(self._teller.digest())

    def tell_about(self) -> None:
        """Tell of this node, after all that is to be told of its queues."""
        self._about_due = True
        self._flush()

    def credited(self) -> None:
        """More may be told than before."""
        self._flush()

    def _flush(self) -> None:
        conversation = self._conversation
        while not self._ended and conversation.credit(self._channel):
            if self._out:
                conversation.send(self._channel, self._out.popleft())
                if not self._out and self._later:
                    size, self._later = self._later, 0
                    conversation.grant(self._channel, size)
            elif not self._told_all:
                self._told_all = True
                self._dirty.clear()
                self._tell(self._teller.all(self._records(None).values()))
            elif self._dirty:
                keys, self._dirty = self._dirty, set()
                telling = self._teller.changes(self._records(keys), keys)
                if telling is not None:
                    self._tell(telling)
            elif self._about_due:
                self._about_due = False
                conversation.send(self._channel, payloads.about(self._cluster.about()))
            else:
                return

    def _tell(self, telling: Telling) -> None:
        self._out.extend(payloads.telling(telling, self._conversation.room()))

    def _records(self, keys: Iterable[Key] | None) -> dict[Key, QueueRecord]:
        """Return the records of these queues (None: of all) that the peer wants to hear."""
        found = self._cluster.records_for(self.node, self._hops, keys)
        return {key: record for key, record in found.items() if record.address in self._prefixes}

    @property
    def looks_further(self) -> bool:
        """Whether the peer wants to hear of other nodes' queues, too."""
        return self._hops > 1

    # -- what is taken in

    def data(self, payload: bytes) -> None:
        """Take messages, or tell everything again."""
        try:
            found = self._payloads.decode(payload)
            if found is None or found[0] is Kind.AGAIN:
                if found is not None:
                    self._told_all = False
                    self._flush()
                self._conversation.grant(self._channel, len(payload))
                return
        except CoreError as error:
            self._conversation.stop(error.code, str(error))
            return
        kind, content = found
        if kind is Kind.MEMBERS:
            self._cluster.told_of(content)  # type: ignore[arg-type]  # decoded as such
            self._conversation.grant(self._channel, len(payload))
            return
        if kind is Kind.BODY:
            self._take_body(content, len(payload))  # type: ignore[arg-type]  # decoded as such
            return
        if kind is Kind.REQUEST:
            self._do(content, len(payload))  # type: ignore[arg-type]  # decoded as such
            return
        if kind is Kind.EMPTY:
            self.empty = True
            self._conversation.grant(self._channel, len(payload))
            self._cluster.progressed()
            return
        if kind is Kind.ALIKE:
            self.empty = False
            alike = cast("tuple[tuple[Forwarded, ...], list[Run]]", content)
            self._take_alike(*alike, len(payload))
            return
        if kind is not Kind.MESSAGES:
            self._conversation.stop("protocol", f"{kind.name} from the side that sends messages")
            return
        self.empty = False
        self._take(content, len(payload))  # type: ignore[arg-type]  # decoded as such

    def _do(self, request: tuple[int, str, bytes], size: int) -> None:
        """Do what the peer asks for, and answer when that is on disk."""
        number, what, content = request
        try:
            rest = self._cluster.asked(self.node, what, content)
        except Exception as failure:
            self._done(number, _refusal(failure), size)
            return
        if rest is None:
            self._done(number, "", size)
            return
        # Where this link ends meanwhile it goes on: the peer asks again.
        task = self._cluster.loop.create_task(self._finish(rest, number, size))
        self._cluster.under_way.add(task)
        task.add_done_callback(self._cluster.under_way.discard)

    async def _finish(self, rest: Awaitable[None], number: int, size: int) -> None:
        error = ""
        try:
            await rest
        except Exception as failure:
            error = _refusal(failure)
        self._done(number, error, size)

    def _done(self, number: int, error: str, size: int) -> None:
        self._cluster.post.when_stable(lambda failure: self._answer(number, error, size) if failure is None else None)

    def _answer(self, number: int, error: str, size: int) -> None:
        if not self._ended:
            self._out.append(payloads.answer(number, error))
            self._flush()
            self._conversation.grant(self._channel, size)

    def _take_body(self, data: bytes, size: int) -> None:
        """Write a piece of a large message; as much is granted again when it is written."""
        try:
            if self._body is None:
                self._body = self._cluster.post.storage.large.create()
            self._body.write(data)
        except PolluxError as error:
            self._conversation.stop("busy", str(error))
            return
        self._owed += size
        if self._body.full:
            self._body.on_drain(self._grant_owed)
        else:
            self._grant_owed()

    def _grant_owed(self) -> None:
        owed, self._owed = self._owed, 0
        if owed and not self._ended:
            self._conversation.grant(self._channel, owed)

    def _finish_body(self, one: Forwarded) -> LargeMessage | None:
        """Return the body of a large message, None for another one, which may come between its pieces.

        Raises ValueError when it is not what was sent.
        """
        if one.large is None:
            return None
        body, self._body = self._body, None
        if body is None:
            raise ValueError("a large message without a body")
        large = body.finish(durable=one.durable)
        if one.large[0] != large.size or one.large[1] not in (None, large.checksum):
            self._cluster.post.storage.large.delete(large.id)
            raise ValueError(f"a body of {large.size} bytes is not the one of {one.large[0]} that was sent")
        return large

    def _take(self, sent: tuple[Forwarded, ...], size: int) -> None:
        cluster = self._cluster
        numbers = cluster.taken_of(self.key)
        if cluster.post.storage.full:
            self._conversation.stop("busy", "the disk is full")
            return
        batch = self._try(sent, numbers)
        if batch.failed:
            # All of it is undone. What is before the one that has no place is taken alone: it is held up by nobody.
            before = sent[: batch.count]
            if before and not any(one.large is not None for one in before):
                self._try(before, numbers)
            self._conversation.stop("failed", batch.failed)
            return
        cluster.post.when_stable(lambda error: self._stored(error, batch, size))

    def _take_alike(self, shapes: tuple[Forwarded, ...], runs: list[Run], size: int) -> None:
        """Take messages that are like some others: at once where all have their queues here, else one by one."""
        places = None if self._cluster.post.storage.full else self._places(shapes)
        batch = _Batch()
        if places is None or not self._put(shapes, places, runs, batch):
            self._take(payloads.each_of(shapes, runs), size)
            return
        self._cluster.post.when_stable(lambda error: self._stored(error, batch, size))

    def _places(self, shapes: tuple[Forwarded, ...]) -> list[list[Queue]] | None:
        """Return the queues here that plain messages are for; None: that is to be looked at for each."""
        found: list[list[Queue]] = []
        for one in shapes:
            queues = self._queues(one)
            if not queues or one.home or not is_plain(one):
                return None
            found.append(queues)
        return found

    def _put(self, shapes: tuple[Forwarded, ...], places: list[list[Queue]], runs: list[Run], batch: _Batch) -> bool:
        """Put messages into their queues, with their numbers: all of them, or nothing. Return whether they are."""
        post, numbers = self._cluster.post, self._cluster.taken_of(self.key)
        count = 0
        try:
            with post.attempt() as tx:
                for which, first, timestamp, run in runs:
                    one, queues = shapes[which], places[which]
                    last = batch.last.get(one.life) or numbers.last(one.life)
                    fresh = run[max(0, last + 1 - first) :]
                    batch.last[one.life] = max(last, first + len(run) - 1)
                    batch.addresses.add(one.address)
                    count += len(fresh)
                    messages = plainly_taken(one, timestamp, fresh)
                    kept = post.take_alike(messages, queues, tx, moved=one.moved, redelivered=one.redelivered)
                    self._cluster.arrived(queues, kept)
                for life, highest in batch.last.items():
                    post.storage.append_link(self.key, life, highest, tx)
        except Exception as error:
            # Each of them is tried again, which finds the one that has no place.
            event(logger, logging.INFO, "forwarded messages are taken one by one", broker=self.name, reason=error)
            return False
        for life, highest in batch.last.items():
            numbers.take(Number(life, highest))
        self.taken += count
        return True

    def _queues(self, one: Forwarded) -> list[Queue]:
        """Return the queues here that a message is for."""
        if one.owner not in (b"", self._cluster.node):
            return []
        space = self._cluster.post.space
        return [queue for name in one.queues if (queue := space.queue(name)) is not None]

    def _try(self, sent: tuple[Forwarded, ...], numbers: Taken) -> _Batch:
        """Take messages and their numbers as one: all of them, or nothing."""
        batch = _Batch()
        last = batch.last
        fresh: list[Number] = []
        try:
            with self._cluster.post.attempt() as tx:
                for one in sent:
                    number = Number(one.life, one.number)
                    if numbers.is_new(number) and one.number > last.get(one.life, 0):
                        self._place(one, tx)
                        fresh.append(number)
                        batch.addresses.add(one.address)
                    elif one.large is not None:
                        self._forget_body()
                    last[one.life] = max(one.number, last.get(one.life, 0))
                    batch.count += 1
                for life, highest in last.items():
                    self._cluster.post.storage.append_link(self.key, life, highest, tx)
        except PolluxError as error:
            # It comes again by the next connection: its number is not taken.
            fields = {"address": sent[batch.count].address, "broker": self.name, "reason": error}
            event(logger, logging.WARNING, "a forwarded message has no place here", **fields)
            batch.failed = str(error) or repr(error)
        except Exception as error:
            logger.exception("a forwarded message could not be stored")
            batch.failed = repr(error)
        else:
            for number in fresh:
                numbers.take(number)
            self.taken += len(fresh)
        return batch

    def _place(self, one: Forwarded, tx: int) -> None:
        """Put a message where its sender wanted it; where that is gone, route it anew: it is lost in no case.

        Raises ValueError or PolluxError when it has no place
        here: its sender keeps it, and sends it again.
        """
        message = taken(one, self._finish_body(one))
        cluster = self._cluster
        queues = self._queues(one)
        if cluster.homes is not None:
            queues = cluster.homes.came_back(message, queues)
        kept = False
        try:
            if one.home:
                kept = cluster.at_home(message, tx)
            elif one.owner not in (b"", cluster.node):
                kept = cluster.pass_on(message, one, tx)
            elif one.duplicate_id is not None and not one.moved and cluster.follow(message, one, tx):
                kept = True
            elif not queues:
                kept = cluster.place_again(message, one, tx)
            elif cluster.post.take(
                message,
                queues,
                tx,
                moved=one.moved or (one.duplicate_id is not None and cluster.crossed(message, one)),
                failures=one.failures,
                redelivered=one.redelivered,
            ):
                kept = True
                cluster.arrived(queues, (message,))
        finally:
            if not kept and message.large is not None:
                cluster.post.storage.large.delete(message.large.id)

    def _forget_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.abort()

    def _stored(self, error: Exception | None, batch: _Batch, size: int) -> None:
        if error is not None or self._ended:
            return
        for life, number in batch.last.items():
            self._out.append(payloads.confirm(life, number))
        self._go_on(batch.addresses, size)
        self._flush()

    def _go_on(self, addresses: set[str], size: int) -> None:
        """Let the peer send as much again, once there is room where it went, or it knows that there is none."""
        if self._ended:
            return
        full = {address for address in addresses if not self._cluster.post.accounts.has_room(address)}
        if full and self._crowded is not None:
            full = self._crowded.note(full)
        if full:
            self._cluster.loop.call_later(_LOOK_AGAIN, self._go_on, full, size)
        elif self._out:  # what it is told comes first
            self._later += size
        else:
            self._conversation.grant(self._channel, size)

    def _tell_full(self, addresses: tuple[str, ...]) -> None:
        self._out.extend(payloads.full(addresses, self._conversation.room()))
        self._flush()

    # -- the rest of a handler

    def accepted(self, content: dict[str, Any]) -> None:
        """Nothing was opened from here."""

    def closed(self, code: str, text: str) -> None:
        """The peer is gone."""
        self._end()
        self._forget_body()
        self._cluster.left(self.node, self)
        event(logger, logging.INFO, f"{self.what} from a broker ended", broker=self.name, reason=f"{code}: {text}")

    def end(self, reason: str) -> None:
        """Another connection of the same peer takes its place: nothing that still comes by this one counts."""
        self._end()
        self._conversation.stop("stopping", reason)

    def _end(self) -> None:
        self._ended = True
        if self._crowded is not None:
            self._crowded.stop()
