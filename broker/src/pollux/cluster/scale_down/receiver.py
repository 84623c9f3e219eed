"""Take what another node hands over: queues as they were there, duplicate ids, sessions. All of it may come again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pollux.cluster.scale_down.definitions import IDS, QUEUE, Ids
from pollux.cluster.scale_down.plan import Shape, contradiction
from pollux.cluster.scale_down.prepared import TRANSACTION, taker
from pollux.engine.memory import DUPLICATE_IDS
from pollux.engine.queue_records import decode_queue, is_paused
from pollux.errors import LimitError
from pollux.logs import event
from pollux.routing.spec import resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pollux.engine.post_office import PostOffice

logger = logging.getLogger("pollux.cluster")


class Receiving:
    """Answers the requests of nodes that are scaled down. Each raises PolluxError or ValueError, in words for them."""

    def __init__(self, post: PostOffice) -> None:
        self._post = post
        self.requests: dict[str, Callable[[bytes, bytes], Awaitable[None] | None]] = {
            QUEUE: self._queue,
            IDS: self._ids,
            TRANSACTION: taker(post),
        }

    def _queue(self, node: bytes, content: bytes) -> None:
        """Have this queue, as it was there; one of that name for something else is left as it is, and refused."""
        try:
            _, spec = decode_queue(content)
        except (msgspec.MsgspecError, LookupError, TypeError) as error:
            raise ValueError(f"a queue's record cannot be read: {error!r}") from error
        there = self._post.space.queue(spec.name)
        if there is None:
            # What broker.xml says there is not what it says here.
            queue = self._post.create_queue(replace(spec, configuration_managed=False), auto_address=False)
            if is_paused(content):
                self._post.address_manager.pause_queue(queue, paused=True)
            event(logger, logging.INFO, "queue taken over", queue=spec.name, address=spec.address, node=node.hex())
            return
        wanted = resolve(spec, self._post.space.settings(spec.address))
        here = Shape(there.address, there.routing_type.name, there.spec.selector or "none")
        problem = contradiction(spec.name, here, Shape(spec.address, wanted.routing_type.name, spec.selector or "none"))
        if problem:
            raise ValueError(problem)

    def _ids(self, _node: bytes, content: bytes) -> None:
        """Remember duplicate ids: who sends such a message again, here, is known."""
        found = msgspec.msgpack.decode(content, type=Ids)
        account = self._post.accounts.of(found.address)
        holder = self._post.memory.user(DUPLICATE_IDS)
        for one in found.ids:
            try:
                if account.is_new(one, holder):
                    self._post.storage.append_duplicate_id(account.name, one)
            except LimitError as error:
                raise ValueError(f"no room for the duplicate ids of {found.address!r}: {error}") from error
