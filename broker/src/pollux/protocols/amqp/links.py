"""The open links of one connection: what they cost, and what is done to several of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.memory import LINK
from pollux.protocols.amqp.consumer import MAX_BUFFERED, Consumer
from pollux.protocols.amqp.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pollux.engine.post_office import PostOffice
    from pollux.wire.amqp.engine import Engine
    from pollux.wire.amqp.links import Link


class Links:
    """Those that the engine calls; there are none before :meth:`begin`."""

    def __init__(self, post: PostOffice, origin: int) -> None:
        self._post = post
        self._origin = origin
        self._engine: Engine | None = None
        #: Links that the connection's part of the memory was taken for.
        self._counted = 0

    def begin(self, engine: Engine) -> None:
        """Take the engine of a client that has logged in."""
        self._engine = engine

    def __iter__(self) -> Iterator[Link]:
        """Yield those that are open now, whatever is attached or detached meanwhile."""
        return iter(() if self._engine is None else list(self._engine.links.values()))

    def add(self, link: Link) -> None:
        """Have the engine call ``link``."""
        assert self._engine is not None  # noqa: S101  (links are attached by the engine's calls)
        self._engine.links[link.pointer] = link

    def consumers(self) -> Iterator[Consumer]:
        """Yield those by which the client receives from queues."""
        return (link for link in self if isinstance(link, Consumer))

    def count(self, links: int) -> None:
        """Account for what so many links cost; raises LimitError."""
        holder = self._post.memory.holder(self._origin)
        more = links - self._counted
        if more > 0:
            holder.take(LINK * more)
        else:
            holder.give(-LINK * more)
        self._counted = links

    def pause(self) -> None:
        """Deliver nothing until :meth:`resume`."""
        for link in self.consumers():
            link.credit = 0

    def resume(self) -> None:
        """Deliver again."""
        for link in self.consumers():
            link.on_flow()

    def stop_full(self) -> list[Consumer]:
        """Stop the links whose session's window is full, and return them."""
        full = [
            link for link in self.consumers() if link.credit > 0 and link.attached and link.buffered() > MAX_BUFFERED
        ]
        for link in full:
            link.credit = 0
        return full

    def describe(self) -> list[dict[str, object]]:
        """Return what management shows of them."""
        return [link.describe() for link in self if isinstance(link, Producer | Consumer)]

    def end(self, links: Iterable[Link], *, closed: bool = False) -> None:
        """End links for the broker, of very many bit by bit: what they hold goes back to its queues.

        ``closed``: for good, by the client.
        """
        ending = [link for link in links if isinstance(link, Producer | Consumer)]
        for link in ending:
            link.end(closed=closed)
        self._post.share.work(_leave(ending))


def _leave(links: Iterable[Producer | Consumer]) -> Iterator[None]:
    for link in links:
        link.leave()
        yield
