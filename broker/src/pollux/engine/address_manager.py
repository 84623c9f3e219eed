"""Addresses and queues as things that are created, deleted and survive a restart.

The address space (:mod:`pollux.routing.space`) knows what exists now; this module also has it recorded
(:mod:`pollux.engine.queue_records`), and creates and deletes automatically as the settings say. At the start
:mod:`pollux.engine.restart` rebuilds it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from pollux.caches import make_room
from pollux.config.model import PermissionType as Permission
from pollux.engine import configured
from pollux.errors import InvalidRequestError, NoSuchAddressError, NoSuchQueueError, NotPermittedError
from pollux.message import RoutingType
from pollux.routing.address import join_fqqn, split_fqqn
from pollux.routing.lifecycle import Creation, address_removable, plan_producer, queue_removable
from pollux.routing.queue import Queue
from pollux.routing.space import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pollux.audit import Trail
    from pollux.config.model import Configuration
    from pollux.engine.accounts import Account
    from pollux.engine.contents import Contents
    from pollux.engine.owners import Owners
    from pollux.engine.queue_records import QueueRecords
    from pollux.engine.share import Share
    from pollux.routing.space import AddressSpace
    from pollux.routing.spec import QueueSpec

log = logging.getLogger("pollux.addresses")

#: Address names (FQQNs too) whose account is remembered for sending.
_SENDABLE_LIMIT = 20_000


class Retention(Protocol):
    """Messages of addresses that are kept for queues that come later."""

    def queue_made(self, queue: Queue) -> None:
        """Give a queue that was asked for what was kept for it."""

    def address_gone(self, name: str) -> None:
        """Forget what was kept of an address that was deleted."""

    def retains(self, name: str) -> bool:
        """Return whether an address that nobody uses stays."""


class AddressManager:
    """Creates and deletes addresses and queues: in memory at once; ``when_stable`` tells when on disk too."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        space: AddressSpace,
        records: QueueRecords,
        owners: Owners,
        contents: Contents,
        share: Share,
        trail: Trail,
        wall_ms: Callable[[], int],
        wake: Callable[[Queue], None],
    ) -> None:
        self._configuration = configuration
        self._space = space
        self._records = records
        self._owners = owners
        self._contents = contents
        self._share = share
        self._trail = trail
        self._wall_ms = wall_ms
        self._wake = wake
        #: How many queues a user may have, -1 for any number; the server sets it.
        self.queue_limit: Callable[[str], int] | None = None
        #: Whether a user has a permission at an address (and queue): raises NotPermittedError; the server sets it.
        self.ask: Callable[[str, Permission, str, str | None], None] | None = None
        #: Whether an address stays when nobody uses it: others of a cluster ask for its duplicate ids here.
        self.keeps: Callable[[str], bool] = lambda _name: False
        #: Told of each queue before anybody can use it.
        self.coming: Callable[[Queue], None] = lambda _queue: None
        #: Who has messages for queues that come later.
        self.retention: Retention | None = None
        #: Queues that broker.xml gives other attributes than they have, in words.
        self.differing: list[str] = []
        #: What is unused is being looked for.
        self._reaping = False
        #: By the routing type a message asks for: names to which such can be sent at once, with their accounts.
        self.sendable: dict[RoutingType | None, dict[str, Account]] = {kind: {} for kind in (None, *RoutingType)}

    # -- addresses

    def create_address(
        self,
        name: str,
        routing_types: Iterable[RoutingType],
        *,
        auto_created: bool = False,
        temporary: bool = False,
        internal: bool = False,
        configuration_managed: bool = False,
    ) -> Address:
        """Create an address. Raises InvalidRequestError when it exists or the name cannot be one."""
        address = self._space.add_address(
            Address(
                name,
                routing_types,
                auto_created=auto_created,
                temporary=temporary,
                internal=internal,
                configuration_managed=configuration_managed,
            )
        )
        address.unused_since = self._wall_ms()
        self._records.keep_address(address)
        self._trail.event("address-created", address=name)
        log.info("address created name=%s routing=%s auto=%s", name, _types(address), auto_created)
        return address

    def ensure_address(
        self, name: str, routing_type: RoutingType | None = None, *, auto: bool = True, user: str | None = None
    ) -> Address:
        """Return the address, created if need be (``auto``: only when auto-create-addresses allows it), for ``user``.

        An existing address gets the routing type if it has not got it. Raises NoSuchAddressError, InvalidRequestError
        or, when the user may hold no more, LimitError.
        """
        name = split_fqqn(name)[0]
        settings = self._space.settings(name)
        address = self._space.address(name)
        if address is None:
            if auto and not settings.auto_create_addresses:
                raise NoSuchAddressError(
                    f"address {name!r} does not exist and auto-create-addresses is off for it: create it in broker.xml "
                    "or with 'pollux address create'"
                )
            wanted = routing_type if routing_type is not None else RoutingType(settings.default_address_routing_type)
            self._owners.address_added(name, user)
            return self.create_address(name, (wanted,), auto_created=auto)
        if routing_type is not None and routing_type not in address.routing_types:
            if auto and not settings.auto_create_addresses:
                raise InvalidRequestError(
                    f"address {name!r} is {_types(address)} and does not allow {routing_type.name}"
                )
            address.routing_types.add(routing_type)
            self._records.keep_address(address)
            self._changed()
        return address

    def delete_address(self, name: str, *, force: bool = False) -> None:
        """Delete an address; with ``force`` its queues and their messages too."""
        address = self._space.address(name)
        if address is None:
            raise NoSuchAddressError(f"address {name!r} does not exist")
        if address.queues and not force:
            raise InvalidRequestError(
                f"address {name!r} has {len(address.queues)} queues: delete them first, or use force"
            )
        for queue in list(address.queues):
            self.delete_queue(queue.name)
        if self._space.address(name) is address:
            self._space.remove_address(name)
        self._records.forget_address(name)
        self._contents.drop_address(name)
        self._owners.address_gone(name)
        if self.retention is not None:
            self.retention.address_gone(name)
        self._gone(address)
        self._trail.event("address-deleted", address=name)
        log.info("address deleted name=%s", name)

    def ensure_sendable(self, name: str, routing_type: RoutingType | None, user: str | None = None) -> str:
        """Make sure messages of ``user`` for ``name`` can be routed as far as settings allow it; the address's name.

        An ANYCAST address without a queue gets one of its own name (auto-create-queues). Wildcard addresses that match
        change nothing of that: what they get is a copy, and may be gone with who looks at it.
        """
        name = self.carry_out(plan_producer(self._space, name, routing_type), user)
        address = self._space.address(name)
        if address is not None:
            for queue in address.queues:
                if queue.replica_of:
                    raise NotPermittedError(f"queue {queue.name!r} is a replica of {queue.replica_of}: send there")
            address.sent_at = self._wall_ms()
        return name

    def remember(self, name: str, routing_type: RoutingType | None, account: Account) -> None:
        """Keep that messages of this routing type for ``name`` need nothing more, until something goes."""
        known = self.sendable[routing_type]
        make_room(known, _SENDABLE_LIMIT)
        known[name] = account

    def carry_out(self, plan: Creation, user: str | None) -> str:
        """Create what a request of ``user`` needs (see :mod:`pollux.routing.lifecycle`); the address's name."""
        self.require(plan, user)
        if plan.address or plan.add_routing_type:
            self.ensure_address(plan.name, plan.routing_type, user=user)
        if plan.queue is not None:
            self.create_queue(replace(plan.queue, user=user))
        return plan.name

    def require(self, plan: Creation, user: str | None) -> None:
        """Raise NotPermittedError unless ``user`` may have all of this created; None is the broker itself, which may.

        Asked before anything is created, so nothing is left of what is refused half way.
        """
        if self.ask is None or user is None:
            return
        if plan.address or plan.add_routing_type:
            self.ask(user, Permission.createAddress, plan.name, None)
        if plan.queue is not None:
            durable = plan.queue.durable
            permission = Permission.createDurableQueue if durable else Permission.createNonDurableQueue
            self.ask(user, permission, plan.name, plan.queue.name)

    # -- queues

    def create_queue(self, spec: QueueSpec, *, auto_address: bool = True, queue_id: int | None = None) -> Queue:
        """Create a queue (its address too, where that is allowed). ``queue_id``: the number it had before.

        With ``auto_address`` its user asks for it and has to have the permissions, for a missing address too unless the
        queue is a temporary node. Raises NotPermittedError, InvalidRequestError when it exists or contradicts its
        address, NoSuchAddressError, SelectorError, LimitError when its user has as many queues as it may.
        """
        if self._space.queue(spec.name) is not None:
            raise InvalidRequestError(f"queue {spec.name!r} exists already")
        if self.queue_limit is not None and spec.user is not None:
            self._owners.check(spec, self.queue_limit(spec.user))
        settings = self._space.settings(spec.address)
        queue = Queue.create(spec, settings, self._records.next_id() if queue_id is None else queue_id)
        there = self._space.address(spec.address)
        existed = there is not None
        if auto_address:
            missing = there is None and not (spec.temporary and spec.name == spec.address)
            added = there is not None and queue.routing_type not in there.routing_types
            self.require(Creation(spec.address, queue.routing_type, missing, added, spec), spec.user)
        auto = spec.auto_created or auto_address
        address = self.ensure_address(spec.address, queue.routing_type, auto=auto, user=spec.user)
        if not existed and spec.temporary:
            address.temporary = True
            self._records.forget_address(address.name)
        if not existed and not spec.auto_created and not spec.temporary:
            address.auto_created = False
            self._records.keep_address(address)
        self.add_queue(queue, already=False)
        if spec.durable and not spec.temporary:
            self._records.keep_queue(queue)
            self._records.declare(queue.address)
        self._trail.event("queue-created", queue=spec.name, address=spec.address)
        log.info(
            "queue created name=%s address=%s routing=%s durable=%s auto=%s",
            spec.name,
            spec.address,
            queue.routing_type.name,
            spec.durable,
            spec.auto_created,
        )
        self.finish(queue, asked_for=auto_address or spec.configuration_managed)
        return queue

    def declaring(self, address: str) -> bool:
        """Return whether queues of an address came or went and that is not on disk yet: who is told may rely on it."""
        return address in self._records.declaring

    def finish(self, queue: Queue, *, asked_for: bool = True) -> None:
        """Give a new queue what was kept for it, and note in the journal that it has it: a crash comes before or after.

        Bindings are on disk before the journal: a start that finds the queue there alone does this again.
        """
        if asked_for and self.retention is not None:
            self.retention.queue_made(queue)
        if queue.durable and not queue.temporary:
            self._records.note_queue(queue)

    def pause_queue(self, queue: Queue, *, paused: bool) -> None:
        """Stop deliveries of a queue, or go on with them; that of a durable one outlives a restart."""
        if paused:
            queue.pause()
        else:
            queue.resume()
            self._wake(queue)
        if queue.durable and not queue.temporary:
            self._records.keep_paused(queue)

    def exclude_own(self, queue: Queue, origin: int) -> None:
        """Have a subscription take no message of a connection's own (no-local); 0: have it take everybody's.

        Which of the two it is, is on record: who resumes a durable one by its name alone gets it as it was.
        """
        self._space.exclude_own(queue, origin)
        if queue.spec.no_local != bool(origin):
            queue.spec = replace(queue.spec, no_local=bool(origin))
            if queue.durable and not queue.temporary:
                self._records.keep_queue(queue)
                self._records.note_queue(queue)
                self._records.declare(queue.address)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue with its messages, whose memory is given back bit by bit.

        Raises NoSuchQueueError; InvalidRequestError when a condition fails.
        """
        queue = self._space.queue(name)
        if queue is None:
            raise NoSuchQueueError(f"queue {name!r} does not exist")
        if if_unused and queue.consumer_count:
            raise InvalidRequestError(f"queue {name!r} has {queue.consumer_count} consumers")
        if if_empty and (count := self._contents.count(queue)):
            raise InvalidRequestError(f"queue {name!r} has {count} messages")
        for watcher in queue.watchers:
            watcher.deleted()
        for consumer in list(queue.consumers):
            self._contents.discard(queue, queue.acknowledge(queue.remove_consumer(consumer)))
            closed = getattr(consumer, "queue_deleted", None)
            if closed is not None:
                closed(queue)
        if queue.durable:
            self._records.record_drop(queue.id)
        self._contents.drop_pages(queue)
        self._space.remove_queue(queue.name)
        self._owners.queue_gone(queue.spec)
        if queue.durable and not queue.temporary:
            self._records.forget_queue(queue.name, paused=queue.paused)
            self._records.declare(queue.address)
        self._gone(self._space.address(queue.address), queue.name)
        self._trail.event("queue-deleted", queue=queue.name, address=queue.address)
        log.info("queue deleted name=%s address=%s", queue.name, queue.address)
        self._maybe_delete_address(queue.address, self._wall_ms())
        self._share.work(self._clear(queue))

    def _clear(self, queue: Queue) -> Iterator[None]:
        yield from self._contents.clear(queue)
        if self._space.address(queue.address) is None:  # its account had to wait for this
            self._contents.drop_address(queue.address)

    def maybe_delete(self, queue: Queue, now: int | None = None) -> bool:
        """Delete an automatically deleted queue whose time has come; true if it is gone."""
        if self._space.queue(queue.name) is not queue:
            return False  # it is gone, and another one may have its name
        now = self._wall_ms() if now is None else now
        if not queue_removable(queue, self._space.settings(queue.address), now) or self._contents.incoming(queue):
            return False
        if queue.attributes.auto_delete_message_count >= 0 and self._contents.unread(queue):
            return False
        self.delete_queue(queue.name)
        return True

    def _maybe_delete_address(self, name: str, now: int) -> None:
        address, settings = self._space.address(name), self._space.settings(name)
        kept = self.keeps(name) or (self.retention is not None and self.retention.retains(name))
        if address is None or address.queues or (kept and not address.temporary):
            return
        if not address.unused_since:
            address.unused_since = now
        # Who goes on sending is seen to between two looks: names that can be sent to are forgotten at each.
        silence = 2 * self._configuration.address_queue_scan_period
        if address.temporary or address_removable(address, settings, now, hold=self._hold(name), silence=silence):
            self.delete_address(name)

    def _hold(self, name: str) -> int:
        """Return the ms that an address stays when nobody uses it: its duplicate ids go with it, and clients that lost
        their connections at once come back and send again what was not confirmed.
        """
        remembers = self._contents.remembers_duplicates(name)
        return self._configuration.address_queue_scan_period if remembers else 0

    def reap(self) -> None:
        """Delete what is unused; called every address-queue-scan-period."""
        now = self._wall_ms()
        self._records.forget_drops()
        if not self._reaping:
            self._reaping = True
            self._share.work(self._reap(now))

    def _reap(self, now: int) -> Iterator[None]:
        """Delete bit by bit: there may be an address for each topic that anybody has sent to, and a queue for it."""
        try:
            for queue in list(self._space.queues):
                if self._space.queue_by_id(queue.id) is queue:
                    self.maybe_delete(queue, now)
                yield
            self.forget_sendable()
            for address in list(self._space.addresses):
                idle = not address.queues and (address.auto_created or address.temporary)
                if idle and self._space.address(address.name) is address:
                    self._maybe_delete_address(address.name, now)
                yield
        finally:
            self._reaping = False

    # -- configuration

    def apply_configuration(self, configuration: Configuration) -> None:
        """Create what broker.xml names and does not exist; on reload, delete what config-delete-* says."""
        self._configuration = configuration
        self.differing = configured.apply(configuration, self, space=self._space, records=self._records)
        self._changed()

    def make_replica(self, queue: Queue, source: str) -> None:
        """Let nobody send to a queue or take from it, which is a replica of ``source``; empty: let all do it again."""
        queue.replica_of = source
        self._changed()

    def read_by(self, queue: Queue, user: str) -> None:
        """Have the queue of a pattern get what this user, who reads it, may have."""
        if queue.readers is not None and user not in queue.readers:
            queue.readers.add(user)
            self._changed()

    def reload_rights(self) -> None:
        """Decide anew what queues of patterns get, and their consumers may have, as permissions changed."""
        self._changed()
        for queue in self._space.queues:
            if queue.of_pattern:
                queue.review()
                self._wake(queue)

    def reload_settings(self) -> None:
        """Make every cached decision anew, as address settings changed."""
        for queue in self._space.queues:
            queue.apply_settings(self._space.settings(queue.address))
        self._changed()

    # -- for the start

    def add_queue(self, queue: Queue, *, already: bool = True) -> None:
        """Let a queue exist that is stored. ``already``: nobody is asked whether its user may have it."""
        self._owners.queue_added(queue.spec, already=already)
        queue.unused_since = self._wall_ms()
        queue.trail = self._trail.queue(queue.address, queue.name)
        self.coming(queue)
        self._space.add_queue(queue)

    def keep(self, queue: Queue) -> None:
        """Put a queue back into the bindings, which lost it; its address too."""
        self._records.keep_queue(queue)
        address = self._space.address(queue.address)
        if address is not None:
            self._records.keep_address(address)

    # -- inside

    def _gone(self, address: Address | None, queue: str = "") -> None:
        """Forget the names to which nobody can send any more without more ado. (Very many may go, one by one.)

        What is new takes nothing from anybody: then nothing is forgotten.
        """
        if address is None or address.wildcard:
            self.forget_sendable()  # it may have been all there was for any name
            return
        for known in self.sendable.values():
            for name in (address.name, join_fqqn(address.name, queue), join_fqqn("", queue)):
                known.pop(name, None)

    def forget_sendable(self) -> None:
        """Look at every name anew when it is sent to: what took its messages may be gone."""
        for known in self.sendable.values():
            known.clear()

    def _changed(self) -> None:
        self.forget_sendable()
        self._space.changed()


def _types(address: Address) -> str:
    return "+".join(sorted(each.name for each in address.routing_types)) or "without routing type"
