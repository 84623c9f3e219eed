"""Named subscriptions are per user: container ids, client ids and names of links are chosen by clients, no proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import NotPermittedError

if TYPE_CHECKING:
    from pollux.engine.security import Identity, Security
    from pollux.routing.queue import Queue


def require_owner(security: Security, identity: Identity, queue: Queue) -> None:
    """Raise NotPermittedError when ``queue`` is the subscription of another user than ``identity``.

    A queue of nobody (made by an administrator or by broker.xml) is open to who has the permissions.
    """
    owner = queue.user
    if owner is None or owner == identity.user or not security.enabled or identity.administrator:
        return
    raise NotPermittedError(
        f"the subscription {queue.name!r} belongs to another user than {identity.user!r}: choose another client id, "
        "container id or name, or have it deleted"
    )
