"""Traffic between nodes of colocated hosts: producers at one, consumers at another, wherever these are served."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.loadclient import mqtt
from harness.loadclient.connection import LoadError
from harness.traffic import (
    AmqpConsumer,
    AmqpProducer,
    Ledger,
    MqttConsumer,
    MqttProducer,
    StompConsumer,
    StompProducer,
    now,
)
from pollux.formats.ledger import Confirmed, Fault, Received, Verdict, check

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.loadclient.connection import Connection
    from harness.loadclient.target import Target

    #: Where a node is served now, by the name of its broker: host and port; None: nowhere.
    Where = Callable[[str], tuple[str, int] | None]


#: Hosts' settings have addresses of this name MULTICAST: as a queue, its node would keep what is published there, too.
_TOPIC = "load/topic"
#: What the first SUBSCRIBE may take, seconds: its node answers when all others have heard of it.
_SUBSCRIBED = 60.0


class Subscriber(MqttConsumer):
    """A session that tells when its subscription is made: what is published before reaches nobody."""

    def __init__(self, name: str, target: Target, place: str, ledger: Ledger) -> None:
        super().__init__(name, target, place, ledger)
        self.subscribed = threading.Event()

    def open(self) -> Connection:
        if self.subscribed.is_set():
            return super().open()
        connection = mqtt.MqttConnection(self.target, self.name, clean=False)
        connection.subscribe(self.place)
        self.subscribed.set()
        return connection


def following(kind: Any, where: Where, name: str, as_user: Target) -> Any:
    """Return a worker that goes on with one node, wherever that is: another one would not know what it was sent."""

    class Following(kind):  # type: ignore[misc]  # the base is chosen at run time
        def open(self) -> Any:
            place = where(name)
            if place is None:
                raise LoadError("nobody serves")
            self._place = place
            self.target = replace(as_user, host=place[0], port=place[1])
            return super().open()

        def work(self) -> None:
            # A host that lost its power says no farewell, and a consumer sends nothing that would tell.
            if where(name) != self._place:
                raise LoadError("its node is served elsewhere")
            super().work()

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
        consumers = (
            (Subscriber, "mqtt-consumer", _TOPIC),
            (AmqpConsumer, "amqp-consumer", "load.amqp"),
            (StompConsumer, "stomp-consumer", "load.stomp"),
        )
        self.consumers: list[Any] = [
            following(kind, where, sink, as_user)(name, as_user, place, self.ledger) for kind, name, place in consumers
        ]
        producers = (
            (AmqpProducer, "amqp", "load.amqp"),
            (StompProducer, "stomp", "load.stomp"),
            (MqttProducer, "mqtt", _TOPIC),
        )
        self.producers: list[Any] = [
            following(_paused(kind, pause) if pause else kind, where, source, as_user)(
                name, as_user, place, self.ledger, seed
            )
            for seed, (kind, name, place) in enumerate(producers, start=1)
        ]
        for consumer in self.consumers:
            consumer.start()
        if not self.consumers[0].subscribed.wait(_SUBSCRIBED):
            raise LoadError(f"no subscription at {sink} within {_SUBSCRIBED:g} s")
        for producer in self.producers:
            producer.start()

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
        for worker in self.producers:
            worker.stop()
        # What is on its way from the one node to the other is in neither queue.
        wait(lambda: drained() and self.missing() == 0, "every queue is drained, and all that was confirmed received")
        for worker in self.consumers:
            worker.stop()
        self.ledger.close()
        errors = [error for worker in (*self.consumers, *self.producers) for error in worker.errors]
        assert not errors, errors
        return check(self.ledger.entries)


def _paused(kind: Any, seconds: float) -> Any:
    class Paused(kind):  # type: ignore[misc]  # the base is chosen at run time
        def work(self) -> None:
            super().work()
            time.sleep(seconds)

    return Paused
