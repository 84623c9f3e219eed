"""Local transactions of a connection: what its links did in each, until it is discharged."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pollux.errors import LimitError, PolluxError
from pollux.protocols.amqp.conditions import UnknownTransactionError
from pollux.protocols.amqp.terminus import OUTCOMES
from pollux.wire.amqp.codec import DecodeError, Described
from pollux.wire.amqp.proton import ACCEPTED, TRANSACTIONAL, Pointer, get, lib, put

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice
    from pollux.engine.transaction import Transaction
    from pollux.routing.reference import MessageReference
    from pollux.wire.amqp.links import IncomingLink

#: Open transactions of one connection.
MAX_TRANSACTIONS = 1000
_ACCEPTED_OUTCOME = Described(ACCEPTED, [])


class Retiring(Protocol):
    """A consumer whose outcomes are part of transactions."""

    unsettled: dict[Pointer, MessageReference]
    #: Outcomes inside open transactions.
    retiring: int

    def forget(self, delivery: Pointer) -> None:
        """Count a delivery as the client's no more."""

    def apply(self, delivery: Pointer | None, item: MessageReference, state: int) -> None:
        """Do what an outcome other than accepted asks for."""

    def retired(self) -> None:
        """Count an outcome less: its transaction ended."""


class Retirement(NamedTuple):
    """An outcome that a consumer gave inside a transaction; ``delivery`` None: the client has settled it."""

    consumer: Retiring
    delivery: Pointer | None
    item: MessageReference
    state: int


class LocalTransaction:
    """One open transaction: messages and outcomes that count from its commit on."""

    __slots__ = ("_post", "identifier", "retired", "transaction")

    def __init__(self, post: PostOffice, transaction: Transaction) -> None:
        self._post = post
        self.transaction = transaction
        self.identifier = transaction.id.to_bytes(8, "big")
        self.retired: list[Retirement] = []

    def accept(self, producer: IncomingLink, delivery: Pointer) -> None:
        """Tell a producer that its message is part of the transaction."""
        producer.settle_with(delivery, TRANSACTIONAL, [self.identifier, _ACCEPTED_OUTCOME])

    def retire(self, consumer: Retiring, delivery: Pointer, item: MessageReference, state: int, settled: bool) -> None:
        """Take a consumer's outcome, which counts from the commit on; a second one for the same delivery does not."""
        if any(each.delivery == delivery for each in self.retired):
            return
        if state == ACCEPTED:
            self._post.acknowledge([item], self.transaction)
        self.retired.append(Retirement(consumer, None if settled else delivery, item, state))
        consumer.retiring += 1
        if settled:
            consumer.forget(delivery)
            lib.pn_delivery_settle(delivery)
        else:
            put(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), [self.identifier, Described(state, [])])
            lib.pn_delivery_update(delivery, TRANSACTIONAL)

    def commit(self) -> None:
        """Make it all so. Raises PolluxError: then it was rolled back."""
        try:
            self._post.commit(self.transaction)
        except PolluxError:
            self.roll_back()
            raise
        for each in self.retired:
            consumer = each.consumer
            if each.delivery is not None and each.delivery in consumer.unsettled:
                consumer.forget(each.delivery)
                lib.pn_delivery_update(each.delivery, each.state)
                lib.pn_delivery_settle(each.delivery)
            if each.state != ACCEPTED:
                consumer.apply(None, each.item, each.state)
            consumer.retired()
        self.retired.clear()

    def roll_back(self) -> None:
        """Undo it: what the client settled goes back to its queue, what it did not stays with it."""
        self._post.rollback(self.transaction)
        back = [
            each.item for each in self.retired if each.delivery is None or each.delivery not in each.consumer.unsettled
        ]
        if back:
            self._post.release(back, failed=True)
        for each in self.retired:
            each.consumer.retired()
        self.retired.clear()


class Named(NamedTuple):
    """Hold what a transactional state names: a transaction, and the outcome inside it (0 without one)."""

    transaction: LocalTransaction
    outcome: int


class Transactions:
    """The open transactions of one connection by their ids."""

    __slots__ = ("_open", "_post")

    def __init__(self, post: PostOffice) -> None:
        self._post = post
        self._open: dict[bytes, LocalTransaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, origin: int) -> LocalTransaction:
        """Start a transaction of connection ``origin``. Raises LimitError."""
        if len(self._open) >= MAX_TRANSACTIONS:
            raise LimitError(f"a connection may have {MAX_TRANSACTIONS} open transactions")
        local = LocalTransaction(self._post, self._post.begin(origin))
        self._open[local.identifier] = local
        return local

    def take(self, identifier: bytes) -> LocalTransaction:
        """Return a transaction that is discharged now, and open no more. Raises UnknownTransactionError."""
        local = self._open.pop(identifier, None)
        if local is None:
            raise UnknownTransactionError(f"transaction {identifier.hex()} is not open")
        return local

    def named_by(self, delivery: Pointer) -> Named:
        """Return what a delivery's state names. Raises DecodeError, UnknownTransactionError."""
        identifier, outcome = state_of(delivery)
        local = self._open.get(identifier)
        if local is None:
            raise UnknownTransactionError(f"transaction {identifier.hex()} is not open")
        return Named(local, outcome)

    def not_retired(self, items: list[MessageReference]) -> list[MessageReference]:
        """Return those that no open transaction has an outcome for."""
        retired = {id(each.item) for local in self._open.values() for each in local.retired}
        return [item for item in items if id(item) not in retired]

    def end(self) -> None:
        """Roll all of them back: the connection ends."""
        transactions = list(self._open.values())
        self._open.clear()
        for transaction in transactions:
            with suppress(PolluxError):
                transaction.roll_back()


def state_of(delivery: Pointer) -> tuple[bytes, int]:
    """Return the transaction id and the outcome (0 without one) of a transactional state. Raises DecodeError."""
    fields = get(lib.pn_disposition_data(lib.pn_delivery_remote(delivery)))
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], bytes):
        raise DecodeError("a transactional state without a transaction id")
    outcome = fields[1] if len(fields) > 1 else None
    if not isinstance(outcome, Described):
        return fields[0], 0
    code = outcome.descriptor
    return fields[0], code if isinstance(code, int) else OUTCOMES.get(str(code), 0)
