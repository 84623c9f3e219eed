"""The post office: what happens to a message between its producer's session and a consumer's.

It joins the pure routing (:mod:`pollux.routing`) with the store (:mod:`pollux.store`): every decision
of a queue that must survive is written, and nothing is shown to anybody before it is on disk. All
methods are called in the event loop's thread and return at once; durability is awaited with
:meth:`PostOffice.when_stable`. It knows no protocol.

The life of a message: ``send`` routes it, writes it and keeps its references aside; when the store says
that everything up to here is stable, the references enter their queues and the producer's callback
runs. So no consumer ever sees a message that a crash could still undo.

Its parts are in files of their own, and get what they use: messages come in (intake, arrivals) and leave (departures,
moves, dead_letters), queues are woken (wakeups, due), and what is not in memory is read (cold, pages).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from pollux.audit import Trail
from pollux.engine.accounts import Accounts
from pollux.engine.address_manager import AddressManager
from pollux.engine.arrivals import Arrivals
from pollux.engine.cold import ColdMessages
from pollux.engine.contents import Contents
from pollux.engine.cooler import Cooling
from pollux.engine.dead_letters import DeadLetters
from pollux.engine.departures import Departures
from pollux.engine.diverts import Diverts
from pollux.engine.due import DueQueues
from pollux.engine.first_counts import FirstCounts
from pollux.engine.intake import Intake
from pollux.engine.large_files import LargeFiles
from pollux.engine.memory import DUPLICATE_IDS, Memory
from pollux.engine.moves import Moves
from pollux.engine.named import Named
from pollux.engine.orphans import Orphans
from pollux.engine.owners import Owners
from pollux.engine.pages import Pages
from pollux.engine.prepared import Prepared
from pollux.engine.queue_records import QueueRecords
from pollux.engine.restart import Restart
from pollux.engine.scheduled import ScheduledMessages
from pollux.engine.share import Share
from pollux.engine.transactions import Transactions
from pollux.engine.wakeups import Wakeups
from pollux.errors import NoSuchQueueError, NotPermittedError, PolluxError
from pollux.message import RoutingType
from pollux.routing.consumer import uses
from pollux.routing.queue import Queue, by_queue, queue_of
from pollux.routing.reference import MessageReference
from pollux.store.bindings import INCOMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from pollux.config.model import Configuration
    from pollux.engine.retroactive import Retroactive
    from pollux.engine.transaction import Transaction
    from pollux.message import Message
    from pollux.routing.consumer import Consumer, Rights
    from pollux.routing.space import Address, AddressSpace
    from pollux.store.recovered import Recovered
    from pollux.store.storage import Storage

    #: (message, queue, connection, user of it) -> whether the connection's consumer may have it.
    Offered = Callable[[Message, str, int, str | None], bool]

log = logging.getLogger("pollux.post")


class PostOffice:
    """Does what sessions ask: sends, acknowledgements, transactions, attaching and detaching of consumers."""

    def __init__(
        self,
        configuration: Configuration,
        space: AddressSpace,
        storage: Storage,
        *,
        memory: int,
        wall_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        trail: Trail | None = None,
        share: Share | None = None,
    ) -> None:
        self.configuration = configuration
        self.space = space
        self.storage = storage
        self.trail = trail or Trail.off()
        self.wall_ms = wall_ms
        self.accounts = Accounts(
            space.settings,
            configuration.global_limit(memory),
            configuration.global_max_messages,
            configuration.page_above,
        )
        self.writable = self.accounts.writable
        self.on_writable = self.accounts.on_writable
        self.off_writable = self.accounts.off_writable
        self.memory = Memory(self.accounts.change, configuration.state_limit(memory))
        self.loop = loop
        self.share = share or Share(loop)
        #: What the last start found wrong with queues and their messages, in words.
        self.problems: list[str] = []
        #: Queues that a crash left while they were made, until :meth:`AddressManager.finish`.
        self.unfinished: list[Queue] = []
        #: (kind, key) -> value of everything ``storage.put`` kept before this start.
        self.recovered: dict[tuple[str, str], bytes] = {}
        #: What was taken in of a cluster's links before this start: key -> [(life, number)].
        self.links: dict[str, list[tuple[bytes, int]]] = {}
        self.acknowledged_total = 0
        self._large_files = LargeFiles(storage.large)
        self._arrivals = Arrivals(loop, self.share, storage, self._enter)
        self.share.disk = self._arrivals
        self.when_stable = self._arrivals.when_stable
        #: Hand out messages of a queue in this turn of the loop: somebody can take, or something can be taken.
        self.wake = Wakeups(loop, self.share, wall_ms, self._hand_out).wake
        self.pages = Pages(
            loop=loop,
            storage=storage,
            space=space,
            accounts=self.accounts,
            large_files=self._large_files,
            arrive=self.arrive,
        )
        self._departures = Departures(storage, self.accounts, self._large_files, self.pages)
        self.prepared = Prepared(
            storage=storage,
            space=space,
            accounts=self.accounts,
            memory=self.memory,
            arrivals=self._arrivals,
            large_files=self._large_files,
            arrive=self.arrive,
        )
        self.cooling = Cooling(storage, self.accounts, self._large_files)
        self.remove = self._departures.remove
        self.due = DueQueues(loop, self.share, space, wall_ms, self._ready)
        self.scheduled = ScheduledMessages(storage, wall_ms, self._ready)
        self.cold = ColdMessages(loop, self.accounts, storage.read_messages, self._ready)
        self._records = QueueRecords(storage)
        self.address_manager = AddressManager(
            configuration,
            space=space,
            records=self._records,
            owners=Owners(self.memory),
            contents=Contents(
                arrivals=self._arrivals,
                departures=self._departures,
                pages=self.pages,
                accounts=self.accounts,
                memory=self.memory,
                prepared=self.prepared,
            ),
            share=self.share,
            trail=self.trail,
            wall_ms=wall_ms,
            wake=self.wake,
        )
        self.first_counts = FirstCounts(storage)
        #: Told of durable subscriptions.
        self.named = Named()
        if configuration.persist_delivery_count_before_delivery:
            self.address_manager.coming = self.first_counts.watch
        self.create_queue = self.address_manager.create_queue
        self.delete_queue = self.address_manager.delete_queue
        self.ensure_address = self.address_manager.ensure_address
        self.diverts = Diverts(configuration)
        self._intake = Intake(
            storage=storage,
            space=space,
            accounts=self.accounts,
            memory=self.memory,
            address_manager=self.address_manager,
            arrivals=self._arrivals,
            pages=self.pages,
            large_files=self._large_files,
            trail=self.trail,
            wall_ms=wall_ms,
            diverts=self.diverts,
            keep_unrouted=lambda message, tx: self.dead_letters.unrouted(message, tx),  # noqa: PLW0108  (made below)
        )
        self.send = self._intake.send
        self.send_alike = self._intake.send_alike
        self.open = self._intake.open
        self.reachable = self._intake.reachable
        self.forward = self._intake.forward
        self.take = self._intake.take
        self.take_alike = self._intake.take_alike
        self.remember = self._intake.remember
        self.copy_in = self._intake.copy_in
        self.receive = self._intake.receive
        self.attempt = self._intake.attempt
        self.spread_over = self._intake.spread_over
        self.show = self._intake.show
        self.put = self._intake.put
        moves = Moves(storage, self._intake, self._departures)
        self.hand_over = moves.hand_over
        self.place_anew = moves.place_anew
        self._transactions = Transactions(
            self._intake, storage, self.memory, loop, configuration=lambda: self.configuration
        )
        self.begin = self._transactions.begin
        self.rollback = self._transactions.rollback
        self.expire_transactions = self._transactions.expire
        self._offered: Offered | None = None
        #: Told of a queue that a consumer came to, or left.
        self.consumers_changed: Callable[[Queue], None] = lambda _queue: None
        self.dead_letters = DeadLetters(
            storage=storage,
            space=space,
            address_manager=self.address_manager,
            departures=self._departures,
            due=self.due,
            share=self.share,
            wall_ms=wall_ms,
            route=self._intake.route_copy,
        )
        self.orphans = Orphans(
            storage=storage,
            space=space,
            records=self._records,
            address_manager=self.address_manager,
            pages=self.pages,
            large_files=self._large_files,
            due=self.due,
            trail=self.trail,
            wake=self.wake,
        )
        storage.on_full_change(lambda usage: self.accounts.set_disk_full(usage.full))

    def restore(self, recovered: Recovered) -> None:
        """Make addresses, queues and contents of what the store recovered; before the first client."""
        self.recovered = recovered.bindings
        self.links = recovered.links
        self._large_files.restore(recovered)
        self.prepared.restore(recovered)
        start = Restart(
            recovered,
            space=self.space,
            records=self._records,
            address_manager=self.address_manager,
            orphans=self.orphans,
            large_files=self._large_files,
            due=self.due,
        )
        start.run()
        self.accounts.restore_ids(recovered.duplicates, self.memory.user(DUPLICATE_IDS))
        self.pages.restore(start.dropped, self.orphans.found_in_pages)
        self.orphans.settle()
        self.unfinished = start.unfinished
        self.problems = [*start.problems, *self.orphans.report()]
        if self.problems:
            self.storage.put(*INCOMPLETE, b"")

    def keep_last(self, retroactive: Retroactive) -> None:
        """Have the last messages of addresses kept for queues that come later."""
        self.address_manager.retention = retroactive
        self.diverts.keep = retroactive.rule

    # -- names, for sessions

    def queue(self, name: str) -> Queue:
        """Return the queue of that name (or FQQN). Raises NoSuchQueueError."""
        queue = self.space.queue(name)
        if queue is None:
            raise NoSuchQueueError(f"queue {name!r} does not exist")
        self._arrivals.finish(queue)
        return queue

    def address(self, name: str) -> Address | None:
        """Return the address of that name (of an FQQN: its address part), None when it does not exist."""
        return self.space.address(name.partition("::")[0])

    def default_routing_type(self, name: str) -> RoutingType:
        """Return the type of an address of that name when whoever has it created does not say."""
        return RoutingType(self.space.settings(name).default_address_routing_type)

    @property
    def routed_total(self) -> int:
        """Return how many messages were accepted and routed to a queue."""
        return self._intake.routed_total

    def in_flight(self, queue: Queue) -> bool:
        """Return whether messages for this queue are written but not yet in it."""
        return queue in self._arrivals

    # -- arriving

    def _enter(self, queue: Queue, references: list[MessageReference]) -> None:
        """Put stable messages into their queue."""
        if queue.trail is not None:
            queue.trail.accepted([reference.message for reference in references])
        self._add(queue, references)

    def arrive(self, queue: Queue, references: list[MessageReference]) -> None:
        """Put messages into their queue that come out of pages, behind those that were written before them."""
        self._arrivals.finish(queue)
        self._add(queue, references)

    def _add(self, queue: Queue, references: list[MessageReference]) -> None:
        if self.space.queue_by_id(queue.id) is not queue:
            self._departures.discard(queue, references)  # deleted meanwhile
            return
        now = self.wall_ms()
        displaced = queue.add(references, now)
        queue.used = True
        for watcher in queue.watchers:
            watcher.arrived(references)
        if displaced:
            self.remove(queue, displaced, ())
        if queue.scheduled:
            self.due.plan(queue)
        if queue.consumers:
            self.wake(queue)

    # -- acknowledging

    def acknowledge(self, references: list[MessageReference], tx: Transaction | None = None) -> None:
        """Take messages out that their consumers have done with (with ``tx``: at its commit)."""
        if tx is not None:
            tx.add_acknowledged(references)
            return
        for queue, mine in by_queue(references):
            if queue.trail is not None:
                queue.trail.acknowledged([reference.message.id for reference in mine])
            self._departures.discard(queue, queue.acknowledge(mine))
            if queue.non_destructive:
                self.wake(queue)
        self.acknowledged_total += len(references)

    def release(self, references: list[MessageReference], *, failed: bool) -> None:
        """Put back what consumers return: at the head of their queues, or (``failed``) later, or as dead letters."""
        now = self.wall_ms()
        for queue, mine in by_queue(references):
            if queue.trail is not None:
                queue.trail.released(mine, failed=failed)
            dead = queue.release(mine, failed=failed, now=now)
            # One that did not fail may be counted on disk already: its count goes back to what it was.
            if queue.durable and (failed or queue.handing is not None):
                for reference in mine:
                    if reference.message.durable and not reference.page and (reference.delivery_count or not failed):
                        self.storage.append_delivery_count(queue.id, reference.message.id, reference.delivery_count)
                        if reference.deliver_at:
                            self.storage.append_schedule(queue.id, reference.message.id, reference.deliver_at)
            self._departures.tidy(queue)
            if dead:
                self.dead_letters.dead(queue, dead)
            if queue.scheduled:
                self.due.plan(queue)
            self.wake(queue)

    def reject(self, references: list[MessageReference]) -> None:
        """Make dead letters of messages that consumers refuse."""
        for queue, mine in by_queue(references):
            self.dead_letters.dead(queue, queue.kill(mine))

    def set_aside(self, reference: MessageReference, error: PolluxError) -> None:
        """Take a large message whose body is not there out of its queue, not out of the store.

        No consumer is to fail for it again and again, and when its file is back a restart finds it again.
        """
        queue, message = queue_of(reference), reference.message
        for _ in queue.set_aside([reference]):
            message.references -= 1
            if message.references <= 0:
                self.accounts.credit(self.accounts.of(message.address), message.size, 1)
        self.storage.lost_body(message, str(error))
        self.wake(queue)

    def adopt(self, queue: Queue, message: Message, *, failures: int = 0) -> MessageReference:
        """Return a reference to a message of ``queue`` that was read from disk, as if it waited in memory."""
        message.references = 1
        self.accounts.charge(self.accounts.of(message.address), message.size)
        reference = MessageReference(message, queue)
        reference.redelivered = True
        reference.delivery_count = failures
        return reference

    # -- transactions

    def commit(self, tx: Transaction) -> None:
        """Do all of ``tx``. Await ``when_stable``. Raises SendError, DiskFullError or InvalidRequestError (it was open
        for longer than transaction-timeout): then nothing of it was done.
        """
        self._transactions.commit(tx)
        for queue, mine in by_queue(tx.acknowledged):
            if queue.trail is not None:
                queue.trail.acknowledged([reference.message.id for reference in mine])
            self._departures.discard(queue, queue.acknowledge(mine), tx.id)
        self.acknowledged_total += len(tx.acknowledged)
        self.storage.append_commit(tx.id)

    # -- consumers

    def guard(self, offered: Offered) -> None:
        """Have what clients' consumers are about to get shown to ``offered`` first.

        It gets the message, the queue's name, the connection's number and its user; what it does not let by stays in
        the queue. For who attaches from now on.
        """
        self._offered = offered

    def _lets_by(self, queue: Queue, consumer: Consumer, message: Message) -> bool:
        """Ask about a message; who the connection is now: a session of MQTT outlives some."""
        origin = consumer.origin
        return self._offered is None or self._offered(message, queue.name, origin, self.memory.user_of(origin))

    def attach(self, queue: Queue, consumer: Consumer) -> None:
        """Let a consumer take from a queue. Raises LimitError (max-consumers), NotPermittedError (it is a replica)."""
        if queue.replica_of and not consumer.browsing:
            raise NotPermittedError(f"{queue.name_for_errors} is a replica of {queue.replica_of}: only browse it")
        now = self.wall_ms()
        watched = self._offered is not None and consumer.origin
        guard = partial(self._lets_by, queue, consumer) if watched else None
        queue.add_consumer(consumer, now, guard)
        rights: Rights | None = getattr(consumer, "rights", None)
        if rights is not None and not consumer.browsing:
            self.address_manager.read_by(queue, rights.user)
        if uses(consumer):
            queue.unused_since = 0
        self.due.plan(queue)
        self.wake(queue)
        self._consumer_changed("consumer-created", queue, consumer)

    def _consumer_changed(self, what: str, queue: Queue, consumer: Consumer) -> None:
        self.consumers_changed(queue)
        if consumer.origin and not consumer.browsing:
            selector = consumer.selector
            self.trail.tell(
                what,
                queue=queue.name,
                address=queue.address,
                connection=consumer.origin,
                consumers=queue.consumer_count,
                filter=selector.text if selector is not None else None,
            )

    def detach(self, queue: Queue, consumer: Consumer, *, failed: bool = False) -> None:
        """Put back into the queue what a consumer held that is gone."""
        held = queue.remove_consumer(consumer)
        if held:
            self.release(held, failed=failed)
        self._consumer_changed("consumer-closed", queue, consumer)
        if uses(consumer) and not any(map(uses, queue.consumers)):
            queue.unused_since = self.wall_ms()
            if queue.purge_on_no_consumers:
                self.purge(queue)
            self.address_manager.maybe_delete(queue)
        if queue.consumers:
            self.wake(queue)

    def purge(self, queue: Queue) -> int:
        """Remove every message that is not with a consumer; returns how many."""
        references, cold = queue.purge()
        self.remove(queue, references, cold)
        count = len(references) + len(cold) + self.pages.drop(queue)
        self.trail.event("queue-purged", queue=queue.name, address=queue.address, messages=count)
        return count

    def take_out(self, queue: Queue, ids: Container[int]) -> None:
        """Acknowledge messages that wait in ``queue``, hot or cold, by id: their consumer has them."""
        references, cold = queue.remove(ids)
        if queue.trail is not None:
            queue.trail.acknowledged([*(reference.message.id for reference in references), *cold])
        self._departures.discard(queue, references)
        self._departures.discard_cold(queue, cold)
        self.acknowledged_total += len(references) + len(cold)

    def message_count(self, queue: Queue) -> int:
        """Return how many messages a queue has, paged ones too."""
        return self.pages.message_count(queue)

    def _hand_out(self, queue: Queue, now: int) -> None:
        """Give the consumers of a queue what they can take, and read more from disk."""
        try:
            if queue.dispatch(now):
                self.wake(queue)
        except Exception:
            log.exception("a session failed to take messages from queue %s", queue.name)
        expired = queue.expired(now, 0)
        if expired:
            self.dead_letters.expired(queue, expired)
        if queue.cold:
            self.cold.feed(queue)
        if self.pages.active:
            self.pages.feed(queue)

    def _ready(self, queue: Queue) -> None:
        """Go on with a queue in which something came from disk, or was due."""
        self._departures.tidy(queue)
        self.wake(queue)

    async def close(self) -> None:
        """Stop reading and planning; the store is closed by its owner."""
        self.due.close()
        self.share.close()
        tasks = [*self.cold.tasks(), *self.pages.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
