"""A producer and a consumer of each protocol at one broker, the ledger they write, and what must hold in the end.

What tests have in common that break a broker under load: a kill, a full disk, a failed sync. The clients themselves
are in harness.traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.broker import PASSWORD, USER
from harness.loadclient.target import Target
from harness.traffic import (
    AmqpConsumer,
    AmqpProducer,
    Consumer,
    Ledger,
    MqttConsumer,
    MqttProducer,
    Producer,
    StompConsumer,
    StompProducer,
    Worker,
    now,
)
from pollux.formats.ledger import Confirmed, Fault, check

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.broker import BrokerProcess
    from pollux.formats.ledger import Verdict


class Clients:
    """AMQP and STOMP on the queue `NAME.queue`, MQTT on the topic `NAME/topic`; the broker runs, nobody is started.

    Consumers are at the broker `sink`, where that is another one.
    """

    def __init__(
        self,
        broker: BrokerProcess,
        directory: Path,
        name: str,
        seeds: Sequence[int] = (1, 2, 3),
        *,
        sink: BrokerProcess | None = None,
    ) -> None:
        self.broker = broker
        self.path = directory / "ledger"
        self.ledger = Ledger(self.path)
        self.target = target = Target("127.0.0.1", broker.port, USER, PASSWORD)
        there = Target("127.0.0.1", (sink or broker).port, USER, PASSWORD)
        queue, topic = f"{name}.queue", f"{name}/topic"
        amqp, stomp, mqtt = seeds
        self.producers: list[Producer] = [
            AmqpProducer("amqp", target, queue, self.ledger, amqp),
            StompProducer("stomp", target, queue, self.ledger, stomp),
            MqttProducer("mqtt", target, topic, self.ledger, mqtt),
        ]
        self.consumers: list[Consumer] = [
            AmqpConsumer("amqp-consumer", there, queue, self.ledger),
            StompConsumer("stomp-consumer", there, queue, self.ledger),
            MqttConsumer("mqtt-consumer", there, topic, self.ledger),
        ]
        self.consumers[-1].open().close()  # the subscription exists from now on

    @property
    def workers(self) -> list[Worker]:
        """All of them."""
        return [*self.consumers, *self.producers]

    @property
    def errors(self) -> list[str]:
        """Return what none of them may have met."""
        return [error for worker in self.workers for error in worker.errors]

    def confirmed(self, producer: str = "") -> int:
        """How many messages were confirmed, to one producer or to all."""
        mark = f"{producer}-" if producer else ""
        return sum(type(entry) is Confirmed and entry.id.startswith(mark) for entry in list(self.ledger.entries))

    def fault(self, what: str) -> None:
        """Note in the ledger what is done to the broker."""
        self.ledger.add(Fault(now(), what))

    def left(self) -> dict[str, int]:
        """The queues that are not empty, with their messages."""
        return {queue["name"]: queue["messages"] for queue in self.broker.queues() if queue["messages"]}

    def abandon(self) -> None:
        """Have no thread outlive a failed test."""
        for worker in self.workers:
            worker.stopping.set()

    def reconcile(self) -> Verdict:
        """Stop everybody and judge, after all queues were drained: nothing lost, invented or given twice."""
        for worker in self.workers:
            worker.stop()
        self.ledger.close()
        assert not self.errors
        verdict = check(self.ledger.entries)
        assert verdict.lost == (), verdict
        assert verdict.phantom == (), verdict
        assert verdict.duplicated == (), verdict
        return verdict


__all__ = ["Clients"]
