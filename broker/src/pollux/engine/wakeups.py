"""Queues that were woken: messages of each are handed out once in a turn of the loop, however often it was woken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.share import AT_ONCE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from pollux.engine.share import Share
    from pollux.routing.queue import Queue


class Wakeups:
    """The queues whose turn comes. ``hand_out`` does the work for one, with the time (``wall_ms``, milliseconds)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        share: Share,
        wall_ms: Callable[[], int],
        hand_out: Callable[[Queue, int], None],
    ) -> None:
        self._loop = loop
        self._share = share
        self._wall_ms = wall_ms
        self._hand_out = hand_out
        self._woken: dict[Queue, None] = {}
        #: Queues whose turn did not come in the turn of the loop they were woken in.
        self._late: dict[Queue, None] = {}
        self._planned = False

    def wake(self, queue: Queue) -> None:
        """Hand out messages of a queue, once for this loop turn: somebody can take, or something can be taken."""
        self._woken[queue] = None
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._planned = False
        woken, self._woken = self._woken, {}
        queues = iter(woken)
        if len(woken) <= AT_ONCE:
            self._dispatch_at_once(queues)
        if late := dict.fromkeys(queues):
            if not self._late:
                self._share.add(self._dispatch_late)
            self._late.update(late)

    def _dispatch_at_once(self, queues: Iterator[Queue]) -> None:
        """Hand out those of a slice: what a few queues have for one client can be many times what others send."""
        now, share = self._wall_ms(), self._share
        begun, effort = share.clock(), share.effort()
        for queue in queues:
            self._hand_out(queue, now)
            # The clock first: it costs less, and mostly it says enough.
            if share.clock() - begun > share.slice and share.effort() - effort > share.slice:
                share.spent(share.clock() - begun)
                return

    def _dispatch_late(self) -> bool:
        """Hand out those of one queue that was woken with too many others; return whether there is one more."""
        queue = next(iter(self._late))
        del self._late[queue]
        self._hand_out(queue, self._wall_ms())
        return bool(self._late)
