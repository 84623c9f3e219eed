"""The activation of a member of an active-passive cluster: it copies while it waits, and serves when it is promoted.

What it is and what it does next is decided in :mod:`pollux.ha.active_passive.policy`, whether it may be promoted in
:mod:`pollux.ha.active_passive.promotion`; here that is carried out. Its copies are those of :mod:`pollux.ha.copies`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pollux.cluster import topology
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.discovery import Others
from pollux.cluster.duties import carry_out
from pollux.cluster.link import CoreHub
from pollux.cluster.votes import HANDED_OVER
from pollux.errors import InvalidRequestError, PolluxError
from pollux.ha import peers
from pollux.ha.activation import Activation, history_view
from pollux.ha.active_passive.asking import READY, STATUS, ReadyAnswerer, ReadyAsker, answer_content, ask
from pollux.ha.active_passive.policy import Action, Serving, Waiting, decide
from pollux.ha.active_passive.primary import Backups, Primary
from pollux.ha.active_passive.promotion import (
    Answer,
    Candidate,
    Number,
    Proof,
    Record,
    Verdict,
    Why,
    judge,
    judge_demotion,
)
from pollux.ha.active_passive.ready import ReadyLease
from pollux.ha.active_passive.settings import settings_of
from pollux.ha.active_passive.statuses import PRIMARY, Status, change
from pollux.ha.active_passive.waiting_port import WaitingPort
from pollux.ha.copies import local
from pollux.ha.copies.backup_side import PURPOSE
from pollux.ha.copies.follow_loop import FollowLoop
from pollux.ha.copies.local import LocalState
from pollux.ha.copies.replicas import member_of
from pollux.ha.lease import Right, boot_clock
from pollux.ha.machine import STANDBY, Phase
from pollux.ha.node_state import Activation as Entry
from pollux.ha.standby import OWN_PACE, StandbyPrefetch
from pollux.logs import event
from pollux.store.journal_facts import newest_epoch, read_facts
from pollux.store.spare import Spare
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from pollux.cluster.link import Conversation
    from pollux.ha.activation import Host
    from pollux.ha.lease import Lease
    from pollux.ha.members import Member
    from pollux.store.follower import Follower

logger = logging.getLogger("pollux.ha")

#: How often it is looked what comes next, seconds.
TICK = 0.05
#: How often a backup asks whether it still counts, at most, seconds; and so many times in a lease at least.
ASK, ASKS = 1.0, 8
#: After an operator asked for it, so that the answer leaves before the port closes, seconds.
ANSWER_LEAVES = 0.02
#: How long a promoted broker may take until it serves, before whoever asked is told that it does not yet, seconds.
SERVES = 60.0
#: A primary whose loop stood still for longer ends itself, seconds; with longer heartbeats for two of those.
STANDS_STILL = 5.0
_PHASES = {Status.JOINING: Phase.JOINING, Status.CATCHUP: Phase.CATCHING_UP, Status.READY: Phase.READY}


class ActivePassiveActivation(Activation):
    """The activation of one broker process."""

    policy = "active-passive"
    exclusive = True
    _authority = "this process"

    def __init__(self, host: Host) -> None:
        super().__init__(host, "peer")
        configuration = host.configuration
        self.settings = settings_of(configuration)
        self._configuration = configuration
        self.roots = {
            "journal": configuration.journal_directory,
            "bindings": configuration.bindings_directory,
            "large": configuration.large_messages_directory,
            "paging": configuration.paging_directory,
        }
        self.status = Status.STANDALONE
        self._primary = Primary(self.roots["journal"], max(self.settings.lease, STANDS_STILL), self.fence)
        self._backups = Backups(
            self.roots,
            self.settings,
            self._primary,
            about=self._about,
            on_synced=lambda _: None,
            on_following=self._heard,
            superseded=self._superseded,
        )
        self.files = self._backups.files
        self.spare = Spare(configuration.journal_directory, self.me.id, configuration.journal_file_size, self.files)
        self._ready = ReadyLease(self.settings.lease)
        #: Who is followed, as it described itself; how it is asked whether we count; where it can be reached.
        self._live: dict[str, Any] | None = None
        self._asker: ReadyAsker | None = None
        self._asked_at = 0.0
        self._record: Record | None = None
        self._prefetch: StandbyPrefetch | None = None
        self._follow: FollowLoop
        self._port: WaitingPort
        self._connector: ClusterConnector
        self._tasks: set[asyncio.Task[Any]] = set()
        self._promoting = asyncio.Lock()
        self._serves = asyncio.Event()
        self._giving_up = False

    def _about(self) -> dict[str, Any]:
        """Return what other members are told of this one."""
        return {
            "id": self.me.id,
            "name": self.me.name,
            "host": self.me.host,
            "pid": self.me.pid,
            "role": self.me.role,
            "address": self.settings.me,
            "replicate": self.settings.replicate,
            "management": self.management,
            "clients": self.topology.mine.as_content(),
        }

    # -- the start

    async def _join(self) -> None:
        configuration, given = self._configuration, self.settings
        key = await asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
        self.hub = CoreHub(key, name=self.me.name, node_id=b"", timeout=given.lease)
        self._backups.loop = self._loop
        self.hub.purposes[PURPOSE] = self._backups.open
        self.hub.purposes[STATUS] = self._tell_status
        self.hub.purposes[READY] = self._tell_ready
        self._connector = ClusterConnector(self.hub)
        self._record = await asyncio.to_thread(self._read)
        self._port = WaitingPort(self.hub, given.host, given.port)
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
            on_link=self._linked,
        )
        self._become(Status.JOINING, "started")
        self._follow.start()
        self._do(carry_out("the member's next step", self._tick))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read(self) -> Record | None:
        """Return what our disk says of our data. Blocking. Raises StoreError."""
        state = local.read(self.roots["journal"])
        if state is not None:
            number = Number(state.epoch, state.sequence)
            return Record(state.node_id, number, state.complete, state.primary, frozenset(state.heirs))
        facts = read_facts(self.roots["journal"], self.roots["bindings"])
        if facts.node_id is None:
            return None
        # Somebody served with it before there was a cluster, alone.
        return Record(facts.node_id.hex(), Number(facts.epoch, 0), True, self.settings.me, frozenset())

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
            if self.status in PRIMARY:
                await self._serve(now)
            elif not self._promoting.locked():
                self._wait(now)
            await asyncio.sleep(TICK)

    def _wait(self, now: float) -> None:
        if self._asker is not None and now - self._asked_at >= min(ASK, self.settings.lease / ASKS):
            self._asked_at = now
            self._asker.ask(now)
        complete = self._record is not None and self._record.complete
        decided = decide(Waiting(self.status, self._live is not None, complete, self._ready.held(now)), now)
        if decided.status is not None:
            self._become(decided.status, decided.reason)

    async def _serve(self, now: float) -> None:
        if self._primary.right is None or self.machine.phase not in (Phase.ACTIVATING, Phase.LIVE):
            return
        # Whoever stood still for longer than the lease finds that it is over: others may have been promoted since.
        if not self.lease.extend(now):
            self.fence("this process stood still for longer than its lease")
            return
        if not self._serves.is_set():
            return
        self._backups.look(now)
        decided = decide(Serving(self.status, self._backups.expected, self.settings.grace), now)
        if decided.action is Action.GIVE_UP and not self._giving_up:
            self._giving_up = True
            self._do(self._give_up(decided.members, decided.reason))
        elif decided.status is Status.ACTIVE and not self._giving_up:
            self._backups.mirror.withhold(False)
            self._become(Status.ACTIVE, decided.reason)

    async def _give_up(self, members: frozenset[str], reason: str) -> None:
        event(logger, logging.WARNING, "expected backups are waited for no longer", reason=reason)
        try:
            await asyncio.to_thread(self._backups.give_up, members)
        except (PolluxError, OSError) as error:
            self.fence(f"who is waited for no longer could not be written: {error}")
        finally:
            self._giving_up = False

    # -- others ask

    def _tell_status(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Any:
        del content
        record = self._record
        if (state := self._primary.state) is not None:
            number = Number(state.epoch, state.sequence)
            record = Record(state.node_id, number, True, state.primary, frozenset(state.heirs))
        conversation.accept(channel, **answer_content(self.status, record))
        return ReadyAnswerer(conversation, channel, "", lambda _: False)

    def _tell_ready(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Any:
        address = str(content.get("member", ""))
        if address not in self.settings.others:
            conversation.refuse(channel, "it is none of ha-brokers-url")
            return None
        conversation.accept(channel)
        # It asks for the first time on this connection: it has dropped what it was told before.
        self._backups.granted.ended(address)
        return ReadyAnswerer(conversation, channel, address, self._backups.counts)

    def _superseded(self) -> str:
        """Who else is primary, with data that is not older; empty: nobody that answers. In a thread; may block."""
        given, state = self.settings, self._primary.state
        asked = [ask(self._connector, name, to, given.connect_timeout) for name, to in given.others.items()]

        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*asked)

        try:
            found = asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(2 * given.connect_timeout)
        except (TimeoutError, RuntimeError):
            return ""
        for one in found:
            if one.status not in PRIMARY or one.record is None or state is None:
                continue
            if one.record.number.epoch > state.epoch:
                return f"{one.member} was promoted (epoch {one.record.number.epoch})"
        return ""

    # -- while it follows

    def _accepted(self, content: dict[str, Any]) -> None:
        self._live = content
        self._heard(content)
        self._ready.drop()
        if self._record is not None:
            self._record = self._record._replace(complete=False)
        self._cool()

    def _linked(self, conversation: Conversation) -> None:
        asker: ReadyAsker

        def answered(asked_at: float) -> None:
            if self._asker is asker:
                self._ready.answered(asked_at)

        self._asker = asker = ReadyAsker(conversation, self.settings.me, answered)
        self._asked_at = 0.0

    def _heard(self, content: dict[str, Any]) -> None:
        """Note where clients find a primary or a backup."""
        self.topology.heard(topology.parse(str(content.get("id", ""))[:255], content.get("clients")))

    def _synced(self, _state: LocalState) -> None:
        self._do(self._has_copy())
        if self.spare is not None:
            configuration = self._configuration
            self._prefetch = StandbyPrefetch(
                configuration.journal_directory,
                configuration.id_cache_size,
                self.spare,
                lambda: None,
                paging=configuration.paging_directory,
                pace=OWN_PACE,
            )
            self._prefetch.start()

    async def _has_copy(self) -> None:
        self._record = await asyncio.to_thread(self._read)

    def _live_lost(self, code: str, _reason: str) -> None:
        live, self._live, self._asker = self._live, None, None
        if code == HANDED_OVER:
            self._ready.primary_ended(boot_clock(), self.settings.grace)
        elif live is not None:
            self._do(self._see_its_end(str(live.get("address", ""))))

    async def _see_its_end(self, address: str) -> None:
        """Ask its machine whether the primary is gone, as long as we are certainly its heir."""
        endpoint = self.settings.others.get(address)
        while endpoint is not None and self._live is None and self._ready.held(boot_clock()):
            try:
                async with asyncio.timeout(self.settings.connect_timeout):
                    _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
                writer.close()
            except ConnectionRefusedError:
                self._ready.primary_ended(boot_clock(), self.settings.grace)
                return
            except (OSError, TimeoutError):
                logger.debug("whether the primary is gone cannot be told")
            await asyncio.sleep(self.settings.retry)

    def _cool(self) -> None:
        if self._prefetch is not None:
            self._prefetch.stop()
            self._prefetch = None

    # -- the resource manager's words

    async def promote(self, fenced: Iterable[str], discarded: Iterable[str]) -> dict[str, Any]:
        """Serve, if this member may. Returns once clients are served; whatever is refused changes nothing."""
        given = self.settings.others
        if unknown := {*fenced, *discarded} - given.keys():
            raise InvalidRequestError(
                f"{', '.join(sorted(unknown))}: none of the others in ha-brokers-url ({', '.join(given)})"
            )
        proof = Proof(frozenset(fenced), frozenset(discarded))
        async with self._promoting:
            verdict = await self._judged(proof)
            if verdict.why is Why.PROMOTED:
                event(logger, logging.INFO, "promoted", reason=verdict.reason, expected=sorted(verdict.expected))
                await self._take(verdict)
            elif not verdict.promoted:
                event(logger, logging.WARNING, "promotion refused", why=verdict.why.value, reason=verdict.reason)
        if verdict.promoted:
            with suppress(TimeoutError):
                async with asyncio.timeout(SERVES):
                    await self._serves.wait()
        return self._told(verdict)

    def _told(self, verdict: Verdict) -> dict[str, Any]:
        return {
            "promoted": verdict.promoted,
            "why": verdict.why.value,
            "reason": verdict.reason,
            "status": self.status.value,
            "expected": sorted(verdict.expected),
        }

    async def cluster(self) -> dict[str, Any]:
        """What this member and all others of the cluster are; who does not answer has no status."""
        given, own = self.settings, self._configuration.active_passive
        asked = [ask(self._connector, name, to, given.connect_timeout) for name, to in given.others.items()]
        members = [{"address": given.me, "status": self.status.value, "number": self._number}]
        for one in await asyncio.gather(*asked):
            status = one.status.value if one.status is not None else None
            number = str(one.record.number) if one.record is not None else None
            members.append({"address": one.member, "status": status, "number": number})
        return {
            "status": self.status.value,
            "id": self.me.id,
            "brokersUrl": own.ha_brokers_url if own is not None else "",
            "publicUrl": own.ha_public_url if own is not None else "",
            "replicate": given.replicate,
            "members": sorted(members, key=lambda one: str(one["address"])),
        }

    @property
    def _number(self) -> str | None:
        state, record = self._primary.state, self._record
        if state is not None:
            return str(Number(state.epoch, state.sequence))
        return str(record.number) if record is not None else None

    async def _judged(self, proof: Proof) -> Verdict:
        given = self.settings
        limit = given.connect_timeout
        asked = [ask(self._connector, name, endpoint, limit) for name, endpoint in given.others.items()]
        answers = await asyncio.gather(*asked)
        candidate = Candidate(given.me, self.status, self._record, self._ready.held(boot_clock()))
        if (verdict := judge(candidate, answers, proof)).why is not Why.PROMOTED:
            return verdict  # and it goes on following whom it follows
        # From here on nobody writes to our data, so what is judged is what is served.
        await self._follow.hold()
        taken = False
        try:
            self._record = await asyncio.to_thread(self._read)
            candidate = Candidate(given.me, self.status, self._record, self._ready.held(boot_clock()))
            verdict = judge(candidate, answers, proof)
            taken = verdict.why is Why.PROMOTED
            return verdict
        finally:
            if not taken:
                self._follow.again()

    async def _take(self, verdict: Verdict) -> None:
        began = boot_clock()
        state = await asyncio.to_thread(local.read, self.roots["journal"])
        if state is None:
            node_id = self._record.node_id if self._record is not None else uuid.uuid4().hex
            state = LocalState(node_id, 0, 0, complete=True, replica=False)
        journal, bindings = self.roots["journal"], self.roots["bindings"]
        epoch = max(verdict.epoch, await asyncio.to_thread(newest_epoch, journal, bindings) + 1)
        previous = state.history[-1].holder if state.history else ""
        entry = Entry(epoch, previous, self.me.name, verdict.reason, time.time_ns() // 1_000_000)
        mine = replace(
            state,
            sequence=state.sequence + 1,
            epoch=epoch,
            replica=False,
            primary=self.settings.me,
            heirs=tuple(sorted(verdict.expected)),
            history=state.activated(entry),
        )
        right = Right(bytes.fromhex(mine.node_id), epoch, verdict.reason, began)
        await asyncio.to_thread(self._primary.serves, right, mine, began)
        self._backups.expected = dict.fromkeys(verdict.expected, boot_clock())
        self._become(Status.RECOVERING, verdict.reason)
        self.machine.to(Phase.ACTIVATING, verdict.reason, epoch)
        await self._port.close()
        self.granted(right)

    async def demote(self) -> dict[str, Any]:
        """Give the right to serve up: this life ends, and the process begins anew as one that joins."""
        verdict = judge_demotion(self.status)
        if verdict.why is Why.PROMOTED and not self.restart:
            self.restart = self.fast_stop = True
            self._loop.call_later(ANSWER_LEAVES, self._host.request_stop, "demoted by the resource manager")
        return {**self._told(verdict), "promoted": False}

    # -- while it serves

    @property
    def lease(self) -> Lease:
        """Return the lease of a process that does not stand still."""
        return self._primary.lease

    def _waits_well(self, phase: Phase) -> bool:
        # Whoever starts it promotes it after that: it has done what it can as soon as it joins.
        return phase in STANDBY

    def serving(self) -> None:
        """Confirm nothing yet where backups are expected."""
        now = boot_clock()
        self._backups.expected = dict.fromkeys(self._backups.expected, now)
        self._backups.mirror.withhold(bool(self._backups.expected))
        self.machine.to(Phase.LIVE, self.machine.position.reason)
        self._serves.set()

    def follower(self) -> Follower | None:
        """Hand out what has read the copy along. Blocking."""
        return self._prefetch.take() if self._prefetch is not None else None

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
        """End at once while backups are expected: what is not confirmed yet never is."""
        super().stopping(reason)
        if self._backups.expected and self._primary.right is not None:
            self.lease.drop()
            self._backups.mirror.withhold(False)

    async def _leave(self, *, graceful: bool) -> None:
        self._cool()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not hasattr(self, "_follow"):
            return  # it never joined
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

    def store_view(self) -> peers.View:
        """Return what other members are told. No two members see the same store."""
        position, record = self.machine.position, self._record
        node = record.node_id if record is not None else ""
        return peers.View(self.me.id, self.me.name, position.phase.value, position.epoch, node, None)

    def view(self) -> dict[str, Any]:
        """Return what the status shows: where this broker is and why, and who has copies."""
        position = self.machine.position
        state, record = self._primary.state, self._record
        serves = self.status in PRIMARY
        node = state.node_id if state is not None else record.node_id if record is not None else None
        return {
            "state": position.phase.value,
            "role": self.me.role,
            "policy": self.policy,
            "node_id": node,
            "epoch": position.epoch,
            "holder": self.me.name if serves else (self._live or {}).get("name"),
            "store_state": None,
            "reason": position.reason,
            "since": position.since,
            "lease_left_ms": int(self.lease.left() * 1000),
            "warnings": self._warnings(),
            "replication": {
                "sequence": state.sequence if state is not None else record.number.sequence if record else None,
                "coordinated_sequence": None,
                "complete": serves or (record.complete if record is not None else None),
                "in_sync": bool(self._backups.in_sync) if serves else self.status is Status.READY,
                "standby_prefetch": None if serves else self._prefetch is not None and self._prefetch.has_read,
                "backups": self._backups.view(),
                "quorum": None,
            },
            "active_passive": {
                "status": self.status.value,
                "number": self._number,
                "heirs": sorted(state.heirs) if state is not None else sorted(record.heirs) if record else [],
                "expected": sorted(self._backups.expected) if serves else [],
                "ready_left_ms": None if serves else int(self._ready.left(boot_clock()) * 1000),
            },
        }

    def _warnings(self) -> list[str]:
        if self.status in PRIMARY and not self._backups.in_sync:
            return ["no backup is in sync: messages are on this broker's disk only"]
        return []

    def history(self) -> list[dict[str, Any]]:
        """Every activation of this data, oldest first."""
        try:
            state = self._primary.state or local.read(self.roots["journal"])
        except PolluxError:
            return []
        return history_view(state.history if state is not None else ())
