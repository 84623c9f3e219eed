"""A link on which a client sends small requests to the broker itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pollux.wire.amqp.links import IncomingLink

if TYPE_CHECKING:
    from pollux.protocols.amqp.connection import Connection
    from pollux.wire.amqp.proton import Pointer

_CREDIT = 100


class RequestLink(IncomingLink):
    """Keeps the client in credit, and ends over a request that is too large or came without credit."""

    __slots__ = ("session",)

    #: Bytes of a request at most, and what it is in words.
    most: ClassVar[int]
    what: ClassVar[str]

    def __init__(self, session: Connection, pointer: Pointer, name: str) -> None:
        super().__init__(pointer, name)
        self.session = session

    def replenish(self) -> None:
        """Keep the client in credit."""
        if self.attached and self.credit < _CREDIT // 2:
            self.grant(_CREDIT - self.credit)

    def on_part(self, delivery: Pointer, total: int) -> bool:  # noqa: ARG002  (the hook's signature)
        """Close the link over a request that is too large."""
        if total > self.most:
            self.session.close_link(self, "amqp:link:message-size-exceeded", f"{self.what} is too large")
            return False
        return True

    def on_overrun(self) -> None:
        """Close the link."""
        self.session.close_link(self, "amqp:link:transfer-limit-exceeded", "a transfer came without credit")
