"""The live's side of one backup's stream: its inventory in, the changes out, its confirmations in.

Messages from the backup (msgpack maps): ``{"file", "size", "at", "hashes"}`` for what it has, ``{"complete": true}`` at
their end, then ``{"confirm": number}``. To the backup: operations only (docs/replication.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from pollux.cluster.link import Idle
from pollux.errors import PolluxError, StoreError
from pollux.logs import event
from pollux.store.mirror.first_copy import copy_store, wait_nearly
from pollux.store.mirror.mirror import Link
from pollux.store.mirror.pieces import HASH_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.link.conversation import Conversation
    from pollux.store.mirror.first_copy import Inventory
    from pollux.store.mirror.mirror import Mirror

logger = logging.getLogger("pollux.ha")

#: Bytes of messages a backup may send before they are dealt with.
WINDOW = 1 << 20
#: Bytes sent in one frame, and in one turn of the loop.
_FRAME = 512 << 10
_TURN = 2 << 20
#: Most files a backup may list.
_FILES = 1_000_000


class LiveSide(Idle):
    """The handler of one backup's channel. ``on_synced`` and ``on_lost`` are called in the loop."""

    def __init__(
        self,
        conversation: Conversation,
        channel: int,
        name: str,
        mirror: Mirror,
        *,
        loop: asyncio.AbstractEventLoop,
        admit: Callable[[Link], bool],
        timeout: float,
        on_end: Callable[[LiveSide, str], None],
    ) -> None:
        """``admit`` makes the link one that syncs wait for (blocking, in a thread); ``timeout``: of the last step."""
        self.name = name
        self.link = Link(name, self._wake)
        self.copied = self.to_copy = 0
        self.since = time.time()
        self._conversation = conversation
        self._channel = channel
        self._mirror = mirror
        self._loop = loop
        self._admit = admit
        self._timeout = timeout
        self._on_end = on_end
        self._inventory: Inventory = {}
        #: Bytes that were taken and not granted again yet.
        self._owed = 0
        self._woken = False
        self._copying: asyncio.Task[None] | None = None
        self._ended = False
        conversation.grant(channel, WINDOW)

    @property
    def state(self) -> str:
        """Return the word for it that management shows."""
        return "in sync" if self.link.in_sync else "copying"

    # -- from the backup

    def data(self, payload: bytes) -> None:
        """Take one message of the backup."""
        try:
            message = msgspec.msgpack.decode(payload, type=dict[str, Any])
            if "confirm" in message:
                self._mirror.confirm(self.link, int(message["confirm"]))
            elif "file" in message:
                self._has(message["file"], message["size"], message["at"], message["hashes"])
            elif message.get("complete") and self._copying is None:
                self._copying = self._loop.create_task(self._copy())
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, StoreError) as error:
            self._fail(f"it sent what cannot be read: {error}")
            return
        # Not for each confirmation: a frame there, and one that wakes somebody, would be as many as batches.
        self._owed += len(payload)
        if self._owed >= WINDOW // 4:
            owed, self._owed = self._owed, 0
            self._conversation.grant(self._channel, owed)

    def _has(self, file: str, size: int, at: int, hashes: bytes) -> None:
        known = self._inventory.setdefault(file, (size, []))[1]
        if len(self._inventory) > _FILES or at != len(known) or len(hashes) % HASH_SIZE:
            raise StoreError("its list of files contradicts itself")
        known += [hashes[start : start + HASH_SIZE] for start in range(0, len(hashes), HASH_SIZE)]

    async def _copy(self) -> None:
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._copy_files)
        except (PolluxError, OSError) as error:
            self._fail(str(error))
            return
        except Exception as error:
            logger.exception("a backup could not be copied")
            self._fail(repr(error))
            return
        if self.link.in_sync:
            fields = {"backup": self.name, "seconds": round(time.monotonic() - began, 3), "bytes": self.to_copy}
            event(logger, logging.INFO, "backup is in sync", **fields)

    def _copy_files(self) -> None:
        self._mirror.attach(self.link)
        copy_store(self._mirror, self.link, self._inventory, progress=self._progress)
        wait_nearly(self._mirror, self.link, self._timeout)
        self._inventory = {}
        if not self._admit(self.link) and self.link.lost is None:
            raise StoreError("it could not be admitted")

    def _progress(self, done: int, total: int) -> None:
        self.copied, self.to_copy = done, total

    # -- to the backup

    def _wake(self) -> None:
        """Have the loop send what waits. Any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._pump)
            except RuntimeError:
                logger.debug("the event loop has ended")

    def _pump(self) -> None:
        self._woken = False
        if self.link.lost is not None:
            self._fail(self.link.lost)  # it shall come back and be copied anew
            return
        conversation, channel = self._conversation, self._channel
        sent = 0
        limit = min(_FRAME, conversation.room())
        while not self._ended and conversation.credit(channel) > 0:
            parts = self.link.take(limit)
            if not parts:
                return
            conversation.send(channel, *parts)
            sent += sum(map(len, parts))
            if sent >= _TURN:
                self._wake()
                return

    def credited(self) -> None:
        """Send more: the backup takes it."""
        self._wake()

    # -- the end

    def _fail(self, reason: str) -> None:
        if not self._ended:
            self._conversation.refuse(self._channel, reason, "failed")
            self.closed("failed", reason)

    def end(self, code: str, text: str) -> None:
        """Close the channel from here, and tell the backup why."""
        self._conversation.refuse(self._channel, text, code)
        self.closed(code, text)

    def closed(self, code: str, text: str) -> None:
        """Settle the loss of the backup, once."""
        if self._ended:
            return
        self._ended = True
        reason = f"{code}: {text}" if text else code
        self._loop.run_in_executor(None, self._mirror.lose, self.link, reason)
        self._on_end(self, reason)
