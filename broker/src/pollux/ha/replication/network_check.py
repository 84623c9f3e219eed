"""Asks hosts and web servers whether this host is cut off from the network; see :mod:`pollux.ha.replication.network`.

All are asked at once, and the first answer ends a check. Every check is over after its time-out: pings are processes
that are killed then, without a shell, without input and with an environment of their own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.cluster.duties import carry_out
from pollux.config.rules_network import DEFAULT_PING, DEFAULT_PING6, command_words, is_version_6, ping_words
from pollux.ha.replication.network import Checked, NetworkSettings, current, judge
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.model import Configuration

logger = logging.getLogger("pollux.ha")

#: More than a check takes: the event loop may be busy, seconds.
MARGIN = 5.0


def settings_of(configuration: Configuration) -> NetworkSettings | None:
    """Return the settings in broker.xml; None when nobody is to be asked."""
    hosts, urls = configuration.network_check_list, configuration.network_check_url_list
    if not hosts and not urls:
        return None
    interface = ["-I", configuration.network_check_nic] if configuration.network_check_nic else []

    def words(command: str | None, default: str) -> tuple[str, ...]:
        if command:
            return tuple(command_words(command))
        program, *rest = command_words(default)
        return (program, *interface, *rest)

    return NetworkSettings(
        hosts,
        urls,
        configuration.network_check_period / 1000,
        configuration.network_check_timeout / 1000,
        words(configuration.network_check_ping_command, DEFAULT_PING),
        words(configuration.network_check_ping6_command, DEFAULT_PING6),
    )


class NetworkCheck:
    """Asks again and again. ``on_change`` is called in the loop with the problem, or with nothing when it is over."""

    def __init__(self, settings: NetworkSettings, on_change: Callable[[str], None]) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.last: Checked | None = None
        self._on_change = on_change
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Check from now on, once a period."""
        self._task = self.loop.create_task(carry_out("asking the network", self._run))

    async def stop(self) -> None:
        """Stop asking; no process is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def problem(self) -> str:
        """Why this host is cut off, as far as is known; empty: it is not."""
        return self.last.problem if self.last is not None else ""

    def ask(self, since: float) -> str:
        """The problem as it has been since ``since`` (by the loop's clock). Blocking, in any thread but the loop's."""
        known = current(self.last, since)
        if known is not None:
            return known.problem
        work = self.checked(since)
        try:
            asked = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the event loop has ended
            work.close()
            return "this broker stops"
        try:
            return asked.result(2 * self.settings.timeout + MARGIN)
        except TimeoutError:
            asked.cancel()
            return "the network could not be checked in time"

    async def checked(self, since: float) -> str:
        """Return the problem as it has been since ``since``, after a check where needed. In the loop."""
        async with self._one_at_a_time:
            known = current(self.last, since)
            return known.problem if known is not None else await self._check()

    async def _run(self) -> None:
        while True:
            await self.checked(self.loop.time())
            await asyncio.sleep(self.settings.period)

    async def _check(self) -> str:
        given, began = self.settings, self.loop.time()
        failures: dict[str, str] = {}
        asking = [self.loop.create_task(self._ping(host, failures)) for host in given.hosts]
        asking += [self.loop.create_task(self._fetch(url, failures)) for url in given.urls]
        answered = False
        try:
            async with asyncio.timeout(given.timeout):
                for first in asyncio.as_completed(asking):
                    if await first:
                        answered = True
                        break
        except TimeoutError:
            pass
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        problem = judge((*given.hosts, *given.urls), answered, failures, given.timeout)
        before, self.last = self.last, Checked(began, problem)
        if bool(problem) != bool(before is not None and before.problem):
            what = "cut off from the network" if problem else "the network answers again"
            event(logger, logging.ERROR if problem else logging.INFO, what, reason=problem or None)
            self._on_change(problem)
        return problem

    async def _ping(self, host: str, failures: dict[str, str]) -> bool:
        given = self.settings
        command = given.ping6 if is_version_6(host) else given.ping
        words = ping_words(list(command), host, max(1, round(given.timeout)))
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            failures[host] = f"{words[0]}: {error}"
            return False
        try:
            return await process.wait() == 0
        finally:
            # Whatever it has started goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(process.wait())

    async def _fetch(self, url: str, failures: dict[str, str]) -> bool:
        import aiohttp  # takes a third of a second, and few brokers need it

        try:
            # A proxy would answer although the network does not; any answer counts, and nothing of it is read.
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.get(url, allow_redirects=False),
            ):
                return True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failures[url] = str(error)[:200] or type(error).__name__
            return False
