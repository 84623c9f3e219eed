"""Rights of a consumer of a pattern of addresses: messages of those addresses where its user may consume.

Decided twice. At routing: a subscription's queue gets only what somebody who reads it may have, so that nothing waits
there that nobody may take. At delivery: each consumer gets only what its own user may have, whoever else shares the
queue, and whatever was in it before a right was taken away. A user whom no security-setting keeps from consuming
anywhere costs nothing of that at delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.model import PermissionType

if TYPE_CHECKING:
    from pollux.engine.security import Identity, Security
    from pollux.routing.queue import Queue

CONSUME, BROWSE = PermissionType.consume, PermissionType.browse


class ReadingRights:
    """The rights of one consumer at a queue that is bound to a pattern; see :class:`pollux.routing.consumer.Rights`."""

    __slots__ = ("_identity", "_permission", "_queue", "_security", "user")

    def __init__(self, security: Security, identity: Identity, queue: Queue, *, browsing: bool) -> None:
        self._security = security
        self._identity = identity
        self._permission = BROWSE if browsing else CONSUME
        self._queue = queue
        self.user = identity.user

    @property
    def restricted(self) -> bool:
        """Return whether an address may not be allowed; changes when the configuration is read again."""
        queue = self._queue
        return not (
            self._identity.administrator
            or self._security.everywhere(self.user, self._permission)
            or self._security.named(self.user, self._permission, queue.address, queue.name)
        )

    def allow(self, address: str) -> bool:
        """Return whether the user may have messages sent to this address (or to the FQQN of this very queue)."""
        return self._security.permitted(self._identity, self._permission, address.partition("::")[0])


def rights_of(security: Security, identity: Identity, queue: Queue, *, browsing: bool = False) -> ReadingRights | None:
    """Return what decides on each message for a consumer of ``queue``; None: attaching was all there is to ask."""
    return ReadingRights(security, identity, queue, browsing=browsing) if queue.of_pattern else None


def admits(security: Security, queue: Queue, address: str) -> bool:
    """Return whether one of those who read the queue of a pattern may have what is sent to ``address``."""
    readers = queue.readers
    if readers is None:
        return True
    return any(
        security.everywhere(user, CONSUME)
        or security.allowed(user, CONSUME, address)
        or security.named(user, CONSUME, queue.address, queue.name)
        for user in readers
    )
