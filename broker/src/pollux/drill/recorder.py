"""Writes the ledger while traffic flows.

Each confirmed or received message belongs to an activation of a broker. Which one a connection leads to is asked of the
broker's management once it stands; entries wait for the answer, because the file is only ever appended to. A connection
that broke before the answer came has no known activation: what came over it counts, but two lives are not judged by it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pollux.drill.members import DOWN, now
from pollux.formats.ledger import HEADER, Confirmed, Entry, Fault, Received, Sent, encode

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.client.stream import Stream
    from pollux.drill.manifest import Member
    from pollux.drill.members import Members

_FLUSH_SECONDS = 0.05


class _Life:
    """Hold what a connection leads to; `held` are the entries that wait to know."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.node = ""
        self.epoch: int | None = None
        self.known = False
        self.held: list[Entry] = []


class Recorder:
    """Collects entries, in memory and in a file."""

    def __init__(self, path: Path, members: Members) -> None:
        self.entries: list[Entry] = []
        self.confirmed: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.missing: set[str] = set()
        self.last_received = now()
        #: Sent ids -> protocol.
        self._protocols: dict[str, str] = {}
        self._seen: set[str] = set()
        self._members = members
        self._lives: WeakKeyDictionary[Stream, _Life] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._buffer: list[str] = []
        self._scheduled = False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.write(self._file, HEADER.encode())

    # -- what happened

    def sent(self, identifier: str, protocol: str, group: str, sequence: int) -> None:
        """A message is about to be sent; the order within `group` is judged, of an empty one it is not."""
        self._protocols[identifier] = protocol
        self._add(Sent(now(), identifier, protocol, group, sequence))

    def on_confirmed(self, identifier: str, stream: Stream) -> None:
        """A broker confirmed a message."""
        life = self._life(stream)
        self.confirmed[self._protocols.get(identifier, "")] += 1
        if identifier not in self._seen:
            self.missing.add(identifier)
        self._attribute(life, Confirmed(now(), identifier, life.node, life.broker, life.epoch))

    def on_received(self, identifier: str, redelivered: bool, stream: Stream, consumer: str) -> None:
        """A message arrived."""
        life = self._life(stream)
        self.received[self._protocols.get(identifier, "")] += 1
        self._seen.add(identifier)
        self.missing.discard(identifier)
        self.last_received = now()
        self._attribute(life, Received(now(), identifier, "", redelivered, consumer, life.broker, life.epoch))

    def fault(self, text: str, at: float) -> None:
        """Something was broken at that time."""
        self._add(Fault(at, " ".join(text.split())))

    # -- activations

    def _life(self, stream: Stream) -> _Life:
        life = self._lives.get(stream)
        if life is None:
            member = self._member(stream)
            life = _Life(member.name if member is not None else str(stream.endpoint))
            self._lives[stream] = life
            task = asyncio.get_running_loop().create_task(self._resolve(life, member, stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return life

    def _member(self, stream: Stream) -> Member | None:
        members = self._members.members
        for member in members:
            if stream.endpoint in member.endpoints:
                return member
        same_port = [each for each in members if any(at.port == stream.endpoint.port for at in each.endpoints)]
        return same_port[0] if len(same_port) == 1 else None

    async def _resolve(self, life: _Life, member: Member | None, stream: Stream) -> None:
        seen = await self._members.look(member) if member is not None else DOWN
        if seen.live and stream.reason is None:
            life.node, life.epoch = seen.node, seen.epoch
        self._release(life)

    def _release(self, life: _Life) -> None:
        life.known = True
        for entry in life.held:
            if isinstance(entry, Confirmed):
                self._add(entry._replace(node=life.node, epoch=life.epoch))
            elif isinstance(entry, Received):
                self._add(entry._replace(epoch=life.epoch))
        life.held.clear()

    def _attribute(self, life: _Life, entry: Entry) -> None:
        if life.known:
            self._add(entry)
        else:
            life.held.append(entry)

    # -- the file

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._buffer.append(encode(entry))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._buffer:
            data = memoryview("".join(self._buffer).encode())
            self._buffer.clear()
            while data:
                data = data[os.write(self._file, data) :]

    async def close(self) -> None:
        """Wait for what is not known yet, and write the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        for life in list(self._lives.values()):
            self._release(life)
        self._flush()
        os.close(self._file)
