"""A local transaction: sends and acknowledgements that take effect together or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.memory import ACKNOWLEDGED, TRANSACTION
from pollux.errors import LimitError

if TYPE_CHECKING:
    from pollux.engine.memory import Holder
    from pollux.message import Message
    from pollux.routing.reference import MessageReference

#: Bytes are accounted for in steps of this size, not for each message.
_STEP = 16 << 10


class Transaction:
    """One transaction: its sends and acknowledgements, kept in memory until it commits.

    Nothing of it is in the journal before the commit, where all of it goes in one batch whose
    records count only behind their commit record: a crash at any byte leaves all or nothing.
    ``limit`` bounds the bytes of messages it may hold, ``holder`` what all of the client's together may.
    """

    __slots__ = (
        "__weakref__",
        "_held",
        "_holder",
        "acknowledged",
        "deadline",
        "ended",
        "expired",
        "id",
        "limit",
        "sends",
        "size",
    )

    def __init__(self, identity: int, limit: int, deadline: float, holder: Holder) -> None:
        """Open it, and count it for its client. Raises LimitError when that may hold no more."""
        self.id = identity
        holder.take(TRANSACTION)
        self._holder = holder
        self._held = TRANSACTION
        self.limit = limit
        #: When it is rolled back by the broker (transaction-timeout), on the loop's clock.
        self.deadline = deadline
        self.expired = False
        self.sends: list[Message] = []
        self.acknowledged: list[MessageReference] = []
        self.size = 0
        self.ended = False

    def expire(self) -> None:
        """Forget what it holds, as it is too old. Its commit will fail."""
        self.expired = True
        self.sends.clear()
        self.size = 0
        self.give_back()

    def end(self) -> None:
        """End it: it was committed or rolled back."""
        self.ended = True
        self.give_back()

    def give_back(self) -> None:
        """Give back the bytes it held, which are gone, or count elsewhere now."""
        held, self._held = self._held, 0
        self._holder.give(held)

    def _cover(self, size: int) -> None:
        """Account for ``size`` bytes in all; raises LimitError."""
        if size > self._held:
            more = size - self._held + _STEP
            self._holder.take(more)
            self._held += more

    def add_send(self, message: Message) -> None:
        """Remember a message to be sent at commit; raises LimitError beyond the limits."""
        if self.expired:
            return
        if self.size + message.size > self.limit:
            raise LimitError(
                f"transaction {self.id} holds {self.size} bytes of messages and may hold {self.limit}: "
                "commit more often, or raise max-transaction-size in broker.xml's limits"
            )
        self._cover(TRANSACTION + self.size + message.size + ACKNOWLEDGED * len(self.acknowledged))
        self.size += message.size
        self.sends.append(message)

    def add_acknowledged(self, references: list[MessageReference]) -> None:
        """Remember references to be acknowledged at commit; raises LimitError beyond what the client may hold."""
        self._cover(TRANSACTION + self.size + ACKNOWLEDGED * (len(self.acknowledged) + len(references)))
        self.acknowledged.extend(references)
