"""Lead one life of one node: wait for the right to serve, open the store, serve, hand over, stop.

Its steps, in the order in which a process takes them: :meth:`Node.enter`, :meth:`~Node.wait` (of a member of a group),
:meth:`~Node.open`, :meth:`~Node.serve`; then, however far the life came, :meth:`~Node.stopping`,
:meth:`~Node.leave_clients`, :meth:`~Node.close_store`, :meth:`~Node.leave_group` (of a member), :meth:`~Node.close`.
When the store fails nothing is confirmed any more, and every client is cut off (fail-stop).
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from pollux.engine.security import Security
from pollux.ha.machine import Phase
from pollux.ha.runtime import store_directory
from pollux.logs import event
from pollux.node.around import Ending
from pollux.node.engine import Engine, wall_ms
from pollux.node.links import Links
from pollux.node.policies import make_activation
from pollux.node.steps import STEP_TIMEOUT, bounded
from pollux.protocols import mqtt
from pollux.protocols.services import Services
from pollux.store.data_lock import DirectoryLock, node_id
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage
from pollux.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.audit import Trail
    from pollux.config.acceptors import AcceptorSettings
    from pollux.config.model import Configuration
    from pollux.config.users import Users
    from pollux.engine.plugins import Plugins
    from pollux.errors import StoreError
    from pollux.ha.activation import Activation
    from pollux.ha.machine import Position
    from pollux.node.around import Acceptors, Process

logger = logging.getLogger("pollux.broker")

#: Seconds that closing the store may take.
STORE_CLOSE_TIMEOUT = 60.0
#: To give the right to serve back, and to see somebody take over.
LEAVE_TIMEOUT = 60.0


class Node:
    """One life of one node, and its activation's host. All methods are called in the loop's thread."""

    def __init__(
        self, configuration: Configuration, users: Users, trail: Trail, *, process: Process, acceptors: Acceptors
    ) -> None:
        self.configuration = configuration
        self.trail = trail
        self.started_at = time.time()
        #: starting, stopping, failed, or where the activation is.
        self.state = "starting"
        self.node_id = b""
        self.security = Security(
            configuration, users, on_login=self._logged_in, on_logout=self._logged_out, trail=trail
        )
        #: None before clients are let in.
        self.engine: Engine | None = None
        #: The same, from when the store is opened.
        self._opened: Engine | None = None
        self._process = process
        self._acceptors = acceptors
        self._loop = asyncio.get_running_loop()
        #: None for a single broker.
        self.activation = make_activation(self)
        if self.activation is not None:
            self.activation.machine.on_change(self._phase_changed)
        # A database has locks of its own.
        self._lock = DirectoryLock(
            {
                configuration.journal_directory,
                configuration.bindings_directory,
                configuration.paging_directory,
                configuration.large_messages_directory,
                store_directory(configuration),
            }
            if configuration.database is None
            else ()
        )
        self._timers: list[asyncio.Task[None]] = []
        #: What goes on with other brokers.
        self.links = Links(self.activation, acceptors.clients)
        #: Python code that looks on; None without any.
        self.plugins: Plugins | None = None
        #: Whether everything went of a backup that scales down instead of serving; None: it does not, or not yet.
        self._went: bool | None = None

    # -- start

    def enter(self) -> None:
        """Lock the directories that are this process's alone. Raises DirectoryLockedError, PolluxError."""
        activation = self.activation
        self.links.prepare(self.configuration)
        if activation is None:
            self._lock.acquire(self.configuration.name)
            self.node_id = node_id(store_directory(self.configuration))
            return
        if activation.exclusive:
            self._lock.acquire(self.configuration.name, activation.policy)
        self.state = "joining"

    async def wait(self, activation: Activation) -> int:
        """Wait until the store is ours; returns the epoch of this life. Raises PolluxError when it cannot be."""
        right = await activation.wait()
        self.state = "activating"
        self.node_id = right.node_id
        if not activation.exclusive:
            # Not in the loop: a store that hangs must keep neither the lease guard from acting nor a question waiting.
            await asyncio.to_thread(self._lock.acquire, self.configuration.name, activation.policy)
        return right.epoch

    async def open(self, epoch: int) -> Engine:
        """Open and recover the store; returns the engine on it. ``epoch`` 0: the store finds one. Raises StoreError."""
        activation = self.activation
        storage = await Storage.open(
            StoreSettings.from_configuration(self.configuration, self.node_id),
            epoch=epoch,
            loop=self._loop,
            on_failure=self._store_failed,
            guard=activation.guard if activation is not None else None,
            files=activation.files if activation is not None else None,
            follower=await asyncio.to_thread(activation.follower) if activation is not None else None,
            spare=activation.spare if activation is not None else None,
        )
        self._opened = engine = Engine(
            self.configuration,
            storage,
            self.security,
            trail=self.trail,
            share=self._acceptors.share,
            memory=self._process.memory_limit(),
        )
        await engine.recover(self.node_id)
        return engine

    async def serve(self, engine: Engine) -> None:
        """Let clients in to what :meth:`open` returned. Raises ListenError, StoreError.

        A backup that scales down instead lets nobody in: it hands over what is in the store, and ends.
        """
        activation = self.activation
        if activation is not None:
            activation.opened(engine.post)
        await engine.configure(self.configuration, self._process.memory_limit())
        sessions = None
        if any(acceptor.speaks("MQTT") for acceptor in self.configuration.acceptors):
            # Stored sessions expire and their wills fall due whether or not an MQTT client ever connects.
            sessions = mqtt.start(self._services(engine, self.configuration.acceptors[0].settings), self._loop)
        instead = activation is not None and self.configuration.scales_down_instead
        links = self.links
        await links.join(self.configuration, self.node_id, engine.post, sessions, serves=not instead)
        if not instead:
            hub = await links.open(self.configuration, self.node_id, engine.post)
            if self.configuration.plugins:
                self._start_plugins(engine)
            engine.post.first_counts.hold = self._acceptors.hold
            services = partial(self._services, engine)
            await self._acceptors.open(services, engine.post.memory, hub, sessions)
        links.start()
        self._start_timers(engine)
        self.engine = engine
        self.state = "live"
        if activation is not None:
            activation.serving()
        event(
            logger,
            logging.INFO,
            "broker is live",
            name=self.configuration.name,
            epoch=engine.storage.epoch,
            messages=engine.recovered_messages,
            paged=engine.storage.pages.messages,
            replayed=engine.replayed_records,
            recovery_seconds=round(engine.recovery_seconds, 3),
            start_seconds=round(time.time() - self.started_at, 3),
        )
        self.trail.start(self._loop)
        self.trail.event(
            "broker-live",
            epoch=engine.storage.epoch,
            node_id=self.node_id.hex(),
            messages=engine.recovered_messages,
            recovery_ms=round(engine.recovery_seconds * 1000),
        )
        if instead:
            self._timers.append(self._loop.create_task(self._scale_down_instead()))

    async def _scale_down_instead(self) -> None:
        """Hand over everything in place of the live that is gone, while the right to the store is proven; then end."""
        self._went = await self.links.hand_over(asyncio.Event())
        if self._went and self.activation is not None:
            self.activation.restart = self.configuration.restarts_backup
        if self.state != "failed":
            self.request_stop("scale-down instead of serving: " + ("done" if self._went else "not everything went"))

    def _start_plugins(self, engine: Engine) -> None:
        """Have the plugins of broker.xml look on, and at what is sent."""
        from pollux.engine.plugins import Info
        from pollux.node.plugins import make_plugins

        self.plugins = plugins = make_plugins(self.configuration)
        plugins.start(Info(self.configuration.name, self.node_id.hex(), VERSION))
        self.trail.listen(plugins.happened)
        if plugins.looks_at_messages:
            engine.post.show(plugins.sent)
        if plugins.looks_at_deliveries:
            engine.post.guard(plugins.offered)

    def _services(self, engine: Engine, settings: AcceptorSettings) -> Services:
        return Services(
            configuration=self.configuration,
            post=engine.post,
            security=self.security,
            wall_ms=wall_ms,
            failover_servers=self.links.servers,
            acceptor=settings,
            router=lambda: routers.get(settings.router) if (routers := self.links.routers) is not None else None,
        )

    def _start_timers(self, engine: Engine) -> None:
        configuration, post = self.configuration, engine.post
        self._every(configuration.message_expiry_scan_period, post.dead_letters.scan)
        self._every(configuration.address_queue_scan_period, post.address_manager.reap)
        self._every(configuration.transaction_timeout_scan_period, post.expire_transactions)
        self._every(1000, self._acceptors.slow_consumers(engine.space, lambda: self.configuration.address_settings))

    def _every(self, milliseconds: int, function: Callable[[], object]) -> None:
        """Call ``function`` periodically; a period of 0 or less is off."""
        if milliseconds > 0:
            self._timers.append(self._loop.create_task(self._repeat(milliseconds / 1000, function)))

    @staticmethod
    async def _repeat(seconds: float, function: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                function()
            except Exception:
                logger.exception("a periodic task failed")

    # -- meanwhile

    def _logged_in(self, connection_id: int, user: str) -> None:
        self._acceptors.logged_in(connection_id, user)
        if self._opened is not None:
            self._opened.post.memory.opened(connection_id, user)

    def _logged_out(self, connection_id: int) -> None:
        if self._opened is not None:
            self._opened.post.memory.closed(connection_id)

    def _phase_changed(self, before: Position, after: Position) -> None:
        """Note where an activation is in the audit trail, which begins when the store was accepted. Any thread."""
        if after.phase in (Phase.READY, Phase.CATCHING_UP, Phase.ACTIVATING):
            self._loop.call_soon_threadsafe(self.trail.start, self._loop)
        self.trail.event(
            "activation", **{"from": before.phase.value}, to=after.phase.value, reason=after.reason, epoch=after.epoch
        )

    def when_stable(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back when the store has written what it was given so far: the critical analyzer's sign of life."""
        if self._opened is not None:
            self._opened.storage.when_stable(callback)

    @property
    def damage(self) -> list[str]:
        """Damaged or missing parts of the store, as far as found; there are none before it is open."""
        return self._opened.damage if self._opened is not None else []

    def not_ready(self) -> list[str]:
        """Why the node does not serve everything now; empty when it does."""
        reasons = []
        if self.state != "live":
            position = self.activation.machine.position if self.activation is not None else None
            why = f": {position.reason}" if position is not None and position.phase == self.state else ""
            reasons.append(f"the broker is {self.state}{why}")
        if self._opened is not None and self._opened.disk_full is not None:
            reasons.append(f"disk full: {self._opened.disk_full}")
        return reasons

    async def reload(self, configuration: Configuration, users: Users) -> list[str]:
        """Use what a reload may change, also for the life after a wait; returns what was refused, one line for each."""
        self.configuration = configuration
        refused = await self._acceptors.reload(configuration)
        if self.engine is not None:
            self.engine.reload(configuration, self._process.memory_limit())
        gone = self.security.reload(configuration, users)
        if self.engine is not None:
            self.engine.post.address_manager.reload_rights()
        self._acceptors.disconnect(gone)
        return refused + await self.links.reload(configuration)

    # -- as the activation's host

    def waits(self, state: str, why: str, *, ready: bool) -> None:
        """Be in this state of a standby. ``ready``: it does what a standby should do."""
        self.state = state
        self._process.waits(why, ready=ready)

    def request_stop(self, reason: str) -> None:
        """Have this node stopped gracefully."""
        self._process.request_stop(reason)

    def fenced(self, reason: str) -> None:
        """Stop at once: the right to serve is lost."""
        self._fail(Ending.FENCED, reason)

    def _store_failed(self, error: StoreError) -> None:
        """Stop at once: nobody gets another confirmation."""
        if self.activation is not None and not self.activation.guard() and self.state != "failed":
            # The journal met the expired guard before the timer did.
            self.fenced(self.activation.expired())
            return
        self._fail(Ending.STORE_FAILED, error)

    def _fail(self, ending: Ending, reason: object) -> None:
        if self.state == "failed":
            return
        self.state = "failed"
        self._process.failed(ending, reason)
        self._acceptors.cut_off(ending.value)

    # -- stop

    @property
    def fast_stop(self) -> bool:
        """Whether somebody waits to serve instead."""
        return self.activation is not None and self.activation.fast_stop

    def stopping(self, reason: str) -> None:
        """Take no more connections."""
        if self.state != "failed":
            self.state = "stopping"
        if self.activation is not None:
            self.activation.stopping(reason)
        self._acceptors.stop_accepting()
        for timer in self._timers:
            timer.cancel()

    async def leave_clients(self, *, graceful: bool, forced: asyncio.Event) -> None:
        """End the connections of clients; when ``forced`` is set, they are waited for no longer."""
        await self._acceptors.leave(graceful=graceful, fast_stop=self.fast_stop, forced=forced)

    async def scale_down(self, forced: asyncio.Event) -> bool:
        """Hand over what is here, where that is wanted of a stop; clients are gone. Returns whether nothing is left."""
        if self._went is not None:
            return self._went
        if self.configuration.scales_down_instead:
            return self.links.drain is None  # it was stopped in the middle of it
        if self.state == "failed" or self.fast_stop:
            return True
        return await self.links.hand_over(forced)

    async def close_store(self) -> bool:
        """Write what is to be written, and let go of the store's files. Returns whether that worked."""
        engine = self._opened
        if engine is None:
            return True
        await self.links.stop()
        engine.close()
        if self.plugins is not None:
            self.trail.ignore(self.plugins.happened)
            self.plugins.stop()
        await bounded(engine.post.close(), STEP_TIMEOUT, "post office")
        if self.state == "failed":
            return True  # what failed is not written to again
        # What it saves the next start here it would cost whoever waits to serve: a process's start, and a fold.
        awaited = self.activation is not None and await self.activation.awaited()
        return await bounded(engine.storage.close(checkpoint=not awaited), STORE_CLOSE_TIMEOUT, "store")

    async def leave_group(self, activation: Activation, *, graceful: bool) -> bool:
        """Give the right to serve back. Returns whether that worked."""
        free = activation.exclusive or await bounded(asyncio.to_thread(self._lock.release), STEP_TIMEOUT, "locks")
        left = await bounded(activation.leave(graceful=graceful), LEAVE_TIMEOUT, "activation")
        await self._acceptors.leave_brokers()
        return left and free

    def close(self) -> None:
        """End what is left: threads and timers."""
        self.links.close()
        self.security.close()
        self._acceptors.close()

    @property
    def owns_directory(self) -> bool:
        """Whether what is in the runtime directory is this process's, and not another's that was there before."""
        return self._lock.held or (self.activation is not None and not self.activation.exclusive)

    def unlock(self) -> None:
        """Let go of the directories. Blocking."""
        self._lock.release()
