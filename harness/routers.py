"""A connection router for tests of sessions: its answer is given, and whom it was asked about is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pollux.protocols.redirects import Client, Elsewhere, Refused


class FixedRouter:
    """Answers everybody alike; with ``patience`` not before :attr:`enough` is set."""

    def __init__(self, answer: Elsewhere | Refused | None, *, patience: bool = False) -> None:
        self.answer = answer
        self.asked: list[Client] = []
        self.enough = asyncio.Event()
        if not patience:
            self.enough.set()

    async def _until_enough(self) -> None:
        await self.enough.wait()

    def wait(self, client: Client) -> Awaitable[None] | None:
        """Wait until a test says that there are enough."""
        del client
        return None if self.enough.is_set() else self._until_enough()

    def decide(self, client: Client) -> Elsewhere | Refused | None:
        """Give the answer."""
        self.asked.append(client)
        return self.answer
