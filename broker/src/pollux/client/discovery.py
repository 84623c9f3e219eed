"""Brokers that announce themselves by UDP multicast (docs/core-protocol.md, Discovery), as a client hears of them.

A client does not know the cluster password, by which brokers prove their announcements to each other. What it hears is
a hint where to try: who answers there is known by its certificate, with TLS, and by nothing without.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from pollux import multicast
from pollux.client.errors import ConnectionLostError
from pollux.client.url import Endpoint
from pollux.wire.core import datagram
from pollux.wire.core.announced import Table

if TYPE_CHECKING:
    from pollux.client.url import Group


class Listener(asyncio.DatagramProtocol):
    """Listens inside `async with` for brokers of a group. ``tls``: whether brokers are reached with TLS."""

    def __init__(self, group: Group, *, tls: bool) -> None:
        self._group = group
        self._tls = tls
        self._table = Table("", silence=group.refresh_timeout / 1000)
        self._found = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._transport: asyncio.DatagramTransport

    async def __aenter__(self) -> Self:
        """Raises ConnectionLostError."""
        group = self._group
        try:
            made = multicast.receiver(group.address, group.port, group.local_bind_address)
        except OSError as error:
            local = group.local_bind_address or "the interface that the system chooses"
            raise ConnectionLostError(
                f"{group} cannot be listened to on {local}: {error.strerror}; set localBindAddress to an address that"
                " this machine has"
            ) from error
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=made)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    def endpoints(self) -> list[Endpoint]:
        """Return those that are there now, in the order in which they came."""
        self._table.expire(self._clock())
        reached = (one for connectors in self._table.members().values() for one in connectors)
        # With TLS nobody is reached without it; and who announces TLS would not be understood without.
        return [Endpoint(one.host, one.port) for one in reached if one.tls == self._tls]

    async def first(self) -> None:
        """Wait until there is one, for `discoveryInitialWaitTimeout` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._group.initial_wait / 1000):
                await self._found.wait()

    # -- asyncio's view

    def datagram_received(self, data: bytes, _address: tuple[str | Any, int]) -> None:
        """Take in a datagram, of anybody."""
        try:
            self._table.heard(datagram.decode(data, None), self._clock())
        except datagram.DatagramError:
            return
        if self.endpoints():
            self._found.set()

    def error_received(self, _error: Exception) -> None:
        """Something could not be received: it is said again."""
