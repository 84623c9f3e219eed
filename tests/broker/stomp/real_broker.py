"""STOMP sessions on the real post office and store, in a directory of the test's."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.acceptors import acceptor_settings
from pollux.config.model import Configuration
from pollux.config.resolve import resolve_address_settings
from pollux.engine.post_office import PostOffice
from pollux.routing.address import WildcardSyntax
from pollux.routing.space import AddressSpace
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage

from .stomp_fakes import Client, FakeSecurity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.wire.stomp.decoder import Event

DEADLINE = 20.0


class RealBroker:
    """Post office, store and security for sessions; ``clock`` offsets the wall clock (milliseconds)."""

    def __init__(self, directory: Path, configuration: Configuration | None = None, **parameters: str) -> None:
        self.directory = directory
        self.configuration = configuration or Configuration()
        self.security = FakeSecurity()
        self.parameters = {"anycastPrefix": "/queue/", "multicastPrefix": "/topic/"} | parameters
        self.failures: list[Exception] = []
        self.offset = 0
        self.clients: list[Client] = []
        self.post: Any = None
        self.storage: Any = None

    async def start(self) -> None:
        base = self.directory
        settings = StoreSettings(
            base / "journal",
            base / "bindings",
            base / "large",
            base / "paging",
            journal_file_size=1 << 20,
            max_disk_usage=-1,
        )
        loop = asyncio.get_running_loop()
        self.storage = await Storage.open(settings, loop=loop, on_failure=self.failures.append)
        recovered = await self.storage.recover()
        space = AddressSpace(lambda name: resolve_address_settings(self.configuration, name), WildcardSyntax())
        self.post = PostOffice(self.configuration, space, self.storage, memory=1 << 30, wall_ms=self.wall_ms, loop=loop)
        self.post.restore(recovered)

    def wall_ms(self) -> int:
        return int(time.time() * 1000) + self.offset

    async def stop(self) -> None:
        for client in self.clients:
            client.lose()
        self.clients.clear()
        await self.post.close()
        await self.storage.close()
        assert not self.failures

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def services(self) -> Any:
        return SimpleNamespace(
            configuration=self.configuration,
            post=self.post,
            security=self.security,
            wall_ms=self.wall_ms,
            failover_servers=lambda *_: [],
            router=lambda: None,
            acceptor=acceptor_settings(**self.parameters),
        )

    async def connected(self, version: str = "1.2", **headers: str) -> Client:
        client = Client(self, len(self.clients) + 1)
        self.clients.append(client)
        await client.connect(version, **headers)
        return client

    async def settle(self) -> None:
        """Until what was sent is durable and was delivered."""
        for _ in range(3):
            done = asyncio.get_running_loop().create_future()
            self.post.when_stable(done.set_result)
            async with asyncio.timeout(DEADLINE):
                assert await done is None
            for _ in range(5):
                await asyncio.sleep(0)

    def count(self, queue: str) -> int:
        return int(self.post.queue(queue).message_count)


async def becomes(condition: Callable[[], object]) -> None:
    """Until ``condition`` holds; it depends on threads, which have no event to wait for."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110  (see above)
            await asyncio.sleep(0.001)


async def until(client: Client, count: int) -> list[Event]:
    """The next ``count`` events a client gets."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE):
        while len(events) < count:
            events += client.frames()
            await asyncio.sleep(0.001)
    return events
