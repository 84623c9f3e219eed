"""Local transactions over AMQP 1.0 with python-qpid-proton, Apache Qpid's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from harness.amqp import (
    bodies,
)
from harness.broker import PASSWORD, USER

from .test_amqp_proton import send, take

if TYPE_CHECKING:
    from harness.broker import BrokerProcess


class Transacted(MessagingHandler, TransactionHandler):
    """In one transaction: receive from one queue, send to two others, then commit or roll back."""

    def __init__(self, url: str, name: str, *, commit: bool) -> None:
        super().__init__(auto_accept=False, prefetch=0)
        self.url, self.name, self.commit = url, name, commit
        self.outcome = ""
        self.transaction: Any = None
        self.senders: list[Any] = []
        self.done = 0

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(
            self.url, user=USER, password=PASSWORD, allow_insecure_mechs=True, reconnect=False
        )
        self.receiver = event.container.create_receiver(self.connection, f"{self.name}-in")
        self.senders = [event.container.create_sender(self.connection, f"{self.name}-{out}") for out in ("a", "b")]
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self.transaction = event.transaction
        self.receiver.flow(1)

    def on_message(self, event: Any) -> None:
        for sender in self.senders:
            self.transaction.send(sender, Message(f"from {event.message.body}", durable=True))
        self.transaction.accept(event.delivery)
        if self.commit:
            self.transaction.commit()
        else:
            self.transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        self.outcome = "committed"
        event.connection.close()

    def on_transaction_aborted(self, event: Any) -> None:
        self.outcome = "aborted"
        event.connection.close()

    def on_transaction_commit_failed(self, event: Any) -> None:
        self.outcome = "failed"
        event.connection.close()

    on_transaction_declare_failed = on_transaction_commit_failed


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
def test_a_local_transaction_over_several_queues(broker: BrokerProcess, name: str, commit: bool) -> None:
    send(broker, f"{name}-in", "work")
    handler = Transacted(f"amqp://127.0.0.1:{broker.port}", name, commit=commit)
    Container(handler).run()
    assert handler.outcome == ("committed" if commit else "aborted")
    assert bodies(take(broker, f"{name}-a")) == (["from work"] if commit else [])
    assert bodies(take(broker, f"{name}-b")) == (["from work"] if commit else [])
    assert bodies(take(broker, f"{name}-in")) == ([] if commit else ["work"])
