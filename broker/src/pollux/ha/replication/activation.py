"""The activation of a member of a replicated pair: every member has its own store and copies the live's.

While it waits it follows (:mod:`pollux.ha.copies.follow_loop`); the member's thread
(:mod:`pollux.ha.replication.member`) asks the coordination service; when it may serve, its store is opened with files
that tell the backups of every change (:mod:`pollux.ha.replication.replicas`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pollux.cluster.connector import check_connectors
from pollux.cluster.discovery import Announcer, Others
from pollux.cluster.electorate import FIRST_LOOK, Electorate
from pollux.cluster.link import CoreHub
from pollux.cluster.meeting import Meeting
from pollux.cluster.votes import OwnVote
from pollux.errors import PolluxError, StoreRefusedError
from pollux.ha.activation import history_view
from pollux.ha.copies import local
from pollux.ha.copies.activation import Copy, CopyingActivation
from pollux.ha.copies.backup_side import PURPOSE
from pollux.ha.copies.follow_loop import FollowLoop
from pollux.ha.copies.replicas import member_of
from pollux.ha.machine import STANDBY, Phase
from pollux.ha.replication import handover, network_check
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.member import Member
from pollux.ha.replication.network_check import NetworkCheck
from pollux.ha.replication.replicas import TWO_LIVES, Replicas
from pollux.ha.replication.settings import SESSION_FILE, Role, make_coordinator, settings_of
from pollux.ha.replication.voter import Voting
from pollux.logs import event
from pollux.store.journal_facts import newest_epoch, read_facts
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.acceptors import ConnectorSettings
    from pollux.ha.activation import Host
    from pollux.ha.copies.live_side import LiveSide
    from pollux.ha.copies.local import LocalState
    from pollux.ha.lease import Lease
    from pollux.ha.members import Member as MemberView
    from pollux.ha.replication.coordination import Coordinator
    from pollux.ha.replication.handover import HandOver

logger = logging.getLogger("pollux.ha")

#: How long what is being written may take to come to an end when this member may serve, seconds.
STOP_FOLLOWING = 10.0
#: How long ZooKeeper may take to end the session of a life that was killed, seconds.
CLOSE_SESSION = 5.0
#: After an operator asked for it, so that the answer leaves before the port closes, seconds.
ANSWER_LEAVES = 0.02


class ReplicatedActivation(CopyingActivation):
    """The activation of one broker process; the Listener of its :class:`~pollux.ha.replication.member.Member`."""

    policy = "replication"
    _authority = "the coordination service"

    def __init__(self, host: Host) -> None:
        configuration = host.configuration
        settings = settings_of(configuration)
        if settings is None:
            raise PolluxError("this broker has no <replication>")
        super().__init__(host, settings.role.value)
        self.settings = settings
        self.member = Member(
            configuration.journal_directory,
            self._coordinator,
            self.machine,
            self,
            identity=settings.identity,
            equal=settings.equal,
            data_node_id=self._data_node_id,
            # Those who vote look at the groups themselves.
            group=settings.group if settings.identity is None and settings.manager is not None else "",
            session=settings.session,
            part=settings.part,
            name=self.me.name,
            newest_epoch=lambda: newest_epoch(self.roots["journal"], self.roots["bindings"]),
            cut_off=lambda: self._cut_off(self._lost_at),
        )
        self._replicas = Replicas(
            self.roots,
            settings,
            self.member,
            about=self._about,
            on_synced=self._backup_synced,
            on_following=self._heard,
            cut_off=lambda: self._cut_off(self._loop.time()),
            pieces=self.pieces,
        )
        self._write_through(self._replicas)
        #: Who else there is; where this broker says that it is there, once it serves.
        self._others = Others(settings.endpoints)
        self._announcers: list[Announcer] = []
        self._follow: FollowLoop | None = None
        self._in_sync = False
        #: The hand-over that is under way.
        self._hand_over: HandOver | None = None
        self._noting: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        #: Whether this host is cut off (None: nobody is to be asked), and since when that has to be known.
        self._network: NetworkCheck | None = None
        self._lost_at = 0.0
        #: Only without a <manager>, once the members that vote are known.
        self._voting: Voting | None = None
        if settings.manager is None:
            self._authority = "this process"

    def _coordinator(self, identity: str) -> Coordinator:
        if self._voting is not None:
            return self._voting.coordinator(identity)
        record = self.roots["journal"] / SESSION_FILE
        return make_coordinator(self.settings, identity, self.me.name, record=record)

    def _data_node_id(self) -> str | None:
        """The node id of data that was never replicated."""
        facts = read_facts(self.roots["journal"], self.roots["bindings"])
        return facts.node_id.hex() if facts.node_id is not None else None

    def _about(self) -> dict[str, Any]:
        """Return what other members are told of this one."""
        return {**super()._about(), "role": self.settings.role.told, "group": self.settings.group}

    @property
    def _sequence(self) -> int:
        state = self.member.state
        return state.sequence if state is not None else 0

    def _own_vote(self) -> OwnVote:
        """Return this member as those who vote have to know it."""
        state = self.member.state
        serves = self.member.right is not None and self.machine.phase in (Phase.ACTIVATING, Phase.LIVE)
        if state is None:
            return OwnVote("", serves=False, sequence=0)
        return OwnVote(state.node_id, serves=serves, sequence=state.sequence if state.complete else 0)

    # -- the start

    async def _join(self) -> None:
        configuration = self._configuration
        await asyncio.to_thread(check_connectors, configuration.connectors)
        key = await asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
        self.hub = CoreHub(key, name=self.me.name, node_id=b"", timeout=self.settings.silence)
        self._find_others(key)
        self._replicas.loop = self._loop
        self.hub.purposes[PURPOSE] = self._replicas.open
        self._follow = FollowLoop(
            self.hub,
            self.roots,
            self.settings,
            self._others,
            about=self._about,
            on_accepted=self._accepted,
            on_synced=self._synced,
            on_lost=self._live_lost,
            on_refused=self._not_taken,
            pieces=self.pieces,
        )
        if (checks := network_check.settings_of(configuration)) is not None:
            self._network = NetworkCheck(checks, self._network_changed)
            self._network.start()
        await asyncio.to_thread(close_old_session, self.roots["journal"] / SESSION_FILE, self.settings.tls)
        mine = await asyncio.to_thread(local.read, self.roots["journal"])
        if self.settings.manager is None:
            await self._join_voters(self.hub, mine)
        self._follow.start()
        if mine is None:
            # Without data it cannot know whether others have some: who serves now does.
            await self._follow.looked.wait()
        elif self.settings.role is Role.LIVE and self.settings.group:
            # Nor whether somebody else was made the live of its group.
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK + self._others.patience):
                    await self._follow.looked.wait()
        if not self._right.done():
            self.member.start()

    def _find_others(self, key: ClusterKey) -> None:
        """Listen for the others where they announce themselves. Raises DiscoveryError."""
        group, meeting = self.settings.discovery, Meeting(self._configuration, key, self.me.id)
        if group is not None:
            self._others = meeting.others(group, self.settings.template)
        self._announcers = meeting.announcers()
        for announcer in self._announcers:
            announcer.open()
        self._others.start()

    async def _join_voters(self, hub: CoreHub, mine: LocalState | None) -> None:
        """Without a coordination service: meet those who vote."""
        electorate = Electorate(
            hub,
            self._others,
            self.roots["journal"],
            member=f"{self.me.name} on {self.me.host}, process {self.me.pid}",
            group=self.settings.group,
            connect_timeout=self.settings.connect_timeout,
            answer_timeout=self.settings.votes.answers,
            own_vote=self._own_vote,
            coordinated=lambda: self.member.coordinated or 0,
            superseded=self._superseded,
        )
        self._voting = Voting(self.settings, electorate, mine, lambda: self._sequence)
        await self._voting.meet(self._others.patience)

    def node_removed(self, node: bytes) -> None:
        """Count a pair that is gone for good no more where votes are needed; the other members hear of it by theirs."""
        if self._voting is not None:
            self._voting.removed(node)

    def _superseded(self, reason: str) -> None:
        event(logger, logging.ERROR, "somebody else serves with this data", reason=reason)
        self.fence(reason)

    @property
    def lease(self) -> Lease:
        """Return the lease of the coordination service's lock, or of the votes."""
        return self.member.lease

    def _waits_well(self, phase: Phase) -> bool:
        return phase in (Phase.READY, Phase.CATCHING_UP)

    def serving(self) -> None:
        """Announce this broker, to everybody who votes too, and note how long the activation took."""
        self.machine.to(Phase.LIVE, self.machine.position.reason)
        for announcer in self._announcers:
            announcer.start()
        if self._voting is not None:
            self._announcing = self._voting.serves()
        self._noting = self._loop.create_task(self._note())
        if self._network is not None and self._network.problem:
            self._network_changed(self._network.problem)

    async def _note(self) -> None:
        try:
            await asyncio.to_thread(self.member.served)
        except (PolluxError, OSError) as error:
            event(logger, logging.ERROR, "how long the activation took could not be written", reason=error)

    # -- the network check

    def _cut_off(self, since: float) -> str:
        """Why this host was cut off at some time since ``since``; empty: it was not. Blocking, not in the loop."""
        return self._network.ask(since) if self._network is not None else ""

    def _network_changed(self, problem: str) -> None:
        if self._voting is not None:
            self._voting.candidacy.cut_off(problem)
        if (decided := handover.cut_off(self.machine.phase, problem)) is not None:
            self._begin_hand_over(decided)
        self.member.wake()

    # -- the member's words (from its thread)

    def stop_following(self) -> None:
        """Follow nobody until :meth:`follow_again`; nothing is written to our data any more then."""
        if self._follow is not None:
            asyncio.run_coroutine_threadsafe(self._follow.hold(), self._loop).result(STOP_FOLLOWING)

    def follow_again(self) -> None:
        """Look for a live again."""
        if self._follow is not None:
            self._in_loop(self._follow.again)

    # -- while it follows

    def _accepted(self, content: dict[str, Any]) -> None:
        """Forget what was read along of older data: a live takes us."""
        self._live = content
        self._heard(content)
        if self._voting is not None:
            self._voting.candidacy.followed()
        self._in_sync = False
        self._stop_prefetch()
        self.member.wake()

    def _synced(self, _state: LocalState) -> None:
        self._in_sync = True
        if self._voting is not None:
            self._voting.synced()
        self._start_prefetch(self.member.wake)
        self.member.wake()

    def _live_lost(self, code: str, _reason: str) -> None:
        self._live = None
        # What the network was before says nothing about why the live is gone.
        self._lost_at = self._loop.time()
        if self._voting is not None:
            self._voting.candidacy.live_lost(code, time.monotonic())
        self._in_sync = False
        self.member.wake()

    def _not_taken(self, code: str, text: str) -> None:
        if code == TWO_LIVES and self.member.right is None:
            self.refused(StoreRefusedError(text))

    # -- while it serves

    def _backup_synced(self, serving: LiveSide) -> None:
        backup = self._replicas.backups().get(serving)
        given = self.settings
        if backup is not None and (
            decided := handover.synced(backup, allow_failback=given.allow_failback, restart_backup=given.restart_backup)
        ):
            self._begin_hand_over(decided)

    def _begin_hand_over(self, decided: HandOver, after: float = 0.0) -> None:
        """Stop because of ``decided``, ``after`` so many seconds. The first one counts."""
        if self._hand_over is not None:
            return
        self._hand_over = decided
        self.fast_stop = True
        self.restart = decided.restart
        if after:
            self._loop.call_later(after, self._host.request_stop, decided.reason)
        else:
            self._host.request_stop(decided.reason)

    async def others(self) -> list[MemberView]:
        """Return the other members that are connected."""
        if self._live is not None:
            return [member_of(self._live, Phase.LIVE)]
        return [one.member for one in self._replicas.backups().values() if one.member.alive]

    async def switchover(self) -> dict[str, Any]:
        """Start to hand over to a backup in sync. Raises InvalidRequestError when there is none."""
        return self._on_request(handover.switchover(self._as_live()))

    async def failback(self) -> dict[str, Any]:
        """Start to hand over to the preferred broker. Raises InvalidRequestError when it cannot serve."""
        return self._on_request(handover.failback(self._as_live()))

    def _as_live(self) -> handover.Live:
        backups = tuple(self._replicas.backups().values())
        return handover.Live(self.machine.phase, self.settings.role, self._hand_over is not None, backups)

    def _on_request(self, decided: HandOver) -> dict[str, Any]:
        self._begin_hand_over(decided, ANSWER_LEAVES)
        return self._handing_over(decided.to)

    # -- the end

    async def _leave(self, *, graceful: bool) -> None:
        self._stop_prefetch()
        for announcer in self._announcers:
            announcer.stop()
        if self._follow is not None:
            await self._follow.stop()
        if graceful and self.member.right is not None and self.machine.phase is Phase.STOPPING:
            votes = self._voting is not None
            complete = await asyncio.to_thread(self._replicas.settle, one=votes)
            left = handover.legacy(complete=complete, decided=self._hand_over, restart=self.restart, votes=votes)
            try:
                taken = await asyncio.to_thread(
                    self.member.hand_over, prefix=left.prefix, stay=left.stay, seconds=left.seconds
                )
            except (PolluxError, OSError) as error:
                event(logger, logging.ERROR, "the right to serve could not be given back", reason=error)
            else:
                if left.seconds and not taken:
                    event(logger, logging.WARNING, "nobody has taken over", seconds=left.seconds)
                if left.names_heir and (to := self._replicas.hand_over()):
                    event(logger, logging.INFO, "handed over", backup=to)
        self._replicas.close()
        await asyncio.to_thread(self.member.stop, release=graceful)
        if self._voting is not None:
            await self._voting.electorate.stop()
        self._others.stop()
        if self._network is not None:
            await self._network.stop()
        if graceful and not self.restart and self.spare is not None:
            await asyncio.to_thread(self.spare.remove)

    # -- views

    def _copy(self) -> Copy:
        state, serves = self.member.state, self.machine.phase not in STANDBY
        return Copy(
            state.node_id if state is not None else None,
            state.sequence if state is not None else None,
            state.complete if state is not None else None,
            serves,
            bool(self._replicas.mirror.in_sync) if serves else self._in_sync,
            self.member.coordinated,
            self._voting.electorate.view() if self._voting is not None else None,
        )

    def _holder(self, copy: Copy) -> str | None:
        """Return the name of who serves; a member that has given the right back is nobody's."""
        serves = copy.serves and self.member.right is not None
        return super()._holder(copy._replace(serves=serves))

    def _warnings(self) -> list[str]:
        found = [self._network.problem] if self._network is not None and self._network.problem else []
        if self.machine.phase is Phase.LIVE and not self._replicas.mirror.in_sync:
            found.append("no backup is in sync: messages are on this broker's disk only")
        return found

    def history(self) -> list[dict[str, Any]]:
        """Every activation of this data, oldest first."""
        state = self.member.state
        return history_view(state.history if state is not None else ())


def close_old_session(record: Path, tls: ConnectorSettings | None) -> None:
    """Close what a killed life of this broker left in ZooKeeper; it is gone, as its directories' lock is ours."""
    if not record.exists():
        return
    from pollux.ha.replication.zookeeper import close_recorded

    try:
        if close_recorded(record, CLOSE_SESSION, tls):
            event(logger, logging.INFO, "the session of the life before is closed")
    except CoordinationError as error:
        event(logger, logging.WARNING, "the session of the life before ends by its time-out", reason=error)
