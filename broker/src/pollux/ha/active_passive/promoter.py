"""A promotion carried out: all others are asked, it is judged, and the right to serve is on this disk."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.ha.active_passive.promotion import Candidate, Why, judge
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.lease import Right, boot_clock
from pollux.ha.node_state import Activation as Entry
from pollux.store.journal_facts import newest_epoch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping
    from pathlib import Path

    from pollux.ha.active_passive.primary import Primary
    from pollux.ha.active_passive.promotion import Answer, Proof, Verdict
    from pollux.ha.active_passive.standby import Standby
    from pollux.ha.active_passive.statuses import Status
    from pollux.ha.copies.follow_loop import FollowLoop


class Promoter:
    """Promotes the member ``me``, whose name in the history of its data is ``name``."""

    def __init__(
        self,
        roots: Mapping[str, Path],
        me: str,
        name: str,
        standby: Standby,
        primary: Primary,
        *,
        min_in_sync: int,
        ask_others: Callable[[Container[str]], Awaitable[list[Answer]]],
    ) -> None:
        """``ask_others(off)``: what all others say; those whose machines are off are not waited for."""
        #: Whether somebody else served with this data before.
        self.received = False
        self._min_in_sync = min_in_sync
        self._roots = roots
        self._me = me
        self._name = name
        self._standby = standby
        self._primary = primary
        self._ask_others = ask_others

    async def judged(self, status: Status, proof: Proof, follow: FollowLoop) -> Verdict:
        """Return whether this member may serve; if it may, nobody is followed any more. Raises StoreError.

        Who says meanwhile that it serves may not have when it was asked: it counts, and is followed after a refusal.
        """
        held = taken = False
        self._standby.told.clear()
        try:
            answers = await self._ask_others(proof.fenced)
            # A primary raises the number of its heirs' data on their disks, without a word to the rest of them.
            await self._standby.read()
            if (verdict := judge(self._candidate(status), answers, proof)).why is not Why.PROMOTED:
                return verdict  # and it goes on following whom it follows
            # From here on nobody writes to our data, so what is judged is what is served.
            held = True
            await follow.hold()
            await self._standby.read()
            verdict = judge(self._candidate(status), answers, proof)
            taken = verdict.why is Why.PROMOTED
            return verdict
        finally:
            if held and not taken:
                follow.again()
            if not taken and (endpoint := self._standby.told_where()) is not None:
                follow.turn(endpoint)

    def _candidate(self, status: Status) -> Candidate:
        standby = self._standby
        ready = standby.ready.held(boot_clock())
        return Candidate(self._me, status, standby.record, ready, self._min_in_sync, standby.told)

    async def take(self, verdict: Verdict) -> Right:
        """Have the new epoch, and the heirs that are waited for, on this disk. Raises OSError, StoreError."""
        began = boot_clock()
        state = await asyncio.to_thread(local.read, self._roots["journal"])
        if state is None:
            record = self._standby.record
            node_id = record.node_id if record is not None else uuid.uuid4().hex
            state = LocalState(node_id, 0, 0, complete=True, replica=False)
        self.received = state.primary not in ("", self._me)
        journal, bindings = self._roots["journal"], self._roots["bindings"]
        epoch = max(verdict.epoch, await asyncio.to_thread(newest_epoch, journal, bindings) + 1)
        previous = state.history[-1].holder if state.history else ""
        entry = Entry(epoch, previous, self._name, verdict.reason, time.time_ns() // 1_000_000)
        mine = replace(
            state,
            sequence=state.sequence + 1,
            epoch=epoch,
            replica=False,
            primary=self._me,
            heirs=tuple(sorted(verdict.expected)),
            history=state.activated(entry),
        )
        right = Right(bytes.fromhex(mine.node_id), epoch, verdict.reason, began)
        await asyncio.to_thread(self._primary.write, mine)
        return right
