"""The live's backups: who may become one, when its copy counts, and what has to happen when it is lost.

The sequence is raised before anything is confirmed without a backup that was in sync; all of that under
:attr:`Holder.marking`, so that no copy gets a mark of a sequence that is over. A policy's class adds whom it refuses.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import asdict

from pollux.cluster.votes import HANDED_OVER
from pollux.errors import PolluxError
from pollux.ha.copies.live_side import LiveSide
from pollux.ha.machine import Phase
from pollux.ha.members import Member as MemberView
from pollux.logs import event
from pollux.store.mirror import Mirror, MirroredFiles

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pollux.cluster.link import Conversation
    from pollux.ha.copies.local import LocalState
    from pollux.ha.lease import Lease, Right
    from pollux.store.mirror import Link
    from pollux.store.mirror.pieces import KnownPieces

logger = logging.getLogger("pollux.ha")

#: Roles that members of all versions call otherwise between each other.
TOLD = {"live": "primary", "symmetric": "peer"}
#: Pause between two attempts to raise the sequence while the coordination service does not answer, seconds.
RETRY = 0.1
#: How long what was written last may take to be confirmed when the right to serve is handed over, seconds.
DRAIN = 5.0


class UnprovenError(PolluxError):
    """That this member may serve cannot be proven now: ask again, as long as the lease holds."""


class LostRightError(UnprovenError):
    """This member must not serve any more."""


class Backup(NamedTuple):
    """A backup as its live sees it. ``stay``: it handed over on request, and does not ask for the right by itself."""

    member: MemberView
    stay: bool = False

    @property
    def ready(self) -> bool:
        """Whether it has everything, and is there."""
        return self.member.alive and self.member.phase == Phase.READY


class Times(Protocol):
    """Seconds: until a backup in sync is given up, and for the last step of a copy."""

    @property
    def patience(self) -> float:
        """How long a confirmation is waited for."""

    @property
    def synchronisation(self) -> float:
        """How long the last step of a copy may take."""


class Holder(Protocol):
    """Who has the right to serve, or may get it. What raises it is called in threads, and may block."""

    right: Right | None
    lease: Lease

    @property
    def state(self) -> LocalState | None:
        """Return what is known of our own data."""

    @property
    def marking(self) -> AbstractContextManager[object]:
        """Held while a copy is told that it is complete."""

    def mark(self) -> dict[str, object]:
        """Return what a copy that becomes complete now is told. Raises UnprovenError."""

    def raise_sequence(self, tell: Callable[[dict[str, object]], None]) -> int:
        """Tell a complete copy that is lost apart from ours before anything more is confirmed.

        Raises LostRightError, UnprovenError, PolluxError.
        """

    def fence(self, reason: str) -> None:
        """Confirm nothing any more: the right to serve is lost."""

    def outvoted(self, reason: str) -> None:
        """As :meth:`fence`, after a LostRightError."""


def mark_of(state: LocalState) -> dict[str, object]:
    """Return what a complete copy is told of itself."""
    return {
        "node_id": state.node_id,
        "epoch": state.epoch,
        "sequence": state.sequence,
        "history": [asdict(one) for one in state.history],
        "primary": state.primary,
        "heirs": list(state.heirs),
    }


class Replicas:
    """A live's backups. ``about``: what one is told of this member; ``on_following`` gets what it says of itself.

    ``on_synced`` and ``on_following`` are called in the loop.
    """

    def __init__(
        self,
        roots: Mapping[str, Path],
        settings: Times,
        member: Holder,
        *,
        about: Callable[[], dict[str, Any]],
        on_synced: Callable[[LiveSide], None],
        on_following: Callable[[dict[str, Any]], None],
        cut_off: Callable[[], str] = lambda: "",
        pieces: KnownPieces | None = None,
    ) -> None:
        """``cut_off``: why nothing may be confirmed without a backup now; empty: nothing. It may block.

        ``pieces``: what was hashed of our data while this member waited.
        """
        self.mirror = Mirror(roots, on_lost=self._lost, patience=settings.patience, known=pieces)
        self.files = MirroredFiles(self.mirror)
        self.loop: asyncio.AbstractEventLoop
        self._settings = settings
        self._member = member
        self._about = about
        self._on_synced = on_synced
        self._on_following = on_following
        self._cut_off = cut_off
        #: Who follows, as it described itself.
        self._serving: dict[LiveSide, Backup] = {}
        #: Who was refused, and why.
        self._refused: dict[str, str] = {}
        #: The store is closed: nothing will be confirmed any more, whoever is lost.
        self._left = False
        #: Nobody becomes a complete copy any more.
        self._settling = False

    # -- in the loop

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> LiveSide | None:
        """Take a member that wants to follow, or refuse it (the purpose ``replication`` of the core protocol)."""
        try:
            told = Backup(member_of(content, Phase.CATCHING_UP), bool(content.get("stay")))
            name, problem = told.member.name or "?", self._problem(content)
        except (TypeError, ValueError) as error:
            name, problem = "?", f"it asked in a way that cannot be read: {error}"
        right = self._member.right
        if right is None or problem:
            if self._refused.get(name) != problem:
                # It asks again and again: told once.
                self._refused[name] = problem
                event(logger, logging.WARNING, "backup refused", backup=name, reason=problem)
            text, code = self._codes
            conversation.refuse(channel, problem, code if text in problem else "refused")
            return None
        for other, known in list(self._serving.items()):
            if known.member.id == told.member.id:
                other.closed("replaced", "it has come back")
        prefix = bool(content.get("replica"))
        conversation.accept(channel, node_id=right.node_id.hex(), epoch=right.epoch, prefix=prefix, **self._about())
        serving = LiveSide(
            conversation,
            channel,
            name,
            self.mirror,
            loop=self.loop,
            admit=self._admit,
            timeout=self._settings.synchronisation,
            on_end=self._ended,
        )
        self._serving[serving] = told
        self._on_following(content)
        self._refused.pop(name, None)
        event(logger, logging.INFO, "backup follows", backup=name, host=content.get("host"), completes=prefix)
        return serving

    def _problem(self, content: dict[str, Any]) -> str:
        """Why a member cannot be this live's backup; empty when it can."""
        right, state = self._member.right, self._member.state
        if right is None or state is None or self._left or not self._member.lease.held():
            return "this broker does not serve now"
        if problem := self._policys_problem(content):
            return problem
        ours, node_id, sequence = right.node_id.hex(), str(content.get("node_id", "")), int(content.get("sequence", 0))
        if node_id not in ("", ours):
            return (
                f"it has data of the node {node_id[:32]}, here is {ours}: they are not copies of each other;"
                " move its data away if it shall become this broker's backup"
            )
        if sequence > state.sequence:
            return (
                f"its data has the sequence {sequence}, newer than ours, {state.sequence}: stop both brokers, see with"
                " 'pollux journal compare' what each has, and start the one with the newest data first"
            )
        return ""

    def _policys_problem(self, content: dict[str, Any]) -> str:
        """Why a member cannot be a backup by the policy's own rules; empty when it can."""
        del content
        return ""

    #: How a refusal begins that is told with a code of its own, and the code.
    _codes: tuple[str, str] = ("", "refused")

    def heirs(self) -> list[LiveSide]:
        """Return who can take over, in the order in which they do."""
        return [serving for serving, one in self.backups().items() if one.ready]

    def _ended(self, serving: LiveSide, reason: str) -> None:
        if self._serving.pop(serving, None) is not None and not self._left:
            event(logger, logging.WARNING, "backup does not follow any more", backup=serving.name, reason=reason)

    def view(self) -> list[dict[str, Any]]:
        """Return what management shows of each backup."""
        return [
            {
                "name": serving.name,
                "host": told.member.host,
                "state": serving.state,
                "copied": serving.copied,
                "to_copy": serving.to_copy,
                "queued": serving.link.queued,
                "since": int(serving.since * 1000),
            }
            for serving, told in self._serving.items()
        ]

    def backups(self) -> dict[LiveSide, Backup]:
        """Return who follows, as decisions see it. Any thread."""
        return {serving: self._now(serving, told) for serving, told in list(self._serving.items())}

    def _now(self, serving: LiveSide, told: Backup) -> Backup:
        phase = Phase.READY if serving.link.in_sync else Phase.CATCHING_UP
        return told._replace(member=told.member._replace(phase=phase.value, alive=serving.link.lost is None))

    def hand_over(self) -> str:
        """Tell the first heir, which has everything, that it may serve; its name, or empty. The store is closed."""
        for serving in self.heirs()[:1]:
            serving.end(HANDED_OVER, f"{serving.name} may serve")
            return serving.name
        return ""

    def close(self) -> None:
        """Close all channels: the right to serve is given back, or lost."""
        self._left = True
        for serving in list(self._serving):
            serving.closed("stopping", "the broker stops")

    # -- in threads

    def settle(self, *, one: bool) -> bool:
        """Wait until the backups have everything; whether one has. The store is closed.

        ``one``: only one may be left that is taken for complete, because the right is given to it without a vote; the
        others could get the votes meanwhile.
        """
        with self._member.marking:
            self._settling = True
        complete = bool(self.mirror.in_sync) and self.mirror.drain(DRAIN)
        if complete and one:
            found = self.heirs()
            for other in found[1:]:
                self.mirror.lose(other.link, f"{found[0].name} takes over")
        self._left = True
        return complete and bool(self.mirror.in_sync) and self.mirror.refused is None

    def _mark(self) -> bytes:
        return msgspec.msgpack.encode(self._member.mark())

    def _admit(self, link: Link) -> bool:
        with self._member.marking:
            if self._settling or self._left or not self._member.lease.held():
                return False
            admitted = self.mirror.admit(link, self._mark())
        if admitted:
            self.loop.call_soon_threadsafe(self._admitted, link)
        return admitted

    def _admitted(self, link: Link) -> None:
        for serving in self._serving:
            if serving.link is link:
                self._on_synced(serving)
                return

    def _lost(self, link: Link, reason: str) -> bool:
        """Raise the sequence, so that a lost backup's copy does not count as complete; False: confirm nothing."""
        if self._left:
            return True
        # Before any vote: who is cut off does not ask, and no answer of the network replaces a vote. With another copy
        # in sync nothing is confirmed alone, and the live can still stop in order.
        if not self.mirror.in_sync and (problem := self._cut_off()):
            event(logger, logging.ERROR, "not without a backup", backup=link.name, reason=problem)
            self._member.fence(f"backup {link.name} is lost, and this host is {problem}")
            return False
        with self._member.marking:
            while not self._left:
                try:
                    sequence = self._member.raise_sequence(self._tell)
                except LostRightError as error:
                    event(logger, logging.ERROR, "the vote was lost", backup=link.name, reason=error)
                    self._member.outvoted(str(error))
                    return False
                except UnprovenError as error:
                    if not self._member.lease.held():
                        event(logger, logging.ERROR, "the sequence could not be raised", reason=error)
                        return False
                    time.sleep(RETRY)
                except (PolluxError, OSError) as error:
                    event(logger, logging.ERROR, "the sequence could not be raised", reason=error)
                    return False
                else:
                    event(
                        logger, logging.WARNING, "sequence raised", sequence=sequence, backup=link.name, reason=reason
                    )
                    return True
        return True

    def _tell(self, mark: dict[str, object]) -> None:
        """Tell the other backups in sync the new number before it counts: one of them may have to serve next."""
        self.mirror.mark(msgspec.msgpack.encode(mark))


def role_heard(word: object) -> str:
    """Return the role that another member told; one that is not known as it is."""
    return next((role for role, told in TOLD.items() if told == word), str(word)[:32])


def member_of(content: dict[str, Any], phase: Phase) -> MemberView:
    """Return another member, by what it said of itself. Raises ValueError, TypeError."""
    return MemberView(
        str(content.get("id", ""))[:255],
        str(content.get("name", ""))[:255],
        str(content.get("host", ""))[:255],
        int(content.get("pid", 0)),
        role_heard(content.get("role", "")),
        phase.value,
        str(content.get("management", ""))[:255],
        alive=True,
    )
