"""The process of one life, as the supervisor has it: started, listened to, signalled."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal as signals
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pollux.ha.colocated.life import LIFE_VARIABLE, encode
from pollux.logs import event
from pollux.process.notify import DESCRIPTOR_VARIABLE
from pollux.supervisor.line import LINE_VARIABLE, PARENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pollux.ha.colocated.life import Life

logger = logging.getLogger("pollux.supervisor")

#: Bytes of one line between a life and its supervisor.
LONGEST_LINE = 1 << 20
_DATAGRAM = 8192


class Child:
    """One life, over all processes that it has. Everything is called in the loop's thread."""

    def __init__(
        self,
        life: Life,
        command: Sequence[str],
        environment: Mapping[str, str],
        lock: int,
        *,
        answer: Callable[[Child, dict[str, Any]], Awaitable[dict[str, Any]]],
        changed: Callable[[Child, str], None],
    ) -> None:
        """``lock``: a descriptor that its process inherits. ``changed``: told of each word to the service manager."""
        self.life = life
        self.ready = False
        #: It was ready in some process.
        self.was_ready = False
        self.status = "starts"
        #: What it told last, and when, by the monotonic clock.
        self.told: dict[str, Any] = {}
        self.told_at = 0.0
        self.process: asyncio.subprocess.Process | None = None
        self.starts = 0
        #: When it fed its watchdog last, by the monotonic clock; None: it does not.
        self.fed: float | None = None
        self._command = list(command)
        self._environment = dict(environment)
        self._lock = lock
        self._answer = answer
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        #: What it was to be sent while its process was being started; None: none is.
        self._held: list[signals.Signals] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id; None: it does not run."""
        return self.process.pid if self.process is not None else None

    async def run(self) -> int:
        """Run one process to its end; returns the exit code, minus a signal's number. Raises OSError."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        # Without a name: any user of the machine could speak in the life's place, or keep it from being heard.
        manager, words = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.setblocking(False)
        environment = {
            **self._environment,
            LIFE_VARIABLE: encode(self.life),
            LINE_VARIABLE: str(theirs.fileno()),
            PARENT_VARIABLE: str(os.getpid()),
            DESCRIPTOR_VARIABLE: str(words.fileno()),
        }
        for name in ("WATCHDOG_PID", "NOTIFY_SOCKET"):
            environment.pop(name, None)
        self.starts += 1
        self._held = []
        self.ready, self.status, self.fed, self.told = False, "starts", None, {}
        # Its process has this from us, and keeps a reload that comes before it listens; it would die of it.
        signals.pthread_sigmask(signals.SIG_BLOCK, (signals.SIGHUP,))
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), words.fileno(), self._lock),
                # What a terminal sends to all comes here by the supervisor.
                process_group=0,
            )
        except BaseException:
            ours.close()
            manager.close()
            raise
        finally:
            signals.pthread_sigmask(signals.SIG_UNBLOCK, (signals.SIGHUP,))
            held, self._held = self._held, None
            theirs.close()
            words.close()
        event(logger, logging.INFO, "life starts", of=self.life.key, name=self.life.name or None, pid=self.pid)
        for number in held:
            self.signal(number)
        loop.add_reader(manager, self._hear, manager)
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        listening = loop.create_task(self._listen(reader, writer))
        try:
            return await self.process.wait()
        finally:
            loop.remove_reader(manager)
            manager.close()
            listening.cancel()
            writer.close()
            self.process, self.ready, self.told = None, False, {}

    def signal(self, number: signals.Signals) -> None:
        """Send a signal, if it runs; one that is just being started gets it then."""
        if self._held is not None:
            self._held.append(number)
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    # -- as its service manager

    def _hear(self, manager: socket.socket) -> None:
        try:
            text = manager.recv(_DATAGRAM).decode("utf-8", "replace")
        except OSError:
            return
        words = dict(line.partition("=")[::2] for line in text.splitlines())
        self.status = words.get("STATUS", self.status)
        if "WATCHDOG" in words:
            self.fed = time.monotonic()
        if "READY" in words:
            self.ready = self.was_ready = True
        if "STOPPING" in words:
            self.ready = False
        for word in ("READY", "STOPPING", "STATUS", "EXTEND_TIMEOUT_USEC"):
            if word in words:
                self._changed(self, word)
                return

    # -- its questions

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                task = asyncio.get_running_loop().create_task(self._reply(json.loads(line), writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _reply(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(self, asked)
        except Exception as error:
            logger.exception("a question of life %s could not be answered", self.life.key)
            answer = {"error": repr(error)}
        writer.write(json.dumps({**answer, "id": asked.get("id")}).encode() + b"\n")
