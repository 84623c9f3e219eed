"""Local transactions of a connection: what its links did in each, until it is discharged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import PolluxError
from pollux.wire.amqp.codec import DecodeError, Described
from pollux.wire.amqp.proton import ACCEPTED, TRANSACTIONAL, Pointer, get, lib, put

if TYPE_CHECKING:
    from pollux.engine.transaction import Transaction
    from pollux.protocols.amqp.consumer import Consumer
    from pollux.protocols.amqp.producer import Producer
    from pollux.protocols.amqp.session import AmqpSession
    from pollux.routing.reference import MessageReference

_OUTCOMES = {
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
}
_ACCEPTED_OUTCOME = Described(ACCEPTED, [])


class Retirement:
    """An outcome that a consumer gave inside a transaction; ``delivery`` None: the client has settled it."""

    __slots__ = ("consumer", "delivery", "item", "state")

    def __init__(self, consumer: Consumer, delivery: Pointer | None, item: MessageReference, state: int) -> None:
        self.consumer = consumer
        self.delivery = delivery
        self.item = item
        self.state = state


class LocalTransaction:
    """One open transaction."""

    __slots__ = ("identifier", "retired", "session", "transaction")

    def __init__(self, session: AmqpSession, transaction: Transaction) -> None:
        self.session = session
        self.transaction = transaction
        self.identifier = transaction.id.to_bytes(8, "big")
        self.retired: list[Retirement] = []

    def accept(self, producer: Producer, delivery: Pointer) -> None:
        """Tell a producer that its message is part of the transaction."""
        producer.settle_with(delivery, TRANSACTIONAL, [self.identifier, _ACCEPTED_OUTCOME])

    def retire(self, consumer: Consumer, delivery: Pointer, item: MessageReference, state: int, settled: bool) -> None:
        """A consumer's outcome takes effect at the commit."""
        if state == ACCEPTED:
            self.session.post.acknowledge([item], self.transaction)
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
            self.session.post.commit(self.transaction)
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
        self.session.post.rollback(self.transaction)
        back = [
            each.item for each in self.retired if each.delivery is None or each.delivery not in each.consumer.unsettled
        ]
        if back:
            self.session.post.release(back, failed=True)
        for each in self.retired:
            each.consumer.retired()
        self.retired.clear()


def state_of(delivery: Pointer) -> tuple[bytes, int]:
    """The transaction id and the outcome (0 without one) of a transactional state. Raises DecodeError."""
    fields = get(lib.pn_disposition_data(lib.pn_delivery_remote(delivery)))
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], bytes):
        raise DecodeError("a transactional state without a transaction id")
    outcome = fields[1] if len(fields) > 1 else None
    if not isinstance(outcome, Described):
        return fields[0], 0
    code = outcome.descriptor
    return fields[0], code if isinstance(code, int) else _OUTCOMES.get(str(code), 0)
