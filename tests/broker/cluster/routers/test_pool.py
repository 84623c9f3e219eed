"""A router's pool over connections in memory: who is ready, who is not any more, and why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.cluster.connection.conftest import KEY, End, until
from pollux.cluster.connector import UnreachableError
from pollux.cluster.link import Conversation, CoreHub
from pollux.cluster.routers import pool as module
from pollux.cluster.routers.pool import Local, Member, TargetPool
from pollux.cluster.routers.probe import PURPOSE, answering
from pollux.cluster.topology import Address, Announcement
from pollux.config.acceptors import ConnectorSettings, Endpoint
from pollux.config.clusters import RouterPool

pytestmark = pytest.mark.asyncio
ME = "01" * 16
WHERE = Announcement(
    "m",
    (),
    (Address("pub", 5671, True, ("AMQP",)), Address("pub", 5672, False), Address("pub", 1883, False, ("MQTT",))),
)


class Link:
    """As CoreLink shows itself, with the other broker's end beside it."""

    def __init__(self, mine: CoreHub, theirs: CoreHub) -> None:
        loop = asyncio.get_running_loop()
        self.ends = End(), End()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        more: dict[str, Any] = {"on_ready": lambda _peer: None, "on_end": lambda _code, _text: None}
        self.conversation = Conversation(
            mine,
            self.ends[0],
            loop,
            initiator=True,
            on_ready=lambda _peer: self.ready.set_result(None),
            on_end=self._ended,
        )
        self.other = Conversation(theirs, self.ends[1], loop, initiator=False, **more)
        self.ends[0].join(self.other)
        self.ends[1].join(self.conversation)

    def _ended(self, _code: str, _text: str) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def close(self, reason: str) -> None:
        self.conversation.stop("stopping", reason)


class Brokers:
    """Others by host, as a connector reaches them; who is not there is not."""

    def __init__(self) -> None:
        self.hub = CoreHub(KEY, name="me", node_id=b"", timeout=60)
        self.there: dict[str, CoreHub] = {}
        self.links: list[Link] = []

    def add(self, host: str, node: str, connections: int = 0, *, where: Announcement = WHERE) -> None:
        hub = CoreHub(KEY, name=host, node_id=b"", timeout=60)
        hub.purposes[PURPOSE] = answering(node, host, lambda: connections, where)
        self.there[host] = hub

    async def connect(self, endpoint: Endpoint, _limit: float) -> Link:
        if endpoint.host not in self.there:
            raise UnreachableError("nobody there")
        link = Link(self.hub, self.there[endpoint.host])
        await link.ready
        self.links.append(link)
        return link

    def lose(self, host: str) -> None:
        del self.there[host]
        for link in self.links:
            link.conversation.end("failed", "cut")


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def endpoint(host: str) -> Endpoint:
    return Endpoint("tcp", host, 61616, ConnectorSettings())


async def made(brokers: Brokers, *members: Member, **settings: Any) -> TargetPool:
    given = RouterPool(check_period=10, **settings)
    found = TargetPool("r", given, lambda: members, brokers, Local(ME, lambda: 3))  # type: ignore[arg-type]
    found.start()
    return found


def nodes(found: TargetPool) -> list[str]:
    return [one.node for one in found.ready()]


async def test_who_answers_is_ready_until_its_connection_is_lost(brokers: Brokers) -> None:
    brokers.add("a", "aa" * 16, 7)
    pool = await made(brokers, Member("a", (endpoint("a"),)), Member("b", (endpoint("b"),)))
    assert not pool.enough()
    await pool.until_enough()
    assert nodes(pool) == ["aa" * 16]
    (target,) = pool.ready()
    assert target.connections == 7
    target.sent()
    assert target.connections == 8
    reasons = {one["connector"]: one["reason"] for one in pool.describe()["targets"]}
    assert reasons == {"a": None, "b": "nobody there"}
    brokers.lose("a")
    await until(lambda: not pool.ready())
    assert not pool.enough()
    brokers.add("b", "bb" * 16)
    await until(lambda: nodes(pool) == ["bb" * 16])
    await pool.stop()
    assert not pool.ready()


async def test_order_quorum_and_a_broker_that_is_named_twice(brokers: Brokers) -> None:
    for host in "abc":
        brokers.add(host, ("aa" if host == "c" else host * 2) * 16)
    members = [Member(host, (endpoint(host),)) for host in "bac"]
    pool = await made(brokers, *members, quorum_size=3, local_target_enabled=True)
    await until(pool.enough)
    assert nodes(pool) == [ME, "bb" * 16, "aa" * 16]
    assert pool.describe()["quorum"] == 3
    assert pool.ready()[0].connections == 3
    await pool.stop()


async def test_a_pool_without_quorum_is_waited_for_no_longer_than_it_says(brokers: Brokers) -> None:
    pool = await made(brokers, Member("a", (endpoint("a"),)), quorum_timeout=20)
    await pool.until_enough()
    assert not pool.enough()
    await pool.stop()


async def test_this_broker_itself_is_no_other_one(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    brokers.add("me", ME)
    pool = await made(brokers, Member("me", (endpoint("me"),)))
    await until(lambda: "it is this broker" in str(pool.describe()["targets"][0]["reason"]))
    assert not pool.ready()
    said = [one.__dict__["fields"]["remedy"] for one in caplog.records]
    assert said == ["leave it out, and write <local-target-enabled>true</local-target-enabled>"]
    await pool.stop()


async def test_a_pair_is_found_where_it_serves(brokers: Brokers) -> None:
    brokers.add("second", "aa" * 16, where=Announcement("m", (), ()))
    pool = await made(brokers, Member("pair", (endpoint("first"), endpoint("second"))))
    await until(pool.enough)
    assert pool.ready()[0].address("AMQP", tls=False) == ("second", 61616, False)
    await pool.stop()


@pytest.mark.parametrize(
    ("protocol", "tls", "expected"),
    [
        ("AMQP", True, ("pub", 5671, True)),
        ("AMQP", False, ("pub", 5672, False)),
        ("MQTT", False, ("pub", 5672, False)),
        ("MQTT", True, ("a", 61616, False)),
    ],
)
async def test_clients_are_sent_where_that_broker_takes_them(
    brokers: Brokers, protocol: str, tls: bool, expected: tuple[str, int, bool]
) -> None:
    brokers.add("a", "aa" * 16)
    pool = await made(brokers, Member("a", (endpoint("a"),)))
    await until(pool.enough)
    assert pool.ready()[0].address(protocol, tls=tls) == expected
    await pool.stop()


async def test_members_come_and_go(brokers: Brokers) -> None:
    brokers.add("a", "aa" * 16)
    brokers.add("b", "bb" * 16)
    members = [Member("a", (endpoint("a"),))]
    given = RouterPool(check_period=10)
    pool = TargetPool("r", given, lambda: members, brokers, Local(ME, lambda: 0))  # type: ignore[arg-type]
    pool.start()
    await until(pool.enough)
    members[:] = [Member("b", (endpoint("b"),))]
    await until(lambda: nodes(pool) == ["bb" * 16])
    await pool.stop()


async def test_a_broker_of_which_another_place_is_known_stays_ready_and_is_found_there(brokers: Brokers) -> None:
    """Breaks when clients wait, or are refused, just as the backup of a pair announces itself."""
    brokers.add("a", "aa" * 16)
    members = [Member("pair", (endpoint("a"),)), Member("gone", (endpoint("c"),))]
    given = RouterPool(check_period=10)
    pool = TargetPool("r", given, lambda: members, brokers, Local(ME, lambda: 0))  # type: ignore[arg-type]
    pool.start()
    await until(pool.enough)
    (target,) = pool.ready()
    target.sent()
    members[:] = [Member("pair", (endpoint("a"), endpoint("b")))]
    pool.review()
    assert pool.ready() == [target]
    assert [one["sent"] for one in pool.describe()["targets"]] == [1]
    brokers.lose("a")
    brokers.add("b", "aa" * 16)
    await until(lambda: pool.enough() and target.address("MQTT", tls=True) == ("b", 61616, False))
    await pool.stop()


async def test_who_does_not_answer_in_time_or_not_as_it_should_is_not_ready(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER", 0.02)
    brokers.add("silent", "aa" * 16)
    brokers.there["silent"].purposes[PURPOSE] = lambda *_: None
    brokers.add("odd", "bb" * 16)

    def odd(conversation: Conversation, channel: int, _content: dict[str, Any]) -> None:
        conversation.accept(channel, node_id="no number")

    brokers.there["odd"].purposes[PURPOSE] = odd
    brokers.add("old", "cc" * 16)
    del brokers.there["old"].purposes[PURPOSE]
    pool = await made(brokers, *(Member(host, (endpoint(host),)) for host in ("silent", "odd", "old")))

    def said(text: str) -> bool:
        return any(text in str(one["reason"]) for one in pool.describe()["targets"])

    for text in ("no answer within 0.02 s", "its answer cannot be read", "'router' is not offered"):
        await until(lambda text=text: said(text))  # type: ignore[misc]
    assert not pool.ready()
    await pool.stop()
