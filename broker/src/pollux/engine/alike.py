"""Messages that differ in nothing but data and times are taken in at once: what they share is looked at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pollux.engine.forwards import Way
from pollux.message import Message
from pollux.routing.queue import Queue

if TYPE_CHECKING:
    from pollux.engine.accounts import Account, Accounts
    from pollux.engine.arrivals import Arrivals
    from pollux.engine.attempt import Attempt
    from pollux.message import RoutingType
    from pollux.store.storage import Storage

#: Returns where all messages go that are like one; None, or nowhere: each of them is to be looked at.
Route = Callable[[Message], Sequence[Queue] | Way | None]


class Alike:
    """Writes plain messages of one address, and keeps their references until that is stable."""

    def __init__(
        self,
        storage: Storage,
        accounts: Accounts,
        arrivals: Arrivals,
        sendable: Mapping[RoutingType | None, Mapping[str, Account]],
        route: Route,
    ) -> None:
        """``sendable``: routing type -> names that messages were sent to -> their accounts."""
        self.route = route
        self._storage = storage
        self._accounts = accounts
        self._arrivals = arrivals
        self._sendable = sendable

    def send(self, messages: Sequence[Message]) -> bool:
        """Route and write messages that clients send; False: nothing was done, each of them is to be looked at.

        Nothing but data and times tells one from another, and none has an id, a group, a delivery time or the like.
        They are its own from then on: for another node they are changed.
        """
        first = messages[0]
        account = self._sendable[first.routing_type].get(first.address)
        if account is None or account.careful or account.stamped or first.user is not None:
            return False
        queues = self.route(first)
        if not isinstance(queues, Way):
            return self.take(account, messages, queues) if queues else False
        account = self._accounts.of(queues.queue.address)
        return self.take(account, messages, (queues.queue,), change=queues.change)

    def take(
        self,
        account: Account,
        messages: Sequence[Message],
        queues: Sequence[Queue],
        tx: int = 0,
        attempt: Attempt | None = None,
        *,
        redelivered: bool = False,
        change: Callable[[Sequence[Message]], list[bytes]] | None = None,
    ) -> bool:
        """Write messages for these queues, ``change``d before; False: not all of them have room, nothing was done."""
        storage, held = self._storage, len(queues)
        size = sum([message.size for message in messages])
        if storage.full or not self._accounts.roomy(account, size, len(messages)):
            return False
        notes = change(messages) if change is not None else None
        ids = [each for queue in queues for each in queue.stored_as]
        for message_id, message in enumerate(messages, storage.next_ids(len(messages))):
            message.id = message_id
            message.references = held
        if ids and messages[0].durable:
            storage.append_messages(messages, ids, tx, notes)
        if attempt is not None and attempt.tx == tx:
            attempt.stored += [(account, message, queues, 0) for message in messages]
        self._accounts.charge(account, size, len(messages))
        self._arrivals.add_all(messages, queues, redelivered=redelivered)
        return True
