"""A member while it waits: what its own data is, whom it follows, and how long it may take itself for ready."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.cluster.votes import HANDED_OVER
from pollux.ha.active_passive.policy import StandbySnapshot
from pollux.ha.active_passive.promotion import Number, Record
from pollux.ha.active_passive.questions import ReadyAsker
from pollux.ha.active_passive.ready import ReadyLease
from pollux.ha.copies import local
from pollux.ha.lease import boot_clock
from pollux.store.journal_facts import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from pollux.cluster.link import Conversation
    from pollux.config.acceptors import Endpoint
    from pollux.ha.active_passive.settings import Settings
    from pollux.ha.active_passive.statuses import Status
    from pollux.ha.copies.local import LocalState

logger = logging.getLogger("pollux.ha")

#: How often a backup asks whether it still counts, at most, seconds; and so many times in a lease at least.
ASK, ASKS = 1.0, 8


def record_of(state: LocalState) -> Record:
    """Return what a member says of data that it has."""
    number = Number(state.epoch, state.sequence)
    return Record(state.node_id, number, state.complete, state.primary, frozenset(state.heirs))


class Standby:
    """Hold what a waiting member knows. ``record`` None: it has no data. Everything is called in the loop."""

    def __init__(
        self, roots: Mapping[str, Path], settings: Settings, do: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        """``do`` makes a task of the member's."""
        self.ready = ReadyLease(settings.lease)
        self.record: Record | None = None
        #: Who has said while this member's promotion was judged that it serves, and since which epoch.
        self.told: dict[str, int] = {}
        self._roots = roots
        self._settings = settings
        self._do = do
        #: The address of who is followed; how it is asked whether this member counts, and when it was.
        self._primary: str | None = None
        self._epoch = 0
        self._asker: ReadyAsker | None = None
        self._asked_at = 0.0
        self._reading = asyncio.Lock()
        #: How often a copy has begun.
        self._copies = 0

    async def read(self) -> None:
        """Read from the disk what this member's data is. Raises StoreError.

        One at a time, and anew where a primary has taken this member meanwhile: what was read before the copy was
        complete, or began, would else be what is known after it.
        """
        async with self._reading:
            copies = -1
            while copies != self._copies:
                copies = self._copies
                record = await asyncio.to_thread(self._read)
            self.record = record

    def _read(self) -> Record | None:
        state = local.read(self._roots["journal"])
        if state is not None:
            return record_of(state)
        facts = read_facts(self._roots["journal"], self._roots["bindings"])
        if facts.node_id is None:
            return None
        # Somebody served with it before there was a cluster, alone.
        return Record(facts.node_id.hex(), Number(facts.epoch, 0), True, self._settings.me, frozenset())

    def ask(self, now: float) -> None:
        """Ask the primary whether this member counts, if that is due."""
        if self._asker is not None and now - self._asked_at >= min(ASK, self._settings.lease / ASKS):
            self._asked_at = now
            self._asker.ask(now)

    async def synced(self) -> None:
        """Read what the complete copy is, and ask at once whether it counts. Raises StoreError."""
        self._asked_at = 0.0
        await self.read()

    def snapshot(self, status: Status, now: float) -> StandbySnapshot:
        """Return what is decided by."""
        complete = self.record is not None and self.record.complete
        return StandbySnapshot(status, self._primary is not None, complete, self.ready.held(now))

    # -- the words of whoever looks for a primary

    def accepted(self, content: dict[str, Any]) -> None:
        """A primary takes this member: its own data is no whole copy from here on."""
        self._primary, self._epoch = str(content.get("address", "")), int(content.get("epoch", 0))
        self._copies += 1
        self.ready.drop()
        if self.record is not None:
            self.record = self.record._replace(complete=False)

    def is_behind(self, epoch: int) -> bool:
        """Whether nobody is followed who serves since this epoch or a later one."""
        return self._primary is None or self._epoch < epoch

    def told_where(self) -> Endpoint | None:
        """Return where the newest of those is that were told of, None where nobody older is followed."""
        newest = max(self.told, key=self.told.__getitem__, default="")
        return self._settings.others[newest] if newest and self.is_behind(self.told[newest]) else None

    def linked(self, conversation: Conversation) -> None:
        """Ask that primary on this connection from now on."""
        asker: ReadyAsker

        def answered(asked_at: float) -> None:
            if self._asker is asker:
                self.ready.answered(asked_at)

        self._asker = asker = ReadyAsker(conversation, self._settings.me, answered)
        self._asked_at = 0.0

    def lost(self, code: str) -> None:
        """Follow nobody any more; as long as this member is certainly an heir, see whether the primary is gone."""
        primary, self._primary, self._asker = self._primary, None, None
        if code == HANDED_OVER:
            self.ready.handed_over(boot_clock(), self._settings.grace)
        elif (endpoint := self._settings.others.get(primary or "")) is not None:
            self._do(self._see_its_end(endpoint))

    async def _see_its_end(self, endpoint: Endpoint) -> None:
        """Ask its machine, which says so when nothing listens there."""
        while self._primary is None and self.ready.held(boot_clock()):
            try:
                async with asyncio.timeout(self._settings.connect_timeout):
                    _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
                writer.close()
            except ConnectionRefusedError:
                self.ready.primary_ended(boot_clock(), self._settings.grace)
                return
            except (OSError, TimeoutError):
                logger.debug("whether the primary is gone cannot be told")
            await asyncio.sleep(self._settings.retry)
