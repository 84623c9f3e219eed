"""Local transactions over a coordinator link."""

from __future__ import annotations

from typing import Any

import proton

from harness.sessions.amqp import Broker, Client, message

DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = 0x31, 0x32, 0x33, 0x34
ACCEPTED = proton.Delivery.ACCEPTED


class Transactions:
    """The client's side of a coordinator link."""

    def __init__(self, client: Client, link: proton.Sender) -> None:
        self.client = client
        self.link = link

    @classmethod
    async def open(cls, client: Client) -> Transactions:
        link = await client.sender(
            None, "tx", prepare=lambda link: setattr(link.target, "type", proton.Terminus.COORDINATOR)
        )
        assert link.remote_target.type == proton.Terminus.COORDINATOR
        return cls(client, link)

    async def request(self, value: Any) -> Any:
        delivery = self.client.send(self.link, proton.Message(body=value))
        await self.client.until(lambda: delivery.settled)
        return delivery

    async def declare(self) -> bytes:
        delivery = await self.request(proton.Described(proton.ulong(DECLARE), [None]))
        assert delivery.remote_state == DECLARED
        return bytes(delivery.remote.data[0])

    async def discharge(self, identifier: bytes, *, fail: bool = False) -> Any:
        return await self.request(proton.Described(proton.ulong(DISCHARGE), [identifier, fail]))

    def send(self, sender: proton.Sender, identifier: bytes, body: Any) -> Any:
        self.client.tags += 1
        delivery: Any = sender.delivery(f"tx{self.client.tags}")
        delivery.local.data = [identifier]
        delivery.update(TRANSACTIONAL)
        sender.stream(bytes(message(body).encode()))
        sender.advance()
        return delivery

    def retire(self, delivery: Any, identifier: bytes, *, settled: bool = True) -> None:
        delivery.local.data = [identifier, proton.Described(proton.ulong(ACCEPTED), [])]
        delivery.update(TRANSACTIONAL)
        if settled:
            delivery.settle()


async def test_sends_appear_at_the_commit_together(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    one = await client.sender("q1", "one", capabilities=["queue"])
    two = await client.sender("q2", "two", capabilities=["queue"])
    identifier = await transactions.declare()
    deliveries = [transactions.send(one, identifier, "a"), transactions.send(two, identifier, "b")]
    await client.until(lambda: all(each.settled for each in deliveries))
    assert [each.remote_state for each in deliveries] == [TRANSACTIONAL, TRANSACTIONAL]
    assert bytes(deliveries[0].remote.data[0]) == identifier
    await broker.settle()
    assert (broker.count("q1"), broker.count("q2")) == (0, 0)
    assert (await transactions.discharge(identifier)).remote_state == ACCEPTED
    await broker.settle()
    assert (broker.count("q1"), broker.count("q2")) == (1, 1)
    await broker.restart()
    assert (broker.count("q1"), broker.count("q2")) == (1, 1)


async def test_rollback_of_sends(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    sender = await client.sender("q", capabilities=["queue"])
    identifier = await transactions.declare()
    transactions.send(sender, identifier, "a")
    assert (await transactions.discharge(identifier, fail=True)).remote_state == ACCEPTED
    await broker.settle()
    assert broker.count("q") == 0


async def two_retired(broker: Broker, credit: int) -> tuple[Client, Transactions, bytes, Any]:
    """A client that has retired two messages in a transaction; the second is not settled by it."""
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message("a"), message("b")])
    await client.receiver("q", credit=credit)
    identifier = await transactions.declare()
    first, _ = await client.receive()
    second, _ = await client.receive()
    transactions.retire(first, identifier)
    transactions.retire(second, identifier, settled=False)
    return client, transactions, identifier, second


async def test_acknowledgements_at_the_commit(broker: Broker) -> None:
    client, transactions, identifier, second = await two_retired(broker, credit=2)
    await client.quiet()
    assert broker.count("q") == 2
    await transactions.discharge(identifier)
    await client.until(lambda: second.settled)
    assert second.remote_state == ACCEPTED
    await broker.settle()
    assert broker.count("q") == 0
    await broker.restart()
    assert broker.post.space.queue("q") is None or broker.count("q") == 0


async def test_rollback_of_acknowledgements(broker: Broker) -> None:
    client, transactions, identifier, second = await two_retired(broker, credit=10)
    await transactions.discharge(identifier, fail=True)
    again = await client.get()
    assert (again.body, again.delivery_count) == ("a", 1)
    second.update(ACCEPTED)
    second.settle()
    await client.quiet()
    await broker.settle()
    assert broker.count("q") == 0


async def test_consumer_closed_before_the_commit(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message("a"), message("b")])
    for fail in (True, False):
        link = await client.receiver("q", f"r{fail}", credit=1)
        identifier = await transactions.declare()
        delivery, _ = await client.receive()
        transactions.retire(delivery, identifier)
        link.close()
        await client.quiet()
        await transactions.discharge(identifier, fail=fail)
        await broker.settle()
        assert broker.count("q") == (2 if fail else 1)
    await client.receiver("q", "last", credit=5)
    assert (await client.get()).body == "b"


async def test_lost_connection_rolls_back(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message("a")])
    await client.receiver("q", credit=1)
    identifier = await transactions.declare()
    delivery, _ = await client.receive()
    transactions.retire(delivery, identifier)
    transactions.send(sender, identifier, "b")
    await client.quiet()
    client.drop()
    other = await broker.client().opened()
    await other.receiver("q", credit=5)
    assert (await other.get()).body == "a"
    await other.quiet()
    assert not other.received


async def test_unknown_transactions(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    refused = await transactions.discharge(b"unknown")
    assert refused.remote_state == proton.Delivery.REJECTED
    assert refused.remote.condition.name == "amqp:transaction:unknown-id"
    sender = await client.sender("q", capabilities=["queue"])
    delivery = transactions.send(sender, b"unknown", "x")
    await client.until(lambda: delivery.settled)
    assert delivery.remote.condition.name == "amqp:transaction:unknown-id"
    await client.send_all(sender, [message("a")])
    link = await client.receiver("q", credit=1)
    delivery, _ = await client.receive()
    transactions.retire(delivery, b"unknown", settled=False)
    await client.until(lambda: link.remote_condition)
    assert link.remote_condition.name == "amqp:transaction:unknown-id"
    assert broker.count("q") == 1


async def test_other_requests_are_refused(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    for value in ("text", proton.Described(proton.ulong(0x99), [])):
        refused = await transactions.request(value)
        assert refused.remote_state == proton.Delivery.REJECTED
        assert refused.remote.condition.name == "amqp:decode-error"
