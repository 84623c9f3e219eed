"""The activation of a member of an active-passive cluster: it copies while it waits, and serves when it is promoted.

What it is and what it does next is decided in :mod:`pollux.ha.active_passive.policy`, whether it may be promoted in
:mod:`pollux.ha.active_passive.promotion`; here that is carried out. Its copies are those of :mod:`pollux.ha.copies`.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pollux.cluster.discovery import Others
from pollux.cluster.duties import carry_out
from pollux.cluster.link import CoreHub
from pollux.cluster.votes import HANDED_OVER
from pollux.config.tls import server_tls
from pollux.errors import InvalidRequestError, PolluxError
from pollux.ha.activation import history_view
from pollux.ha.active_passive import levels
from pollux.ha.active_passive.answers import Answers
from pollux.ha.active_passive.policy import UNCONFIRMED, UNWANTED, Action, PrimarySnapshot, PromotedSnapshot, decide
from pollux.ha.active_passive.primary import Backups, Primary
from pollux.ha.active_passive.promoter import Promoter
from pollux.ha.active_passive.promotion import Proof, Why, judge_demotion, promoted_after, promoted_since
from pollux.ha.active_passive.questions import OtherMembers, answer_content
from pollux.ha.active_passive.settings import settings_of
from pollux.ha.active_passive.standby import Standby, record_of
from pollux.ha.active_passive.statuses import PRIMARY, Status, change
from pollux.ha.active_passive.views import cluster_view, few_copies, kept_view, own_view, verdict_view
from pollux.ha.active_passive.virtual_address import VirtualAddress
from pollux.ha.active_passive.waiting_port import WaitingPort
from pollux.ha.copies import local
from pollux.ha.copies.activation import Copy, CopyingActivation
from pollux.ha.copies.backup_side import PURPOSE
from pollux.ha.copies.follow_loop import FollowLoop
from pollux.ha.copies.replicas import member_of
from pollux.ha.lease import boot_clock
from pollux.ha.machine import STANDBY, Phase
from pollux.logs import event
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from pollux.ha.activation import Host, OpenedQueues
    from pollux.ha.active_passive.promotion import Record, Verdict
    from pollux.ha.copies.local import LocalState
    from pollux.ha.lease import Lease, Right
    from pollux.ha.members import Member

logger = logging.getLogger("pollux.ha")

#: How often it is looked what comes next, seconds.
TICK = 0.05
#: After an operator asked for it, so that the answer leaves before the port closes, seconds.
ANSWER_LEAVES = 0.02
#: How long a promoted broker may take until it serves, before whoever asked is told that it does not yet, seconds.
SERVES = 60.0
#: A primary whose loop stood still for longer ends itself, seconds; with longer heartbeats for two of those.
STANDS_STILL = 5.0
#: How long the resource manager may take to say again that it wants a broker that had to wait, at least, seconds.
PATIENCE = 10.0
_PHASES = {Status.JOINING: Phase.JOINING, Status.CATCHUP: Phase.CATCHING_UP, Status.READY: Phase.READY}


class ActivePassiveActivation(CopyingActivation):
    """The activation of one broker process."""

    policy = "active-passive"
    _authority = "this process"
    #: It stops while too few have copies of what clients wait for.
    _unconfirmed = False

    def __init__(self, host: Host) -> None:
        super().__init__(host, "peer")
        self.settings = settings_of(host.configuration)
        self.status = Status.STANDALONE
        self._standby = Standby(self.roots, self.settings, self._do)
        lease, grant = max(self.settings.lease, STANDS_STILL), self.settings.grant
        self._address = VirtualAddress(self.settings.virtual_address)
        self._primary = Primary(self.roots["journal"], lease, self.fence, grant)
        self._replicas = self._backups = Backups(
            self.roots,
            self.settings,
            self._primary,
            about=self._about,
            on_synced=lambda _: None,
            on_following=self._heard,
            superseded=self._superseded,
            pieces=self.pieces,
        )
        self._write_through(self._backups)
        self._promoter = Promoter(
            self.roots,
            self.settings.me,
            self.me.name,
            self._standby,
            self._primary,
            min_in_sync=self.settings.min_in_sync,
            ask_others=lambda off: self._others.ask(off=off),
        )
        self._follow: FollowLoop
        self._port: WaitingPort
        self._others: OtherMembers
        self._tasks: set[asyncio.Task[Any]] = set()
        self._joined = False
        self._promoting = asyncio.Lock()
        self._serves = asyncio.Event()
        self._kept: levels.Kept | None = None
        self._giving_up = False
        #: The right of a member that is promoted and does not serve yet, and when it may.
        self._opening: tuple[Right, float] | None = None

    def _about(self) -> dict[str, Any]:
        given, record = self.settings, self._record
        return {
            **super()._about(),
            "role": self.me.role,
            "address": given.me,
            "replicate": given.replicate,
            "terms": given.terms,
            "data_epoch": record.number.epoch if record is not None else 0,
        }

    # -- the start

    async def _join(self) -> None:
        configuration, given = self._configuration, self.settings
        key = await asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
        self.hub = CoreHub(key, name=self.me.name, node_id=b"", timeout=given.lease)
        self._backups.loop = self._loop
        self.hub.purposes[PURPOSE] = self._backups.open
        self.hub.purposes |= Answers(self, self._backups, self.settings.others, self._do).purposes
        self._others = OtherMembers(self.hub, given)
        await self._standby.read()
        tls = await asyncio.to_thread(server_tls, given.tls) if given.tls is not None else None
        context = tls.context if tls is not None else None
        self._port = WaitingPort(self.hub, given, context, self._host.security, primary=self._serves_clients)
        await self._port.open()
        self._follow = FollowLoop(
            self.hub,
            self.roots,
            given,
            Others(tuple(given.others.values())),
            about=self._about,
            on_accepted=self._accepted,
            on_synced=self._synced,
            on_lost=self._live_lost,
            on_refused=lambda *_: None,
            on_link=self._standby.linked,
            pieces=self.pieces,
        )
        self._joined = True
        self._become(Status.JOINING, "started")
        self._follow.start()
        self._do(carry_out("the member's next step", self._tick))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _become(self, status: Status, reason: str, epoch: int | None = None) -> None:
        """Take a status. Raises IllegalChangeError."""
        if status is self.status:
            return
        change(self.status, status)
        fields = {"from": self.status.value, "to": status.value, "reason": reason}
        self.status = status
        event(logger, logging.INFO, "status", **fields)
        if (phase := _PHASES.get(status)) is not None:
            self.machine.to(phase, reason, epoch)

    # -- the next step

    async def _tick(self) -> None:
        while self.machine.phase in (*STANDBY, Phase.STOPPED, Phase.ACTIVATING, Phase.LIVE):
            now = boot_clock()
            self._address.look(now, serves=self.status in PRIMARY)
            if self._opening is not None:
                await self._open(*self._opening, now)
            elif self.status in PRIMARY:
                self._serve(now)
            elif self._waits():
                self._wait(now)
            await asyncio.sleep(TICK)

    def _waits(self) -> bool:
        """Whether this member takes part as one that waits, and nobody is promoting it."""
        return self._opening is None and self.status not in PRIMARY and not self._promoting.locked()

    def _wait(self, now: float) -> None:
        self._standby.ask(now)
        decided = decide(self._standby.snapshot(self.status, now), now)
        if decided.status is not None:
            self._become(decided.status, decided.reason)

    async def _open(self, right: Right, at: float, now: float) -> None:
        """Serve, once nobody else may any more, as long as the resource manager still wants it."""
        grant = self._primary.grant
        decided = decide(PromotedSnapshot(at, max(grant.seconds, PATIENCE), grant.word), now)
        if decided.action is Action.FENCE:
            self._opening = None
            self._begin_anew(decided.reason)
        elif decided.action is Action.OPEN:
            self._opening, right = None, right._replace(began=now)
            self._primary.serves(right)
            self.machine.to(Phase.ACTIVATING, right.reason, right.epoch)
            await self._port.close()
            self.granted(right)

    def _serve(self, now: float) -> None:
        if self._primary.right is None or self.machine.phase not in (Phase.ACTIVATING, Phase.LIVE):
            return
        primary = PrimarySnapshot(self.status, self._backups.expected, self.settings.grace, self._primary.grant.word)
        decided = decide(primary, now)
        if decided.action is Action.FENCE:
            self.fence(decided.reason)
            return
        # Whoever stood still for longer than the lease finds that it is over: others may have been promoted since.
        if not self._primary.extend(now):
            self.expired()
            return
        if not self._serves.is_set():
            return
        self._backups.look(now)
        decided = decide(primary, now)
        if decided.action is Action.GIVE_UP and not self._giving_up:
            self._giving_up = True
            self._do(self._give_up(decided.members, decided.reason))
        elif decided.status is Status.ACTIVE and not self._giving_up:
            self._backups.mirror.withhold(False)
            self._become(Status.ACTIVE, decided.reason)

    def _why_expired(self) -> str:
        if self._unconfirmed:
            return UNCONFIRMED
        return UNWANTED if self._primary.grant.left(boot_clock()) == 0 else super()._why_expired()

    async def _give_up(self, members: frozenset[str], reason: str) -> None:
        event(logger, logging.WARNING, "expected backups are waited for no longer", reason=reason)
        try:
            await asyncio.to_thread(self._backups.give_up, members)
        except (PolluxError, OSError) as error:
            self.fence(f"who is waited for no longer could not be written: {error}")
        finally:
            self._giving_up = False

    # -- others ask

    @property
    def _record(self) -> Record | None:
        """Return what this member says of its data; of a primary it is what it has written last."""
        state = self._primary.state
        return record_of(state)._replace(complete=True) if state is not None else self._standby.record

    async def own_status(self) -> dict[str, Any]:
        """Return what this member says of itself, and of its data as it is on the disk now. Raises StoreError."""
        if self._primary.state is None:
            await self._standby.read()
        return answer_content(self.status, self._record)

    def _superseded(self) -> str:
        """Who else is primary, with data that is not older; empty: nobody that answers. In a thread; may block."""
        state, limit = self._primary.state, self.settings.last_look
        try:
            found = asyncio.run_coroutine_threadsafe(self._others.ask(limit), self._loop).result(2 * limit)
        except (TimeoutError, RuntimeError, CancelledError):  # or the loop ends: then the lease is over
            return ""
        return promoted_since(found, state.epoch) if state is not None else ""

    # -- while it follows

    def _serves_clients(self) -> str:
        """Where clients are served, as far as this member knows: the address that they are told, or the primary's."""
        primary = str((self._live or {}).get("address", ""))[:255]
        return (self.settings.public_url or primary) if primary else ""

    def heard_of(self, member: str, epoch: int) -> None:
        """Follow it at once: whoever is followed or tried now may be a machine without power, which says nothing."""
        if self._joined and self._waits() and self._standby.is_behind(epoch):
            self._follow.turn(self.settings.others[member])
        elif self._promoting.locked() and self.status not in PRIMARY:
            self._standby.told[member] = epoch

    def _accepted(self, content: dict[str, Any]) -> None:
        self._live = content
        self._heard(content)
        self._standby.accepted(content)
        if self.machine.phase in STANDBY and self._waits():
            # At once: the primary is active when we have everything again, and whoever looks then must not see us ready
            # by the word of the one before.
            self._wait(boot_clock())
        self._stop_prefetch()

    def _synced(self, _state: LocalState) -> None:
        self._do(self._standby.synced())
        self._start_prefetch(lambda: None)

    def _live_lost(self, code: str, _reason: str) -> None:
        self._live = None
        self._standby.lost(code)

    # -- the resource manager's words

    async def promote(self, fenced: Iterable[str], discarded: Iterable[str]) -> dict[str, Any]:
        """Serve, if this member may. Returns once clients are served; whatever is refused changes nothing."""
        given = self.settings.others
        if unknown := {*fenced, *discarded} - given.keys():
            raise InvalidRequestError(
                f"{', '.join(sorted(unknown))}: none of the others in ha-brokers-url ({', '.join(given)})"
            )
        proof = Proof(frozenset(fenced), frozenset(discarded))
        asked_at = boot_clock()
        async with self._promoting:
            verdict = await self._promoter.judged(self.status, proof, self._follow)
            if verdict.why is Why.PROMOTED:
                event(logger, logging.INFO, "promoted", reason=verdict.reason, expected=sorted(verdict.expected))
                await self._take(verdict, asked_at)
            elif not verdict.promoted:
                event(logger, logging.WARNING, "promotion refused", why=verdict.why.value, reason=verdict.reason)
            elif self._primary.grant.given(asked_at, boot_clock()):
                event(logger, logging.DEBUG, "promoted before", reason=verdict.reason)
        # While somebody else may serve it is not waited for: the resource manager has to say again that it wants this.
        if verdict.promoted and self._opening is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SERVES):
                    await self._serves.wait()
        return {**verdict_view(verdict, self.status, self._record), **kept_view(self._kept)}

    async def _take(self, verdict: Verdict, asked_at: float) -> None:
        mine = self._standby.record
        try:
            right = await self._promoter.take(verdict)
        except (OSError, PolluxError) as error:
            self._follow.again()
            raise PolluxError(f"what a primary has to write cannot be written: {error}") from error
        self._backups.expected = dict.fromkeys(verdict.expected, boot_clock())
        self._become(Status.RECOVERING, verdict.reason)
        grant, at = self._primary.grant, boot_clock()
        grant.given(asked_at, at)
        # Who was promoted while this was written may have been chosen after this one, or before it.
        others = verdict.unfenced | promoted_after(mine, self._standby.told).keys()
        if others and grant.seconds:
            at += grant.outlasts
            fields = {"members": sorted(others), "seconds": grant.outlasts}
            event(logger, logging.WARNING, "another one may serve by an older grant", **fields)
        self._opening = (right, at)
        await self._open(right, at, boot_clock())

    def grant(self, asked_at: float) -> dict[str, Any]:
        """Take the resource manager's word that this broker serves, asked for at ``asked_at`` by :meth:`view`'s clock.

        Raises InvalidRequestError where it serves not, or the word is worth nothing.
        """
        if self.status not in PRIMARY:
            raise InvalidRequestError(f"this broker is {self.status}: promote it")
        return {"status": self.status.value, "grant_left_ms": self._primary.grant.renewed(asked_at, boot_clock())}

    async def cluster(self) -> dict[str, Any]:
        """Return what this member and all others of the cluster are; who does not answer has no status."""
        answers = await self._others.ask()
        await self.own_status()
        return cluster_view(self.settings, self.me.id, self.status, self._record, answers)

    async def demote(self) -> dict[str, Any]:
        """Give the right to serve up: this life ends, and the process begins anew as one that joins."""
        verdict = judge_demotion(self.status)
        if verdict.why is Why.PROMOTED:
            self._begin_anew("demoted by the resource manager")
        return {**verdict_view(verdict, self.status, self._record), "promoted": False}

    def _begin_anew(self, reason: str) -> None:
        """End this life; the next one joins."""
        if not self.restart:
            self.restart = self.fast_stop = True
            self._loop.call_later(ANSWER_LEAVES, self._host.request_stop, reason)

    # -- while it serves

    @property
    def lease(self) -> Lease:
        """Return the lease of a process that does not stand still."""
        return self._primary.lease

    def _waits_well(self, phase: Phase) -> bool:
        # Whoever starts it promotes it after that: it has done what it can as soon as it joins.
        return phase in STANDBY

    def opened(self, queues: OpenedQueues) -> None:
        """Take out what is not replicated, where somebody else served with this data; note what is served with."""
        self._kept = levels.apply(queues, self.settings.replicate, received=self._promoter.received)

    def serving(self) -> None:
        """Confirm nothing yet where backups are expected."""
        now = boot_clock()
        self._backups.expected = dict.fromkeys(self._backups.expected, now)
        self._backups.mirror.withhold(bool(self._backups.expected))
        self._backups.mirror.require(self.settings.min_in_sync)
        self.machine.to(Phase.LIVE, self.machine.position.reason)
        self._serves.set()
        if (right := self._primary.right) is not None:
            self._do(self._others.tell(right.epoch))

    async def others(self) -> list[Member]:
        """Return the other members that are connected."""
        if self._live is not None:
            return [member_of(self._live, Phase.LIVE)]
        return [one.member for one in self._backups.backups().values() if one.member.alive]

    async def switchover(self) -> dict[str, Any]:
        """Refuse: the resource manager decides. Raises InvalidRequestError."""
        raise InvalidRequestError(
            "a resource manager decides who serves: have it move the primary, or 'pollux ha demote' here and"
            " 'pollux ha promote' there"
        )

    async def failback(self) -> dict[str, Any]:
        """Refuse: nobody is preferred. Raises InvalidRequestError."""
        return await self.switchover()

    # -- the end

    def stopping(self, reason: str) -> None:
        """End at once while backups are expected, or too few are there: what is not confirmed yet never is."""
        super().stopping(reason)
        too_few = len(self._backups.in_sync) < self.settings.min_in_sync
        if (self._backups.expected or too_few) and self._primary.right is not None:
            self._unconfirmed = True
            self.lease.drop()
        self._backups.mirror.withhold(False)
        self._backups.mirror.require(0)

    async def _leave(self, *, graceful: bool) -> None:
        self._stop_prefetch()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._joined:
            return
        await self._follow.stop()
        await self._port.close()
        if graceful and self._primary.right is not None and self.machine.phase is Phase.STOPPING:
            self._backups.mirror.withhold(False)
            if await asyncio.to_thread(self._backups.settle, one=False):
                await self._hand_over()
        self._backups.close()
        self.lease.drop()
        if graceful and not self.restart and self.spare is not None:
            await asyncio.to_thread(self.spare.remove)

    async def _hand_over(self) -> None:
        """Tell those who have everything that nobody serves any more; our data is the beginning of theirs."""
        if self._primary.state is not None:
            try:
                await asyncio.to_thread(self._primary.write, replace(self._primary.state, replica=True))
            except OSError as error:
                event(logger, logging.ERROR, "that a backup has everything could not be noted", reason=error)
        for serving, backup in self._backups.backups().items():
            if backup.ready:
                serving.end(HANDED_OVER, "this broker serves no more, and all is copied")

    # -- views

    def _copy(self) -> Copy:
        record, serves = self._record, self.status in PRIMARY
        return Copy(
            record.node_id if record is not None else None,
            record.number.sequence if record is not None else None,
            record.complete if record is not None else None,
            serves,
            bool(self._backups.in_sync) if serves else self.status is Status.READY,
        )

    def view(self) -> dict[str, Any]:
        """Return what the status shows: where this broker is and why, and who has copies."""
        now = boot_clock()
        left = self._standby.ready.left(now) if self.status not in PRIMARY else None
        own = own_view(self.status, self._record, self._backups.expected, left, self._primary.grant.left_ms(now), now)
        return {**super().view(), "active_passive": {**own, "virtual_address": self._address.view()}}

    @property
    def address_astray(self) -> bool | None:
        """Whether the virtual address is elsewhere than the primary."""
        return self._address.astray

    def _warnings(self) -> list[str]:
        copies = few_copies(self.settings.min_in_sync, len(self._backups.in_sync)) if self.status in PRIMARY else ""
        return [problem for problem in (self._address.problem, copies) if problem]

    def history(self) -> list[dict[str, Any]]:
        """Every activation of this data, oldest first."""
        try:
            state = self._primary.state or local.read(self.roots["journal"])
        except PolluxError:
            return []
        return history_view(state.history if state is not None else ())
