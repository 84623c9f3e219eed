"""Clients that subscribe: topics, durable and shared subscriptions, names of queues, dynamic nodes."""

from __future__ import annotations

import proton
import pytest

from harness.sessions.amqp import Broker, message
from harness.sessions.office import becomes
from pollux.engine.named import Found, Named
from pollux.engine.share import AT_ONCE

from .receivers import durable, filters, filters_told, selector

NO_LOCAL = filters(**{"no-local": ("apache.org:no-local-filter:list", [])})


def own(link: proton.Receiver) -> None:
    durable(link)
    NO_LOCAL(link)


def no_source(link: proton.Receiver) -> None:
    link.source.type = proton.Terminus.UNSPECIFIED


def own_and_selected(link: proton.Receiver) -> None:
    durable(link)
    both = {
        "no-local": ("apache.org:no-local-filter:list", []),
        "jms-selector": ("apache.org:selector-filter:string", "a = 1"),
    }
    filters(**both)(link)


async def test_topic_subscribers_all_get_it_and_leave_nothing(broker: Broker) -> None:
    client = await broker.client().opened()
    one = await client.receiver("news", "one", capabilities=["topic"], credit=5)
    two = await client.receiver("news", "two", capabilities=["topic"], credit=5)
    sender = await client.sender("news", capabilities=["topic"])
    await client.send_all(sender, [message("hello")])
    assert [(await client.get()).body for _ in range(2)] == ["hello", "hello"]
    queues = [queue.name for queue in broker.post.space.queues]
    assert len(queues) == 2
    one.close()
    two.detach()
    await client.quiet()
    assert not list(broker.post.space.queues)


async def test_no_local(broker: Broker) -> None:
    client = await broker.client("a").opened()
    other = await broker.client("b").opened()
    await client.receiver("news", "r", capabilities=["topic"], prepare=NO_LOCAL, credit=5)
    await client.send_all(await client.sender("news", capabilities=["topic"]), [message("own")])
    await other.send_all(await other.sender("news", capabilities=["topic"]), [message("other")])
    assert (await client.get()).body == "other"
    await client.quiet()
    assert not client.received


async def test_durable_subscription_by_link_name(broker: Broker) -> None:
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=durable)
    assert broker.post.queue("me.sub").durable
    link.detach()
    await client.quiet()
    sender = await client.sender("news", capabilities=["topic"])
    await client.send_all(sender, [message("while away")])
    await broker.restart()
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=durable, credit=5)
    assert (await client.get()).body == "while away"
    link.close()
    await client.until(lambda: link.state & proton.Endpoint.REMOTE_CLOSED)
    assert broker.post.space.queue("me.sub") is None


async def test_durable_no_local_holds_for_the_connection_it_is_attached_from(broker: Broker) -> None:
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=own)
    link.detach()
    await client.quiet()
    client.drop()
    client = await broker.client("me").opened()
    await client.receiver("news", "sub", capabilities=["topic"], prepare=own, credit=5)
    other = await broker.client("other").opened()
    await client.send_all(await client.sender("news", capabilities=["topic"]), [message("own")])
    await other.send_all(await other.sender("news", capabilities=["topic"]), [message("other")])
    assert (await client.get()).body == "other"
    await client.quiet()
    assert not client.received


async def test_of_a_shared_subscription_another_gets_what_the_one_who_made_it_does_not_want(broker: Broker) -> None:
    """Breaks when messages of the first one are put into no queue, or come to itself."""
    shared = ["topic", "shared", "global"]
    one, two = await broker.client("one").opened(), await broker.client("two").opened()
    await one.receiver("news", "sub", capabilities=shared, prepare=NO_LOCAL, credit=5)
    await two.receiver("news", "sub", capabilities=shared, credit=5)
    sender = await one.sender("news", capabilities=["topic"])
    await one.send_all(sender, [message("1"), message("2"), message("3")])
    assert [(await two.get()).body for _ in range(3)] == ["1", "2", "3"]
    assert not one.received


async def test_durable_subscription_is_looked_up_without_source(broker: Broker) -> None:
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=durable)
    link.detach()
    await client.quiet()
    link = await client.receiver(None, "sub")
    assert link.remote_source.address == "news"
    assert link.remote_source.durability == proton.Terminus.DELIVERIES
    link.close()
    await client.quiet()
    assert broker.post.space.queue("me.sub") is None
    link = await client.receiver(None, "sub")
    await client.until(lambda: link.remote_condition)
    assert link.remote_condition.name == "amqp:not-found"


@pytest.mark.parametrize("source", ["null", "without an address"])
async def test_a_durable_subscription_resumed_by_name_is_told_and_has_its_filters_after_a_restart(
    broker: Broker, source: str
) -> None:
    """Breaks when no-local is in no record, or when the filters are not told to who resumes the subscription."""
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=own_and_selected)
    link.detach()
    await client.quiet()
    await broker.restart()
    client = await broker.client("me").opened()
    # Qpid's receivers send a source without an address, clients of JMS none.
    prepare = no_source if source == "null" else durable
    link = await client.receiver(None, "sub", prepare=prepare, credit=5)
    assert filters_told(link) == {
        "jms-selector": ("apache.org:selector-filter:string", "a = 1"),
        "no-local": ("apache.org:no-local-filter:list", []),
    }
    other = await broker.client("other").opened()
    wanted = {"properties": {"a": 1}}
    await client.send_all(await client.sender("news", capabilities=["topic"]), [message("own", **wanted)])
    sender = await other.sender("news", capabilities=["topic"])
    await other.send_all(sender, [message("unselected"), message("other", **wanted)])
    assert (await client.get()).body == "other"
    await client.quiet()
    assert not client.received


async def test_the_last_source_with_an_address_says_whether_a_subscription_is_no_local(broker: Broker) -> None:
    """Breaks when what was asked for first is kept, or when what changed is not on disk."""
    for prepare, expected in ((durable, set()), (own, {"no-local"}), (durable, set())):
        client = await broker.client("me").opened()
        link = await client.receiver("news", "sub", capabilities=["topic"], prepare=prepare)
        link.detach()
        await client.quiet()
        await broker.restart()
        client = await broker.client("me").opened()
        link = await client.receiver(None, "sub")
        assert filters_told(link).keys() == expected
        link.detach()
        await client.quiet()
        client.drop()


async def test_a_shared_subscription_does_not_take_the_no_local_of_one_of_its_links(broker: Broker) -> None:
    client = await broker.client("me").opened()
    shared = ["topic", "shared", "global"]
    link = await client.receiver("news", "sub", capabilities=shared, prepare=own)
    link.detach()
    await client.quiet()
    link = await client.receiver(None, "sub", credit=5)
    assert filters_told(link) == {}
    await client.send_all(await client.sender("news", capabilities=["topic"]), [message("own")])
    assert (await client.get()).body == "own"


async def test_a_subscription_that_another_node_has_is_resumed_by_name_as_it_is_there(broker: Broker) -> None:
    """Breaks when no-local does not come along with what other nodes tell of a subscription."""

    class Elsewhere(Named):
        def find(self, name: str) -> Found | None:
            return Found("news", "a = 1", no_local=True) if name == "me.sub" else None

    broker.post.named = Elsewhere()
    client = await broker.client("me").opened()
    link = await client.receiver(None, "sub", credit=5)
    assert filters_told(link).keys() == {"jms-selector", "no-local"}
    sent = message("own", properties={"a": 1})
    await client.send_all(await client.sender("news", capabilities=["topic"]), [sent])
    await client.quiet()
    assert not client.received


async def test_durable_subscription_is_stolen(broker: Broker) -> None:
    one = await broker.client("me").opened()
    first = await one.receiver("news", "sub", capabilities=["topic"], prepare=durable)
    two = await broker.client("me").opened()
    second = await two.receiver("news", "sub", capabilities=["topic"], prepare=durable, credit=5)
    await one.until(lambda: first.remote_condition)
    assert first.remote_condition.name == "amqp:link:stolen"
    assert second.state & proton.Endpoint.REMOTE_ACTIVE
    await one.send_all(await one.sender("news", capabilities=["topic"]), [message("x")])
    assert (await two.get()).body == "x"


async def test_changed_subscription_is_a_new_one(broker: Broker) -> None:
    client = await broker.client("me").opened()
    link = await client.receiver("news", "sub", capabilities=["topic"], prepare=durable)
    link.detach()
    await client.send_all(await client.sender("news", capabilities=["topic"]), [message("old")])

    def changed(link: proton.Receiver) -> None:
        durable(link)
        selector("a = 1")(link)

    await client.receiver("news", "sub", capabilities=["topic"], prepare=changed, credit=5)
    await client.quiet()
    assert not client.received
    queue = broker.post.queue("me.sub")
    assert queue.selector is not None
    assert queue.selector.text == "a = 1"


async def test_shared_subscriptions(broker: Broker) -> None:
    client = await broker.client("me").opened()
    other = await broker.client("me").opened()
    one = await client.receiver("news", "sub", capabilities=["topic", "shared"], credit=1)
    two = await other.receiver("news", "sub|1", capabilities=["topic", "shared"], credit=1)
    assert broker.post.queue("me.sub:shared-volatile").consumer_count == 2
    await client.send_all(await client.sender("news", capabilities=["topic"]), [message("a"), message("b")])
    assert {(await client.get()).body, (await other.get()).body} == {"a", "b"}
    one.close()
    await client.quiet()
    assert broker.post.space.queue("me.sub:shared-volatile") is not None
    two.close()
    await other.quiet()
    assert broker.post.space.queue("me.sub:shared-volatile") is None
    link = await client.receiver("news", "gsub", capabilities=["topic", "shared", "global"], prepare=durable, credit=1)
    assert broker.post.queue("gsub:global").durable
    link.detach()
    await client.quiet()
    assert broker.post.queue("gsub:global")


async def test_fqqn_and_prefixes(broker: Broker) -> None:
    broker.parameters = {"anycastPrefix": "queue://", "multicastPrefix": "topic://,jms.topic."}
    client = await broker.client().opened()
    await client.receiver("orders::eu", "fqqn", capabilities=["queue"], credit=5)
    sender = await client.sender("orders::eu", capabilities=["queue"])
    await client.send_all(sender, [message("x")])
    assert (await client.get()).body == "x"
    await client.sender("queue://work", "w")
    assert broker.post.queue("work").routing_type.name == "ANYCAST"
    await client.receiver("jms.topic.t", "t")
    address = broker.post.space.address("t")
    assert address is not None
    assert {each.name for each in address.routing_types} == {"MULTICAST"}


async def test_dynamic_source_is_a_node_for_the_link(broker: Broker) -> None:
    client = await broker.client().opened()

    def dynamic(link: proton.Receiver) -> None:
        link.source.dynamic = True

    link = await client.receiver(None, "replies", prepare=dynamic, credit=5)
    node = link.remote_source.address
    assert node
    other = await broker.client("other").opened()
    await other.send_all(await other.sender(node), [message("reply")])
    assert (await client.get()).body == "reply"
    link.close()
    await client.quiet()
    assert broker.post.space.address(node) is None


async def test_dynamic_target_is_a_node_for_the_link(broker: Broker) -> None:
    client = await broker.client().opened()

    def dynamic(link: proton.Sender) -> None:
        link.target.dynamic = True
        link.target.capabilities.put_object([proton.symbol("temporary-queue")])

    link = await client.sender(None, "temp", prepare=dynamic)
    node = link.remote_target.address
    await client.receiver(node, "r", credit=5)
    await client.send_all(await client.sender(node, "s"), [message("x")])
    assert (await client.get()).body == "x"
    link.close()
    await client.quiet()
    assert broker.post.space.address(node) is None
    client.drop()


async def test_very_many_links_end_bit_by_bit(broker: Broker) -> None:
    """Breaks when a connection's links end in one turn of the loop, in which nobody else is served."""
    post = broker.post
    other = await broker.client("other").opened()
    client = await broker.client().opened()
    session = client.begin()
    links = [session.receiver(f"news-{number}") for number in range(AT_ONCE + 20)]
    for number, link in enumerate(links):
        link.source.address = f"news.{number}"
        link.open()
    await client.receiver("orders", session=session, capabilities=["queue"], credit=1)
    await other.send_all(await other.sender("orders", capabilities=["queue"]), [message("for somebody")])
    assert (await client.get()).body == "for somebody"

    def subscriptions() -> int:
        return sum(queue.address.startswith("news.") for queue in post.space.queues)

    assert subscriptions() == len(links)
    client.drop()
    assert 0 < subscriptions() < len(links)
    # Whoever comes next gets what the client had.
    await other.receiver("orders", "next", capabilities=["queue"], credit=1)
    assert (await other.get()).body == "for somebody"
    await becomes(lambda: not subscriptions())
