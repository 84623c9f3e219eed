"""A connection to another broker that is made again whenever it is gone, and says why it is not there."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pollux.cluster.duties import PAUSE, carry_out
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.config.acceptors import Endpoint

#: Reasons remembered as told; beyond that all may be told once more.
_TOLD = 100


class Reconnection(ABC):
    """Tries its endpoints in turn until it is stopped. What is done with a connection, :meth:`hold` says.

    Each reason why there is none is logged once until there is one again: a warning where somebody has to do something.
    """

    logger: ClassVar[logging.Logger]
    #: The field of the log line that has the name, and what the line says.
    kind: str
    down: str

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        endpoints: Sequence[Endpoint],
        *,
        retry: float,
        multiplier: float = 1.0,
        longest: float = 0.0,
        attempts: int = -1,
    ) -> None:
        """``retry``: seconds between two rounds, which grow by ``multiplier`` up to ``longest``; 0: they do not.

        ``attempts``: rounds in which nobody is reached, then it is stopped; negative: for ever.
        """
        self.name = name
        self.connected = False
        #: Its attempts were used up.
        self.stopped = False
        #: Why there is no connection; empty while there is one.
        self.reason = "not connected yet"
        self._loop = loop
        self._endpoints = endpoints
        self._retry = retry
        self._multiplier = multiplier
        self._longest = longest or retry
        self._attempts = attempts
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and again whenever the connection is gone."""
        self._task = self._loop.create_task(carry_out(f"{self.kind} {self.name}", self._run, pause=PAUSE))

    async def stop(self) -> None:
        """Have no connection any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.connected = False

    @abstractmethod
    async def hold(self, endpoint: Endpoint) -> bool:
        """Connect to ``endpoint`` and use the connection until it is gone; why it is, is said with :meth:`lost`.

        Returns whether the next attempt is for the first endpoint, after the pause; else it is for the next one.
        """

    async def _run(self) -> None:
        failed, wait = 0, self._retry
        while True:
            for endpoint in self._endpoints:
                if await self.hold(endpoint):
                    failed, wait = 0, self._retry
                    break
            else:
                failed += 1
            if 0 <= self._attempts <= failed:
                self.stopped = True
                event(
                    self.logger,
                    logging.ERROR,
                    "connection to another broker stopped: its attempts are used up",
                    **{self.kind: self.name},
                    attempts=failed,
                    reason=self.reason,
                    remedy="start this broker again when the other one can be reached, or set reconnect-attempts to -1",
                )
                return
            await asyncio.sleep(wait)
            wait = min(wait * self._multiplier, self._longest)

    def reached(self) -> None:
        """Note that the connection stands."""
        self.connected, self.reason = True, ""
        self._told.clear()

    def lost(self, reason: str, remedy: str = "") -> None:
        """Note why there is no connection."""
        self.connected, self.reason = False, reason
        if reason not in self._told:
            if len(self._told) >= _TOLD:
                self._told.clear()
            self._told.add(reason)
            level = logging.WARNING if remedy else logging.INFO
            event(self.logger, level, self.down, **{self.kind: self.name}, reason=reason, remedy=remedy or None)
