"""Producers that wait until an address takes messages again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.engine.post_office import PostOffice


class Waiter(Protocol):
    """A producer that gives its client no credit now."""

    attached: bool

    def writable(self) -> None:
        """Give credit again: the address takes messages."""


class _Waiting(NamedTuple):
    """Who waits for one address, and the call that the post office makes."""

    wake: Callable[[], None]
    producers: list[Waiter]


class BlockedAddresses:
    """The blocked addresses of one connection and who waits for them; the post office is asked once for each."""

    __slots__ = ("_post", "_waiting")

    def __init__(self, post: PostOffice) -> None:
        self._post = post
        self._waiting: dict[str, _Waiting] = {}

    def wait(self, address: str, producer: Waiter) -> None:
        """Tell ``producer`` once when ``address`` takes messages again."""
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.producers[:] = [each for each in waiting.producers if each.attached]
            waiting.producers.append(producer)
            return
        self._waiting[address] = waiting = _Waiting(partial(self._writable, address), [producer])
        self._post.on_writable(address, waiting.wake)

    def _writable(self, address: str) -> None:
        waiting = self._waiting.pop(address, None)
        for producer in () if waiting is None else waiting.producers:
            producer.writable()

    def end(self) -> None:
        """Wait no more: clients that come and go while an address is blocked must not pile up in the post office."""
        for address, waiting in self._waiting.items():
            self._post.off_writable(address, waiting.wake)
        self._waiting.clear()
