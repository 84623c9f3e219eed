"""Collects the audit trail in the event loop; :mod:`pollux.audit.writer` appends it to files in a thread.

What happens is noted in columns; every ``flush-interval``, or when much has come together, they become blocks. The
trail must never hold up messages: when the disk is slower than the broker for long, or fails, blocks are dropped and
counted, and a new file is begun. Nothing of a message is kept here but its numbers.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from pollux.audit.file import TrailFile
from pollux.audit.writer import Writer
from pollux.config.extensions import Audit
from pollux.formats.audit import Event, Flag, Messages, Run
from pollux.message import MESSAGE_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.message import Message

#: Message events after which a block is written at once.
_FULL = 16384
#: Lifecycle events kept for one block; more than that between two flushes is dropped and counted.
_EVENTS = 10_000
#: Characters of a field: clients choose some of them.
_TEXT = 1000
#: Seconds between two attempts to go on after a loss.
_RETRY = 5.0


def _now() -> int:
    return time.time_ns() // 1_000_000


class Reference(Protocol):
    """A message in a queue, as far as the trail looks."""

    @property
    def message(self) -> Message:
        """Note a message by its id."""


class QueueTrail:
    """Notes what happens to the messages of one queue. Called in the event loop's thread, with whole batches."""

    __slots__ = ("_trail", "address", "queue")

    def __init__(self, trail: Trail, address: str, queue: str) -> None:
        self._trail = trail
        self.address = address
        self.queue = queue

    def accepted(self, messages: Sequence[Message], *, paged: bool = False) -> None:
        """The messages are stored and in the queue (``paged``: in a page)."""
        columns = self._trail.columns
        columns.sizes += [
            message.size - MESSAGE_OVERHEAD if message.large is None else message.large.size for message in messages
        ]
        columns.producers += [message.origin for message in messages]
        columns.duplicate_ids += [
            (message.id, message.duplicate_id) for message in messages if message.duplicate_id is not None
        ]
        self._note(Event.ACCEPTED, [message.id for message in messages], flags=Flag.PAGED if paged else 0)

    def delivered(self, references: Sequence[Reference], consumer: int) -> None:
        """The messages are handed to a consumer of this connection."""
        self._note(Event.DELIVERED, [reference.message.id for reference in references], consumer=consumer)

    def acknowledged(self, ids: list[int]) -> None:
        """Consumers are done with the messages."""
        self._note(Event.ACKNOWLEDGED, ids)

    def released(self, references: Sequence[Reference], *, failed: bool) -> None:
        """Note that consumers gave messages back."""
        self._note(
            Event.RELEASED, [reference.message.id for reference in references], flags=Flag.FAILED if failed else 0
        )

    def left(self, event: Event, references: Sequence[Reference], target: str | None) -> None:
        """The messages went to the address ``target``, or were dropped (None)."""
        self._note(event, [reference.message.id for reference in references], target=target)

    def removed(self, ids: list[int]) -> None:
        """The messages left the queue without having been consumed (purged, displaced by newer ones ...)."""
        if ids:
            self._note(Event.REMOVED, ids)

    def unrouted(self) -> None:
        """No queue took a message for the address."""
        self._note(Event.UNROUTED, [0])

    def _note(
        self, event: Event, ids: list[int], *, flags: int = 0, target: str | None = None, consumer: int = 0
    ) -> None:
        trail = self._trail
        columns = trail.columns
        columns.ids += ids
        columns.runs.append(Run(event, flags, _now(), self.address, self.queue, target, len(ids), consumer))
        if len(columns.ids) >= _FULL:
            trail.flush()
        elif not trail.planned:
            trail.plan()


class Trail:
    """One broker's trail. :meth:`event` may be called in any thread, all else in the event loop's.

    ``matches`` tells whether the messages of an address are audited. Nothing is written before :meth:`start`; what is
    noted before is kept.
    """

    def __init__(self, settings: Audit, broker: str, version: str, matches: Callable[[str], bool]) -> None:
        self.settings = settings
        self.columns = Messages()
        #: A flush is on its way.
        self.planned = True
        self._lost_blocks = 0
        self._lost_bytes = 0
        self._retry_at = 0.0
        self._broker = broker
        self._version = version
        self._matches = matches
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._dropped_events = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._file: TrailFile | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._life = ("", 0)
        self._listeners: list[Callable[[str, dict[str, Any]], None]] = []

    @classmethod
    def off(cls) -> Trail:
        """Return a trail that notes nothing."""
        return cls(Audit(enabled=False), "", "", lambda _: False)

    # -- noting

    def queue(self, address: str, queue: str) -> QueueTrail | None:
        """The notebook of a queue; None when messages of its address are not audited."""
        return QueueTrail(self, address, queue) if self.settings.enabled and self._matches(address) else None

    def event(self, name: str, **fields: object) -> None:
        """Note something that happened to the broker itself, and tell of it. Fields that are None are left out."""
        if self._listeners:
            self.tell(name, **fields)
        if not self.settings.enabled:
            return
        if len(self._events) >= _EVENTS:
            self._dropped_events += 1
            return
        known = {key: value for key, value in fields.items() if value is not None}
        kept = {key: value[:_TEXT] if isinstance(value, str) else value for key, value in known.items()}
        self._events.append((_now(), name, kept))
        if not self.planned and self._loop is not None:
            self.planned = True
            self._loop.call_soon_threadsafe(self.plan)

    # -- listening

    def listen(self, listener: Callable[[str, dict[str, Any]], None]) -> None:
        """Have ``listener(name, fields)`` told of every event from now on, in the thread where it happens.

        It must not raise. Whether the trail is written makes no difference.
        """
        self._listeners.append(listener)

    def ignore(self, listener: Callable[[str, dict[str, Any]], None]) -> None:
        """Tell that listener no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def tell(self, name: str, **fields: object) -> None:
        """Tell listeners of something that is not worth a place in the trail."""
        for listener in self._listeners:
            listener(name, fields)

    # -- writing

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write from here on what was noted. A directory that cannot be made is logged, and the broker goes on."""
        if not self.settings.enabled or self._loop is not None:
            return
        self._loop = loop
        writer = Writer(self.settings.directory, self._broker, self.settings.max_files)
        self._file = TrailFile(writer, {"broker": self._broker, "version": self._version}, self._life)
        self.plan()

    def begin_life(self, node_id: bytes, epoch: int) -> None:
        """An activation: what follows belongs to it, and goes to a file of its own."""
        self._life = (node_id.hex(), epoch)
        if self._file is not None:
            self.flush()
            self._file.begin(self._life)

    def plan(self) -> None:
        """Have what is noted written after flush-interval."""
        self.planned = True
        if self._loop is not None and self._timer is None:
            self._timer = self._loop.call_later(self.settings.flush_interval / 1000, self.flush)

    def flush(self) -> None:
        """Hand everything noted to the writer."""
        file = self._file
        if file is None or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.planned = False
        lost = file.writer.take_lost()
        self._lost_blocks += lost.blocks
        self._lost_bytes += lost.bytes
        if self._lost_blocks or self._dropped_events:
            if not self._begin_again(file, self._loop.time()):
                return
        elif file.size >= self.settings.max_file_size:
            file.begin(self._life)
        events, self._events = self._events, []
        if events:
            file.add_events(events)
        if self.columns.runs:
            columns, self.columns = self.columns, Messages()
            file.add_messages(columns)

    def _begin_again(self, file: TrailFile, now: float) -> bool:
        """Something was lost, and names of the file with it: go on in a new one. False: not yet."""
        if now < self._retry_at:
            if self.columns.runs:
                self.columns = Messages()
                self._lost_blocks += 1
            self.plan()
            return False
        self._retry_at = now + _RETRY
        fields = {"blocks": self._lost_blocks, "bytes": self._lost_bytes, "events": self._dropped_events}
        self._events.append((_now(), "audit-lost", fields))
        self._lost_blocks = self._lost_bytes = self._dropped_events = 0
        file.begin(self._life)
        return True

    async def stop(self) -> None:
        """Write the rest; waits for it a moment."""
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            await asyncio.to_thread(file.writer.close)
