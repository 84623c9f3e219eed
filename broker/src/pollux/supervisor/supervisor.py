"""Run a host with a colocated policy: its own live and the backups that it has, each in a process of its own.

The supervisor serves nobody and opens no store. It starts lives, starts them again, passes signals on, answers their
questions about this host, and speaks with the service manager for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.config.colocated_ports import group_of, own_ports
from pollux.errors import PolluxError
from pollux.ha.colocated.life import Life, place_of
from pollux.ha.colocated.placement import BackupRequest, Host, Slots
from pollux.ha.runtime import RUN_VARIABLE, runtime_directory
from pollux.logs import event
from pollux.process.exits import EXIT_OK
from pollux.process.failures import exit_code
from pollux.process.notify import Notifier
from pollux.store.data_lock import DirectoryLockedError
from pollux.supervisor import hosted, policy, views
from pollux.supervisor.child import Child
from pollux.supervisor.policy import RESTART_AFTER, Then

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.config.colocated_ports import Colocated
    from pollux.config.model import Configuration

logger = logging.getLogger("pollux.supervisor")

#: Environment variable that names this machine, where its host name does not: lives keep backups off their own.
MACHINE_VARIABLE = "POLLUX_MACHINE"
#: Seconds until the lives of a supervisor that was killed are gone.
_LOCK_PATIENCE = 10.0
_LOCK_PAUSE = 0.05
#: Seconds between two looks at all lives.
_LOOK = 0.5


class Supervisor:
    """All lives of a host. Everything is called in the loop's thread."""

    def __init__(self, configuration: Configuration, colocated: Colocated, command: Sequence[str]) -> None:
        """``command``: what starts a life, in an environment that names it."""
        self._configuration = configuration
        self._colocated = colocated
        self._command = command
        self._runtime = runtime_directory(configuration)
        #: Of lives whose stores are copied a backup's is in this host's own directory, whoever serves.
        self._copies = configuration.ha_policy is not None and configuration.ha_policy.replication is not None
        self._place = place_of(configuration)
        self._notifier = Notifier()
        self._lock = -1
        self.machine = os.environ.get(MACHINE_VARIABLE) or socket.gethostname()
        self.children: dict[str, Child] = {}
        self._node = ""
        self._removed: set[str] = set()
        self._slots: Slots | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._code = EXIT_OK
        self._shown: object = None
        self._writing = asyncio.Lock()

    # -- the whole

    async def run(self) -> int:
        """Run until stopped, or until there is nothing left to do; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
        try:
            self._lock = await self._locked()
            known = await asyncio.to_thread(hosted.read, self._place)
        except (PolluxError, OSError) as error:
            event(logger, logging.ERROR, "the supervisor cannot start", reason=error)
            self._notifier.close()
            return exit_code(error)
        self._node, self._removed = known.node, set(known.removed)
        self._make_slots({bytes.fromhex(life.node): life.slot for life in known.lives})
        event(logger, logging.INFO, "supervisor starts", name=self._configuration.name, backups=len(known.lives))
        self._begin(Life())
        for life in known.lives:
            self._begin(life)
        looking = loop.create_task(self._look())
        await self._stopping.wait()
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        looking.cancel()
        self._notifier.close()
        with suppress(OSError):
            views.remove(self._runtime)
        os.close(self._lock)
        event(logger, logging.INFO, "supervisor stopped", exit=self._code)
        return self._code

    async def _locked(self) -> int:
        """Return the host's lock; lives of a supervisor that was killed have it until they are gone, too."""
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                return hosted.lock(self._place if self._copies else self._runtime)
            except DirectoryLockedError:
                if time.monotonic() >= deadline or self._stopping.is_set():
                    raise
            await asyncio.sleep(_LOCK_PAUSE)

    def _stop(self, number: signal.Signals) -> None:
        event(logger, logging.INFO, "supervisor stops", reason=signal.Signals(number).name)
        self._notifier.stopping("all lives stop")
        self._stopping.set()
        for key, task in list(self._tasks.items()):
            child = self.children.get(key)
            if child is not None and child.process is not None:
                child.signal(signal.SIGTERM)
            elif child is None or child.starts:
                task.cancel()  # it waits to be started again

    def _reload(self) -> None:
        self._notifier.reloading()
        for child in self.children.values():
            child.signal(signal.SIGHUP)
        if not self._own_runs:
            self._notifier.ready(self._status())

    @property
    def _own_runs(self) -> bool:
        return "live" in self.children and self.children["live"].process is not None

    async def _look(self) -> None:
        """Feed the service manager's watchdog, end lives that stand still, and keep what is shown up to date."""
        interval = self._notifier.watchdog_interval
        while True:
            if interval is not None:
                self._notifier.alive()
                for child in self.children.values():
                    if policy.stands_still(child.fed, time.monotonic(), interval):
                        event(logger, logging.ERROR, "life stands still: it is ended", of=child.life.key, pid=child.pid)
                        child.fed = None
                        child.signal(signal.SIGABRT)
            if self._slots is not None:
                before = len(self._slots.slots)
                self._slots.expire(time.monotonic())
                if len(self._slots.slots) != before:
                    self._remember_soon()
            shown = views.lives(self.children.values(), self._node)
            if shown != self._shown:
                self._shown = shown
                with suppress(OSError):
                    await asyncio.to_thread(views.write, self._runtime, shown)
            await asyncio.sleep(min(_LOOK, interval or _LOOK))

    # -- lives

    def _begin(self, life: Life) -> None:
        environment = dict(os.environ)
        if life.slot:
            environment[RUN_VARIABLE] = str(self._runtime / "lives" / life.node)
        child = Child(life, self._command, environment, self._lock, answer=self._answer, changed=self._heard)
        self.children[life.key] = child
        self._tasks[life.key] = asyncio.get_running_loop().create_task(self._keep(child))

    async def _keep(self, child: Child) -> None:
        """Run a life, again and again as long as it is wanted."""
        key = child.life.key
        try:
            while not self._stopping.is_set() and self.children.get(key) is child:
                code = await child.run()
                then = policy.after(
                    code,
                    wanted=not self._stopping.is_set() and self.children.get(key) is child,
                    hosted=bool(child.life.slot),
                    was_ready=child.was_ready,
                    others=any(one.process is not None for one in self.children.values() if one is not child),
                )
                self._code = policy.exit_code(self._code, then, code, hosted=bool(child.life.slot))
                if then is Then.NOTHING:
                    return
                child.status = f"ended with {code}"
                event(logger, logging.WARNING, "life ended", of=key, exit=code, then=then.name.lower())
                if then is Then.DROP:
                    self.drop(child.life.node, f"its process cannot be here: it ended with {code}")
                if then is Then.END:
                    self._stopping.set()
                if then is not Then.AGAIN:
                    return
                self._heard(child, "STATUS")
                with suppress(TimeoutError):
                    async with asyncio.timeout(RESTART_AFTER):
                        await self._stopping.wait()
        except OSError as error:
            event(logger, logging.ERROR, "life cannot be started", of=key, reason=error)
        finally:
            self._tasks.pop(key, None)
            # The last of them is gone while the host goes on for it alone.
            if not self._tasks and not self._stopping.is_set():
                self._stopping.set()

    def drop(self, node: str, reason: str) -> None:
        """Have the backup of a node no more."""
        child = self.children.pop(node, None)
        if self._slots is not None:
            self._slots.drop(bytes.fromhex(node))
        self._remember_soon()
        if child is not None:
            event(logger, logging.INFO, "backup is given up", of=node, name=child.life.name, reason=reason)
            child.signal(signal.SIGTERM)

    def _heard(self, child: Child, word: str) -> None:
        """A life said something to its service manager."""
        if self._stopping.is_set():
            return
        if child.life.slot or word == "STATUS":
            self._notifier.status(self._status())
        elif word == "READY":
            self._notifier.ready(self._status())
        elif word == "EXTEND_TIMEOUT_USEC":
            self._notifier.extend(20.0)

    def _status(self) -> str:
        own = self.children.get("live")
        parts = [f"own live: {own.status}" if own is not None else "own live: ended"]
        parts += [f"{one.life.name}@here: {one.status}" for one in self.children.values() if one.life.slot]
        return "; ".join(parts)

    # -- what lives ask

    def _make_slots(self, kept: dict[bytes, int]) -> None:
        if self._node:
            configuration = self._configuration
            host = Host(
                bytes.fromhex(self._node),
                self.machine,
                self._colocated.max_backups,
                configuration.high_availability.failure_domain or "",
                group=group_of(self._colocated.backup),
            )
            self._slots = Slots(host, kept)

    async def _answer(self, child: Child, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "tell":
            return await self._told(child, asked)
        if asked["do"] == "host":
            return await self._host(asked)
        if asked["do"] == "remove":
            return await self._remove(asked["node"])
        return {"error": f"{asked['do']!r} is no question"}

    async def _told(self, child: Child, asked: dict[str, Any]) -> dict[str, Any]:
        """Take what a life says of itself, and of where the others have their backups; tell of this host."""
        child.told, child.told_at = asked, time.monotonic()
        if not child.life.slot:
            if asked.get("node") and asked["node"] != self._node:
                self._node = asked["node"]
                self._make_slots({bytes.fromhex(one.life.node): one.life.slot for one in self._hosted()})
                await self._remember()
            if self._slots is not None:
                self._slots.alone = bool(asked.get("alone"))
        elsewhere = {bytes.fromhex(node): bytes.fromhex(at) for node, at in asked.get("elsewhere", {}).items()}
        if self._slots is not None:
            serving = [bytes.fromhex(one.life.node) for one in self._hosted() if _serves(one)]
            for node in self._slots.unwanted(elsewhere, serving, asked.get("heard", child.told_at)):
                self.drop(node.hex(), "its live has its backup elsewhere")
        return {
            "machine": self.machine,
            "domain": self._configuration.high_availability.failure_domain or "",
            "host": views.of_host(self._slots.told()) if self._slots is not None else None,
            "ready": [one.life.node for one in self._hosted() if one.ready],
            "lives": views.lives(self.children.values(), self._node),
        }

    def _hosted(self) -> list[Child]:
        return [one for one in self.children.values() if one.life.slot]

    async def _host(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Take a backup in, or say why not."""
        node, home = asked["node"], bool(asked.get("home"))
        refused = policy.takes_none_in(
            ready=self._slots is not None,
            stops=self._stopping.is_set(),
            removed=node in self._removed and not home,
        )
        if self._slots is None or refused:
            return {"slot": 0, "reason": refused}
        if home:
            self._removed.discard(node)
        known = bytes.fromhex(node) in self._slots.slots
        request = BackupRequest(bytes.fromhex(node), asked["machine"], asked["domain"], asked.get("group", ""))
        slot, reason = self._slots.ask(request, time.monotonic())
        if not slot or known:
            return {"slot": slot, "reason": reason}
        reason = await asyncio.to_thread(self._unusable, slot, asked["directories"])
        if reason or node in self._tasks or self._stopping.is_set():
            self._slots.drop(bytes.fromhex(node))
            event(logger, logging.WARNING, "backup is not taken in", of=node, name=asked["name"], reason=reason)
            return {"slot": 0, "reason": reason or "it is just being given up"}
        life = Life(slot, node, asked["name"], asked["directories"])
        event(logger, logging.INFO, "backup is taken in", of=node, name=life.name, slot=slot)
        self._slots.started(bytes.fromhex(node))
        self._begin(life)
        await self._remember()
        return {"slot": slot, "reason": ""}

    async def _remove(self, node: str) -> dict[str, Any]:
        """Have the backup of a node that is removed for good no more, nor take it in for another host."""
        child = self.children.get(node)
        if child is None or not child.life.slot:
            return {"refused": f"this host has no backup of {node!r}: `pollux status` shows what it has"}
        self._removed.add(node)
        self.drop(node, "its node is removed")
        await self._remember()
        return {"node": node, "name": child.life.name}

    def _unusable(self, slot: int, directories: dict[str, str]) -> str:
        """Say why a backup with this store cannot be in a slot. Blocking."""
        if reason := policy.other_policy(self.machine, shared=bool(directories), copies=self._copies):
            return reason
        for path in dict.fromkeys(directories.values()):
            if not Path(path).is_dir():
                return f"{path} is no directory on {self.machine}: a shared store has the same path on all hosts"
        for port, what in own_ports(self._configuration).items():
            shifted = port + slot * self._colocated.backup_port_offset
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", shifted))
                except OSError as error:
                    return f"port {shifted} (of {what}, with backup-port-offset) is not free: {error.strerror}"
        return ""

    # -- what is remembered

    def _remember_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._remember())
        self._tasks[f"remember {id(task)}"] = task
        task.add_done_callback(lambda task: self._tasks.pop(f"remember {id(task)}", None))

    async def _remember(self) -> None:
        async with self._writing:
            lives = tuple(one.life for one in self._hosted())
            known = hosted.Hosted(self._node, lives, tuple(sorted(self._removed)))
            try:
                await asyncio.to_thread(hosted.write, self._place, known)
            except OSError as error:
                event(logger, logging.ERROR, "which backups this host has cannot be written", reason=error)


def _serves(child: Child) -> bool:
    return child.told.get("state") == "live"


def supervise(configuration: Configuration, colocated: Colocated) -> int:
    """Run the host of a configuration with this policy; returns the exit code."""

    async def run() -> int:
        return await Supervisor(configuration, colocated, [sys.executable, *sys.orig_argv[1:]]).run()

    return asyncio.run(run())
