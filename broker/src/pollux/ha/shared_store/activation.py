"""The activation of a member of a group that shares a store: its node manager's words become tasks of the loop."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pollux.cluster import topology
from pollux.cluster.duties import carry_out
from pollux.errors import InvalidRequestError, PolluxError
from pollux.ha import neighbours, peers
from pollux.ha.activation import Activation, history_view
from pollux.ha.machine import STANDBY, Phase, Position
from pollux.ha.node_state import StoreState
from pollux.ha.runtime import store_directory
from pollux.ha.shared_store import filesystem
from pollux.ha.shared_store.group_store import FileGroupStore
from pollux.ha.shared_store.node_manager import NodeManager
from pollux.ha.shared_store.policy import Role, Settings
from pollux.ha.standby import StandbyPrefetch
from pollux.ha.store_layout import SharedStoreLayout
from pollux.logs import event
from pollux.store.spare import Spare

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pollux.config.model import Configuration
    from pollux.ha.activation import Host
    from pollux.ha.lease import Lease
    from pollux.ha.members import Member
    from pollux.ha.shared_store.group_store import GroupStore
    from pollux.store.follower import Follower

logger = logging.getLogger("pollux.ha")

#: Seconds the state may take to be written when the store is given up.
RELEASE_TIMEOUT = 5.0
#: Of the time for which a database's lock holds, how much a live may use.
_SHARE_OF_EXPIRATION = 0.9
#: How often the other members are looked at, seconds.
NEIGHBOURS_PERIOD = 5.0


def layout_of(configuration: Configuration) -> SharedStoreLayout:
    """Where broker.xml has the parts of the store."""
    return SharedStoreLayout(
        store_directory(configuration),
        configuration.journal_directory,
        configuration.bindings_directory,
        (configuration.paging_directory, configuration.large_messages_directory),
    )


def make_group_store(configuration: Configuration, layout: SharedStoreLayout) -> GroupStore:
    """The store that broker.xml gives the group. Raises PolluxError when that cannot be used here."""
    store = configuration.database
    if store is None:
        return FileGroupStore(layout)
    try:
        from pollux.ha.shared_store.database import DatabaseGroupStore
    except ImportError as error:
        raise PolluxError(
            f"database-store: the package {error.name} is missing: install pollux-broker[database]"
        ) from error
    return DatabaseGroupStore(store, layout)


def settings_of(configuration: Configuration) -> Settings | None:
    """The shared-store settings in broker.xml; None when there is no such policy."""
    if not configuration.shares_store:
        return None
    own = configuration.high_availability
    patience = configuration.journal_lock_acquisition_timeout
    settings = Settings(
        Role.LIVE,
        lease=own.lease_guard / 1000,
        margin=own.lease_margin / 1000,
        proof_limit=configuration.journal_lock_monitor_timeout / 1000,
        patience=patience / 1000 if patience >= 0 else None,
    )
    if configuration.database is not None:
        # The lock is renewed with each proof; the lease ends before the database would give the lock to another.
        database = configuration.database
        settings = replace(
            settings,
            lease=min(settings.lease, database.jdbc_lock_expiration / 1000 * _SHARE_OF_EXPIRATION),
            proof_limit=min(settings.proof_limit, database.jdbc_lock_renew_period / 1000),
        )
    if own.symmetric is not None:
        keep_alive = own.symmetric.lock_keep_alive_period / 1000
        return replace(
            settings,
            role=Role.SYMMETRIC,
            keep_alive=keep_alive,
            proof_limit=min(settings.proof_limit, keep_alive or settings.proof_limit),
            poll=own.symmetric.lock_acquire_sleep_interval / 1000,
        )
    store = configuration.ha_policy.shared_store if configuration.ha_policy is not None else None
    if store is not None and store.backup is not None:
        return replace(
            settings,
            role=Role.BACKUP,
            allow_failback=store.backup.allow_failback,
            among_several=store.colocated is not None,
        )
    return settings


class SharedStoreActivation(Activation):
    """The activation of one broker process; the Listener of its node manager."""

    policy = "shared-store"

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings.role.value)
        configuration = host.configuration
        store = configuration.ha_policy.shared_store if configuration.ha_policy is not None else None
        part = (store.backup or store.primary) if store is not None else None
        self._restart_backup = bool(store and store.backup and store.backup.restart_backup)
        # Of equals another one takes over whenever one stops, as in the groups of ActiveMQ classic.
        self._goes_on_elsewhere = part.failover_on_shutdown if part is not None else True
        self.ready_early = store is None or store.primary is None or not store.primary.wait_for_activation
        self.layout = layout_of(configuration)
        self.group_store = make_group_store(configuration, self.layout)
        self.files = self.group_store.files
        # A store that hangs is not joined, and this is all that is known then.
        waits = f"waits for an answer of the store {self.group_store.name(self.layout.node)}"
        self.machine.position = self.machine.position._replace(reason=waits)
        self.node_manager = NodeManager(
            settings,
            self.layout,
            self.me,
            self.machine,
            self,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            store=self.group_store,
        )
        self.node_manager.prepared = False
        self.node_manager.peers = configuration.high_availability.peers
        self.spare = Spare(
            configuration.journal_directory, self.me.id, configuration.journal_file_size, self.group_store.files
        )
        self._prefetch = StandbyPrefetch(
            configuration.journal_directory,
            configuration.id_cache_size,
            self.spare,
            self._prepared,
            paging=configuration.paging_directory,
            files=self.files,
        )
        self._reads_along = False
        #: What is left in the state file when the broker stops: None is decided by failover-on-shutdown.
        self._left: StoreState | None = None
        self._stay = False
        self._neighbours: asyncio.Task[None] | None = None

    # -- the start

    async def _join(self) -> None:
        self.node_manager.management = self.management
        self.node_manager.clients = self.topology.mine.as_content()
        await asyncio.to_thread(self.group_store.look)
        self.node_manager.start()
        self._neighbours = self._loop.create_task(carry_out("watching the others", self._watch_neighbours))

    @property
    def lease(self) -> Lease:
        """Return the lease that the node manager's proofs extend."""
        return self.node_manager.lease

    def serving(self) -> None:
        """Have the state file say how long the activation took."""
        self._log_failure(self.node_manager.serving())

    def follower(self) -> Follower | None:
        """Hand out what has read the journal along; None: nothing has, or it does not come to an end. Blocking."""
        return self._prefetch.take() if self._reads_along else None

    def _prepared(self) -> None:
        """Note that everything was read. In the thread that reads along."""
        self.node_manager.prepared = True
        self.node_manager.wake()

    # -- the node manager's words (from its thread)

    def hand_back(self, reason: str) -> None:
        """Stop gracefully, the preferred broker waits."""
        self._in_loop(self._give_up, reason)

    def _changed(self, before: Position, after: Position) -> None:
        if after.phase is Phase.CATCHING_UP and not self._reads_along:
            self._reads_along = True
            self._prefetch.start()
        super()._changed(before, after)

    def _give_up(self, reason: str) -> None:
        """Stop for a failback: the preferred broker waits for the lock."""
        if self._left is not None:
            return
        self._left = StoreState.FAILING_BACK
        self.fast_stop = True
        self.restart = self._restart_backup
        self._host.request_stop(reason)

    # -- while live

    async def _watch_neighbours(self) -> None:
        """Tell about duplicate node ids and a store that is not shared: once when it begins, once when it ends."""
        suspects: set[tuple[str, str]] = set()
        while True:
            await asyncio.sleep(NEIGHBOURS_PERIOD)
            if self.node_manager.identity is None:
                continue
            try:
                await self._look_at_topology()
                found = await asyncio.to_thread(
                    neighbours.look,
                    self.store_view(),
                    self.node_manager.peers,
                    self.group_store.name(self.layout.node),
                    await self.others(),
                )
            except OSError as error:
                logger.debug("the other members cannot be looked at: %s", error)
                continue
            # One who says that he is live may be on his way out: he has to say it twice.
            seen = {(one.kind, one.about) for one in found}
            self._tell_findings([one for one in found if one.kind != neighbours.ALSO_LIVE or one[:2] in suspects])
            suspects = seen

    async def _look_at_topology(self) -> None:
        """Read where clients find the others, as they wrote it. Raises OSError."""
        for one in await self.others():
            self.topology.heard(topology.parse(one.id, one.clients))

    def _tell_findings(self, found: list[neighbours.Finding]) -> None:
        before, after = ({one[:2] for one in findings} for findings in (self.findings, found))
        for one in found:
            if one[:2] not in before:
                event(logger, logging.WARNING, one.kind, reason=one.text, epoch=self.machine.position.epoch)
        for kind, about in before - after:
            event(logger, logging.INFO, f"{kind} is over", member=about)
        self.findings = found
        refused = next((one for one in found if one.kind == neighbours.NOT_SHARED), None)
        if refused is not None and self.machine.phase in STANDBY:
            # Of no use as a standby, and dangerous: it would serve other data under the same addresses.
            self._settle(None, filesystem.StoreDirectoryError(refused.text))

    async def others(self) -> list[Member]:
        """The other members, alive or not."""
        return await asyncio.to_thread(self.node_manager.others)

    async def switchover(self) -> dict[str, Any]:
        """Start to hand the store over to a member that waits for it. Raises InvalidRequestError when none does."""
        phase = self.machine.phase
        if phase is not Phase.LIVE:
            raise InvalidRequestError(f"this broker is {phase}, only a live one can hand over")
        ready = [one for one in await self.others() if one.alive and one.phase == Phase.READY]
        if not ready:
            raise InvalidRequestError("no other member is ready to take over")
        if self.machine.phase is not Phase.LIVE or self._left is not None:
            raise InvalidRequestError("this broker is stopping already")
        self._left, self._stay, self.fast_stop, self.restart = StoreState.LIVE, True, True, True
        self._loop.call_later(0.02, self._host.request_stop, "switchover asked for by an administrator")
        return self._handing_over(ready)

    async def failback(self) -> dict[str, Any]:
        """Let the preferred broker have the store again: from a backup that is live to the one that waits."""
        if self.machine.phase is not Phase.LIVE:
            raise InvalidRequestError(f"this broker is {self.machine.phase}, only a live one can fail back")
        if self.node_manager.settings.role is Role.SYMMETRIC:
            raise InvalidRequestError("the members of a symmetric group are equals: use a switchover")
        if self.node_manager.settings.role is not Role.BACKUP:
            raise InvalidRequestError("the preferred broker is live: there is nothing to fail back")
        preferred = [one for one in await self.others() if one.alive and one.role == Role.LIVE]
        if not preferred:
            raise InvalidRequestError("the preferred broker is not running")
        await asyncio.wrap_future(self.node_manager.allow_failback())
        self._restart_backup = True
        return self._handing_over(preferred)

    # -- the end

    async def _leave(self, *, graceful: bool) -> None:
        self._prefetch.stop()
        if self._neighbours is not None:
            self._neighbours.cancel()
        if graceful and self.machine.phase is Phase.STOPPING and self.machine.position.epoch:
            left = self._left
            if left is None:
                left = StoreState.LIVE if self._goes_on_elsewhere else StoreState.PAUSED
            future = self.node_manager.release(left, stay=self._stay)
            try:
                async with asyncio.timeout(RELEASE_TIMEOUT):
                    await asyncio.wrap_future(future)
            except (TimeoutError, PolluxError, OSError) as error:
                event(logger, logging.ERROR, "the state of the store could not be written", reason=error)
        if graceful and not self.restart and self.spare is not None:
            await asyncio.to_thread(self.spare.remove)
        await asyncio.to_thread(self.node_manager.close)
        await asyncio.to_thread(self.group_store.close)

    # -- views

    def store_view(self) -> peers.View:
        """Return what other members are told: who this is, and which store it sees."""
        state, position = self.node_manager.state, self.machine.position
        node = state.node_id.hex() if state is not None and state.epoch else ""
        return peers.View(
            self.me.id, self.me.name, position.phase.value, position.epoch, node, self.node_manager.identity
        )

    def view(self) -> dict[str, Any]:
        """Return what the status shows: where this broker is, and why."""
        position = self.machine.position
        state = self.node_manager.state
        return {
            "state": position.phase.value,
            "role": self.me.role,
            "policy": self.policy,
            "node_id": state.node_id.hex() if state is not None else None,
            "epoch": position.epoch,
            "holder": state.holder.name if state is not None and state.holder is not None else None,
            "store_state": state.state.value if state is not None else None,
            "reason": position.reason,
            "since": position.since,
            "lease_left_ms": int(self.node_manager.lease.left() * 1000),
            "warnings": [one.text for one in self.findings],
        }

    def history(self) -> list[dict[str, Any]]:
        """Every activation that the state file remembers, oldest first."""
        state = self.node_manager.state
        return history_view(state.history if state is not None else ())

    @staticmethod
    def _log_failure(future: Future[None]) -> None:
        def done(future: Future[None]) -> None:
            error = future.exception()
            if error is not None:
                event(logger, logging.ERROR, "the state file could not be written", reason=error)

        future.add_done_callback(done)
