"""Federation: what is wanted here is fetched from another broker, once, and not sent back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.engine.conftest import Receiver, message
from pollux.config.federation import (
    AddressMatch,
    AddressPolicy,
    Federation,
    PolicyRef,
    PolicySet,
    QueueMatch,
    QueuePolicy,
)
from pollux.message import RoutingType
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cluster.bridges.conftest import Site

    Make = Callable[..., Awaitable[list[Site]]]

QUEUES = QueuePolicy("queues", includes=(QueueMatch("#", "orders"),))
NEWS = AddressPolicy("news", includes=(AddressMatch("news.#"),), excludes=(AddressMatch("news.secret"),))


def count(site: Site, name: str = "orders") -> int:
    return site.post.message_count(site.post.queue(name))


def subscription(site: Site, name: str, address: str = "news.all") -> Receiver:
    site.post.create_queue(QueueSpec(name, address, routing_type=RoutingType.MULTICAST))
    receiver = Receiver()
    site.post.attach(site.post.queue(name), receiver)
    return receiver


def news(body: bytes, address: str = "news.all") -> Any:
    return message(body, address, routing_type=RoutingType.MULTICAST)


async def told(fetching: Any, **wanted: int) -> None:
    """Wait until that is what the other broker knows to be wanted."""
    fetching.look()
    await until(lambda: fetching.connected)
    fetching.look()
    await until(lambda: {key: len(fetching.describe()[key]) for key in wanted} == wanted)


async def test_a_queue_with_a_consumer_here_gets_what_waits_there(sites: Make) -> None:
    here, there = await sites()
    for number in range(10):
        there.post.send(message(str(number).encode(), priority=number % 2))
    await there.office.stable()
    fetching = here.fetch(there, QUEUES)
    await told(fetching, queues=0)
    assert count(there) == 10
    receiver = Receiver(selector=parse("JMSPriority = 1"), credit=3)
    here.post.attach(here.post.queue("orders"), receiver)
    await told(fetching, queues=1)
    await receiver.wait(3)
    await until(lambda: count(there) == 5)
    assert receiver.bodies == [b"1", b"3", b"5"]
    assert count(here) == 5
    other = Receiver()
    here.post.attach(here.post.queue("orders"), other)
    await told(fetching, queues=1)
    await until(lambda: count(there) == 0)
    await other.wait(7)


async def test_a_consumer_there_goes_before_one_here(sites: Make) -> None:
    here, there = await sites()
    local = Receiver(credit=100)
    there.post.attach(there.post.queue("orders"), local)
    far = Receiver()
    here.post.attach(here.post.queue("orders"), far)
    fetching = here.fetch(there, QUEUES)
    await told(fetching, queues=1)
    for number in range(50):
        there.post.send(message(str(number).encode()))
    await local.wait(50)
    assert far.got == []


async def test_an_address_with_a_queue_here_gets_copies_of_what_is_sent_there(sites: Make) -> None:
    here, there = await sites()
    receiver = subscription(here, "mine")
    secret = subscription(here, "secrets", "news.secret")
    fetching = here.fetch(there, NEWS)
    await told(fetching, addresses=1)
    copies = f"federation.f/up.news.all.{here.id.hex()}"
    await until(lambda: there.post.space.queue(copies))
    local = subscription(there, "theirs")
    there.post.send(news(b"1"))
    there.post.send(news(b"hidden", "news.secret"))
    await receiver.wait(1)
    await local.wait(1)
    # What is sent while nobody is connected waits there.
    there.links[-1].cut()
    there.reachable = False
    there.post.send(news(b"2"))
    await until(lambda: count(there, copies) == 1)
    there.reachable = True
    await receiver.wait(2)
    assert receiver.bodies == [b"1", b"2"]
    assert secret.got == []
    # Nobody wants it any more.
    here.post.delete_queue("mine")
    await told(fetching, addresses=0)
    await until(lambda: there.post.space.queue(copies) is None)


async def test_brokers_that_fetch_from_each_other_see_each_message_once(sites: Make) -> None:
    one, two = await sites()
    receivers = [subscription(site, "mine") for site in (one, two)]
    for here, there in ((one, two), (two, one)):
        await told(here.fetch(there, NEWS), addresses=1)
        await until(partial(there.post.space.queue, f"federation.f/up.news.all.{here.id.hex()}"))
    one.post.send(news(b"from one"))
    two.post.send(news(b"from two"))
    for receiver in receivers:
        await receiver.wait(2)
    for site in (one, two):
        await site.office.stable()
        await until(lambda site=site: sum(map(site.post.message_count, site.post.space.queues)) == 2)  # type: ignore[misc]
    assert [sorted(receiver.bodies) for receiver in receivers] == [[b"from one", b"from two"]] * 2


@pytest.mark.parametrize(("hops", "arrives"), [(1, False), (2, True), (0, True)])
async def test_max_hops_is_how_many_brokers_a_message_comes_through(sites: Make, hops: int, arrives: bool) -> None:
    one, two, three = await sites(3)
    subscription(two, "two's")
    last = subscription(three, "three's")
    policy = AddressPolicy("p", includes=(AddressMatch("news.#"),), max_hops=hops)
    for here, there in ((two, one), (three, two)):
        await told(here.fetch(there, policy), addresses=1)
        await until(partial(there.post.space.queue, f"federation.f/up.news.all.{here.id.hex()}"))
    one.post.send(news(b"far"))
    two.post.send(news(b"near"))
    await last.wait(2 if arrives else 1)
    await until(lambda: count(two, f"federation.f/up.news.all.{three.id.hex()}") == 0)
    assert sorted(last.bodies) == ([b"far", b"near"] if arrives else [b"near"])


async def test_a_link_that_breaks_again_and_again_loses_and_doubles_nothing(sites: Make) -> None:
    here, there = await sites()
    receiver = Receiver()
    here.post.attach(here.post.queue("orders"), receiver)
    fetching = here.fetch(there, QUEUES)
    await told(fetching, queues=1)
    for number in range(200):
        there.post.send(message(str(number).encode()))
        if number % 40 == 39:
            there.post.when_stable(None)
            await until(lambda number=number: len(receiver.got) > number // 2)  # type: ignore[misc]
            there.links[-1].cut()
            await until(lambda: fetching.connected)
    await receiver.wait(200)
    assert sorted(int(body) for body in receiver.bodies) == list(range(200))


def test_policies_by_set_and_by_name_each_once() -> None:
    federation = Federation(
        "f", policy_sets=(PolicySet("all", (PolicyRef("queues"), PolicyRef("news"))),),
        queue_policies=(QUEUES,), address_policies=(NEWS,),
    )  # fmt: skip
    upstream = type("U", (), {"policies": (PolicyRef("news"), PolicyRef("all"))})
    assert federation.policies_of(upstream) == [NEWS, QUEUES]  # type: ignore[arg-type]


async def test_a_downstream_fetches_what_it_is_asked_to(sites: Make) -> None:
    here, there = await sites()
    for number in range(10):
        here.post.send(message(str(number).encode()))
    await here.office.stable()
    here.ask(there, QUEUES)
    receiver = Receiver(credit=1000)
    there.post.attach(there.post.queue("orders"), receiver)
    await until(lambda: len(there.bridges.downstreams.all) == 1)
    await until(lambda: look(there) and len(receiver.bodies) == 10)
    assert receiver.bodies == [str(number).encode() for number in range(10)]
    await until(lambda: count(here) == 0)
    assert there.bridges.describe()["askedBy"] == [{"federation": "f/down", "node": "site1", "fetches": ["orders"]}]
    assert here.bridges.describe()["downstreams"] == [{"name": "f/down", "connected": True, "reason": None}]
    there.links[-1].cut()
    here.post.send(message(b"after"))
    await until(lambda: look(here) and look(there) and receiver.bodies[-1] == b"after")
    assert len(receiver.bodies) == 11


async def test_a_downstream_gets_copies_of_addresses(sites: Make) -> None:
    here, there = await sites()
    here.ask(there, NEWS)
    got = subscription(there, "mine")
    await until(lambda: len(there.bridges.downstreams.all) == 1)
    await until(lambda: look(there) and here.post.space.address("news.all") is not None)
    here.post.send(news(b"headline"))
    await until(lambda: look(here) and got.bodies == [b"headline"])


async def test_a_broker_asks_nothing_of_itself(sites: Make) -> None:
    (here,) = await sites(1)
    asking = here.ask(here, QUEUES)
    await until(lambda: "leads to the broker that it begins at" in asking.reason)


def look(site: Site) -> bool:
    """Do what a second would."""
    bridges = site.bridges
    for one in (*bridges.asking, *bridges.fetching):
        one.look()
    bridges.suppliers.look()
    bridges.downstreams.look()
    return True
