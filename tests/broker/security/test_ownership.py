"""Names that clients choose prove nothing: what another user has by them cannot be taken, ended or looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import proton
import pytest

from broker.security.hub import Hub, frames, setting
from harness.sessions.amqp import message
from pollux.wire.mqtt.packets import ConnAck

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOT_AUTHORIZED = 0x87


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path, setting("#"), setting("private", "ann", send="all"), setting("news.bob", "bob"))
    await made.start()
    yield made
    await made.stop()


def durable(link: Any) -> None:
    link.source.durability = proton.Terminus.DELIVERIES
    link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER


@pytest.mark.parametrize("address", ["news", "private", "news.bob", "other", None])
@pytest.mark.parametrize("selector", [None, "colour = 'blue'"])
@pytest.mark.parametrize("where", ["private", "news"])
async def test_an_attach_with_anothers_names_changes_nothing(
    hub: Hub, address: str | None, selector: str | None, where: str
) -> None:
    """bob may not have ann's subscription, whether he may consume from its address and the one he names or not."""
    ann = await hub.amqp("ann")
    mine = await ann.receiver(where, "sub", capabilities=["topic"], prepare=durable, credit=5)
    bob = await hub.amqp("bob")

    def ask(link: Any) -> None:
        durable(link)
        if selector is not None:
            key = proton.symbol("apache.org:selector-filter:string")
            link.source.filter.put_dict({key: proton.Described(key, selector)})

    theirs = await bob.receiver(
        address, "sub", capabilities=["topic"], prepare=None if address is None else ask, credit=5
    )
    await bob.until(lambda: theirs.remote_condition)
    assert theirs.remote_condition.name == "amqp:unauthorized-access"
    await ann.quiet()
    assert mine.state & proton.Endpoint.REMOTE_ACTIVE
    assert mine.remote_condition is None
    await bob.send_all(await bob.sender(where), [message("for ann")])
    assert (await ann.get()).body == "for ann"
    assert hub.post.queue("c.sub").address == where


async def test_a_subscriptions_name_is_no_way_to_a_queue(hub: Hub) -> None:
    """The container id c and the link work name the queue c.work, which is nobody's subscription."""
    ann = await hub.amqp("ann")
    await ann.send_all(await ann.sender("c.work", capabilities=["queue"]), [message("work")])
    link = await ann.receiver("news", "work", capabilities=["topic"], prepare=durable)
    await ann.until(lambda: link.remote_condition)
    assert "is a queue of address 'c.work', not a subscription" in link.remote_condition.description
    assert hub.count("c.work") == 1


async def test_an_attach_that_is_refused_leaves_the_users_own_link(hub: Hub) -> None:
    """Authorised first: also one's own link stays when the other attach may not be."""
    first, second = await hub.amqp("ann"), await hub.amqp("ann")
    mine = await first.receiver("news", "sub", capabilities=["topic"], prepare=durable, credit=5)
    refused = await second.receiver("news.bob", "sub", capabilities=["topic"], prepare=durable)
    await second.until(lambda: refused.remote_condition)
    await first.quiet()
    assert mine.remote_condition is None
    stolen = await second.receiver("news", "sub", capabilities=["topic"], prepare=durable, credit=5)
    await first.until(lambda: mine.remote_condition)
    assert getattr(mine.remote_condition, "name", None) == "amqp:link:stolen"
    assert stolen.state & proton.Endpoint.REMOTE_ACTIVE


async def test_the_only_connection_of_a_container_is_the_only_one_of_its_user(hub: Hub) -> None:
    await hub.amqp("bob", desired=["sole-connection-for-container"])
    ann = await hub.amqp("ann", desired=["sole-connection-for-container"])
    await ann.quiet()
    assert ann.remote_condition is None


async def test_a_global_shared_subscription_is_everybodys(hub: Hub) -> None:
    ann, bob = await hub.amqp("ann", "one"), await hub.amqp("bob", "two")
    for client in (ann, bob):
        await client.receiver("news", "g", capabilities=["topic", "shared", "global"], prepare=durable, credit=1)
    await ann.send_all(await ann.sender("news", capabilities=["topic"]), [message("1"), message("2")])
    assert {(await ann.get()).body, (await bob.get()).body} == {"1", "2"}


async def test_a_durable_stomp_subscription_is_its_users(hub: Hub) -> None:
    subscribe = b"SUBSCRIBE\nid:1\ndestination:/topic/news\ndurable-subscription-name:sub\nreceipt:r\n\n\0"
    ann = await hub.stomp("ann")
    send = b"SEND\ndestination:/topic/news\npersistent:true\nreceipt:s\n\nfor ann\0"
    ann.send(subscribe + b"UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0" + send)
    await frames(ann, hub, 3)
    for frame in (subscribe, b"UNSUBSCRIBE\nid:2\ndurable-subscription-name:sub\nreceipt:r\n\n\0"):
        bob = await hub.stomp("bob")
        bob.send(frame)
        ((command, headers, _),) = await frames(bob, hub)
        assert command == "ERROR"
        assert "belongs to another user than 'bob'" in headers["message"]
    assert hub.count("c.sub") == 1
    await hub.restart()
    ann = await hub.stomp("ann")
    ann.send(subscribe)
    found = await frames(ann, hub, 2)
    assert {frame[0] for frame in found} == {"RECEIPT", "MESSAGE"}


async def test_an_mqtt_session_is_its_users(hub: Hub) -> None:
    ann = await hub.mqtt("ann", clean=False, expiry=1000)
    assert await ann.subscribe("news") == [2]
    bob = await hub.mqtt("bob", connect=False)
    answer = await bob.connect("c", clean=True)
    assert isinstance(answer, ConnAck)
    assert answer.reason == NOT_AUTHORIZED
    await ann.ping()
    await ann.publish("news", b"still here")
    assert (await ann.message()).payload == b"still here"


async def test_an_mqtt_client_id_is_no_way_to_another_protocols_subscription(hub: Hub) -> None:
    """ann's AMQP subscription c.news is named as the MQTT subscription of the client c to news would be."""
    ann = await hub.amqp("ann")
    link = await ann.receiver("news", "news", capabilities=["topic"], prepare=durable)
    link.detach()
    await ann.quiet()
    assert hub.post.queue("c.news").user == "ann"
    await ann.send_all(await ann.sender("news", capabilities=["topic"]), [message("for ann")])
    bob = await hub.mqtt("bob", clean=False, expiry=1000)
    (reason,) = await bob.subscribe("news")
    assert reason >= 0x80
    assert hub.count("c.news") == 1
