"""The brokers that a connection router chooses from, and what looks after each: whether it serves, how loaded it is.

One task for each: it connects by the core protocol, asks every check-period (:mod:`pollux.cluster.routers.probe`), and
tries again after one. A broker is ready from an answer until its connection is lost, or an answer is not there in time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.cluster.connector import UnreachableError
from pollux.cluster.routers.probe import Asked, Said
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.cluster.connector import ClusterConnector
    from pollux.cluster.routers.router import Target
    from pollux.config.acceptors import Endpoint
    from pollux.config.clusters import RouterPool

logger = logging.getLogger("pollux.router")

#: Seconds a broker has to let us in, and to answer.
_CONNECT, _ANSWER = 5.0, 3.0


class Member(NamedTuple):
    """A broker of a pool, as it is configured or was found: a connector, with several endpoints where it is a pair."""

    name: str
    endpoints: tuple[Endpoint, ...]


class Local:
    """This broker as a target."""

    here = True

    def __init__(self, node: str, clients: Callable[[], int]) -> None:
        self.node = node
        self._clients = clients

    @property
    def connections(self) -> int | None:
        """Return how many clients this broker has."""
        return self._clients()

    def address(self, protocol: str, *, tls: bool) -> tuple[str, int, bool]:
        """Nobody is sent here."""
        raise NotImplementedError

    def sent(self) -> None:
        """Do nothing: the client counts once it is in."""

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "connector": None,
            "node": None,
            "nodeId": self.node,
            "here": True,
            "ready": True,
            "reason": None,
            "host": None,
            "port": None,
            "connections": self._clients(),
            "sent": None,
        }


class Remote:
    """Another broker as a target, and the task that looks after it."""

    here = False

    def __init__(self, member: Member, pool: TargetPool) -> None:
        self.member = member
        self.node = ""
        self.ready = False
        #: Why it is not.
        self.reason = "not connected yet"
        #: Clients that were sent there altogether, and since it was asked last.
        self.total = 0
        self._granted = 0
        self._pool = pool
        self._said: Said | None = None
        self._endpoint: Endpoint | None = None

    # -- a target

    @property
    def connections(self) -> int | None:
        """Return what it said last, and who was sent there since: many at once do not all go to one broker."""
        return self._said.connections + self._granted if self._said is not None else None

    def address(self, protocol: str, *, tls: bool) -> tuple[str, int, bool]:
        """Return where it takes such clients as it said itself; else the connector by which it was reached."""
        where = self._said.where if self._said is not None else None
        listed = [one for one in where.addresses if not one.protocols or protocol in one.protocols] if where else []
        for one in [one for one in listed if one.tls == tls] or ([] if tls else listed):
            return one.host, one.port, one.tls
        endpoint = self._endpoint or self.member.endpoints[0]
        return endpoint.host, endpoint.port, endpoint.settings.ssl_enabled

    def sent(self) -> None:
        """Count a client that is sent there."""
        self.total += 1
        self._granted += 1

    # -- looked after

    async def run(self) -> None:
        """Connect and ask, again and again, until cancelled."""
        try:
            while True:
                for endpoint in self.member.endpoints:
                    await self._connection(endpoint)
                await asyncio.sleep(self._pool.period)
        finally:
            self._is_not("no longer in the pool")

    async def _connection(self, endpoint: Endpoint) -> None:
        """Hold one connection as long as it is of use."""
        pool = self._pool
        try:
            link = await pool.connector.connect(endpoint, _CONNECT)
        except UnreachableError as error:
            self._is_not(str(error), error.remedy)
            return
        try:
            while not link.over.done():
                said = await Asked(link.conversation, asyncio.get_running_loop()).answer(_ANSWER)
                if isinstance(said, str):
                    self._is_not(said)
                    return
                if said.node == pool.node:
                    self._is_not(
                        "it is this broker", "leave it out, and write <local-target-enabled>true</local-target-enabled>"
                    )
                    return
                self._is(said, endpoint)
                await asyncio.wait([link.over], timeout=pool.period)
            self._is_not("the connection was lost")
        finally:
            link.close("not needed any more")

    def _is(self, said: Said, endpoint: Endpoint) -> None:
        if not self.ready:
            event(
                logger,
                logging.INFO,
                "router target is ready",
                router=self._pool.name,
                connector=self.member.name,
                broker=said.name,
            )
        self._said, self._endpoint, self._granted = said, endpoint, 0
        self.node, self.ready, self.reason = said.node, True, ""
        self._pool.changed()

    def _is_not(self, reason: str, remedy: str = "") -> None:
        if self.ready or reason != self.reason:
            level = logging.WARNING if remedy else logging.INFO
            where = {"router": self._pool.name, "connector": self.member.name}
            event(logger, level, "router target is not ready", **where, reason=reason, remedy=remedy or None)
        self.ready, self.reason = False, reason
        self._pool.changed()

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        endpoint = self._endpoint or self.member.endpoints[0]
        return {
            "connector": self.member.name,
            "node": self._said.name if self._said is not None else None,
            "nodeId": self.node or None,
            "here": False,
            "ready": self.ready,
            "reason": self.reason or None,
            "host": endpoint.host,
            "port": endpoint.port,
            "connections": self.connections,
            "sent": self.total,
        }


class TargetPool:
    """The pool of one router. All methods are called in the loop's thread."""

    def __init__(
        self,
        name: str,
        settings: RouterPool,
        members: Callable[[], Sequence[Member]],
        connector: ClusterConnector,
        local: Local,
    ) -> None:
        """``members`` is asked again every check-period; ``local``: this broker, whether it is a target or not."""
        self.name = name
        self.connector = connector
        self.period = settings.check_period / 1000
        #: This broker's node id, 32 hex digits.
        self.node = local.node
        self._local = local if settings.local_target_enabled else None
        self._quorum = settings.quorum_size
        self._patience = settings.quorum_timeout / 1000
        #: Returns who is a member now.
        self.members = members
        self._remotes: dict[Member, tuple[Remote, asyncio.Task[None]]] = {}
        self._enough = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after the members from now on."""
        self.review()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Look after nobody any more."""
        tasks = [task for _, task in self._remotes.values()]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._remotes.clear()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.period)
            self.review()

    def review(self) -> None:
        """Look after who is a member now, and after nobody else."""
        members = [member for member in dict.fromkeys(self.members()) if member.endpoints]
        gone = {member: self._remotes[member] for member in self._remotes.keys() - {*members}}
        loop = asyncio.get_running_loop()
        before, self._remotes = self._remotes, {}
        for member in members:
            if member not in before:
                # One of which other places are known now is asked where it is until that is over.
                same = next((one for one in gone if one.name == member.name), None)
                if same is None:
                    remote = Remote(member, self)
                    before[member] = remote, loop.create_task(remote.run())
                else:
                    before[member] = gone.pop(same)
                    before[member][0].member = member
            self._remotes[member] = before[member]
        for _, task in gone.values():
            task.cancel()
        self.changed()

    def changed(self) -> None:
        """Look whether there are enough now."""
        if len(self.ready()) >= self._quorum:
            self._enough.set()
        else:
            self._enough.clear()

    # -- pollux.cluster.routers.router.Pool

    def ready(self) -> Sequence[Target]:
        """Return this broker, where it is a target, and the others that are ready; each once."""
        found: dict[str, Target] = {self._local.node: self._local} if self._local is not None else {}
        for remote, _ in self._remotes.values():
            if remote.ready:
                found.setdefault(remote.node, remote)
        return list(found.values())

    def enough(self) -> bool:
        """Whether as many are ready as quorum-size asks for."""
        return self._enough.is_set()

    async def until_enough(self) -> None:
        """Wait until they are, for quorum-timeout at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._enough.wait()

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        targets = [remote.describe() for remote, _ in self._remotes.values()]
        return {
            "ready": len(self.ready()),
            "quorum": self._quorum,
            "targets": ([self._local.describe()] if self._local is not None else []) + targets,
        }
