"""Errors that cross layers. Each names the thing, the place and the remedy in its text."""

from __future__ import annotations


class PolluxError(Exception):
    """Base of every error Pollux raises on purpose."""


class StoreError(PolluxError):
    """The store cannot do what was asked; after a failed sync the broker must stop."""


class StoreRefusedError(PolluxError):
    """This store may not be served: it is somebody else's, others have newer data, or it cannot be shared."""


class LostBodyError(StoreError):
    """A large message's file is not there, or not what it was: no other attempt will find more."""


class DiskFullError(StoreError):
    """No room for new messages. Acknowledgements still go through; it ends when there is room."""


class SendError(PolluxError):
    """A message was refused; it was not stored and will not be delivered."""


class AddressFullError(SendError):
    """The address is at its limit and its address-full-policy is FAIL."""


class NoSuchAddressError(SendError):
    """The address does not exist and may not be created automatically."""


class NoSuchQueueError(PolluxError):
    """The queue does not exist and may not be created automatically."""


class NotPermittedError(PolluxError):
    """The user may not do this at this address."""


class AuthenticationError(PolluxError):
    """Who the client says it is could not be proven. The text never says which part was wrong."""


class LimitError(PolluxError):
    """A configured limit (connections, consumers, sessions, sizes) was reached."""


class InvalidRequestError(PolluxError):
    """The request contradicts what exists (another routing type, a bad selector, a reserved name)."""
