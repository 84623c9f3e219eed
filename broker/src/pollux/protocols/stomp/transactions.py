"""STOMP transactions: the post office's transaction, and the acknowledgements made inside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pollux.errors import InvalidRequestError, LimitError
from pollux.wire.stomp.headers import StompError, parse_headers

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice
    from pollux.engine.transaction import Transaction
    from pollux.protocols.stomp.conversation import Conversation
    from pollux.protocols.stomp.subscription import Subscription
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.wire.stomp.decoder import Frame

#: Messages one transaction may acknowledge: they stay in memory until it ends.
MAX_ACKNOWLEDGED: Final = 100_000


class StompTransaction:
    """Between BEGIN and COMMIT or ABORT. ``acknowledged`` and ``refused`` (NACK) take effect at COMMIT only."""

    __slots__ = ("acknowledged", "refused", "subscriptions", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.acknowledged: list[MessageReference] = []
        #: And whether each goes back to its queue (else: dead letter).
        self.refused: list[tuple[MessageReference, bool]] = []
        #: Whose messages these are; they cannot leave their queue before the transaction ended.
        self.subscriptions: set[Subscription] = set()

    def enter(self, subscription: Subscription) -> None:
        """``subscription`` has messages in here. Raises LimitError when there are too many."""
        if len(self.acknowledged) + len(self.refused) >= MAX_ACKNOWLEDGED:
            raise LimitError(f"a transaction acknowledges at most {MAX_ACKNOWLEDGED} messages: commit more often")
        if subscription not in self.subscriptions:
            self.subscriptions.add(subscription)
            subscription.transactions += 1

    def held(self) -> list[MessageReference]:
        """Return all that goes back to its queue when the transaction is aborted."""
        return [*self.acknowledged, *(reference for reference, _ in self.refused)]

    def leave(self) -> None:
        """Tell the subscriptions that the transaction ended."""
        for subscription in self.subscriptions:
            subscription.left_transaction()


def refuse(post: PostOffice, refused: list[tuple[MessageReference, bool]]) -> None:
    """Give back what a NACK refused, a failed delivery each; or make it a dead letter at once (False)."""
    again = [reference for reference, requeue in refused if requeue]
    dead = [reference for reference, requeue in refused if not requeue]
    if again:
        post.release(again, failed=True)
    if dead:
        post.reject(dead)


class Transactions:
    """The open transactions of a session: BEGIN, COMMIT and ABORT frames."""

    __slots__ = ("_open", "_session")

    def __init__(self, session: Conversation) -> None:
        self._session = session
        self._open: dict[str, StompTransaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, name: str) -> StompTransaction:
        """The open transaction of that name; raises InvalidRequestError."""
        try:
            return self._open[name]
        except KeyError:
            raise InvalidRequestError(f"the transaction {name!r} has not begun") from None

    def begin(self, frame: Frame) -> None:
        """Open the transaction that a BEGIN frame names."""
        found = self._read(frame)
        if found is None:
            return
        headers, name = found
        if name in self._open:
            raise InvalidRequestError(f"the transaction {name!r} has begun already")
        most = self._session.settings.max_transactions
        if len(self._open) >= most:
            raise LimitError(f"a connection has at most {most} transactions")
        self._open[name] = StompTransaction(self._session.post.begin(self._session.origin))
        self._session.receipt(headers)

    def commit(self, frame: Frame) -> None:
        """Carry out a COMMIT frame. When the post office refuses it, nothing of it was done and the session ends."""
        found = self._read(frame)
        if found is None:
            return
        headers, name = found
        entered = self.get(name)
        post = self._session.post
        if entered.acknowledged:
            post.acknowledge(entered.acknowledged, entered.transaction)
        post.commit(entered.transaction)
        del self._open[name]
        refuse(post, entered.refused)
        entered.leave()
        self._session.receipt(headers)

    def abort(self, frame: Frame) -> None:
        """Carry out an ABORT frame: what was acknowledged counts as a failed delivery and is delivered again."""
        found = self._read(frame)
        if found is None:
            return
        headers, name = found
        entered = self.get(name)
        del self._open[name]
        self._undo(entered, failed=True)
        self._session.receipt(headers)

    def forget(self, queue: Queue) -> None:
        """The queue was deleted, with the messages acknowledged here."""
        for entered in self._open.values():
            entered.acknowledged = [each for each in entered.acknowledged if each.queue is not queue]
            entered.refused = [each for each in entered.refused if each[0].queue is not queue]

    def close(self) -> None:
        """The session ends: nothing that was not committed happens. The client had dealt with what it acknowledged."""
        entered_all = list(self._open.values())
        self._open.clear()
        for entered in entered_all:
            self._undo(entered, failed=False)

    def _undo(self, entered: StompTransaction, *, failed: bool) -> None:
        post = self._session.post
        post.rollback(entered.transaction)
        held = entered.held()
        if held:
            post.release(held, failed=failed)
        entered.leave()

    def _read(self, frame: Frame) -> tuple[dict[str, str], str] | None:
        """Headers and name; None when the frame was parked behind others of its transaction."""
        headers = parse_headers(frame.block, self._session.version)
        name = headers.get("transaction")
        if not name:
            raise StompError("the header 'transaction' is missing or empty")
        if self._session.parking.concerns(name):
            self._session.parking.add(frame, name)
            return None
        return headers, name
