"""The link on which a client declares and discharges local transactions (OASIS AMQP 1.0 part 4)."""

from __future__ import annotations

from pollux.errors import PolluxError
from pollux.protocols.amqp.conditions import UnknownTransactionError, condition_of
from pollux.protocols.amqp.requests import RequestLink
from pollux.wire.amqp.codec import DecodeError, Described, decode_value
from pollux.wire.amqp.proton import DECLARED, Pointer
from pollux.wire.amqp.sections import VALUE, read_descriptor, walk

CAPABILITIES = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
_DECLARE = (0x31, "amqp:declare:list")
_DISCHARGE = (0x32, "amqp:discharge:list")
#: A declare is a few bytes, a discharge a few more.
_MAX_SIZE = 4096


class Coordinator(RequestLink):
    """A client's control link for transactions."""

    __slots__ = ()

    most, what = _MAX_SIZE, "a transaction request"

    def confirm(self, deliveries: list[Pointer]) -> None:
        """Accept discharges that are durable now."""
        self.accept(deliveries)

    def on_message(self, delivery: Pointer, data: bytes, settled: bool) -> None:
        """Declare or discharge a transaction."""
        try:
            request = _request(data)
            if request.descriptor in _DECLARE:
                identifier = self.session.transactions.begin(self.session.origin).identifier
                if not settled:
                    self.settle_with(delivery, DECLARED, [identifier])
            else:
                self._discharge(delivery, request.value, settled)
        except UnknownTransactionError as error:
            self._refuse(delivery, settled, "amqp:transaction:unknown-id", str(error))
        except DecodeError as error:
            self._refuse(delivery, settled, condition_of(error), str(error))
        except PolluxError as error:
            self._refuse(delivery, settled, "amqp:transaction:rollback", str(error))
        self.replenish()

    def _refuse(self, delivery: Pointer, settled: bool, condition: str, description: str) -> None:
        if not settled:
            self.reject(delivery, condition, description)

    def _discharge(self, delivery: Pointer, fields: object, settled: bool) -> None:
        if not isinstance(fields, list) or not fields or not isinstance(fields[0], bytes):
            raise DecodeError("a discharge without a transaction id")
        fail = len(fields) > 1 and fields[1] is True
        session = self.session
        session.settle_acknowledged()
        local = session.transactions.take(fields[0])
        if fail:
            local.roll_back()
        else:
            local.commit()
        if not settled:
            session.stable([(self, [delivery])])


def _request(data: bytes) -> Described:
    if len(data) > _MAX_SIZE:
        raise DecodeError("a transaction request is too large")
    number, position = read_descriptor(data, walk(data).body)
    value, _ = decode_value(data, position)
    if number != VALUE or not isinstance(value, Described):
        raise DecodeError("a transaction request is not an amqp-value")
    if value.descriptor not in (*_DECLARE, *_DISCHARGE):
        raise DecodeError("neither a declare nor a discharge")
    return value
