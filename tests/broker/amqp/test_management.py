"""Management requests over AMQP: who may, what is asked, how it is answered."""

from __future__ import annotations

import json
from typing import Any

import proton
import pytest

from harness.sessions.amqp import Broker, Client, message
from pollux.engine import management_requests
from pollux.engine.security import MANAGEMENT_ADDRESS
from pollux.protocols.amqp.management import MAX_REQUEST
from pollux.version import VERSION


class Manager:
    """A client that asks, with a temporary queue for the answers."""

    def __init__(self, client: Client, replies: Any, link: Any) -> None:
        self.client = client
        self.replies = replies
        self.link = link
        self.asked = 0

    @classmethod
    async def open(cls, broker: Broker, target: str | None = MANAGEMENT_ADDRESS) -> Manager:
        client = await broker.client(user="alice", password="secret", mechanisms="PLAIN").opened()

        def dynamic(link: Any) -> None:
            link.source.dynamic = True

        replies = await client.receiver(None, "replies", prepare=dynamic, credit=100)
        return cls(client, replies, await client.sender(target))

    def request(self, resource: str, body: str = "", **properties: str) -> Any:
        self.asked += 1
        found = {"_AMQ_ResourceName": resource, **{f"_AMQ_{name}": value for name, value in properties.items()}}
        request = message(body or None, properties=found, id=f"request-{self.asked}")
        request.reply_to = self.replies.remote_source.address
        request.address = MANAGEMENT_ADDRESS
        return request

    async def ask(self, resource: str, *parameters: Any, **properties: str) -> tuple[bool, Any]:
        body = json.dumps(parameters) if parameters else ""
        (outcome,) = await self.client.send_all(self.link, [self.request(resource, body, **properties)])
        assert outcome.remote_state == outcome.ACCEPTED
        answer = await self.client.get()
        assert answer.correlation_id == f"request-{self.asked}"
        (result,) = json.loads(answer.body)
        return answer.properties["_AMQ_OperationSucceeded"], result

    async def attribute(self, resource: str, name: str) -> Any:
        succeeded, result = await self.ask(resource, Attribute=name)
        assert succeeded, result
        return result

    async def operation(self, resource: str, name: str, *parameters: Any) -> Any:
        succeeded, result = await self.ask(resource, *parameters, OperationName=name)
        assert succeeded, result
        return result

    async def refused(self, resource: str, name: str, *parameters: Any) -> str:
        succeeded, result = await self.ask(resource, *parameters, OperationName=name)
        assert not succeeded
        return str(result)


@pytest.fixture
async def manager(broker: Broker) -> Manager:
    return await Manager.open(broker)


async def test_attributes_by_their_name_or_their_getter(broker: Broker, manager: Manager) -> None:
    await manager.client.send_all(await manager.client.sender("q", "s", capabilities=["queue"]), [message("x")] * 3)
    assert await manager.attribute("queue.q", "messageCount") == 3
    assert await manager.attribute("queue.q", "MessageCount") == 3
    assert await manager.operation("queue.q", "getMessageCount") == 3
    assert await manager.attribute("queue.q", "routingType") == "ANYCAST"
    assert await manager.operation("queue.q", "isPaused") is False
    assert await manager.attribute("address.q", "queueNames") == ["q"]
    assert "q" in await manager.attribute("broker", "queueNames")
    assert await manager.attribute("broker", "version") == VERSION


async def test_scheduled_messages_are_listed_and_delivered_as_artemis_names_it(
    broker: Broker, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = message("x", annotations={proton.symbol("x-opt-delivery-time"): proton.timestamp(4102444800000)})
    sender = await manager.client.sender("q", "s", capabilities=["queue"])
    await manager.client.send_all(sender, [message("now"), later, later])
    assert await manager.operation("queue.q", "getScheduledCount") == 2
    listed = await manager.operation("queue.q", "listScheduledMessages")
    assert [each["_AMQ_SCHED_DELIVERY"] for each in listed] == [4102444800000] * 2
    assert json.loads(await manager.operation("queue.q", "listScheduledMessagesAsJSON")) == listed
    first = listed[0]["messageID"]
    assert await manager.operation("queue.q", "deliverScheduledMessage", first) is None
    assert await manager.attribute("queue.q", "scheduledCount") == 1
    assert "no message" in await manager.refused("queue.q", "deliverScheduledMessage", first)
    assert "no number" in await manager.refused("queue.q", "deliverScheduledMessage", "1")
    monkeypatch.setattr(management_requests, "MAX_NAMES", 0)
    assert "use the HTTP API" in await manager.refused("queue.q", "listScheduledMessages")


async def test_how_a_queue_behaves_is_told(broker: Broker, manager: Manager) -> None:
    made = {"name": "b", "address": "a", "routing-type": "ANYCAST", "max-consumers": 3, "last-value-key": "k"}
    await manager.operation("broker", "createQueue", {**made, "ring-size": 7, "purge-on-no-consumers": True})
    told = {
        "enabled": True,
        "autoDelete": False,
        "configurationManaged": False,
        "maxConsumers": 3,
        "purgeOnNoConsumers": True,
        "lastValue": True,
        "lastValueKey": "k",
        "ringSize": 7,
        "groupRebalance": False,
        "groupBuckets": -1,
        "groupFirstKey": None,
        "deadLetterAddress": broker.post.space.settings("a").dead_letter_address,
        "expiryAddress": None,
    }
    assert {name: await manager.attribute("queue.b", name) for name in told} == told
    assert await manager.operation("queue.b", "isLastValue") is True


async def test_operations_do_what_they_say_and_last(broker: Broker, manager: Manager) -> None:
    await manager.client.send_all(await manager.client.sender("q", "s", capabilities=["queue"]), [message("x")] * 3)
    await manager.operation("queue.q", "pause")
    assert broker.post.queue("q").paused
    await manager.operation("queue.q", "resume")
    assert await manager.operation("queue.q", "removeAllMessages") == 3
    await manager.operation("broker", "createAddress", "a", "MULTICAST")
    made = {"name": "b", "address": "a", "routing-type": "MULTICAST", "filter-string": "colour = 'red'", "ring-size": 7}
    assert await manager.operation("broker", "createQueue", made) == "b"
    assert "exists" in await manager.refused("broker", "createQueue", made)
    assert await manager.operation("broker", "createQueue", made, True) == "b"
    await broker.restart()
    queue = broker.post.queue("b")
    assert (queue.address, queue.attributes.ring_size) == ("a", 7)
    again = await Manager.open(broker)
    await again.operation("broker", "destroyQueue", "b")
    await again.operation("broker", "deleteAddress", "a")
    assert broker.post.address("a") is None


CREATED: dict[str, tuple[list[object], tuple[object, ...]]] = {
    "configuration as text": (['{"name": "q", "address": "a", "routing-type": "ANYCAST"}'], ("ANYCAST", None, True)),
    "address, name": (["a", "q"], ("MULTICAST", None, True)),
    "routing type": (["a", "q", "ANYCAST"], ("ANYCAST", None, True)),
    "durable": (["a", "q", False], ("MULTICAST", None, False)),
    "durable, routing type": (["a", "q", False, "ANYCAST"], ("ANYCAST", None, False)),
    "filter, durable": (["a", "q", "x = 1", True], ("MULTICAST", "x = 1", True)),
    "filter, durable, routing type": (["a", "q", "", True, "ANYCAST"], ("ANYCAST", None, True)),
    "eight": (["a", "ANYCAST", "q", None, True, 3, False, True], ("ANYCAST", None, True)),
}


async def test_a_queue_is_created_in_each_form(manager: Manager, broker: Broker) -> None:
    for form, (parameters, expected) in CREATED.items():
        assert await manager.operation("broker", "createQueue", *parameters) == "q", form
        queue = broker.post.queue("q")
        selector = queue.selector.text if queue.selector is not None else None
        assert (queue.address, queue.routing_type.name, selector, queue.durable) == ("a", *expected), form
        await manager.operation("broker", "destroyQueue", "q", True, True)
        assert broker.post.address("a") is None, form


async def test_what_is_not_there_or_not_understood_is_said(manager: Manager) -> None:
    await manager.operation("broker", "createAddress", "a", "ANYCAST")
    assert "does not exist" in await manager.refused("queue.nowhere", "pause")
    assert "is no resource" in await manager.refused("acceptor.a", "stop")
    assert "has no operation 'listThreads'" in await manager.refused("broker", "listThreads")
    assert "does not take 3 parameters" in await manager.refused("broker", "createAddress", "a", "ANYCAST", 1)
    assert "routing type" in await manager.refused("broker", "createAddress", "b", "BOTH")
    assert "'mirror' is not known here" in await manager.refused("broker", "createQueue", {"name": "b", "mirror": True})
    assert "is no int" in await manager.refused("broker", "createQueue", {"name": "b", "max-consumers": True})
    assert "takes a queue configuration as JSON, or one of" in await manager.refused("broker", "createQueue", "a", 7)
    assert "is no JSON object" in await manager.refused("broker", "createQueue", "{x")
    assert "autoCreateAddress false" in await manager.refused(
        "broker", "createQueue", "a", "ANYCAST", "q", None, True, -1, False, False
    )
    assert "neither true nor false" in await manager.refused("broker", "deleteAddress", "a", "yes")
    for body in ("{}", "[" * 60_000, "[1", "\0"):
        await manager.client.send_all(manager.link, [manager.request("broker", body, OperationName="createQueue")])
        answer = await manager.client.get()
        assert answer.properties["_AMQ_OperationSucceeded"] is False
        assert "JSON array" in answer.body


async def test_an_answer_has_a_bounded_number_of_names(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_requests, "MAX_NAMES", 1)
    for name in ("a", "b"):
        await manager.operation("broker", "createAddress", name, "ANYCAST")
    assert "use the HTTP API" in await manager.refused("broker", "getAddressNames")


async def test_a_request_is_bounded(manager: Manager) -> None:
    manager.client.send(manager.link, manager.request("broker", "x" * MAX_REQUEST))
    await manager.client.until(lambda: manager.link.remote_condition)
    assert manager.link.remote_condition.name == "amqp:link:message-size-exceeded"


async def test_the_anonymous_relay_asks_too(broker: Broker) -> None:
    manager = await Manager.open(broker, None)
    assert await manager.attribute("broker", "started") is True
    assert broker.post.address(MANAGEMENT_ADDRESS) is None, "nothing of it is kept"


async def test_who_may_not_manage_is_refused_on_every_way(broker: Broker) -> None:
    manager, relay = await Manager.open(broker), await Manager.open(broker, None)
    broker.security.denied.add(("manage", MANAGEMENT_ADDRESS))
    for each in (manager, relay):
        (outcome,) = await each.client.send_all(each.link, [each.request("broker", Attribute="version")])
        assert outcome.remote_state == outcome.REJECTED
    link = await manager.client.sender(MANAGEMENT_ADDRESS, "again", wait=False)
    await manager.client.until(lambda: link.remote_condition)
    assert link.remote_condition.name == "amqp:unauthorized-access"


async def test_the_answer_goes_only_where_its_asker_may_send(broker: Broker, manager: Manager) -> None:
    broker.security.denied.add(("send", "secret"))
    broker.security.denied.add(("send", manager.replies.remote_source.address))
    assert await manager.attribute("broker", "started") is True, "a temporary queue of one's own needs no permission"
    request = manager.request("broker", '["made", "ANYCAST"]', OperationName="createAddress")
    request.reply_to = "secret"
    (outcome,) = await manager.client.send_all(manager.link, [request])
    assert outcome.remote_state == outcome.REJECTED
    assert broker.post.address("made") is None, "nothing is done whose answer cannot be sent"
