"""One core connection between two brokers, whoever opened it: its bytes, time, channels and who handles them."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

from pollux.wire.core.frames import CoreError
from pollux.wire.core.peer import Accepted, Closed, ClusterKey, CorePeer, Credited, Data, Event, Opened, Ready

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from pollux.wire.core.peer import Hello

logger = logging.getLogger("pollux.core")


class Output(Protocol):
    """Where a conversation writes: a socket's transport, or a session's."""

    def write(self, data: bytes) -> None:
        """Queue bytes for sending."""

    def close(self) -> None:
        """Close after what is queued was sent."""


class Handler(Protocol):
    """One side of a channel. All calls are in the loop's thread."""

    def accepted(self, content: dict[str, Any]) -> None:
        """The other end took the channel that was opened here."""

    def data(self, payload: bytes) -> None:
        """Bytes; grant as many again when they are dealt with."""

    def credited(self) -> None:
        """More may be sent than before."""

    def closed(self, code: str, text: str) -> None:
        """The channel, or the whole connection, is gone. The last call."""


class Idle:
    """The end of who was asked and has answered; as a base, of any end that does nothing in some of these cases."""

    def accepted(self, content: dict[str, Any]) -> None:
        """Do nothing: it was opened by the other end."""

    def data(self, payload: bytes) -> None:
        """Do nothing: nothing is sent here."""

    def credited(self) -> None:
        """Do nothing: nothing waits to be sent."""

    def closed(self, code: str, text: str) -> None:
        """Do nothing: there is nothing to give back."""


#: No other process has it, but for those that were forked from it.
_PROCESS = os.urandom(8)


class CoreHub:
    """The purposes that connections of other brokers may have here, and who answers them.

    ``open(conversation, channel, content)`` accepts or refuses the channel and returns its handler, None when refused.
    """

    def __init__(self, key: ClusterKey, *, name: str, node_id: bytes, timeout: float) -> None:
        self.key = key
        self.name = name
        self.node_id = node_id
        self.timeout = timeout
        #: That of the life in which this broker serves, with this node id; 0 while it does not.
        self.epoch = 0
        #: Who answers with it is this broker itself.
        self.process = _PROCESS + os.getpid().to_bytes(4)
        self.purposes: dict[str, Callable[[Conversation, int, dict[str, Any]], Handler | None]] = {}


class Conversation:
    """One connection. ``on_end(code, text)`` is called once, when the connection is of no use any more.

    ``silence``: seconds after which it is dead; None: as the hub has it.
    ``turn`` is waited for before it is looked at whether an initiator knows the password, and the outcome is told
    (``on_ready`` or ``on_end``) before the turn ends; its TimeoutError refuses the connection unchecked.
    """

    def __init__(
        self,
        hub: CoreHub,
        output: Output,
        loop: asyncio.AbstractEventLoop,
        *,
        initiator: bool,
        on_ready: Callable[[Hello], None],
        on_end: Callable[[str, str], None],
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        silence: float | None = None,
    ) -> None:
        self.peer: Hello | None = None
        self.channels: dict[int, Handler] = {}
        self._hub = hub
        self._output = output
        self._loop = loop
        self._on_ready = on_ready
        self._on_end = on_end
        self._turn = turn
        self._checking: asyncio.Task[None] | None = None
        self._ended = False
        #: With which code and words.
        self._end = ("", "")
        self._paused = False
        #: What was granted is sent at the end of this turn of the loop.
        self._flushing = False
        self._core = CorePeer(
            hub.key,
            initiator=initiator,
            name=hub.name,
            node_id=hub.node_id,
            epoch=hub.epoch,
            process=hub.process,
            timeout=silence or hub.timeout,
            now=loop.time(),
        )
        self._timer: asyncio.TimerHandle | None = None
        self.flush()
        self._tick()

    @property
    def ended(self) -> bool:
        """Whether it is of no use any more."""
        return self._ended

    @property
    def to_itself(self) -> bool:
        """Whether the other end is this broker itself, not another one with its node id."""
        return self.peer is not None and self.peer.process == self._hub.process

    # -- in

    def feed(self, data: bytes) -> None:
        """Bytes of the other end. Never raises."""
        if self._ended:
            return
        try:
            for event in self._core.feed(data, self._loop.time()):
                self._handle(event)
                if self._ended:
                    return
        except CoreError as error:
            self.end(error.code, str(error))
            return
        self.flush()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Data):
            self.channels[event.channel].data(event.payload)
        elif isinstance(event, Credited):
            handler = self.channels.get(event.channel)
            if handler is not None:
                handler.credited()
        elif isinstance(event, Accepted):
            self.channels[event.channel].accepted(event.content)
        elif isinstance(event, Closed):
            handler = self.channels.pop(event.channel, None)
            if handler is not None:
                handler.closed(event.code, event.text)
        elif isinstance(event, Opened):
            self._opened(event)
        elif isinstance(event, Ready):
            self.peer = event.peer
            self._on_ready(event.peer)
        else:
            # It has its turn even if the other end leaves before that: who guesses does not guess faster by leaving.
            self._checking = self._loop.create_task(self._check())

    async def _check(self) -> None:
        try:
            async with self._turn():
                if self._ended:
                    return
                try:
                    self._handle(self._core.check())
                except CoreError as error:
                    self.end(error.code, str(error))
                    return
                self.flush()
        except TimeoutError:
            self.stop("busy", "too many wrong cluster passwords came from this host: not checked")
        except Exception as error:
            logger.exception("a connection of another broker failed")
            self.stop("failed", repr(error))

    def _opened(self, event: Opened) -> None:
        answer = self._hub.purposes.get(event.purpose)
        if answer is None:
            self._core.close(event.channel, "refused", f"{event.purpose[:50]!r} is not offered by this broker")
            return
        handler = answer(self, event.channel, event.content)
        if handler is not None:
            self.channels[event.channel] = handler

    # -- out

    def flush(self) -> None:
        """Send what is to be sent."""
        out = self._core.take(self._loop.time())
        if out:
            # A socket of uvloop's that broke raises, and tells of its end only in a later turn of the loop.
            with suppress(RuntimeError):
                self._output.write(b"".join(out))

    def open(self, handler: Handler, purpose: str, **content: object) -> int:
        """Open a channel. With the connection gone meanwhile the handler is told soon: else it would wait for ever."""
        if self._ended:
            self._loop.call_soon(handler.closed, *self._end)
            return 0
        channel = self._core.open(purpose, **content)
        self.channels[channel] = handler
        self.flush()
        return channel

    def accept(self, channel: int, **content: object) -> None:
        """Take a channel that the other end opens."""
        self._core.accept(channel, **content)

    def refuse(self, channel: int, text: str, code: str = "refused") -> None:
        """Close a channel, or do not take it. With the connection gone it is closed already."""
        if self._ended:
            return
        self.channels.pop(channel, None)
        self._core.close(channel, code, text)
        self.flush()

    def grant(self, channel: int, size: int) -> None:
        """Let the other end send more: it is told with what is sent in this turn of the loop, or at its end."""
        if not self._ended:
            self._core.grant(channel, size)
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush_granted)

    def _flush_granted(self) -> None:
        self._flushing = False
        if not self._ended:
            self.flush()

    def credit(self, channel: int) -> int:
        """Bytes that may be sent on a channel."""
        return 0 if self._ended or self._paused else self._core.credit(channel)

    def pause(self) -> None:
        """Give nobody credit until :meth:`resume`: what was written is not taken."""
        self._paused = True

    def resume(self) -> None:
        """Give credit again: what was written is taken."""
        self._paused = False
        for handler in list(self.channels.values()):
            handler.credited()

    def room(self) -> int:
        """Bytes of the largest payload that the other end takes."""
        return self.peer.max_frame - 64 if self.peer is not None else 0

    def send(self, channel: int, *payload: bytes) -> None:
        """Send bytes on a channel; only with credit."""
        self._core.send(channel, *payload)
        self.flush()

    # -- time and the end

    def _tick(self) -> None:
        if self._ended:
            return
        now = self._loop.time()
        try:
            due = self._core.tick(now)
        except CoreError as error:
            self.end(error.code, str(error))
            return
        self.flush()
        self._timer = self._loop.call_at(max(due, now + 0.01), self._tick)

    def stop(self, code: str, text: str) -> None:
        """Close the connection from here, saying why."""
        if not self._ended:
            self._core.fail(CoreError(code, text))
            self.end(code, text)

    def end(self, code: str, text: str) -> None:
        """The connection is of no use any more."""
        if self._ended:
            return
        self._ended, self._end = True, (code, text)
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        self._output.close()
        channels, self.channels = self.channels, {}
        for handler in channels.values():
            try:
                handler.closed(code, text)
            except Exception:
                logger.exception("a channel failed to end")
        self._on_end(code, text)
