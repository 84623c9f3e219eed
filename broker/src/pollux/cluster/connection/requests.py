"""Requests to a peer that wait for their answers. Each has a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Asking:
    """All that was asked over one link, and has no answer yet."""

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[int, asyncio.Future[str]] = {}

    def begin(self, loop: asyncio.AbstractEventLoop) -> tuple[int, asyncio.Future[str]]:
        """Return the number of the next request, and what its answer is awaited by."""
        self._count += 1
        answer: asyncio.Future[str] = loop.create_future()
        self._open[self._count] = answer
        return self._count, answer

    def answered(self, number: int, refusal: str) -> None:
        """Take an answer."""
        answer = self._open.get(number)
        if answer is not None and not answer.done():
            answer.set_result(refusal)

    def done(self, number: int) -> None:
        """Forget a request."""
        self._open.pop(number, None)

    def lost(self, reason: str) -> None:
        """Tell whoever waits that there is no answer: ConnectionError."""
        answers, self._open = self._open, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(reason))
