"""The states that a protocol keeps beside messages, as scale-down sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from pollux.routing.reference import MessageReference


class States(Protocol):
    """Something besides messages that is handed over once no client is left: the sessions of a protocol."""

    #: The request's name.
    name: str

    def keeps(self) -> Container[int]:
        """Return the numbers of the queues that go with these, and not before."""

    def prepare(self) -> None:
        """Let messages go that are kept for clients: none of these comes any more."""

    def mark(self, reference: MessageReference) -> dict[str, str]:
        """Return annotations that a message takes along so that a session knows it again."""

    def ready(self) -> Iterator[tuple[str, bytes]]:
        """Yield key and value of each."""

    def handed_over(self, key: str) -> None:
        """Forget one: another node has it on its disk."""

    def take(self, node: bytes, value: bytes) -> None:
        """Have one that another node gives. It may come again. Raises PolluxError or ValueError."""
