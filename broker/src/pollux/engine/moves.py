"""Messages that a consumer holds and that go to other nodes or queues: in one transaction with their copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.formats.audit import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.engine.departures import Departures
    from pollux.engine.forwards import Forward, Spread
    from pollux.engine.intake import Intake
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.store.storage import Storage


class Moves:
    """Moves messages on."""

    def __init__(self, storage: Storage, intake: Intake, departures: Departures) -> None:
        self._storage = storage
        self._intake = intake
        self._departures = departures

    def hand_over(
        self, queue: Queue, moves: Sequence[tuple[MessageReference, Forward]], *, removed: bool = False
    ) -> None:
        """Move messages that a consumer of ``queue`` holds to other nodes, each in one transaction with its copy.

        ``removed``: nobody holds them, they were taken out of the queue (:meth:`Queue.remove`).
        """
        tx = self._storage.next_id()
        for _, forward in moves:
            self._intake.forward(forward, tx)
        references = [reference for reference, _ in moves]
        if queue.trail is not None:
            queue.trail.left(Event.MOVED, references, moves[0][1].queue.address)
        self._departures.discard(queue, references if removed else queue.acknowledge(references), tx)
        self._storage.append_commit(tx)

    def place_anew(self, queue: Queue, reference: MessageReference, message: Message, spread: Spread) -> None:
        """Put what a consumer of ``queue`` holds where ``spread`` says, as ``message``, in one transaction."""
        tx = self._storage.next_id()
        for forward in spread.forwards:
            self._intake.forward(forward, tx)
        if spread.queues:
            self._intake.take(message, spread.queues, tx)
        if queue.trail is not None:
            queue.trail.left(Event.MOVED, [reference], message.address)
        self._departures.discard(queue, queue.acknowledge([reference]), tx)
        self._storage.append_commit(tx)
