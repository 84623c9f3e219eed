"""Run a broker: the process around one node, with what there is once in a process.

That is the HTTP port and its like (components), the status file, the service manager's notifications, the critical
analyzer, reloads, and how the process ends. The order of a start and of a stop is here; each step is the node's
(:mod:`pollux.node.node`). A stop is the reverse of a start and bounded in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Protocol

from pollux import logs
from pollux.audit import Trail
from pollux.config import audited
from pollux.errors import PolluxError
from pollux.ha.runtime import runtime_directory, store_directory
from pollux.logs import event
from pollux.node.around import Ending
from pollux.node.node import Node
from pollux.node.steps import STEP_TIMEOUT, bounded
from pollux.process import reload
from pollux.process.acceptors import Acceptors
from pollux.process.exits import EXIT_FAILED, EXIT_FENCED, EXIT_OK, EXIT_STORE, EXIT_UNDRAINED
from pollux.process.failures import exit_code
from pollux.process.notify import Notifier
from pollux.process.resources import let_writers_in, share_of_memory, tune_garbage_collector
from pollux.process.status import Status
from pollux.process.watchdog import MAXIMUM_BEAT, CriticalAnalyzer
from pollux.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.model import Configuration
    from pollux.config.users import Users
    from pollux.ha.activation import Activation

logger = logging.getLogger("pollux.broker")

#: A broker that lost its right to serve is gone after this time, whatever hangs, seconds.
FENCED_TIMEOUT = 1.0
#: How often the service manager is told that a long recovery goes on, and for how long that counts, seconds.
_EXTEND_EVERY = 10.0
_EXITS = {Ending.STORE_FAILED: EXIT_STORE, Ending.FENCED: EXIT_FENCED}


class Component(Protocol):
    """Something that runs beside the broker and that this layer does not know (the HTTP port)."""

    async def start(self) -> None:
        """Do from here on what it is for. Raises PolluxError when it cannot."""

    async def reload(self) -> None:
        """Use the broker's new configuration."""

    async def stop(self) -> None:
        """Do no more, within a few seconds."""

    def ports(self) -> dict[str, int]:
        """Return the ports it listens on, by name."""


def _tell_of_nobody(configuration: Configuration, users: Users) -> None:
    security = configuration.security
    if configuration.security_enabled and not users.verifiers and not users.certificates:
        event(
            logger,
            logging.WARNING,
            "there are no users: nobody can log in; add one with: pollux user add",
            file=security.users_file,
        )


class Broker:
    """Run one node, as its :class:`pollux.node.around.Process`. ``load`` reads both anew for a reload."""

    def __init__(
        self,
        configuration: Configuration,
        users: Users,
        *,
        load: Callable[[], tuple[Configuration, Users]] | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        _tell_of_nobody(configuration, users)
        self.notifier = notifier or Notifier()
        self.components: list[Component] = []
        self.status = Status(runtime_directory(configuration))
        self.exit_code = EXIT_OK
        trail = Trail(configuration.audit, configuration.name, VERSION, audited(configuration))
        self.acceptors = Acceptors(configuration, trail)
        self.node = Node(configuration, users, trail, process=self, acceptors=self.acceptors)
        self.analyzer = self._make_analyzer(configuration)
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._stop_wanted = asyncio.Event()
        self._forced = asyncio.Event()
        self._stop_reason = ""
        self._watching: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()

    def _make_analyzer(self, configuration: Configuration) -> CriticalAnalyzer:
        timeout = configuration.critical_analyzer_timeout / 1000
        period = configuration.critical_analyzer_check_period / 1000 or timeout / 2
        watchdog = self.notifier.watchdog_interval
        return CriticalAnalyzer(
            asyncio.get_running_loop(),
            timeout=timeout,
            period=min(period, watchdog) if watchdog else period,
            policy=configuration.critical_analyzer_policy,
            probe=self.node.when_stable,
            alive=self.notifier.alive if watchdog else None,
            enabled=configuration.critical_analyzer,
        )

    # -- start

    async def start(self) -> None:
        """Bring everything up. Raises PolluxError (ConfigError, DirectoryLockedError, ListenError, StoreError ...)."""
        node = self.node
        configuration = node.configuration
        event(logger, logging.INFO, "broker starts", name=configuration.name, version=VERSION)
        node.trail.event("broker-started", version=VERSION, pid=os.getpid())
        for problem in configuration.warnings:
            event(logger, logging.WARNING, problem.render())
        extend = self._loop.create_task(self._extend_start())
        try:
            await self._bring_up()
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                # Not stopped on purpose: whoever can take the store over may do so.
                self.exit_code = self.exit_code or exit_code(error)
            await self._tear_down(graceful=False)
            raise
        finally:
            extend.cancel()

    async def _bring_up(self) -> None:
        node, epoch = self.node, 0
        let_writers_in()
        node.enter()
        if node.activation is None:
            # Importing the sessions takes a tenth of a second, about as long as the disk needs to be ready.
            self._loop.call_soon(self.acceptors.load_sessions)
        else:
            self.acceptors.load_sessions()
            epoch = await self._wait(node.activation)
        engine = await node.open(epoch)
        await node.serve(engine)
        self.analyzer.start()
        if self._load is not None and node.configuration.configuration_file_refresh_period > 0:
            self._watching = self._loop.create_task(self._watch_files())
        if self.notifier.watchdog_interval is not None:
            event(logger, logging.INFO, "service manager watches", seconds=2 * self.notifier.watchdog_interval)
        self.write_status()
        if node.activation is None:
            await self._start_components()
            self.write_status()
        tune_garbage_collector()
        self.notifier.ready(f"live, {engine.recovered_messages} messages recovered")

    async def _wait(self, activation: Activation) -> int:
        """Wait until the store is ours, with the management port open; returns the epoch of this life."""
        configuration = self.node.configuration
        await self._start_components()
        activation.management = self._management_url(configuration)
        if activation.exclusive or not runtime_directory(configuration).is_relative_to(store_directory(configuration)):
            self.write_status()  # in the store nothing is written before it was found to be the right one
        tune_garbage_collector()
        return await self.node.wait(activation)

    async def _start_components(self) -> None:
        for component in self.components:
            await component.start()

    def _management_url(self, configuration: Configuration) -> str:
        port = self.ports().get("management")
        if not port:
            return ""
        settings = configuration.management
        everywhere = settings.host in ("0.0.0.0", "::", "")  # noqa: S104  (compared, not listened on)
        host = socket.gethostname() if everywhere else settings.host
        return f"{'https' if settings.ssl_enabled else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _extend_start(self) -> None:
        """Have the service manager wait, and see that the loop runs: before it serves no analyzer says so."""
        watchdog = self.notifier.watchdog_interval
        while True:
            self.notifier.extend(2 * _EXTEND_EVERY)
            if watchdog is not None:
                self.notifier.alive()
            await asyncio.sleep(_EXTEND_EVERY if watchdog is None else min(MAXIMUM_BEAT, watchdog))

    # -- as the node's process

    def waits(self, why: str, *, ready: bool) -> None:
        """Say where a standby is, and why. ``ready``: the service manager need not wait any longer."""
        state = self.node.state
        self.write_status()
        self.notifier.status(f"{state}: {why}")
        if ready:
            self.notifier.ready(f"{state}: {why}")

    def request_stop(self, reason: str) -> None:
        """Stop gracefully; asked twice, do not wait for clients any more."""
        if self._stop_wanted.is_set():
            self._forced.set()
        self._stop_reason = self._stop_reason or reason
        self._stop_wanted.set()

    def failed(self, ending: Ending, reason: object) -> None:
        """Stop at once. A process that lost its right to serve is gone soon, even if the store hangs in the kernel."""
        self.exit_code = _EXITS[ending]
        if ending is Ending.FENCED:
            timer = threading.Timer(FENCED_TIMEOUT, os._exit, (EXIT_FENCED,))
            timer.daemon = True
            timer.start()
        event(
            logger,
            logging.CRITICAL,
            f"{ending.value}: the broker stops at once",
            reason=reason,
            exit=self.exit_code,
        )
        self._stop_reason = ending.value
        self._forced.set()
        self._stop_wanted.set()

    def memory_limit(self) -> int:
        """Return the bytes of memory that this process may use."""
        return share_of_memory(self.node.configuration)

    # -- meanwhile

    @property
    def starts_again(self) -> bool:
        """Whether the process, once it has stopped, shall begin another life as a standby."""
        return self.node.activation is not None and self.node.activation.restart

    def write_status(self) -> None:
        """Write the status file that ``pollux`` finds a local broker by."""
        try:
            self.status.write(self.summary())
        except OSError as error:
            event(logger, logging.ERROR, "status file cannot be written", reason=error)

    def ports(self) -> dict[str, int]:
        """Every port listened on, by acceptor name; ``management`` is the HTTP port."""
        found = self.acceptors.ports()
        for component in self.components:
            found.update(component.ports())
        return found

    def summary(self) -> dict[str, Any]:
        """Who this broker is, for the status file."""
        node = self.node
        configuration, activation = node.configuration, node.activation
        return {
            "name": configuration.name,
            "version": VERSION,
            "pid": os.getpid(),
            "state": node.state,
            "startedAt": int(node.started_at * 1000),
            "nodeId": node.node_id.hex(),
            "configuration": str(configuration.path) if configuration.path else None,
            "management": {
                "host": configuration.management.host,
                "port": self.ports().get("management"),
                "tls": configuration.management.ssl_enabled,
            }
            if configuration.management.enabled
            else None,
            "ports": self.ports(),
            "activation": activation.view() if activation is not None else None,
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
                configuration, users = await asyncio.to_thread(self._load)
                _tell_of_nobody(configuration, users)
                return await self._apply(configuration, users)
            except PolluxError as error:
                event(logger, logging.ERROR, "reload refused, nothing was changed", reason=error)
                raise
            finally:
                self.notifier.ready(self.node.state)

    async def _apply(self, configuration: Configuration, users: Users) -> list[str]:
        merged, changed, refused = reload.merge(self.node.configuration, configuration)
        refused += await self.node.reload(merged, users)
        logging.getLogger("pollux").setLevel(logs.parse_level(merged.logging.level))
        for component in self.components:
            await component.reload()
        self.write_status()
        event(logger, logging.INFO, "configuration reloaded", changed=changed or ["nothing"])
        self.node.trail.event("configuration-reloaded", changed=changed)
        for line in refused:
            event(logger, logging.WARNING, "change needs a restart", what=line)
        return refused

    async def _watch_files(self) -> None:
        """Reload when broker.xml or a users file changed (configuration-file-refresh-period)."""
        before = await asyncio.to_thread(reload.stamps, self.node.configuration)
        while True:
            await asyncio.sleep(self.node.configuration.configuration_file_refresh_period / 1000)
            now = await asyncio.to_thread(reload.stamps, self.node.configuration)
            if now != before:
                before = now
                try:
                    await self.reload()
                except PolluxError:
                    pass  # the refusal is in the log
                except Exception:
                    logger.exception("a reload failed and may have changed a part; the next change is taken as well")

    # -- stop

    async def stop_wanted(self) -> None:
        """Wait until somebody wants the broker to stop."""
        await self._stop_wanted.wait()

    async def run(self) -> int:
        """Wait until somebody wants the broker to stop, stop it, and return the exit code."""
        await self._stop_wanted.wait()
        await self._tear_down(graceful=self.exit_code not in (EXIT_STORE, EXIT_FENCED))
        return self.exit_code

    async def _tear_down(self, *, graceful: bool) -> None:
        node, activation = self.node, self.node.activation
        reason = self._stop_reason or "start failed"
        event(logger, logging.INFO, "broker stops", reason=reason)
        node.stopping(reason)
        if self.starts_again:
            self.notifier.status(f"becomes a standby: {self._stop_reason}")
        else:
            self.notifier.stopping(self._stop_reason)
        if self._watching is not None:
            self._watching.cancel()
        await node.leave_clients(graceful=graceful, forced=self._forced)
        if graceful and not self.exit_code:
            await self._scale_down()
        if activation is None:
            await self._stop_components()
        self._note(worked=await node.close_store())
        self.analyzer.stop()  # it would ask a store that is closed, and whose right to confirm is given back
        if activation is not None:
            # What it still holds goes with the process, which therefore must not begin another life.
            self._note(worked=await node.leave_group(activation, graceful=self.exit_code == EXIT_OK))
            await self._stop_components()
        node.close()
        await asyncio.to_thread(self._leave_directory)
        node.trail.event("broker-stopped", reason=reason, exit=self.exit_code)
        await node.trail.stop()
        logs.flush(everything=True)
        event(logger, logging.INFO, "broker stopped", exit=self.exit_code)
        self.notifier.close()

    async def _scale_down(self) -> None:
        extend = self._loop.create_task(self._extend_start())
        try:
            if not await self.node.scale_down(self._forced):
                self.exit_code = self.exit_code or EXIT_UNDRAINED
        finally:
            extend.cancel()

    def _note(self, *, worked: bool) -> None:
        if not worked:
            self.exit_code = self.exit_code or EXIT_FAILED

    async def _stop_components(self) -> None:
        for component in reversed(self.components):
            await bounded(component.stop(), STEP_TIMEOUT, "component")

    def _leave_directory(self) -> None:
        if self.node.owns_directory:
            with contextlib.suppress(OSError):
                self.status.remove()
            self.node.unlock()
