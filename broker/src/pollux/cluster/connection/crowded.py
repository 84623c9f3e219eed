"""Tells a peer which addresses are full here, of those that it sends to: what is for these waits there, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.payloads import MOST_FULL
from pollux.cluster.routes.numbers import base_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from pollux.engine.accounts import Accounts

#: Seconds after which it is looked again whether there is room, for what nobody is called: pages, or the settings.
_LOOK = 0.5


class Crowded:
    """The full addresses of one link. ``tell`` is called with all of them whenever they are other ones."""

    def __init__(
        self, accounts: Accounts, loop: asyncio.AbstractEventLoop, tell: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._accounts = accounts
        self._loop = loop
        self._tell = tell
        self._full: dict[str, None] = {}
        self._planned: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, names: Iterable[str]) -> set[str]:
        """Tell of those that are full; return the ones for which the whole link has to wait.

        They have no room, but it is the broker that is full, or too many are.
        """
        rest: set[str] = set()
        before = len(self._full)
        for name in names:
            address = base_of(name)
            if address in self._full:
                continue
            if len(self._full) < MOST_FULL and self._accounts.full_alone(address):
                self._full[address] = None
                self._accounts.on_writable(address, self._woken)
            else:
                rest.add(name)
        if len(self._full) > before:
            self._plan_look()
            self._tell(tuple(self._full))
        return rest

    def _plan_look(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()
        if self._full:
            self._plan_look()

    def _woken(self) -> None:
        """Look when whatever gave back room is done with it."""
        if self._planned is None:
            self._planned = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._planned = None
        before = len(self._full)
        for address in list(self._full):
            if self._accounts.full_alone(address):
                self._accounts.on_writable(address, self._woken)
            else:
                self._forget(address)
        if len(self._full) < before:
            self._tell(tuple(self._full))

    def _forget(self, address: str) -> None:
        del self._full[address]
        self._accounts.off_writable(address, self._woken)

    def stop(self) -> None:
        """Tell nothing any more."""
        for handle in (self._planned, self._timer):
            if handle is not None:
                handle.cancel()
        for address in list(self._full):
            self._forget(address)
