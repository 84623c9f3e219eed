"""A member's part in votes, where there is no coordination service: whom it asks, and what it may ask for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.cluster.electorate import FIRST_LOOK
from pollux.cluster.votes import Candidacy
from pollux.ha.replication.quorum import QuorumCoordinator
from pollux.ha.replication.settings import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.electorate import Electorate
    from pollux.ha.copies.local import LocalState
    from pollux.ha.replication.settings import Settings


class Voting:
    """The other members that vote, and this one's candidacy among them."""

    def __init__(
        self, settings: Settings, electorate: Electorate, mine: LocalState | None, sequence: Callable[[], int]
    ) -> None:
        """``mine``: what this member's data is as it starts; ``sequence``: what it is numbered at any time."""
        votes, role = settings.votes, settings.role
        own = role is not Role.BACKUP if mine is None else mine.complete and not mine.replica
        at_once = own and role is not Role.BACKUP and not votes.check_for_live
        outvoted = mine is not None and mine.outvoted
        self.candidacy = Candidacy(own=own, retries=votes.retries, wait=votes.wait, at_once=at_once, outvoted=outvoted)
        self.electorate = electorate
        self._settings = settings
        self._sequence = sequence
        self._quorum: QuorumCoordinator | None = None
        self._most_others = 0

    async def meet(self, patience: float) -> None:
        """Connect to the others; returns once they were looked for, after so many seconds more at the latest."""
        self.electorate.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK + patience):
                await self.electorate.looked.wait()

    def coordinator(self, identity: str) -> QuorumCoordinator:
        """Return what stands for the coordination service of the pair ``identity``."""
        self._quorum = QuorumCoordinator(
            identity,
            self.electorate,
            self.candidacy,
            self._settings.votes,
            local=self._sequence,
            session=self._settings.session,
            least=self.least,
        )
        return self._quorum

    def least(self) -> int:
        """Return how many votes are needed even by who sees nobody else.

        A pair alone has nobody to ask. Where there ever were more members one of them may be another backup.
        """
        self._most_others = max(self._most_others, self.electorate.others)
        return 1 if self._most_others > 1 else 0

    def synced(self) -> None:
        """Note that all that the live has is here."""
        self.least()  # who is there now may be gone when it is needed
        self.candidacy.synced()

    def serves(self) -> asyncio.Task[None] | None:
        """Tell everybody who votes that this member serves, in the task that is returned."""
        if self._quorum is None:
            return None
        self._quorum.serves()
        return asyncio.get_running_loop().create_task(self.electorate.announce())

    def removed(self, node: bytes) -> None:
        """Count a pair that is gone for good no more where votes are needed."""
        self.electorate.register.removed.add(node.hex())
