"""The two ends of a channel by which a member asks another one for its vote: one question, one answer.

What was promised by an answer lasts as long as the channel, and a channel as long as its connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.cluster.link import Idle
from pollux.cluster.votes import Answer
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.cluster.link import Conversation

logger = logging.getLogger("pollux.ha")

#: The purpose of these channels (docs/core-protocol.md).
PURPOSE = "quorum"


class _Channel(Idle):
    """A channel on which nothing is sent but the question and the answer."""

    def closed(self, code: str, text: str) -> None:
        """Note that the channel, or the whole connection, is gone."""
        del code, text
        self._over()

    def _over(self) -> None:
        raise NotImplementedError


def _nodes(listed: Iterable[object]) -> tuple[str, ...]:
    """Return node ids as another member says them. Raises ValueError, TypeError."""
    nodes = tuple(str(one) for one in listed)[:1000]
    if any(len(bytes.fromhex(one)) != 16 for one in nodes):
        raise ValueError("a node id has 16 bytes")
    return nodes


class Asked(_Channel):
    """The end of who asks."""

    def __init__(self, conversation: Conversation, loop: asyncio.AbstractEventLoop) -> None:
        self.channel = 0
        self.answer: Answer | None = None
        self._conversation = conversation
        self._done = loop.create_future()
        self._close = False

    async def answered(self, seconds: float) -> Answer | None:
        """Return the answer; None when there is none within these seconds."""
        await asyncio.wait([self._done], timeout=seconds)
        return self.answer

    def accepted(self, content: dict[str, Any]) -> None:
        """Read the answer."""
        try:
            self.answer = Answer(
                str(content["member"])[:255],
                str(content["voter"]),
                bool(content["yes"]),
                bool(content["against"]),
                str(content["reason"])[:500],
                int(content["sequence"]),
                min(int(content["size"]), 1000),
                _nodes(content.get("topology", ())),
                _nodes(content.get("removed", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            event(logger, logging.WARNING, "a vote that cannot be read", reason=repr(error))
        self._over()
        if self._close:
            self.close()

    def _over(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def close(self) -> None:
        """Give back what was promised: the answer is of no use any more.

        Without an answer that waits for it: another question on a channel of this number would be given this answer.
        """
        self._close = True
        if self._done.done():
            self._conversation.refuse(self.channel, "", "done")


class Given(_Channel):
    """The end of who answers. ``holder``: (node id, member) that holds the right by this channel; None: nobody."""

    def __init__(self, let_go: Callable[[tuple[str, str]], None], holder: tuple[str, str] | None) -> None:
        self.ended = False
        self._let_go = let_go
        self._holder = holder

    def _over(self) -> None:
        """Have whoever held the right by this channel hold it no more."""
        self.ended = True
        if self._holder is not None:
            self._let_go(self._holder)
