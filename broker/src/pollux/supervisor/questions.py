"""Questions of one life to others, over the connections of the cluster: each a channel, its answer is in the ACCEPT."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pollux.cluster.link import Idle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.link import Conversation

PURPOSE = "colocated"
#: Seconds for another host's answer; and for those that a look waits for.
_PATIENCE, _LOOK = 15.0, 2.0


class _Asked(Idle):
    """The end of who asked."""

    def __init__(self, conversation: Conversation, content: dict[str, Any]) -> None:
        self._conversation = conversation
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._channel = conversation.open(self, PURPOSE, **content)

    def accepted(self, content: dict[str, Any]) -> None:
        """Take the answer."""
        if not self.answer.done():
            self.answer.set_result(content)
        self._conversation.refuse(self._channel, "", "done")

    def closed(self, code: str, text: str) -> None:
        """Note that there is none."""
        if not self.answer.done():
            self.answer.set_result({"error": text or code})


async def ask(conversation: Conversation, **content: object) -> dict[str, Any]:
    """Ask the broker at the other end; the answer has ``error`` where there is none."""
    asked = _Asked(conversation, content)
    await asyncio.wait([asked.answer], timeout=_PATIENCE)
    return asked.answer.result() if asked.answer.done() else {"error": f"no answer within {_PATIENCE:g} s"}


class Questions:
    """The same question to all, again and again. Who does not answer at once is waited for, but holds up nobody.

    A host that lost its power is connected until its link times out.
    """

    def __init__(self, patience: float = _LOOK) -> None:
        """``patience``: seconds that a round takes at most."""
        self._patience = patience
        #: Those without an answer so far, and since when.
        self._asked: dict[Conversation, tuple[asyncio.Task[dict[str, Any]], float]] = {}

    async def answers(
        self, reached: Iterable[Conversation], **content: object
    ) -> tuple[list[tuple[Conversation, dict[str, Any]]], float]:
        """Return who answered what, and since when the oldest of these answers may have been true (the loop's time)."""
        loop = asyncio.get_running_loop()
        wanted = dict.fromkeys(reached)
        for gone in self._asked.keys() - wanted.keys():
            self._asked.pop(gone)[0].cancel()
        for one in wanted.keys() - self._asked.keys():
            self._asked[one] = (loop.create_task(ask(one, **content)), loop.time())
        since = loop.time()
        if self._asked:
            await asyncio.wait([task for task, _ in self._asked.values()], timeout=self._patience)
        found = []
        for one in wanted:
            task, began = self._asked[one]
            if not task.done():
                continue
            del self._asked[one]
            if "error" not in (said := task.result()):
                found.append((one, said))
                since = min(since, began)
        return found, since

    def stop(self) -> None:
        """Wait for nobody any more."""
        for task, _ in self._asked.values():
            task.cancel()
        self._asked.clear()
