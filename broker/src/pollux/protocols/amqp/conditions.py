"""The AMQP error condition of each of the broker's errors."""

from __future__ import annotations

from pollux.errors import (
    AddressFullError,
    AuthenticationError,
    DiskFullError,
    InvalidRequestError,
    LimitError,
    NoSuchAddressError,
    NoSuchQueueError,
    NotPermittedError,
    PolluxError,
    SendError,
)
from pollux.wire.amqp.codec import DecodeError
from pollux.wire.amqp.guard import FrameError


class UnknownTransactionError(PolluxError):
    """The transaction id is not one of this connection's open transactions."""


_CONDITIONS: tuple[tuple[type[Exception], str], ...] = (
    (UnknownTransactionError, "amqp:transaction:unknown-id"),
    (NotPermittedError, "amqp:unauthorized-access"),
    (AuthenticationError, "amqp:unauthorized-access"),
    (NoSuchAddressError, "amqp:not-found"),
    (NoSuchQueueError, "amqp:not-found"),
    (AddressFullError, "amqp:resource-limit-exceeded"),
    (DiskFullError, "amqp:resource-limit-exceeded"),
    (LimitError, "amqp:resource-limit-exceeded"),
    (InvalidRequestError, "amqp:invalid-field"),
    (SendError, "amqp:precondition-failed"),
    (DecodeError, "amqp:decode-error"),
)
INTERNAL_ERROR = "amqp:internal-error"


def condition_of(error: Exception) -> str:
    """Return the condition that tells a client what ``error`` means for it."""
    if isinstance(error, FrameError):
        return error.condition
    for kind, condition in _CONDITIONS:
        if isinstance(error, kind):
            return condition
    return INTERNAL_ERROR
