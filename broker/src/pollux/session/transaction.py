"""A local transaction: sends and acknowledgements that take effect together or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import LimitError

if TYPE_CHECKING:
    from pollux.message import Message, MessageReference


class Transaction:
    """What was done inside one transaction, kept in memory until it commits.

    Nothing of it is in the journal before the commit, where all of it goes in one batch whose
    records count only behind their commit record: a crash at any byte leaves all or nothing.
    ``limit`` bounds the bytes of messages it may hold.
    """

    __slots__ = ("__weakref__", "acknowledged", "deadline", "ended", "expired", "id", "limit", "sends", "size")

    def __init__(self, identity: int, limit: int, deadline: float) -> None:
        self.id = identity
        self.limit = limit
        #: When it is rolled back by the broker (transaction-timeout), on the loop's clock.
        self.deadline = deadline
        self.expired = False
        self.sends: list[Message] = []
        self.acknowledged: list[MessageReference] = []
        self.size = 0
        self.ended = False

    def expire(self) -> None:
        """It is too old: forget what it holds. Its commit will fail."""
        self.expired = True
        self.sends.clear()
        self.size = 0

    def add_send(self, message: Message) -> None:
        """Remember a message to be sent at commit; raises LimitError beyond the limit."""
        if self.expired:
            return
        if self.size + message.size > self.limit:
            raise LimitError(
                f"transaction {self.id} holds {self.size} bytes of messages and may hold {self.limit}: "
                "commit more often, or raise max-transaction-size in broker.xml's limits"
            )
        self.size += message.size
        self.sends.append(message)

    def add_acknowledged(self, references: list[MessageReference]) -> None:
        """Remember references to be acknowledged at commit."""
        self.acknowledged.extend(references)
