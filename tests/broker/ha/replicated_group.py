"""Members of a replicated group in one process and one loop: real activations, sockets, disks. Not a test module.

Only the store is missing: what producers wait for is a synced write of a file, which is all that replication knows of.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from broker.ha.test_stream import End
from pollux.config import load
from pollux.config.users import Users
from pollux.engine.security import Security
from pollux.ha.copies import local
from pollux.ha.machine import Phase
from pollux.ha.replication.activation import ReplicatedActivation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.ha.copies.local import LocalState

#: Generous: a machine under load.
TIMEOUT = 60.0
#: How long a live waits for a backup in sync, milliseconds.
PATIENCE = 1000
PASSWORD = "castor and pollux"

BROKER = """\
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core">
  <name>{name}</name>
  <journal-directory>{directory}/journal</journal-directory>
  <bindings-directory>{directory}/bindings</bindings-directory>
  <large-messages-directory>{directory}/large</large-messages-directory>
  <paging-directory>{directory}/paging</paging-directory>
  <security-enabled>false</security-enabled>
  <acceptors><acceptor name="all">tcp://127.0.0.1:{port}</acceptor></acceptors>
  <connectors>{connectors}</connectors>
  <cluster-user>twins</cluster-user><cluster-password>{password}</cluster-password>
  <cluster-connections><cluster-connection name="c"><connector-ref>{name}</connector-ref>
    <static-connectors>{refs}</static-connectors></cluster-connection></cluster-connections>
  <ha-policy><replication>{policy}</replication></ha-policy>
</core>
<px:high-availability><px:replica-timeout>{patience}</px:replica-timeout></px:high-availability>
</configuration>
"""


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that threads and sockets do."""
    try:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110  (threads and sockets)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT:g} s: {what}") from None


class Server:
    """Does for an activation what its broker would."""

    def __init__(self, path: Path) -> None:
        self.configuration = load(path, {})
        self.security = Security(self.configuration, Users())
        self.stops: list[str] = []
        self.fences: list[str] = []

    def waits(self, state: str, why: str, *, ready: bool) -> None: ...

    def request_stop(self, reason: str) -> None:
        self.stops.append(reason)

    def fenced(self, reason: str) -> None:
        self.fences.append(reason)


class Peer:
    """One member: what of it is the disk stays, the rest is one life."""

    def __init__(
        self, directory: Path, name: str, policy: str, ports: dict[str, int], *, password: str = PASSWORD
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self.name = name
        self.port = ports[name]
        connectors = "".join(
            f'<connector name="{each}">tcp://127.0.0.1:{port}</connector>' for each, port in ports.items()
        )
        refs = "".join(f"<connector-ref>{each}</connector-ref>" for each in ports if each != name)
        self.path = directory / "broker.xml"
        self.path.write_text(
            BROKER.format(
                name=name,
                directory=directory,
                port=self.port,
                connectors=connectors,
                refs=refs,
                policy=policy,
                patience=PATIENCE,
                password=password,
            )
        )
        for each in ("journal", "bindings", "large", "paging"):
            (directory / each).mkdir()
        self.ends: list[End] = []
        self.server: asyncio.Server | None = None
        self.broker: Any
        self.activation: ReplicatedActivation
        self.life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin a life."""
        self.broker = Server(self.path)
        self.activation = ReplicatedActivation(self.broker)
        self.life = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        activation = self.activation
        await activation.wait()

        def accepted() -> End:
            assert activation.hub is not None
            self.ends.append(End(activation.hub, initiator=False))
            return self.ends[-1]

        self.server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", self.port)
        activation.serving()

    async def stop(self) -> None:
        """Stop it in order: nobody is served any more, and the backups get what they need to take over."""
        assert self.server is not None
        self.server.close()
        self.activation.stopping("the test says so")
        await self.activation.leave(graceful=True)
        self.life = None
        for end in self.ends:
            end.transport.close()
        self.ends.clear()

    async def die(self) -> None:
        """Its sockets are gone; then the rest of the process."""
        if self.life is None:
            return
        # All threads of a process that is killed end at once: none sees its backups go, and raises its number for it.
        self.activation._replicas._left = True
        if self.server is not None:
            self.server.close()
        for end in self.ends:
            if hasattr(end, "transport"):
                end.transport.abort()
        self.ends.clear()
        self.life.cancel()
        await asyncio.gather(self.life, return_exceptions=True)
        self.life = None
        await self.activation.leave(graceful=False)

    @property
    def phase(self) -> Phase:
        return self.activation.machine.phase

    @property
    def in_sync(self) -> bool:
        """Whether it has all that its live has."""
        return self.phase not in (Phase.ACTIVATING, Phase.LIVE) and self.activation._in_sync

    @property
    def state(self) -> LocalState:
        """The node state on its disk."""
        found = local.read(self.directory / "journal")
        assert found is not None
        return found

    def backups(self) -> dict[str, str]:
        """Who follows this live, and how far they are."""
        return {one["name"]: one["state"] for one in self.activation.view()["replication"]["backups"]}

    async def confirm(self, name: str, data: bytes) -> None:
        """Write a file and wait as a producer does, until it may be confirmed."""
        files: Any = self.activation.files

        def change() -> None:
            fd = files.open(self.directory / "large" / f"{name}.msg", os.O_RDWR | os.O_CREAT)
            files.write(fd, data, 0, sync=True)
            files.close(fd)

        async with asyncio.timeout(TIMEOUT):
            await asyncio.to_thread(change)

    def has(self, name: str) -> bytes:
        """The bytes that it has of this file."""
        path = self.directory / "large" / f"{name}.msg"
        return path.read_bytes() if path.exists() else b""

    def hang(self) -> None:
        """Have it read nothing any more of what its live sends, and say nothing."""
        self._transport.pause_reading()

    def wake(self) -> None:
        """Have it go on."""
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.Transport:
        loop = self.activation._follow
        assert loop is not None
        assert loop._following is not None
        output = loop._following._conversation._output
        assert isinstance(output, asyncio.Transport)
        return output
