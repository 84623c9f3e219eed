"""Messages that could not be delivered or came too late: dead letters and expired messages.

Such a message moves to another address with a note of where it comes from, in one transaction with its
acknowledgement, so that a crash neither loses nor doubles it. Without an address to go to it is dropped, and
counted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.errors import DiskFullError, PolluxError
from pollux.routing.lifecycle import dead_letter_queue, expiry_queue
from pollux.store.audit.format import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.message import Message, MessageReference
    from pollux.routing.queue import Queue
    from pollux.routing.spec import QueueSpec
    from pollux.session.post_office import PostOffice

log = logging.getLogger("pollux.undeliverable")

ORIGINAL_ADDRESS = "_AMQ_ORIG_ADDRESS"
ORIGINAL_QUEUE = "_AMQ_ORIG_QUEUE"
ORIGINAL_ID = "_AMQ_ORIG_MESSAGE_ID"
ORIGINAL_ROUTING = "_AMQ_ORIG_ROUTING_TYPE"
ACTUAL_EXPIRY = "_AMQ_ACTUAL_EXPIRY"


class Undeliverable:
    """Moves what the queues give up. ``dropped`` counts what had no place to go."""

    def __init__(self, post: PostOffice) -> None:
        self._post = post
        self.dropped = 0

    def dead(self, queue: Queue, references: Sequence[MessageReference]) -> None:
        """Messages that left ``queue`` because their deliveries failed or were rejected."""
        settings = self._post.space.settings(queue.address)
        target = settings.dead_letter_address
        self._create(dead_letter_queue(settings, queue.address))
        self._leave(queue, references, target, Event.DEAD_LETTERED, {})

    def expired(self, queue: Queue, references: Sequence[MessageReference]) -> None:
        """Messages that left ``queue`` because their time was over."""
        settings = self._post.space.settings(queue.address)
        target = settings.expiry_address
        self._create(expiry_queue(settings, queue.address))
        self._leave(queue, references, target, Event.EXPIRED, {ACTUAL_EXPIRY: self._post.wall_ms()})

    def unrouted(self, message: Message) -> None:
        """A message that no queue took, where send-to-dla-on-no-route is set."""
        post = self._post
        target = post.space.settings(message.address.partition("::")[0]).dead_letter_address
        if not target:
            self.dropped += 1
            return
        copy = post.copy(message, target, _origin(message, None))
        post.route_copy(copy, 0)

    def move(self, queue: Queue, references: Sequence[MessageReference], target: str) -> int:
        """Move messages that left ``queue`` to ``target`` (an address or FQQN); how many."""
        return self._move(queue, references, target, Event.MOVED, {})

    def _leave(
        self,
        queue: Queue,
        references: Sequence[MessageReference],
        target: str | None,
        event: Event,
        notes: dict[str, str | int | bytes],
    ) -> None:
        if not references:
            return
        if not target or target == queue.address:
            self.dropped += len(references)
            log.warning(
                "%d messages of queue %s %s and were dropped: address %s has no %s",
                len(references),
                queue.name,
                "expired" if event is Event.EXPIRED else "could not be delivered",
                queue.address,
                "expiry-address" if event is Event.EXPIRED else "dead-letter-address",
            )
            if queue.trail is not None:
                queue.trail.left(event, references, None)
            self._post.discard(queue, references)
            return
        self._move(queue, references, target, event, notes)

    def _move(
        self,
        queue: Queue,
        references: Sequence[MessageReference],
        target: str,
        event: Event,
        notes: dict[str, str | int | bytes],
    ) -> int:
        post = self._post
        moved = 0
        tx = post.storage.next_id()
        try:
            for reference in references:
                copy = post.copy(reference.message, target, {**_origin(reference.message, queue), **notes})
                if notes:
                    copy.expiration = 0
                if not post.route_copy(copy, tx):
                    self.dropped += 1
                moved += 1
        except DiskFullError as error:
            # Nothing may be lost: what has no room at its new place stays where it was.
            log.warning("queue %s: %d messages stay until the disk has room: %s", queue.name, len(references), error)
        except PolluxError as error:
            log.error("queue %s: messages cannot move to %s and stay: %s", queue.name, target, error)  # noqa: TRY400  (the text says it all)
        if moved < len(references):
            queue.add(list(references[moved:]), post.wall_ms())
        if moved and queue.trail is not None:
            queue.trail.left(event, references[:moved], target)
        post.discard(queue, references[:moved], tx)
        post.storage.append_commit(tx)
        return moved

    def _create(self, spec: QueueSpec | None) -> None:
        """The queue for the undeliverable messages of one address, unless it is there."""
        if spec is None or self._post.space.queue(spec.name) is not None:
            return
        try:
            self._post.registry.create_queue(spec)
        except PolluxError as error:
            log.error("queue %s for undeliverable messages cannot be created: %s", spec.name, error)  # noqa: TRY400


def _origin(message: Message, queue: Queue | None) -> dict[str, str | int | bytes]:
    known = message.annotations or {}
    notes: dict[str, str | int | bytes] = {
        ORIGINAL_ADDRESS: known.get(ORIGINAL_ADDRESS, message.address),
        ORIGINAL_ID: known.get(ORIGINAL_ID, message.id),
    }
    if queue is not None:
        notes[ORIGINAL_QUEUE] = known.get(ORIGINAL_QUEUE, queue.name)
        notes[ORIGINAL_ROUTING] = known.get(ORIGINAL_ROUTING, int(queue.routing_type))
    return notes
