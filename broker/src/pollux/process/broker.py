"""The running broker: brings the layers up in order, takes them down in order, reloads what can be reloaded.

Order of a start: lock the directories, open and recover the store, post office, configured addresses and queues,
acceptors, then everything that looks on (timers, critical analyzer, components such as the HTTP port). A stop is
the reverse and bounded in time. When the store fails nothing is confirmed any more: every client is cut off and
the process ends (fail-stop). What a message is, no line here knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pollux import logs
from pollux.audit import Trail
from pollux.config import ConfigError, audited, require_built, resolve_address_settings
from pollux.config.users import Users, UsersError, load_users
from pollux.engine.post_office import PostOffice
from pollux.engine.reading_rights import admits
from pollux.engine.security import Security
from pollux.errors import PolluxError, StoreError
from pollux.ha.machine import Phase
from pollux.ha.runtime import runtime_directory, store_directory
from pollux.logs import event, failure
from pollux.node.policies import features, make_activation
from pollux.process import reload
from pollux.process.acceptor import Listener, load_sessions
from pollux.process.connections import SWEEP_INTERVAL, Connections
from pollux.process.exits import EXIT_FAILED, EXIT_FENCED, EXIT_OK, EXIT_STORE
from pollux.process.failures import exit_code
from pollux.process.notify import Notifier
from pollux.process.resources import connection_limit, let_writers_in, memory_limit, tune_garbage_collector
from pollux.process.slow_consumers import SlowConsumers
from pollux.process.status import Status
from pollux.process.watchdog import CriticalAnalyzer
from pollux.protocols import mqtt
from pollux.protocols.services import Services
from pollux.routing.address import WildcardSyntax
from pollux.routing.space import AddressSpace
from pollux.store.data_lock import DirectoryLock, node_id
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage
from pollux.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.model import Configuration
    from pollux.ha.machine import Position
    from pollux.process.tls import ServerTls

logger = logging.getLogger("pollux.server")

#: Seconds each step of a stop may take.
FAREWELL_TIMEOUT = 6.0
STORE_CLOSE_TIMEOUT = 60.0
COMPONENT_TIMEOUT = 5.0
#: To give the right to serve back, and to see somebody take over.
LEAVE_TIMEOUT = 60.0
#: The same when another broker waits for the store.
FAST_STOP_FAREWELL = 0.25
#: A broker that lost its right to serve is gone after this time, whatever hangs.
FENCED_TIMEOUT = 1.0
#: How often the service manager is told that a long recovery goes on, and for how long that counts, seconds.
_EXTEND_EVERY = 10.0
_FAREWELL_BATCH = 200


class Component(Protocol):
    """Something that runs beside the broker and that this layer does not know (the HTTP port)."""

    async def start(self) -> None:
        """Begin; raises PolluxError when it cannot."""

    async def reload(self) -> None:
        """The broker's configuration was reloaded."""

    async def stop(self) -> None:
        """End, within a few seconds."""

    def ports(self) -> dict[str, int]:
        """Ports it listens on, by name."""


class Broker:
    """One broker life. ``load`` reads the configuration anew for a reload."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        load: Callable[[], Configuration] | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self.configuration = configuration
        self.notifier = notifier or Notifier()
        self.state = "starting"
        self.started_at = time.time()
        self.loop: asyncio.AbstractEventLoop
        self.storage: Storage
        self.post: PostOffice
        self.space: AddressSpace
        self.security: Security
        self.connections: Connections
        self.analyzer: CriticalAnalyzer
        self.listeners: list[Listener] = []
        self.components: list[Component] = []
        self.status = Status(runtime_directory(configuration))
        self.recovered_messages = 0
        self.replayed_records = 0
        self.recovery_seconds = 0.0
        self.node_id = b""
        self.ready = asyncio.Event()
        self.exit_code = EXIT_OK
        self._load = load
        self.trail = Trail(configuration.audit, configuration.name, VERSION, audited(configuration))
        #: None for a single broker.
        self.activation = make_activation(self)
        if self.activation is not None:
            self.activation.machine.on_change(self._phase_changed)
        self._lock = DirectoryLock(self._directories(configuration))
        self._stop_wanted = asyncio.Event()
        self._forced = asyncio.Event()
        self._stop_reason = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._reloading = asyncio.Lock()
        self._disk_reason: str | None = None

    @staticmethod
    def _directories(configuration: Configuration) -> set[Any]:
        return {
            configuration.journal_directory,
            configuration.bindings_directory,
            configuration.paging_directory,
            configuration.large_messages_directory,
            store_directory(configuration),
        }

    # -- start

    async def start(self) -> None:
        """Bring everything up. Raises PolluxError (ConfigError, DirectoryLockedError, ListenError, StoreError ...)."""
        self.loop = asyncio.get_running_loop()
        configuration = self.configuration
        event(logger, logging.INFO, "broker starts", name=configuration.name, version=VERSION)
        self.trail.event("broker-started", version=VERSION, pid=os.getpid())
        for problem in configuration.warnings:
            event(logger, logging.WARNING, problem.render())
        require_built(configuration, features(configuration))
        users = self._load_users(configuration)
        extend = self.loop.create_task(self._extend_start())
        try:
            self.connections = Connections(
                self.loop,
                maximum=connection_limit(configuration.limits.max_connections),
                per_host=configuration.limits.max_connections_per_host,
                before_login=configuration.handshake_limit(memory_limit()),
                trail=self.trail,
                interval=configuration.connection_ttl_check_interval / 1000,
            )
            self.security = Security(
                configuration, users, on_login=self._logged_in, on_logout=self._logged_out, trail=self.trail
            )
            epoch = await self._take_store(configuration)
            await self._bring_up(configuration, epoch)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                # Not stopped on purpose: whoever can take the store over may do so.
                self.exit_code = self.exit_code or exit_code(error)
            await self._tear_down(graceful=False)
            raise
        finally:
            extend.cancel()

    def _logged_in(self, connection_id: int, user: str) -> None:
        self.connections.logged_in(connection_id, user)
        self.post.memory.opened(connection_id, user)

    def _logged_out(self, connection_id: int) -> None:
        self.post.memory.closed(connection_id)

    async def _take_store(self, configuration: Configuration) -> int:
        """Wait until the store is ours. Returns the epoch of this activation, 0: the store shall find one."""
        let_writers_in()
        if self.activation is None:
            self._lock.acquire(configuration.name)
            self.node_id = node_id(store_directory(configuration))
            # Importing the sessions takes a tenth of a second, about as long as the disk needs to be ready.
            self.loop.call_soon(load_sessions, configuration.acceptors)
            return 0
        activation = self.activation
        if activation.exclusive:
            self._lock.acquire(configuration.name, activation.policy)
        load_sessions(configuration.acceptors)
        for component in self.components:
            await component.start()
        activation.management = self._management_url(configuration)
        self.state = "joining"
        if activation.exclusive or not runtime_directory(configuration).is_relative_to(store_directory(configuration)):
            self.write_status()  # in the store nothing is written before it was found to be the right one
        tune_garbage_collector()
        right = await activation.wait()
        self.state = "activating"
        self.node_id = right.node_id
        if not activation.exclusive:
            self._lock.acquire(configuration.name, activation.policy)
        return right.epoch

    def _management_url(self, configuration: Configuration) -> str:
        port = self.ports().get("management")
        if not port:
            return ""
        settings = configuration.management
        everywhere = settings.host in ("0.0.0.0", "::", "")  # noqa: S104  (compared, not listened on)
        host = socket.gethostname() if everywhere else settings.host
        return f"{'https' if settings.ssl_enabled else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _bring_up(self, configuration: Configuration, epoch: int) -> None:
        await self._open_store(configuration, epoch)
        self.post.address_manager.apply_configuration(configuration)
        await self.stable()
        self._build_listeners(configuration)
        for listener in self.listeners:
            if listener.acceptor.settings.auto_start:
                await listener.listen()
        self.connections.start()
        self._start_timers(configuration)
        self._start_analyzer(configuration)
        self.state = "live"
        if self.activation is not None:
            self.activation.serving()
        self.write_status()
        event(
            logger,
            logging.INFO,
            "broker is live",
            name=configuration.name,
            epoch=self.storage.epoch,
            messages=self.recovered_messages,
            paged=self.storage.pages.messages,
            replayed=self.replayed_records,
            recovery_seconds=round(self.recovery_seconds, 3),
            start_seconds=round(time.time() - self.started_at, 3),
        )
        self.trail.start(self.loop)
        self.trail.event(
            "broker-live",
            epoch=self.storage.epoch,
            node_id=self.node_id.hex(),
            messages=self.recovered_messages,
            recovery_ms=round(self.recovery_seconds * 1000),
        )
        if self.activation is None:
            for component in self.components:
                await component.start()
        self.write_status()
        tune_garbage_collector()
        self.ready.set()
        self.notifier.ready(f"live, {self.recovered_messages} messages recovered")

    @staticmethod
    def _load_users(configuration: Configuration) -> Users:
        security = configuration.security
        users = load_users(security.users_file, security.roles_file, security.certificate_users_file)
        if configuration.security_enabled and not users.verifiers and not users.certificates:
            event(
                logger,
                logging.WARNING,
                "there are no users: nobody can log in; add one with: pollux user add",
                file=security.users_file,
            )
        return users

    async def _open_store(self, configuration: Configuration, epoch: int) -> None:
        activation = self.activation
        self.storage = await Storage.open(
            StoreSettings.from_configuration(configuration, self.node_id),
            epoch=epoch,
            loop=self.loop,
            on_failure=self._store_failed,
            guard=activation.guard if activation is not None else None,
            files=activation.files if activation is not None else None,
            follower=await asyncio.to_thread(activation.follower) if activation is not None else None,
            spare=activation.spare if activation is not None else None,
        )
        recovered = await self.storage.recover()
        self.trail.begin_life(self.node_id, self.storage.epoch)
        self.recovered_messages = recovered.message_count
        self.replayed_records = recovered.replayed_records
        self.recovery_seconds = recovered.seconds
        wildcards = configuration.wildcard_addresses
        self.space = AddressSpace(
            lambda address: resolve_address_settings(configuration, address),
            WildcardSyntax(
                wildcards.delimiter,
                wildcards.any_words,
                wildcards.single_word,
                wildcards.routing_enabled and configuration.wild_card_routing_enabled,
            ),
        )
        self.post = PostOffice(
            configuration,
            self.space,
            self.storage,
            memory=memory_limit(),
            wall_ms=wall_ms,
            loop=self.loop,
            trail=self.trail,
            share=self.connections.share,
        )
        self.connections.buffers.watch(self.post.memory)
        self.post.address_manager.queue_limit = self.security.queue_limit
        self.post.address_manager.ask = self.security.ask
        self.space.admits = partial(admits, self.security)
        self.post.restore(recovered)
        self.storage.on_full_change(lambda _usage: self._disk_changed())
        self._disk_changed()

    async def stable(self) -> None:
        """Wait until everything done so far is on disk."""
        stable: asyncio.Future[None] = self.loop.create_future()

        def settle(error: Exception | None) -> None:
            if stable.done():
                return
            if error is None:
                stable.set_result(None)
            else:
                stable.set_exception(error)

        self.post.when_stable(settle)
        await stable

    def _build_listeners(self, configuration: Configuration) -> None:
        sessions = load_sessions(
            configuration.acceptors, self.activation.hub if self.activation is not None else None
        )
        for acceptor in configuration.acceptors:
            services = Services(
                configuration=configuration,
                post=self.post,
                security=self.security,
                wall_ms=wall_ms,
                failover_servers=self.failover_servers,
                acceptor=acceptor.settings,
            )
            self.listeners.append(
                Listener(
                    acceptor,
                    configuration,
                    loop=self.loop,
                    connections=self.connections,
                    services=services,
                    sessions=sessions,
                    tls=make_tls(acceptor.settings, f"acceptor {acceptor.name!r}"),
                )
            )
        if any(acceptor.speaks("MQTT") for acceptor in configuration.acceptors):
            # Stored sessions expire and their wills fall due whether or not an MQTT client ever connects.
            mqtt.start(self.listeners[0].services, self.loop)

    async def _extend_start(self) -> None:
        while True:
            self.notifier.extend(2 * _EXTEND_EVERY)
            await asyncio.sleep(_EXTEND_EVERY)

    def _start_timers(self, configuration: Configuration) -> None:
        post = self.post
        self._every(configuration.message_expiry_scan_period, post.dead_letters.scan)
        self._every(configuration.address_queue_scan_period, post.address_manager.reap)
        self._every(configuration.transaction_timeout_scan_period, post.expire_transactions)
        find, settings = self.connections.get, lambda: self.configuration.address_settings
        slow = SlowConsumers(self.space, self.loop.time, find, settings)
        self._every(1000, slow.check)
        if self._load is not None and configuration.configuration_file_refresh_period > 0:
            self._tasks.append(self.loop.create_task(self._watch_files()))
        if self.notifier.watchdog_interval is not None:
            event(logger, logging.INFO, "service manager watches", seconds=2 * self.notifier.watchdog_interval)

    def _every(self, milliseconds: int, function: Callable[[], object]) -> None:
        """Call ``function`` periodically; a period of 0 or less is off."""
        if milliseconds > 0:
            self._tasks.append(self.loop.create_task(self._repeat(milliseconds / 1000, function)))

    @staticmethod
    async def _repeat(seconds: float, function: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                function()
            except Exception:
                logger.exception("a periodic task failed")

    def _start_analyzer(self, configuration: Configuration) -> None:
        timeout = configuration.critical_analyzer_timeout / 1000
        period = configuration.critical_analyzer_check_period / 1000 or timeout / 2
        watchdog = self.notifier.watchdog_interval
        self.analyzer = CriticalAnalyzer(
            self.loop,
            timeout=timeout,
            period=min(period, watchdog) if watchdog else period,
            policy=configuration.critical_analyzer_policy,
            probe=self.storage.when_stable,
            alive=self.notifier.alive if watchdog else None,
            enabled=configuration.critical_analyzer,
        )
        self.analyzer.start()

    # -- what happens meanwhile

    def _disk_changed(self) -> None:
        usage = self.storage.usage()
        reason = usage.reason if usage.full else None
        if (reason is None) != (self._disk_reason is None):
            event(
                logger,
                logging.INFO if reason is None else logging.ERROR,
                "disk has room again: producers go on" if reason is None else "disk is full: producers are blocked",
                reason=reason,
                free=usage.free,
                total=usage.total,
            )
            self.trail.event("disk-room" if reason is None else "disk-full", reason=reason)
        self._disk_reason = reason

    def _phase_changed(self, before: Position, after: Position) -> None:
        """A line of the audit trail; it begins with the first phase in which the store was accepted. Any thread."""
        if after.phase in (Phase.READY, Phase.CATCHING_UP, Phase.ACTIVATING):
            self.loop.call_soon_threadsafe(self.trail.start, self.loop)
        self.trail.event(
            "activation", **{"from": before.phase.value}, to=after.phase.value, reason=after.reason, epoch=after.epoch
        )

    def failover_servers(self, protocol: str, tls: bool) -> list[tuple[str, int, str]]:
        """The other members that a client may turn to, as :meth:`pollux.cluster.topology.Topology.servers`."""
        return self.activation.topology.servers(protocol, tls) if self.activation is not None else []

    @property
    def serving(self) -> bool:
        """Whether there is a store, and with it addresses, queues and messages."""
        return hasattr(self, "analyzer")

    @property
    def damage(self) -> list[str]:
        """What of the store was found damaged or missing so far, at the start or when it was read."""
        found = self.storage.damage if hasattr(self, "storage") else []
        problems = self.post.problems if hasattr(self, "post") else []
        return [*(str(damage) for damage in found if damage.kind != "torn-tail"), *problems]

    @property
    def disk_full(self) -> str | None:
        """Why producers are blocked by the disk; None when they are not."""
        return self._disk_reason

    def not_ready(self) -> list[str]:
        """Why the broker does not serve everything now; empty when it does."""
        reasons = []
        if self.state != "live":
            position = self.activation.machine.position if self.activation is not None else None
            why = f": {position.reason}" if position is not None and position.phase == self.state else ""
            reasons.append(f"the broker is {self.state}{why}")
        if self._disk_reason is not None:
            reasons.append(f"disk full: {self._disk_reason}")
        return reasons

    def _store_failed(self, error: StoreError) -> None:
        """Fail-stop: nobody gets another confirmation; the process ends with EXIT_STORE."""
        if self.activation is not None and not self.activation.guard() and self.state != "failed":
            # The journal met the expired guard before the timer did.
            self.activation.fence(str(error))
            self.fenced(str(error))
            return
        self._fail(EXIT_STORE, "the store failed", error)

    def fenced(self, reason: str) -> None:
        """The right to serve is lost: fail-stop, and be gone soon even if the store hangs in the kernel."""
        if self.state == "failed":
            return
        timer = threading.Timer(FENCED_TIMEOUT, os._exit, (EXIT_FENCED,))
        timer.daemon = True
        timer.start()
        self._fail(EXIT_FENCED, "the right to serve is lost", reason)

    def _fail(self, code: int, what: str, error: object) -> None:
        if self.state == "failed":
            return
        self.state = "failed"
        self.exit_code = code
        event(logger, logging.CRITICAL, f"{what}: the broker stops at once", reason=error, exit=code)
        for listener in self.listeners:
            listener.stop_accepting()
        for connection in self.connections:
            connection.close_reason = what
            connection.abort()
        self._stop_reason = what
        self._forced.set()
        self._stop_wanted.set()

    def waits(self, state: str, why: str, *, ready: bool) -> None:
        """Say where a standby is, and why. ``ready``: the service manager need not wait any longer."""
        self.state = state
        self.write_status()
        self.notifier.status(f"{state}: {why}")
        if ready:
            self.notifier.ready(f"{state}: {why}")

    def write_status(self) -> None:
        """Write the status file that ``pollux`` finds a local broker by."""
        try:
            self.status.write(self.summary())
        except OSError as error:
            event(logger, logging.ERROR, "status file cannot be written", reason=error)

    def ports(self) -> dict[str, int]:
        """Every port listened on, by acceptor name; ``management`` is the HTTP port."""
        found = {listener.name: listener.port for listener in self.listeners if listener.port}
        for component in self.components:
            found.update(component.ports())
        return found

    def summary(self) -> dict[str, Any]:
        """Who this broker is, for the status file."""
        configuration = self.configuration
        return {
            "name": configuration.name,
            "version": VERSION,
            "pid": os.getpid(),
            "state": self.state,
            "startedAt": int(self.started_at * 1000),
            "nodeId": self.node_id.hex(),
            "configuration": str(configuration.path) if configuration.path else None,
            "management": {
                "host": configuration.management.host,
                "port": self.ports().get("management"),
                "tls": configuration.management.ssl_enabled,
            }
            if configuration.management.enabled
            else None,
            "ports": self.ports(),
            "activation": self.activation.view() if self.activation is not None else None,
        }

    # -- reload

    async def reload(self) -> list[str]:
        """Read the configuration and the users again and use what can be used without a restart.

        Returns one line for each change that needs a restart. A file that is wrong changes nothing and is logged;
        PolluxError tells the caller.
        """
        if self._load is None:
            raise PolluxError("this broker was not started from a file: there is nothing to reload")
        async with self._reloading:
            self.notifier.reloading()
            try:
                configuration = await asyncio.to_thread(self._load)
                require_built(configuration, features(configuration))
                users = await asyncio.to_thread(self._load_users, configuration)
                return await self._apply(configuration, users)
            except (ConfigError, UsersError, PolluxError) as error:
                event(logger, logging.ERROR, "reload refused, nothing was changed", reason=error)
                raise
            finally:
                self.notifier.ready("live")

    async def _apply(self, configuration: Configuration, users: Users) -> list[str]:
        merged, changed, refused = reload.merge(self.configuration, configuration)
        self.configuration = merged
        for listener in self.listeners:
            listener.services.configuration = merged
            listener.ttl = listener.ttl_of(merged)
            if listener.tls is not None:
                try:
                    await asyncio.to_thread(listener.tls.load)
                except PolluxError as error:
                    refused.append(str(error))
        self.space.reload_settings(lambda address: resolve_address_settings(merged, address))
        self.post.configuration = merged
        self.post.accounts.reload()
        self.post.memory.limit = merged.state_limit(memory_limit())
        self.post.address_manager.reload_settings()
        self.post.address_manager.apply_configuration(merged)
        gone = self.security.reload(merged, users)
        self.post.address_manager.reload_rights()
        self.connections.maximum = connection_limit(merged.limits.max_connections)
        self.connections.per_host = merged.limits.max_connections_per_host
        self.connections.strangers.limit = merged.handshake_limit(memory_limit())
        self.connections.interval = min(merged.connection_ttl_check_interval / 1000, SWEEP_INTERVAL)
        for connection in self.connections:
            if connection.session is not None and connection.session.user in gone:
                connection.shutdown("the user was removed")
        logging.getLogger("pollux").setLevel(logs.parse_level(merged.logging.level))
        for component in self.components:
            await component.reload()
        self.write_status()
        event(logger, logging.INFO, "configuration reloaded", changed=changed or ["nothing"])
        self.trail.event("configuration-reloaded", changed=changed)
        for line in refused:
            event(logger, logging.WARNING, "change needs a restart", what=line)
        return refused

    async def _watch_files(self) -> None:
        """Reload when broker.xml or a users file changed (configuration-file-refresh-period)."""
        before = await asyncio.to_thread(reload.stamps, self.configuration)
        while True:
            await asyncio.sleep(self.configuration.configuration_file_refresh_period / 1000)
            now = await asyncio.to_thread(reload.stamps, self.configuration)
            if now != before:
                before = now
                # The refusal is in the log.
                with contextlib.suppress(PolluxError):
                    await self.reload()

    # -- stop

    def request_stop(self, reason: str) -> None:
        """Begin a graceful stop; asked twice, do not wait for clients any more."""
        if self._stop_wanted.is_set():
            self._forced.set()
        self._stop_reason = self._stop_reason or reason
        self._stop_wanted.set()

    async def stop_wanted(self) -> None:
        """Wait until somebody wants the broker to stop."""
        await self._stop_wanted.wait()

    async def run(self) -> int:
        """Wait until somebody wants the broker to stop, stop it, and return the exit code."""
        await self._stop_wanted.wait()
        await self._tear_down(graceful=self.exit_code not in (EXIT_STORE, EXIT_FENCED))
        return self.exit_code

    async def _tear_down(self, *, graceful: bool) -> None:
        if self.state != "failed":
            self.state = "stopping"
        event(logger, logging.INFO, "broker stops", reason=self._stop_reason or "start failed")
        activation = self.activation
        fast_stop = activation is not None and activation.fast_stop
        if activation is not None:
            activation.stopping(self._stop_reason or "start failed")
        if activation is not None and activation.restart:
            self.notifier.status(f"becomes a standby: {self._stop_reason}")
        else:
            self.notifier.stopping(self._stop_reason)
        for listener in self.listeners:
            listener.stop_accepting()
        for task in self._tasks:
            task.cancel()
        if hasattr(self, "connections"):
            await self._leave_clients(graceful=graceful, fast_stop=fast_stop)
        if activation is None:
            await self._stop_components()
        if hasattr(self, "post"):
            await self._bounded(self.post.close(), COMPONENT_TIMEOUT, "post office")
        if hasattr(self, "storage") and self.state != "failed":
            closed = await self._bounded(self.storage.close(checkpoint=not fast_stop), STORE_CLOSE_TIMEOUT, "store")
            self.exit_code = self.exit_code or (EXIT_OK if closed else EXIT_FAILED)
        if hasattr(self, "analyzer"):
            self.analyzer.stop()  # it would ask a store that is closed, and whose right to confirm is given back
        if activation is not None:
            if not activation.exclusive:
                self._lock.release()
            leaving = activation.leave(graceful=self.exit_code == EXIT_OK)
            left = await self._bounded(leaving, LEAVE_TIMEOUT, "activation")
            # What it still holds goes with the process, which therefore must not begin another life.
            self.exit_code = self.exit_code or (EXIT_OK if left else EXIT_FAILED)
            await self._leave_brokers()
            await self._stop_components()
        if hasattr(self, "security"):
            self.security.close()
        if hasattr(self, "connections"):
            self.connections.stop()
        await asyncio.to_thread(self._leave_directory)
        self.trail.event("broker-stopped", reason=self._stop_reason or "start failed", exit=self.exit_code)
        await self.trail.stop()
        logs.flush(everything=True)
        event(logger, logging.INFO, "broker stopped", exit=self.exit_code)
        self.notifier.close()

    async def _stop_components(self) -> None:
        for component in reversed(self.components):
            await self._bounded(component.stop(), COMPONENT_TIMEOUT, "component")

    def _leave_directory(self) -> None:
        if self._lock.held or (self.activation is not None and not self.activation.exclusive):
            with contextlib.suppress(OSError):
                self.status.remove()
            self._lock.release()

    async def _leave_clients(self, *, graceful: bool, fast_stop: bool) -> None:
        connections = self.connections
        configuration = self.configuration
        if graceful:
            connections.detach_brokers()
        if graceful and configuration.graceful_shutdown_enabled and len(connections) and not fast_stop:
            limit = configuration.graceful_shutdown_timeout
            number = len(connections)
            event(logger, logging.INFO, "waiting for clients to leave", connections=number, milliseconds=limit)
            await self._first_of(connections.empty.wait(), self._forced.wait(), limit / 1000 if limit >= 0 else None)
        if graceful:
            for number, connection in enumerate(connections):
                connection.shutdown("the broker is stopping")
                if number % _FAREWELL_BATCH == _FAREWELL_BATCH - 1:
                    await asyncio.sleep(0)
            await self._first_of(
                connections.empty.wait(), self._forced.wait(), FAST_STOP_FAREWELL if fast_stop else FAREWELL_TIMEOUT
            )
        for connection in connections:
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(connections.empty.wait(), 1.0)

    async def _leave_brokers(self) -> None:
        """Other brokers' connections: they got what the store wrote while it was closed."""
        connections: Connections | None = getattr(self, "connections", None)
        if connections is None:
            return
        for connection in connections.detached_brokers():
            connection.shutdown("the broker is stopping")
        await asyncio.sleep(0)
        for connection in connections.detached_brokers():
            connection.abort()

    @staticmethod
    async def _first_of(one: Any, other: Any, seconds: float | None) -> None:
        tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _bounded(step: Any, seconds: float, name: str) -> bool:
        """Carry out a step of the stop; it may fail or take too long, the stop goes on. Returns whether it worked."""
        try:
            await asyncio.wait_for(step, seconds)
        except TimeoutError:
            event(logger, logging.ERROR, "a step of the stop took too long", step=name, seconds=seconds)
        except Exception:
            failure(logger, logging.ERROR, "a step of the stop failed", step=name)
        else:
            return True
        return False


def make_tls(settings: Any, name: str) -> ServerTls | None:
    """The TLS of a port with sslEnabled; None for a plain one."""
    if not settings.ssl_enabled:
        return None
    from pollux.process.tls import ServerTls

    return ServerTls(settings, name)


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
