"""Messages that are sent: given to an account, admitted, routed, written, and kept until they are stable.

What the addresses' limits say is decided by :mod:`pollux.routing.paging`, what a name needs by the address manager.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pollux.config.address_settings import DiskFullPolicy
from pollux.engine.alike import Alike, Route
from pollux.engine.attempt import Attempt
from pollux.engine.diverts import of_message
from pollux.engine.forwards import Forward, Spread
from pollux.engine.memory import DUPLICATE_IDS
from pollux.errors import AddressFullError, DiskFullError, LimitError
from pollux.formats.forwards import away_name
from pollux.message import INGRESS_TIMESTAMP, VALIDATED_USER, Message
from pollux.routing.lifecycle import expiration
from pollux.routing.paging import Verdict, admit, rejects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pollux.audit import Trail
    from pollux.engine.accounts import Account, Accounts
    from pollux.engine.address_manager import AddressManager
    from pollux.engine.arrivals import Arrivals
    from pollux.engine.diverts import Diverts, Rule
    from pollux.engine.large_files import LargeFiles
    from pollux.engine.memory import Memory
    from pollux.engine.pages import Pages
    from pollux.engine.transaction import Transaction
    from pollux.message import RoutingType
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.storage import Storage


#: Verdicts with which what is taken all the same goes to a page: it was accepted once, and memory has no room for it.
_BEYOND = (Verdict.PAGE, Verdict.DROP)


class Admitted(NamedTuple):
    """A message that may be sent, its account, and whether it goes to a page. ``away``: only its copies are routed."""

    account: Account
    message: Message
    paged: bool
    away: bool = False


class Intake:
    """Takes messages in. ``keep_unrouted`` gets those for no queue that may be kept, and says whether they are."""

    def __init__(
        self,
        *,
        storage: Storage,
        space: AddressSpace,
        accounts: Accounts,
        memory: Memory,
        address_manager: AddressManager,
        arrivals: Arrivals,
        pages: Pages,
        large_files: LargeFiles,
        trail: Trail,
        wall_ms: Callable[[], int],
        keep_unrouted: Callable[[Message, int], bool],
        diverts: Diverts,
    ) -> None:
        self._storage = storage
        self._space = space
        self._accounts = accounts
        self._memory = memory
        self._address_manager = address_manager
        self._arrivals = arrivals
        self._pages = pages
        self._large_files = large_files
        self._trail = trail
        self._wall_ms = wall_ms
        self._keep_unrouted = keep_unrouted
        self._diverts = diverts
        #: Where a message goes, and what is done with it then; a cluster replaces both.
        self._route: Callable[[Message], Sequence[Queue] | Spread] = space.route
        self._keep: Callable[..., None] = self._store
        self.routed_total = 0
        self._look: Callable[[Message], None] | None = None
        #: What is taken in now and may be rolled back.
        self._attempt: Attempt | None = None
        #: Routing type -> names messages were sent to -> their accounts; the address manager clears it when something
        #: changes.
        self._sendable = address_manager.sendable
        self._alike = Alike(storage, accounts, arrivals, self._sendable, space.fixed)

    def show(self, look: Callable[[Message], None]) -> None:
        """Have what clients send shown to ``look`` from now on; what it raises SendError for is refused."""
        self._look = look

    def send(self, message: Message, tx: Transaction | None = None) -> None:
        """Route and write a message (with ``tx``: at its commit). Confirm it in ``when_stable``.

        Raises NoSuchAddressError, NoSuchQueueError, NotPermittedError (its sender may not create what it needs),
        AddressFullError, DiskFullError, SendError (a plugin refuses it): then nothing was done. A duplicate
        and a message for nobody are accepted silently, as their producer's work is done.
        """
        if self._look is not None:
            self._look(message)
        name = message.address
        account = self._sendable[message.routing_type].get(name)
        if account is None:
            account = self._open(name, message.routing_type, self._memory.user_of(message.origin))
        if account.stamped or message.user is not None:
            self._annotate(message, stamped=account.stamped)
        if tx is not None:
            tx.add_send(message)
            return
        paged = False
        if account.careful or self._accounts.pressure or message.duplicate_id is not None:
            if account.diverts:
                self._send_diverted(message)
                return
            verdict = self._admit(account, message)
            if verdict is Verdict.DROP:
                return
            paged = verdict is Verdict.PAGE
        queues = self._route(message)
        if queues:
            self._keep(account, message, queues, 0, paged=paged)
        else:
            self._unrouted(account, message)

    def send_alike(self, messages: Sequence[Message]) -> bool:
        """Send at once messages that :meth:`Alike.send` may be given; False: none is, each is to be sent by itself."""
        if self._look is not None or not self._alike.send(messages):
            return False
        self.routed_total += len(messages)
        return True

    def _send_diverted(self, message: Message) -> None:
        """Send a message and its copies as one: all of them are on disk, or none is."""
        admitted = self.admit_all([message])
        if not admitted:
            return
        tx = self._storage.next_id()
        self.take_all(admitted, tx)
        self._storage.append_commit(tx)

    def open(self, name: str, routing_type: RoutingType | None, user: str | None) -> None:
        """Create what messages of ``user`` for ``name`` need; raises what :meth:`send` would."""
        if name not in self._sendable[routing_type]:
            self._open(name, routing_type, user)

    def _open(self, name: str, routing_type: RoutingType | None, user: str | None = None) -> Account:
        """Have messages for ``name`` be routed as far as settings allow; return its account."""
        account = self._accounts.get(self._address_manager.ensure_sendable(name, routing_type, user))
        account.divert(self._diverts.at(account.name))
        self._address_manager.remember(name, routing_type, account)
        return account

    def _account_of(self, message: Message) -> Account:
        """Return the account that a message is charged to, as :meth:`_open` does."""
        account = self._sendable[message.routing_type].get(message.address)
        return account if account is not None else self._open(message.address, message.routing_type)

    def _annotate(self, message: Message, *, stamped: bool) -> None:
        """Note who sent the message and, where the address wants it, when it came in."""
        notes = dict(message.annotations or {})
        if message.user is not None:
            notes[VALIDATED_USER] = message.user
        if stamped:
            notes[INGRESS_TIMESTAMP] = self._wall_ms()
        message.annotations = notes

    def _admit(self, account: Account, message: Message) -> Verdict:
        """Check what most messages need not pass. DROP: accepted, and to be forgotten. Raises SendErrors."""
        identity = message.duplicate_id
        if identity is not None and not account.is_new(identity, self._memory.user(DUPLICATE_IDS)):
            return Verdict.DROP
        settings = account.settings
        if self._accounts.disk_full and message.durable:
            if settings.disk_full_policy is DiskFullPolicy.DROP:
                return Verdict.DROP
            account.forget(message.duplicate_id)
            raise DiskFullError(
                f"the disk is full: no message for {account.name!r} is accepted until there is room "
                f"({self._storage.usage().cause})"
            )
        accounts = self._accounts
        verdict = admit(settings, account.gauge, accounts.total, account.pages, crowding=accounts.crowding(account))
        if verdict is Verdict.FAIL or (verdict is Verdict.BLOCK and rejects(settings, account.gauge)):
            account.forget(message.duplicate_id)
            raise AddressFullError(
                f"address {account.name!r} is full: {account.gauge.bytes} bytes in {account.gauge.messages} messages "
                f"(max-size-bytes {settings.max_size_bytes}, address-full-policy {settings.address_full_policy.value})"
            )
        if account.special:
            message.expiration = expiration(settings, message.expiration, self._wall_ms())
        # What is accepted though its producer is held back from now on comes behind what is in pages.
        return Verdict.PAGE if verdict is Verdict.BLOCK and account.pages.active else verdict

    def _store(
        self,
        account: Account,
        message: Message,
        queues: Sequence[Queue],
        tx: int,
        *,
        paged: bool = False,
        failures: int = 0,
        redelivered: bool = False,
    ) -> None:
        """Give the message its id, write it, and keep its references until that is stable.

        ``failures``: how often its delivery failed before it came here. ``redelivered``: a consumer may have had it.
        """
        storage = self._storage
        message.id = storage.next_id()
        attempt = self._attempt
        self.routed_total += 1
        if paged:
            page = self._pages.append(account, message, queues, tx)
            if attempt is not None and attempt.tx == tx:
                attempt.stored.append((account, message, queues, page))
            for queue in queues:
                if queue.trail is not None:
                    self._tell(tx, partial(queue.trail.accepted, [message], paged=True))
            return
        if message.durable:
            ids = queues[0].stored_as if len(queues) == 1 else [each for queue in queues for each in queue.stored_as]
            if ids:
                try:
                    storage.append_message(message, ids, tx)
                except DiskFullError:
                    account.forget(message.duplicate_id)
                    raise
                if failures:
                    # Before its commit: with it the count is there, without it nobody asks for it.
                    for each in ids:
                        storage.append_delivery_count(each, message.id, failures)
        if message.large is not None:
            self._large_files.hold(message.large.id, len(queues))
        if attempt is not None and attempt.tx == tx:
            attempt.stored.append((account, message, queues, 0))
        message.references = len(queues)
        self._accounts.charge(account, message.size)
        self._arrivals.add(message, queues, failures, redelivered=redelivered or failures > 0)

    def _tell(self, tx: int, what: Callable[[], None]) -> None:
        """Do what tells of something: now, or when what is taken in now stays."""
        attempt = self._attempt
        if attempt is not None and attempt.tx == tx:
            attempt.afterwards.append(what)
        else:
            what()

    def _unrouted(self, account: Account, message: Message, tx: int = 0) -> None:
        self._tell(tx, partial(self._note_unrouted, account.name))
        kept = account.settings.send_to_dla_on_no_route and self._keep_unrouted(message, tx)
        if not kept and message.large is not None:
            self._large_files.hold(message.large.id, 1)
            self._large_files.release(message.large.id)  # unless a copy of it needs it

    def _note_unrouted(self, name: str) -> None:
        address = self._space.address(name)
        if address is not None:
            address.unrouted += 1
        trail = self._trail.queue(name, name)
        if trail is not None:
            trail.unrouted()

    def admit_all(self, messages: Sequence[Message]) -> list[Admitted]:
        """Check all messages of a transaction; return those to be sent. Raises as :meth:`send`, then none is taken."""
        admitted: list[Admitted] = []
        try:
            for message in messages:
                self._admit_one(message, admitted, ())
            if messages:
                self._require_room()
        except Exception:
            for each in admitted:
                each.account.forget(each.message.duplicate_id)
            raise
        return admitted

    def _admit_one(self, message: Message, admitted: list[Admitted], taken: tuple[Rule, ...]) -> None:
        """Check a message, and the copies that diverts make of it."""
        account = self._account_of(message)
        verdict = self._admit(account, message)
        if verdict is Verdict.DROP:
            return
        rules = of_message(account.diverts, message, taken)
        # A body in a file is shared by the copies: a page would give it up as if it had it alone.
        paged = verdict is Verdict.PAGE and not (message.large is not None and (rules or taken))
        admitted.append(Admitted(account, message, paged, any(rule.divert.exclusive for rule in rules)))
        for rule in rules:
            copy = rule.copy(message)
            if rule.keeps:
                admitted.append(Admitted(self._account_of(copy), copy, paged=False))
            else:
                self._admit_one(copy, admitted, (*taken, rule))

    def _require_room(self) -> None:
        if self._storage.full:
            raise DiskFullError("the disk is full: no transaction that sends is committed until there is room")

    def take_all(self, admitted: Iterable[Admitted], tx: int) -> None:
        """Route and write what :meth:`admit_all` returned, within the transaction ``tx``."""
        admitted = list(admitted)
        files = [each.message.large.id for each in admitted if each.message.large is not None]
        for file_id in files:
            self._large_files.hold(file_id, 1)  # copies share it: none of them ends it before all are there
        for account, message, paged, away in admitted:
            queues: Sequence[Queue] | Spread = () if away else self._route(message)
            if queues:
                self._keep(account, message, queues, tx, paged=paged)
            elif not away:
                self._unrouted(account, message, tx)
            elif message.duplicate_id is not None:
                self._storage.append_duplicate_id(account.name, message.duplicate_id, tx)
        for file_id in files:
            self._large_files.release(file_id)

    # -- in a cluster

    def spread_over(self, route: Callable[[Message], Sequence[Queue] | Spread], route_alike: Route) -> None:
        """Ask these from now on where messages go, and those that are like one: some go to other nodes."""
        self._route = route
        self._alike.route = route_alike
        self._keep = self._keep_spread

    def _keep_spread(
        self, account: Account, message: Message, queues: Sequence[Queue] | Spread, tx: int, *, paged: bool = False
    ) -> None:
        if not isinstance(queues, Spread):
            self._store(account, message, queues, tx, paged=paged)
            return
        if message.durable and self._storage.full:
            account.forget(message.duplicate_id)
            raise DiskFullError("the disk is full: nothing is forwarded until there is room")
        total = self.routed_total + 1
        alone = len(queues.forwards) == 1 and not queues.queues and message.duplicate_id is None
        together = tx or (0 if alone else self._storage.next_id())
        for forward in queues.forwards:
            self.forward(forward, together)
        if queues.queues:
            self._store(account, message, queues.queues, together, paged=paged)
        elif message.duplicate_id is not None:
            self._send_away(account, message, queues.away, together)
        if together and not tx:
            self._storage.append_commit(together)
        self.routed_total = total

    def _send_away(self, account: Account, message: Message, node: bytes, tx: int) -> None:
        """Remember the id of a message that no queue here has, and the node that alone gets it, if there is one."""
        identity = message.duplicate_id or b""
        if node:
            account.send_away(identity, node)
        if message.durable:
            self._storage.append_duplicate_id(account.name, identity, tx)
            if node:
                self._storage.append_duplicate_id(away_name(node, account.name), identity, tx)

    def forward(self, forward: Forward, tx: int) -> None:
        """Write what goes to another node, to a page where its queue has no room."""
        account = self._accounts.of(forward.queue.address)
        paged = self._beyond(account)
        self._store(account, forward.message, (forward.queue,), tx, paged=paged)

    def take(
        self,
        message: Message,
        queues: Sequence[Queue],
        tx: int,
        *,
        moved: bool = False,
        failures: int = 0,
        redelivered: bool = False,
    ) -> bool:
        """Write what another node sent for these queues. False: its id was seen here before, or its address drops it.

        What was ``moved`` was accepted there, and in a queue: it is taken in any case, and its id remembered. It came
        after so many ``failures`` to deliver it; ``redelivered``: a consumer may have had it there. Whether the address
        is full is for the caller to look at: what was sent is taken; where there are pages, behind what is in them.
        """
        account = self._accounts.of(message.address)
        try:
            new = message.duplicate_id is None or account.is_new(message.duplicate_id, self._memory.user(DUPLICATE_IDS))
        except LimitError:
            new = True  # there is no room for more ids; the message has another number that is looked at
        verdict = self._full(account)
        if self._attempt is not None and new and message.duplicate_id is not None:
            self._attempt.ids.append((account, message.duplicate_id))
        if not moved and (not new or verdict is Verdict.DROP):
            return False
        paged = verdict in _BEYOND or account.pages.active
        self._store(account, message, queues, tx, paged=paged, failures=failures, redelivered=redelivered)
        return True

    def take_alike(
        self, messages: Sequence[Message], queues: Sequence[Queue], tx: int, *, moved: bool, redelivered: bool
    ) -> Sequence[Message]:
        """Write what another node sent for these queues to one address, without ids: as :meth:`take`; return it."""
        if not messages:
            return messages
        account = self._accounts.of(messages[0].address)
        if self._alike.take(account, messages, queues, tx, self._attempt, redelivered=redelivered):
            self.routed_total += len(messages)
            return messages
        return [one for one in messages if self.take(one, queues, tx, moved=moved, redelivered=redelivered)]

    def remember(self, message: Message, tx: int) -> bool:
        """Note a duplicate id for the whole cluster, within the attempt ``tx``; False: it was seen before."""
        account = self._accounts.of(message.address)
        identity = message.duplicate_id
        try:
            if identity is None or not account.is_new(identity, self._memory.user(DUPLICATE_IDS)):
                return identity is None
        except LimitError:
            return True  # as in take
        if self._attempt is not None:
            self._attempt.ids.append((account, identity))
        if message.durable:
            self._storage.append_duplicate_id(account.name, identity, tx)
        return True

    def copy_in(self, message: Message, queue: Queue) -> None:
        """Write a copy of what is in a queue of another broker, of which ``queue`` is a replica: never to a page.

        Raises DiskFullError.
        """
        self._store(self._accounts.of(queue.address), message, (queue,), 0)

    def put(self, message: Message, queue: Queue, tx: int) -> None:
        """Write a message for one queue, within the transaction ``tx``, to a page where its address has no room."""
        account = self._accounts.of(message.address)
        # A body in a file is shared: see _admit_one.
        paged = message.large is None and self._beyond(account)
        self._store(account, message, (queue,), tx, paged=paged)

    def receive(self, message: Message, tx: int) -> bool:
        """Send what another broker's bridge brought, within the transaction ``tx`` of its link.

        Returns whether anything holds it or a copy of it now: its id may have been seen here before, and its address
        may drop it. Raises as :meth:`send`: then nothing was done, and its sender keeps it.
        """
        admitted = self.admit_all([message])
        if self._attempt is not None:
            self._attempt.ids += [
                (each.account, each.message.duplicate_id) for each in admitted if each.message.duplicate_id is not None
            ]
        self.take_all(admitted, tx)
        return bool(admitted)

    @contextmanager
    def attempt(self) -> Iterator[int]:
        """Take in, in the block and in this turn of the loop, what counts as a whole; gives the transaction for it.

        What the block raises rolls back everything that it had stored with that transaction.
        """
        attempt = self._attempt = Attempt(self._storage.next_id())
        total = self.routed_total
        try:
            yield attempt.tx
        except Exception:
            self._attempt = None
            attempt.undo(
                accounts=self._accounts, arrivals=self._arrivals, pages=self._pages, large_files=self._large_files
            )
            self._storage.append_rollback(attempt.tx)
            self.routed_total = total
            raise
        self._attempt = None
        self._storage.append_commit(attempt.tx)
        for what in attempt.afterwards:
            what()

    def _beyond(self, account: Account) -> bool:
        """Whether what is taken in any case goes to a page: for want of room, or behind those that are in one."""
        return account.pages.active or self._full(account) in _BEYOND

    def _full(self, account: Account) -> Verdict:
        accounts = self._accounts
        if not account.careful and not accounts.pressure:
            return Verdict.ACCEPT
        crowding = accounts.crowding(account)
        return admit(account.settings, account.gauge, accounts.total, account.pages, crowding=crowding)

    def reachable(self, message: Message) -> bool:
        """Return whether a queue takes this message, or is made for it. Raises what :meth:`send` would."""
        self._account_of(message)
        return any(self._space.takers(message))

    def route_copy(self, message: Message, tx: int, more: bool) -> bool:
        """Send a message the broker itself made or moves: beyond the limits of the address to a page.

        An address that would hold back or refuse who sends has it in memory all the same: as much is given back where
        it comes from. ``more``: not so, it was in a page or in no queue; of that no more than the broker has room for.
        False when no queue takes it. Raises DiskFullError and the errors of a name that cannot be created.
        """
        account = self._account_of(message)
        queues = self._space.route(message)
        message.address = account.name
        if not queues:
            return False
        # A body in a file is shared: see _admit_one.
        # A replica of a queue gets nothing of what is in pages.
        crammed = more and self._accounts.total.full and not any(queue.watchers for queue in queues)
        self._store(account, message, queues, tx, paged=message.large is None and (crammed or self._beyond(account)))
        return True
