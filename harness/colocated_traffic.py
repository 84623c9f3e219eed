"""Traffic between nodes of colocated hosts: producers at one, consumers at another, wherever these are served."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.loadclient.connection import LoadError
from harness.traffic import AmqpConsumer, AmqpProducer, Ledger, StompConsumer, StompProducer, now
from pollux.formats.ledger import Confirmed, Fault, Received, Verdict, check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.loadclient.target import Target

    #: Where a node is served now, by the name of its broker: host and port; None: nowhere.
    Where = Callable[[str], tuple[str, int] | None]


def following(kind: Any, where: Where, name: str, as_user: Target) -> Any:
    """Return a worker that goes on with one node, wherever that is: another one would not know what it was sent."""

    class Following(kind):  # type: ignore[misc]  # the base is chosen at run time
        def open(self) -> Any:
            place = where(name)
            if place is None:
                raise LoadError("nobody serves")
            self.target = replace(as_user, host=place[0], port=place[1])
            return super().open()

    return Following


class Traffic:
    """Producers at the node ``source`` and consumers at ``sink``, through every fault of either."""

    def __init__(
        self,
        where: Where,
        source: str,
        sink: str,
        as_user: Target,
        directory: Path,
        *,
        pause: float = 0.0,
    ) -> None:
        """``as_user``: who sends and receives. ``pause``: seconds between two batches of a producer."""
        self.ledger = Ledger(directory / "ledger")
        self.workers: list[Any] = []
        for kind, node, name, place, more in (
            (AmqpConsumer, sink, "amqp-consumer", "load.amqp", ()),
            (StompConsumer, sink, "stomp-consumer", "load.stomp", ()),
            (AmqpProducer, source, "amqp", "load.amqp", (1,)),
            (StompProducer, source, "stomp", "load.stomp", (2,)),
        ):
            follower = following(_paused(kind, pause) if more and pause else kind, where, node, as_user)
            worker = follower(name, as_user, place, self.ledger, *more)
            worker.start()
            self.workers.append(worker)

    def confirmed(self) -> int:
        """Return how many confirms there were."""
        return sum(type(entry) is Confirmed for entry in list(self.ledger.entries))

    def missing(self) -> int:
        """Return how many messages were confirmed and not received yet."""
        entries = list(self.ledger.entries)
        received = {entry.id for entry in entries if type(entry) is Received}
        return len({entry.id for entry in entries if type(entry) is Confirmed} - received)

    def flows(self, wait: Callable[[Callable[[], bool], str], Any], fault: str) -> None:
        """Wait until it flows, and note that a fault comes now."""
        before = self.confirmed()
        wait(lambda: self.confirmed() > before + 50, f"traffic flows before: {fault}")
        self.ledger.add(Fault(now(), fault))

    def judge(self, wait: Callable[[Callable[[], bool], str], Any], drained: Callable[[], bool]) -> Verdict:
        """Stop sending, wait until all is received, and return the verdict."""
        for worker in self.workers[2:]:
            worker.stop()
        # What is on its way from the one node to the other is in neither queue.
        wait(lambda: drained() and self.missing() == 0, "every queue is drained, and all that was confirmed received")
        for worker in self.workers[:2]:
            worker.stop()
        self.ledger.close()
        errors = [error for worker in self.workers for error in worker.errors]
        assert not errors, errors
        return check(self.ledger.entries)


def _paused(kind: Any, seconds: float) -> Any:
    class Paused(kind):  # type: ignore[misc]  # the base is chosen at run time
        def work(self) -> None:
            super().work()
            time.sleep(seconds)

    return Paused
