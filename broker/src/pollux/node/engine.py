"""Hold what a node has once its store is open: the store itself, addresses and queues, and the post office."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from pollux.config import AddressSettingsResolver
from pollux.engine.notifications import Notifications
from pollux.engine.post_office import PostOffice
from pollux.engine.reading_rights import admits
from pollux.engine.retroactive import Retroactive
from pollux.logs import event
from pollux.routing.address import WildcardSyntax
from pollux.routing.space import AddressSpace

if TYPE_CHECKING:
    from pollux.audit import Trail
    from pollux.config.model import Configuration
    from pollux.engine.security import Security
    from pollux.engine.share import Share
    from pollux.store.storage import Storage

logger = logging.getLogger("pollux.broker")


class Engine:
    """Join the store and the post office of one node. All methods are called in the loop's thread."""

    def __init__(
        self,
        configuration: Configuration,
        storage: Storage,
        security: Security,
        *,
        trail: Trail,
        share: Share,
        memory: int,
    ) -> None:
        """``storage`` is open and not recovered yet. ``memory``: bytes that this process may use."""
        self._trail = trail
        self.storage = storage
        self.recovered_messages = 0
        self.replayed_records = 0
        self.recovery_seconds = 0.0
        #: Why producers are blocked by the disk; None when they are not.
        self.disk_full: str | None = None
        wildcards = configuration.wildcard_addresses
        self.space = AddressSpace(
            AddressSettingsResolver(configuration).of,
            WildcardSyntax(
                wildcards.delimiter,
                wildcards.any_words,
                wildcards.single_word,
                wildcards.routing_enabled and configuration.wild_card_routing_enabled,
            ),
        )
        loop = asyncio.get_running_loop()
        self.post = post = PostOffice(
            configuration,
            self.space,
            storage,
            memory=memory,
            wall_ms=wall_ms,
            loop=loop,
            trail=trail,
            share=share,
        )
        post.address_manager.queue_limit = security.queue_limit
        post.address_manager.ask = security.ask
        self.space.admits = partial(admits, security)
        self.retroactive = make_retroactive(post)
        post.keep_last(self.retroactive)
        self.notifications = Notifications(
            lambda: post.configuration, self.space, post.take, wall_ms=wall_ms, loop=loop
        )

    async def recover(self, node_id: bytes) -> None:
        """Read the store, and make queues of what is in it. Raises StoreError."""
        recovered = await self.storage.recover()
        self._trail.begin_life(node_id, self.storage.epoch)
        self.recovered_messages = recovered.message_count
        self.replayed_records = recovered.replayed_records
        self.recovery_seconds = recovered.seconds
        self.post.restore(recovered)
        await self.retroactive.restore(self.post.unfinished)
        self.storage.on_full_change(lambda _usage: self._disk_changed())
        self._disk_changed()

    async def configure(self, configuration: Configuration, memory: int) -> None:
        """Make the addresses and queues of broker.xml as it is now, and wait until they are on disk."""
        if configuration is self.post.configuration:
            self.post.address_manager.apply_configuration(configuration)
        else:  # it was reloaded while the store was recovered
            self.reload(configuration, memory)
        await self.stable()
        self._trail.listen(self.notifications.happened)

    def close(self) -> None:
        """Tell nobody any more of what happens."""
        self._trail.ignore(self.notifications.happened)

    def reload(self, configuration: Configuration, memory: int) -> None:
        """Use what a reload may change. ``memory``: bytes that this process may use."""
        self.space.reload_settings(AddressSettingsResolver(configuration).of)
        self.post.configuration = configuration
        self.post.accounts.reload()
        self.post.memory.limit = configuration.state_limit(memory)
        self.post.address_manager.reload_settings()
        self.post.address_manager.apply_configuration(configuration)

    async def stable(self) -> None:
        """Wait until everything done so far is on disk. Raises StoreError."""
        stable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: Exception | None) -> None:
            if stable.done():
                return
            if error is None:
                stable.set_result(None)
            else:
                stable.set_exception(error)

        self.post.when_stable(settle)
        await stable

    @property
    def damage(self) -> list[str]:
        """Return what of the store was found damaged or missing so far, at the start or when it was read."""
        return [*(str(each) for each in self.storage.damage if each.kind != "torn-tail"), *self.post.problems]

    def _disk_changed(self) -> None:
        usage = self.storage.usage()
        reason = usage.reason if usage.full else None
        if (reason is None) != (self.disk_full is None):
            event(
                logger,
                logging.INFO if reason is None else logging.ERROR,
                "disk has room again: producers go on" if reason is None else "disk is full: producers are blocked",
                reason=reason,
                free=usage.free,
                total=usage.total,
            )
            self._trail.event("disk-room" if reason is None else "disk-full", reason=reason)
        self.disk_full = reason


def make_retroactive(post: PostOffice) -> Retroactive:
    """Return what keeps the last messages of addresses, joined to a post office's parts."""
    return Retroactive(
        lambda: post.configuration,
        space=post.space,
        storage=post.storage,
        address_manager=post.address_manager,
        cold=post.cold,
        queue=post.queue,
        in_flight=post.in_flight,
        when_stable=post.when_stable,
        message_count=post.message_count,
        put=post.put,
        wall_ms=post.wall_ms,
    )


def wall_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
