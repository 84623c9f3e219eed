"""A post office on a real store in a directory, that can be closed and opened again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.address_settings import AddressSetting
from pollux.config.model import Configuration
from pollux.config.resolve import AddressSettingsResolver
from pollux.engine.post_office import PostOffice
from pollux.message import Encoding, Message, RoutingType
from pollux.routing.address import WildcardSyntax
from pollux.routing.space import AddressSpace
from pollux.routing.spec import QueueSpec
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.audit import Trail
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector
    from pollux.store.port import Files
    from pollux.store.recovered import Recovered

#: Nothing here takes this long; a test that waits for it has failed. Seconds.
TIMEOUT = 20.0


class Receiver:
    """A consumer that keeps what it gets and tells when it has enough."""

    def __init__(self, credit: int = 1_000_000, **attributes: object) -> None:
        self.priority = 0
        self.selector: Selector | None = None
        self.browsing = False
        self.no_local = False
        self.origin = 0
        self.credit = credit
        self.got: list[MessageReference] = []
        self._arrived = asyncio.Event()
        for name, value in attributes.items():
            setattr(self, name, value)

    def deliver(self, references: list[MessageReference]) -> None:
        """Called by the queue."""
        self.credit -= len(references)
        self.got += references
        self._arrived.set()

    async def wait(self, count: int) -> list[MessageReference]:
        """Wait until ``count`` messages are here."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.got) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.got

    @property
    def bodies(self) -> list[bytes]:
        """Return what the messages say that are here."""
        return [reference.message.data for reference in self.got]


class Office:
    """The post office with what it stands on; whoever makes it may change its attributes before :meth:`open`."""

    def __init__(
        self, directory: Path, configuration: Configuration | None = None, *, files: Files | None = None
    ) -> None:
        self.directory = directory
        self._directories = {
            "journal_directory": directory / "journal",
            "bindings_directory": directory / "bindings",
            "large_messages_directory": directory / "large",
            "paging_directory": directory / "paging",
        }
        self.configuration = replace(configuration or Configuration(), **self._directories, journal_file_size=1 << 20)
        #: Milliseconds since the epoch when the clock stands still; else the machine's clock tells.
        self.wall: int | None = None
        #: Milliseconds that it is later than the clock says.
        self.now = 0
        self.failures: list[Exception] = []
        self.memory = 1 << 33
        self.trail: Trail | None = None
        self.post: PostOffice
        self.storage: Storage
        #: Its disk, from the next start on.
        self.store_files = files

    def settings(self, match: str, **values: object) -> None:
        """Give an address-setting; before ``open``."""
        self.configuration = replace(
            self.configuration, address_settings=(*self.configuration.address_settings, AddressSetting(match, values))
        )

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, for the broker."""
        return (int(time.time() * 1000) if self.wall is None else self.wall) + self.now

    async def open(self) -> PostOffice:
        """Open the store, recover it, and make the post office on it."""
        settings = StoreSettings.from_configuration(self.configuration, b"n" * 16)
        settings = replace(settings, **self._directories, max_disk_usage=-1)  # a test may give another configuration
        loop = asyncio.get_running_loop()
        self.storage = await Storage.open(settings, loop=loop, on_failure=self.failures.append, files=self.store_files)
        return self.attach(await self.storage.recover())

    def attach(self, recovered: Recovered) -> PostOffice:
        """Make a post office on the open storage."""
        words = self.configuration.wildcard_addresses
        space = AddressSpace(
            AddressSettingsResolver(self.configuration).of,
            WildcardSyntax(words.delimiter, words.any_words, words.single_word),
        )
        self.post = PostOffice(
            self.configuration,
            space,
            self.storage,
            memory=self.memory,
            wall_ms=self.wall_ms,
            loop=asyncio.get_running_loop(),
            trail=self.trail,
        )
        self.post.restore(recovered)
        return self.post

    def check_accounts(self) -> None:
        """All bytes are somebody's: the total is that of addresses, users and buffers, and none of them is below 0."""
        memory, accounts = self.post.memory, self.post.accounts
        assert memory.used == memory.buffers + sum(memory.users().values())
        assert accounts.total.bytes == memory.used + sum(account.gauge.bytes for account in accounts)
        assert accounts.total.messages == sum(account.gauge.messages for account in accounts)
        assert all(account.gauge.bytes >= 0 <= account.gauge.messages for account in accounts)

    async def close(self) -> None:
        """Close post office and store, as at a clean stop."""
        self.check_accounts()
        await self.post.close()
        await self.storage.close()

    async def reopen(self) -> PostOffice:
        """Close and open again."""
        await self.close()
        return await self.open()

    async def stable(self) -> None:
        """Wait until everything done so far is on disk and in its queues."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: Exception | None) -> None:
            done.set_result(None) if error is None else done.set_exception(error)

        self.post.when_stable(settle)
        async with asyncio.timeout(TIMEOUT):
            await done

    async def settle(self) -> None:
        """Wait until what was sent is durable and was delivered."""
        for _ in range(3):
            await self.stable()
            for _ in range(5):
                await asyncio.sleep(0)

    def queue(self, name: str = "orders", address: str | None = None, **attributes: object) -> Queue:
        """Create a queue, anycast unless said otherwise."""
        values: dict[str, object] = {"routing_type": RoutingType.ANYCAST, **attributes}
        return self.post.create_queue(QueueSpec(name, address or name, **values))  # type: ignore[arg-type]

    async def send(self, *bodies: bytes, address: str = "orders", **attributes: object) -> None:
        """Send a message for each body and wait until all are stable."""
        for body in bodies:
            self.post.send(message(body, address, **attributes))
        await self.stable()

    def count(self, queue: str) -> int:
        """How many messages a queue has."""
        return self.post.queue(queue).message_count


def message(body: bytes = b"x", address: str = "orders", **attributes: object) -> Message:
    """A message as a STOMP client would send it."""
    return Message(Encoding.STOMP, address, body, **attributes)  # type: ignore[arg-type]


async def becomes(condition: Callable[[], object], pause: float = 0.001) -> None:
    """Wait until ``condition`` holds; it depends on threads or several turns of the loop, which have no one event."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (see above)
            await asyncio.sleep(pause)
