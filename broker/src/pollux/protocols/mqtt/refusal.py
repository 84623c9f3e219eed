"""Reason codes that tell an MQTT client why something was refused."""

from __future__ import annotations

from pollux.errors import (
    AddressFullError,
    DiskFullError,
    InvalidRequestError,
    LimitError,
    NoSuchAddressError,
    NotPermittedError,
    PolluxError,
    SendError,
)
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode

_REASONS: tuple[tuple[type[Exception], ReasonCode], ...] = (
    (NotPermittedError, ReasonCode.NOT_AUTHORIZED),
    (AddressFullError, ReasonCode.QUOTA_EXCEEDED),
    (DiskFullError, ReasonCode.QUOTA_EXCEEDED),
    (LimitError, ReasonCode.QUOTA_EXCEEDED),
    (NoSuchAddressError, ReasonCode.TOPIC_NAME_INVALID),
    (InvalidRequestError, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    (SendError, ReasonCode.UNSPECIFIED_ERROR),
)


class RefusedError(PolluxError):
    """A PUBLISH is not taken; ``reason`` is what its acknowledgement says."""

    def __init__(self, reason: ReasonCode, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def reason_of(error: Exception) -> ReasonCode:
    """Return the reason code that tells a client of ``error``."""
    if isinstance(error, (ProtocolError, RefusedError)):
        return error.reason
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return ReasonCode.UNSPECIFIED_ERROR
