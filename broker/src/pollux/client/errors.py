"""Errors for users of the client. Each text says what happened and what may be done about it."""

from __future__ import annotations

from pollux.errors import PolluxError


class ClientError(PolluxError):
    """Base of every error the client raises on purpose."""


class UrlError(ClientError):
    """A URL or one of its parameters is wrong; the text has everything that is."""


class LoginError(ClientError):
    """A broker refused the credentials. Trying again would not help, so it is not done."""


class ConnectionLostError(ClientError):
    """No broker could be reached within the attempts and times the URL allows."""


class ConnectionClosedError(ClientError):
    """The connection was closed, by this side or for good by a broker."""


class CallTimeoutError(ClientError):
    """A call was not answered in time (`callTimeout`, during a failover `callFailoverTimeout`)."""


class FailoverError(ClientError):
    """A call was waiting for its answer when the connection failed; whether it was carried out is not known.

    The connection itself has failed over or is about to: the call may be made again.
    """


class LinkRefusedError(ClientError):
    """A broker refused or ended a producer or a consumer; `condition` is the AMQP error condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}" if description else condition)
        self.condition = condition


class SendRefusedError(ClientError):
    """A broker did not accept a message: it was not stored. ``outcome``: the code of what it said instead."""

    def __init__(self, text: str, outcome: int | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome


class StaleDeliveryError(ClientError):
    """A message from before a failover cannot be settled: it will come again, marked as redelivered."""


class TransactionRolledBackError(ClientError):
    """A failover (or the broker) undid the transaction: nothing of it happened; do all of it again."""


class TransactionInDoubtError(ClientError):
    """The connection failed while a commit was under way: all of the transaction happened, or nothing.

    Do it again with the same duplicate ids: what had happened is then ignored.
    """
