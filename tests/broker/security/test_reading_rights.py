"""A pattern is no way around permissions: delivered is only what the user may have, over every protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.hub import Hub, frames, setting
from harness.sessions.amqp import message
from pollux.config.address_settings import AddressSettings
from pollux.engine.security import Permission
from pollux.message import Encoding, Message, RoutingType
from pollux.routing.queue import Queue
from pollux.routing.reference import MessageReference
from pollux.routing.spec import QueueSpec
from pollux.wire.mqtt.packets import Ack, Publish
from pollux.wire.mqtt.properties import PUBACK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from harness.sessions.amqp import Client
    from pollux.routing.selector import Selector

#: All may do everything, but consume at secret.x and below secret.deep, which is ann's.
RULES = (setting("#"), setting("secret.#", consume="ann", browse="ann"))
ADDRESSES = ("open.x", "secret.x", "open.y", "secret.deep.y", "x")
OPEN = {"open.x", "open.y", "x"}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path, *RULES)
    await made.start()
    yield made
    await made.stop()


async def publish(hub: Hub, *, retained: bool = False, kind: str = "topic") -> None:
    """One durable message to each address; its body is the address."""
    if retained:
        writer = await hub.mqtt("ann", "retaining")
        for address in ADDRESSES:
            await writer.publish(address.replace(".", "/"), address.encode(), retain=True)
        await writer.leave()
        return
    client = await hub.amqp("ann", "sending")
    for address in ADDRESSES:
        sender = await client.sender(address, f"to {address}", capabilities=[kind])
        await client.send_all(sender, [message(address, durable=True)])
    client.drop()
    await hub.settle()


def durable(link: Any) -> None:
    link.source.durability = proton.Terminus.DELIVERIES
    link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER


def browsing(link: Any) -> None:
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY


async def by_amqp(
    hub: Hub, user: str, address: str, *capabilities: str, prepare: Callable[[Any], None] | None = None
) -> Callable[[], Awaitable[set[str]]]:
    client = await hub.amqp(user, f"of {user}")
    link = await client.receiver(address, "sub", capabilities=list(capabilities), prepare=prepare, credit=50)
    assert link.state & proton.Endpoint.REMOTE_ACTIVE, link.remote_condition
    return lambda: _amqp_bodies(client)


async def _amqp_bodies(client: Client) -> set[str]:
    await client.broker.settle()
    await client.quiet()
    found = set()
    while client.received:
        found.add((await client.get()).body)
    return found


async def by_stomp(hub: Hub, user: str, destination: str, *lines: str) -> Callable[[], Awaitable[set[str]]]:
    client = await hub.stomp(user, f"of {user}")
    head = "\n".join(["id:1", f"destination:{destination}", "receipt:r", *lines])
    client.send(f"SUBSCRIBE\n{head}\n\n\0".encode())
    taken = await frames(client, hub)
    assert [command for command, _, _ in taken].count("RECEIPT") == 1, taken
    taken = [frame for frame in taken if frame[0] != "RECEIPT"]

    async def bodies() -> set[str]:
        await hub.settle()
        found = [*taken, *client.received()]
        taken.clear()
        assert all(command == "MESSAGE" for command, _, _ in found), found
        return {body.decode() for _, _, body in found}

    return bodies


async def by_mqtt(hub: Hub, user: str, topic: str, **options: Any) -> Callable[[], Awaitable[set[str]]]:
    client = await hub.mqtt(user, f"of {user}", **options)
    assert await client.subscribe(topic) == [2]

    async def bodies() -> set[str]:
        await hub.settle()
        found = [packet for packet in client.taken() if isinstance(packet, Publish)]
        return {packet.payload.decode() for packet in found}

    return bodies


def ways(user: str) -> dict[str, Callable[[Hub], Awaitable[Callable[[], Awaitable[set[str]]]]]]:
    return {
        "AMQP": lambda hub: by_amqp(hub, user, "#", "topic"),
        "AMQP durable": lambda hub: by_amqp(hub, user, "#", "topic", prepare=durable),
        "AMQP shared": lambda hub: by_amqp(hub, user, "#", "topic", "shared", "global"),
        "AMQP single word": lambda hub: by_amqp(hub, user, "*.x", "topic"),
        "STOMP": lambda hub: by_stomp(hub, user, "/topic/#"),
        "STOMP durable": lambda hub: by_stomp(hub, user, "/topic/#", "durable-subscription-name:sub"),
        "MQTT": lambda hub: by_mqtt(hub, user, "#"),
        "MQTT durable": lambda hub: by_mqtt(hub, user, "#", clean=False, expiry=1000),
        "MQTT single word": lambda hub: by_mqtt(hub, user, "+/x"),
        "MQTT shared": lambda hub: by_mqtt(hub, user, "$share/g/#"),
    }


def expected(way: str, addresses: set[str]) -> set[str]:
    return {each for each in addresses if each.endswith(".x")} if "single word" in way else addresses


@pytest.mark.parametrize("way", ways(""))
async def test_a_pattern_gives_what_its_user_may_have(hub: Hub, way: str) -> None:
    """bob, whom secret.# refuses, gets nothing of it by # or a single word; and nothing of it waits for him."""
    theirs = await ways("bob")[way](hub)
    await publish(hub)
    assert await theirs() == expected(way, OPEN)
    for queue in hub.post.space.queues:
        if queue.of_pattern:
            assert queue.counters.added == len(expected(way, OPEN)), "what nobody may take is not kept for him"


@pytest.mark.parametrize("way", ways(""))
async def test_a_pattern_gives_all_to_whom_may_have_it(hub: Hub, way: str) -> None:
    mine = await ways("ann")[way](hub)
    await publish(hub)
    assert await mine() == expected(way, set(ADDRESSES))


@pytest.mark.parametrize("kind", ["queue", "browser", "named"])
async def test_of_a_queue_each_gets_what_he_may_have(hub: Hub, kind: str) -> None:
    """Messages in a queue that a pattern filled, of both: what bob may not have waits for ann."""
    hub.post.create_queue(QueueSpec("all", "#", routing_type=RoutingType.ANYCAST))
    await publish(hub, kind="queue")
    name = "#::all"
    if kind == "browser":
        theirs = await by_amqp(hub, "bob", name, prepare=browsing)
        assert await theirs() == OPEN
        assert hub.count("all") == 5
        return
    theirs = await by_amqp(hub, "bob", name) if kind == "queue" else await by_stomp(hub, "bob", f"/queue/{name}")
    assert await theirs() == OPEN
    mine = await by_amqp(hub, "ann", name)
    assert await mine() == set(ADDRESSES) - OPEN
    await publish(hub, kind="queue")
    assert set(ADDRESSES) - OPEN <= await mine()
    assert not (await theirs() - OPEN)


async def test_of_a_queue_on_disk_each_sees_what_he_may(hub: Hub) -> None:
    hub.post.create_queue(QueueSpec("all", "#", routing_type=RoutingType.ANYCAST))
    await publish(hub, kind="queue")
    await hub.restart()
    looking = await by_amqp(hub, "bob", "#::all", prepare=browsing)
    assert await looking() == OPEN
    assert await (await by_amqp(hub, "ann", "#::all", prepare=browsing))() == set(ADDRESSES)


async def test_a_shared_subscription_gives_each_member_his(hub: Hub) -> None:
    """Of two members of a group it goes to the one who may have it, and to him even while he is away."""
    options: dict[str, Any] = {"clean": False, "expiry": 1000}
    theirs = await by_mqtt(hub, "bob", "$share/g/#", **options)
    mine = await by_mqtt(hub, "ann", "$share/g/#", **options)
    await publish(hub)
    of_bob, of_ann = await theirs(), await mine()
    assert of_bob | of_ann == set(ADDRESSES)
    assert set(ADDRESSES) - OPEN <= of_ann
    await hub.restart()
    await hub.mqtt("bob", "of bob", **options)
    await publish(hub)
    again = await hub.mqtt("ann", "of ann", **options)
    await hub.settle()
    bodies = {packet.payload.decode() for packet in again.taken() if isinstance(packet, Publish)}
    assert set(ADDRESSES) - OPEN <= bodies


@pytest.mark.parametrize("topic", ["#", "+/x", "secret/#"])
async def test_retained_messages_are_shown_to_whom_may_have_them(hub: Hub, topic: str) -> None:
    await publish(hub, retained=True)
    way = "single word" if "+" in topic else ""
    if topic != "secret/#":
        assert await (await by_mqtt(hub, "bob", topic))() == expected(way, OPEN)
        assert await (await by_mqtt(hub, "ann", topic))() == expected(way, set(ADDRESSES))
        return
    bob = await hub.mqtt("bob")
    assert (await bob.subscribe(topic))[0] >= 0x80
    assert await (await by_mqtt(hub, "ann", topic))() == set(ADDRESSES) - OPEN


async def test_retained_messages_on_their_way_are_not_shown_when_the_right_is_gone(hub: Hub) -> None:
    await publish(hub, retained=True)
    hub.grant(setting("#"))
    client = await hub.mqtt("bob", receive_maximum=1)
    assert await client.subscribe("#") == [2]
    first = await client.message(acknowledge=False)
    hub.grant(*RULES)
    client.write(Ack(PUBACK, first.packet_id))
    found = {first.payload.decode()}
    while not found >= OPEN:
        found.add((await client.message()).payload.decode())
    await client.silent()
    assert found <= OPEN | {first.payload.decode()}


@pytest.mark.parametrize("way", ["AMQP durable", "STOMP durable", "MQTT durable"])
async def test_rights_are_those_of_now(hub: Hub, way: str) -> None:
    """Taken away: no more of it, not even of what waits already. Given: from now on."""
    bodies = await ways("bob")[way](hub)
    hub.grant(setting("#"))
    await publish(hub)
    assert await bodies() == set(ADDRESSES)
    for queue in hub.post.space.queues:
        hub.post.address_manager.pause_queue(queue, paused=True)
    await publish(hub)
    hub.grant(*RULES)
    for queue in hub.post.space.queues:
        hub.post.address_manager.pause_queue(queue, paused=False)
    assert await bodies() == OPEN
    await publish(hub)
    assert await bodies() == OPEN
    hub.grant(setting("#"))
    assert await bodies() == set(ADDRESSES) - OPEN, "what was in his queue when it might have been his"
    await publish(hub)
    assert await bodies() == set(ADDRESSES)


async def test_a_session_goes_on_only_where_its_user_may_consume(hub: Hub) -> None:
    hub.grant(setting("#"))
    first = await hub.mqtt("bob", clean=False, expiry=1000)
    assert await first.subscribe("secret/x", "open/x") == [2, 2]
    first.lose()
    hub.grant(*RULES)
    await publish(hub)
    again = await hub.mqtt("bob", clean=False, expiry=1000)
    assert (await again.message()).payload == b"open.x"
    await again.silent()


async def test_a_queue_that_a_setting_names_is_all_of_whom_it_names(hub: Hub) -> None:
    """An administrator who gives bob the audit queue of all messages gives him all messages."""
    hub.grant(*RULES, setting("#::audit", consume="bob"))
    hub.post.create_queue(QueueSpec("audit", "#", routing_type=RoutingType.MULTICAST))
    bodies = await by_amqp(hub, "bob", "#::audit")
    await publish(hub)
    assert await bodies() == set(ADDRESSES)


def test_who_may_consume_everywhere_is_not_asked_each_time(tmp_path: Path) -> None:
    consume = Permission.consume
    security = Hub.security_of(*RULES)
    assert security.everywhere("ann", consume)
    assert not security.everywhere("bob", consume)
    assert security.everywhere("bob", Permission.send)
    assert not Hub.security_of(setting("open.#")).everywhere("ann", consume), "no setting for all the others"
    security.close()


class Taker:
    """A consumer who may have messages of some addresses."""

    priority = 0
    selector: Selector | None = None
    browsing = False
    no_local = False
    origin = 0
    restricted = True
    user = ""

    def __init__(self, addresses: set[str], credit: int) -> None:
        self.addresses = addresses
        self.credit = credit
        self.got: list[MessageReference] = []
        self.rights = self

    def allow(self, address: str) -> bool:
        return address in self.addresses

    def deliver(self, references: list[MessageReference]) -> None:
        self.credit -= len(references)
        self.got += references


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=30),
    st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_every_message_goes_to_somebody_who_may_have_it(
    sent: list[tuple[str, int]], people: list[tuple[set[str], int]]
) -> None:
    queue = Queue.create(QueueSpec("q", "#", routing_type=RoutingType.ANYCAST), AddressSettings(), 1)
    takers = [Taker(*each) for each in people]
    for taker in takers:
        queue.add_consumer(taker)
    messages = [Message(Encoding.STOMP, address, b"x", priority=priority) for address, priority in sent]
    queue.add([MessageReference(each, queue) for each in messages])
    while queue.dispatch(0):
        pass
    for taker in takers:
        assert {each.message.address for each in taker.got} <= taker.addresses
        for priority in range(10):
            mine = [messages.index(each.message) for each in taker.got if each.message.priority == priority]
            assert mine == sorted(mine), "in order"
    given_out = sum(len(taker.got) for taker in takers)
    assert queue.waiting == len(sent) - given_out
    left = {each.message.address for each in queue.iterate()}
    for taker in takers:
        assert not taker.credit or not left & taker.addresses, "it waits although somebody may have it"
