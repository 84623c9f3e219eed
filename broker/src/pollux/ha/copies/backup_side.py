"""The backup's side of the stream: says what it has, repeats the changes, confirms what is safe.

Nothing of this member's data is touched before the live has accepted it. While it is being copied the data is marked as
incomplete, so that a member that dies meanwhile never serves with it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from pollux.errors import PolluxError, StoreError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState, history_of
from pollux.ha.copies.old_replicas import keep_state, move_aside, next_number
from pollux.store.files import FileOperations, make_directories
from pollux.store.journal_facts import read_facts
from pollux.store.mirror.first_copy import inventory_of
from pollux.store.mirror.operations import decode
from pollux.store.mirror.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pollux.cluster.link.conversation import Conversation
    from pollux.store.mirror.first_copy import Inventory
    from pollux.store.mirror.pieces import KnownPieces
    from pollux.store.port import Files

logger = logging.getLogger("pollux.ha")

PURPOSE = "replication"
#: Bytes of changes the live may send before they are repeated.
WINDOW = 16 << 20
#: Hashes in one message.
_HASHES = 16_384


class BackupSide:
    """The handler of the channel to the live. ``on_synced`` and ``on_end`` are called once each, in the loop."""

    def __init__(
        self,
        conversation: Conversation,
        roots: Mapping[str, Path],
        *,
        loop: asyncio.AbstractEventLoop,
        keep: int,
        on_synced: Callable[[LocalState], None],
        on_end: Callable[[str, str], None],
        on_accepted: Callable[[dict[str, Any]], None] = lambda _: None,
        about: Mapping[str, object] | None = None,
        files: Files | None = None,
        pieces: KnownPieces | None = None,
    ) -> None:
        """``keep``: copies of older data that are kept (max-saved-replicated-journals-size).

        ``about``: what the live is told of this member. ``on_accepted`` gets its answer, once the data is marked.
        ``pieces``: what was hashed of our data before.
        """
        self.state: LocalState | None = None
        self.applied = 0
        self._conversation = conversation
        self._roots = roots
        self._loop = loop
        self._keep = keep
        self._on_synced = on_synced
        self._on_end = on_end
        self._on_accepted = on_accepted
        self._about = about or {}
        self._channel = 0
        self._files = files or FileOperations()
        self._pieces = pieces
        self._replica = Replica(roots, self._marked, self._files)
        #: For the thread: the live's answer, then its changes; None: the end.
        self._waiting: SimpleQueue[dict[str, Any] | bytes | None] = SimpleQueue()
        #: Bytes that were repeated and not granted again yet.
        self._owed = 0
        #: What the live has not been told yet, for want of credit; 0: nothing.
        self._unconfirmed = 0
        self._credited = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._synced = self._ended = False
        #: All reading and writing of files.
        self._thread = threading.Thread(target=self._run, name="pollux-replica", daemon=True)

    @property
    def journal(self) -> Path:
        """Return where the state file is."""
        return self._roots["journal"]

    def begin(self) -> None:
        """Ask the live for its data; the conversation is ready."""
        try:
            mine = local.read(self.journal)
            node_id = mine.node_id if mine is not None else self._node_of_files()
        except (PolluxError, OSError) as error:
            self.closed("refused", str(error))
            return
        self._channel = self._conversation.open(
            self,
            PURPOSE,
            **self._about,
            node_id=node_id,
            sequence=mine.sequence if mine is not None and mine.complete else 0,
            replica=mine.replica if mine is not None else not node_id,
            stay=mine is not None and mine.stay,
        )

    def _node_of_files(self) -> str:
        """Whose data lies here that no state tells of: somebody served with it before there was replication."""
        facts = read_facts(self._roots["journal"], self._roots["bindings"])
        if facts.node_id is None and facts.epoch:
            raise StoreError(
                f"{self.journal}: holds data of a broker that cannot be told; move it away, or it would be lost"
            )
        return facts.node_id.hex() if facts.node_id is not None else ""

    # -- from the live

    def accepted(self, content: dict[str, Any]) -> None:
        """Follow a live that takes us: its ``node_id`` and ``epoch``, ``prefix`` (what we have can be completed)."""
        self._waiting.put(content)
        self._thread.start()

    def data(self, payload: bytes) -> None:
        """Take changes, to be repeated."""
        self._waiting.put(payload)

    def credited(self) -> None:
        """Send more."""
        self._credited.set()
        self._confirm()

    # -- in the thread

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None and not self._ended:
                if isinstance(item, bytes):
                    self._repeat(item)
                else:
                    self._call(self._prepared, item, self._prepare(item))
        except Exception as error:
            # Whatever it is: a stream that nobody reads any more, and nobody ends, would be followed for ever.
            if not isinstance(error, (PolluxError, OSError)):
                logger.exception("the live cannot be followed")
            if self._pieces is not None:
                self._pieces.forget()
            self._call(self._failed, str(error))
        finally:
            self._replica.close()

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            logger.debug("the event loop has ended")

    def _repeat(self, payload: bytes) -> None:
        """Everything that waits, with one sync; then its confirmation."""
        payloads = [payload]
        try:
            while isinstance(more := self._waiting.get_nowait(), bytes):
                payloads.append(more)
            self._waiting.put(more)
        except Empty:
            pass
        applied = self._replica.apply(operation for each in payloads for operation in decode(each))
        self._call(self._repeated, applied, sum(map(len, payloads)))

    def _prepare(self, content: dict[str, Any]) -> Inventory:
        """Mark our data as incomplete; move it aside if it is not the beginning of the live's."""
        mine = local.read(self.journal)
        node_id, epoch = str(content["node_id"]), int(content["epoch"])
        for directory in self._roots.values():
            make_directories(self._files, directory)
        stay = mine is not None and mine.stay
        if not content.get("prefix") or (mine is not None and mine.aside):
            self._move_aside(mine)
            mine = None
        sequence = mine.sequence if mine is not None else 0
        history = mine.history if mine is not None else ()
        self.state = LocalState(node_id, sequence, epoch, complete=False, replica=True, stay=stay, history=history)
        local.write(self.journal, self.state, self._files)
        return inventory_of(self._roots, self._pieces)

    def _move_aside(self, mine: LocalState | None) -> None:
        """Nobody may serve with half of what is moved: it says that it is incomplete before the first file goes.

        Whoever dies then goes on with the same number, and is told again that it has no beginning of the live's data.
        """
        number = mine.aside if mine is not None else 0
        if not number:
            number = next_number(self._roots)
            if mine is not None:
                keep_state(self.journal, number, self._files)
            elif node_id := self._node_of_files():
                mine = LocalState(node_id, 0, 0, complete=False, replica=False)
            if mine is not None:
                local.write(self.journal, replace(mine, complete=False, aside=number), self._files)
        move_aside(self._roots, self._keep, self._files, number=number)

    def _marked(self, data: bytes) -> None:
        """In the thread: everything before is safe, and the copy is complete with this sequence."""
        content = msgspec.msgpack.decode(data, type=dict[str, Any])
        self.state = LocalState(
            str(content["node_id"]),
            int(content["sequence"]),
            int(content["epoch"]),
            complete=True,
            replica=True,
            stay=self.state is not None and self.state.stay,
            history=history_of(content.get("history", ())),
            primary=str(content.get("primary", "")),
            heirs=tuple(map(str, content.get("heirs", ()))),
        )
        local.write(self.journal, self.state, self._files)

    # -- to the live

    def _prepared(self, content: dict[str, Any], inventory: Inventory) -> None:
        if not self._ended:
            self._task = self._loop.create_task(self._tell(content, inventory))

    async def _tell(self, content: dict[str, Any], inventory: Inventory) -> None:
        """Say what we have, then take changes."""
        try:
            self._on_accepted(content)
            for file, (size, hashes) in inventory.items():
                for at in range(0, max(len(hashes), 1), _HASHES):
                    part = b"".join(hashes[at : at + _HASHES])
                    await self._send({"file": file, "size": size, "at": at, "hashes": part})
            await self._send({"complete": True})
        except Exception as error:
            logger.exception("the live is not told what is here")
            self._failed(str(error))
            return
        self._conversation.grant(self._channel, WINDOW)

    async def _send(self, message: dict[str, object]) -> None:
        while self._conversation.credit(self._channel) == 0:
            self._credited.clear()
            await self._credited.wait()
        self._conversation.send(self._channel, msgspec.msgpack.encode(message))

    def _repeated(self, applied: int, size: int) -> None:
        """Changes of so many bytes are safe, and all before them."""
        if self._ended:
            return
        self.applied = self._unconfirmed = applied
        self._confirm()
        # Some at a time: the live sends on as long as it has any, and hears of nothing else in between.
        self._owed += size
        if self._owed >= WINDOW // 4:
            owed, self._owed = self._owed, 0
            self._conversation.grant(self._channel, owed)
        if not self._synced and self.state is not None and self.state.complete:
            self._synced = True
            self._on_synced(self.state)

    def _confirm(self) -> None:
        if self._unconfirmed and self._conversation.credit(self._channel):
            self._conversation.send(self._channel, msgspec.msgpack.encode({"confirm": self._unconfirmed}))
            self._unconfirmed = 0

    # -- the end

    def _failed(self, reason: str) -> None:
        if not self._ended:
            self._conversation.refuse(self._channel, reason, "failed")
            self.closed("failed", reason)

    def closed(self, code: str, text: str) -> None:
        """The live is gone, or does not take us."""
        if self._ended:
            return
        self._ended = True
        self._waiting.put(None)
        if self._task is not None:
            self._task.cancel()
        self._on_end(code, text)

    async def stop(self) -> None:
        """Follow no more; returns when nothing is written any more."""
        self.closed("stopping", "")
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
