"""Plain messages that come together are taken in together, and nothing else of them is another one than before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import proton
import pytest

from broker.amqp.test_transactions import DISCHARGE, Transactions
from harness.sessions.amqp import Broker, Client, message
from pollux.errors import DiskFullError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.errors import PolluxError
    from pollux.message import Message

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED


@pytest.fixture
def taken(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many messages were given to the post office at once, each time."""
    sizes: list[int] = []
    send = broker.post.send_alike

    def send_alike(messages: Sequence[Message]) -> bool:
        sizes.append(len(messages))
        return send(messages)

    monkeypatch.setattr(broker.post, "send_alike", send_alike)
    return sizes


@pytest.fixture
def refuse(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[PolluxError], None]:
    """Return what has the post office refuse the message m1 with an error from now on."""
    post_send = broker.post.send

    def with_error(error: PolluxError) -> None:
        def send(sent: Message, *more: Any) -> None:
            if b"m1" in sent.data:
                raise error
            post_send(sent, *more)

        monkeypatch.setattr(broker.post, "send", send)

    return with_error


async def bodies(broker: Broker, client: Client, count: int) -> list[Any]:
    await broker.settle()
    await client.receiver("q", credit=100)
    return [(await client.get()).body for _ in range(count)]


@pytest.mark.parametrize("settled", [False, True])
async def test_a_row_of_plain_messages_is_one(broker: Broker, taken: list[int], settled: bool) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message("first")])
    deliveries = [client.send(sender, message(f"m{n}"), settled=settled) for n in range(10)]
    await client.quiet()
    await broker.settle()
    if not settled:
        await client.until(lambda: all(each.remote_state == ACCEPTED for each in deliveries))
    assert taken == [10]
    assert await bodies(broker, client, 11) == ["first", *(f"m{n}" for n in range(10))]


def _not_durable(client: Client, links: list[Any]) -> None:
    client.send(links[0], message("x", durable=False))


def _of_a_group(client: Client, links: list[Any]) -> None:
    client.send(links[0], message("x", group_id="g"))


def _with_a_time_to_live(client: Client, links: list[Any]) -> None:
    client.send(links[0], message("x", ttl=3600))


def _of_another_link(client: Client, links: list[Any]) -> None:
    client.send(links[1], message("x"))


def _of_a_relay(client: Client, links: list[Any]) -> None:
    client.send(links[2], message("x", address="q"))


def _large(client: Client, links: list[Any]) -> None:
    client.send(links[0], message("x" * 300_000))


@pytest.mark.parametrize(
    "other", [_not_durable, _of_a_group, _with_a_time_to_live, _of_another_link, _of_a_relay, _large]
)
async def test_what_is_between_plain_messages_stays_there(
    broker: Broker, other: Callable[[Client, list[Any]], None]
) -> None:
    """Breaks when a message is sent before those that came before it in one read."""
    client = await broker.client().opened()
    links = [await client.sender("q", name, capabilities=["queue"]) for name in ("one", "two")]
    links.append(await client.sender(None, "relay"))
    for body in ("a", "b"):
        client.send(links[0], message(body))
    other(client, links)
    for body in ("c", "d"):
        client.send(links[0], message(body))
    await client.quiet()
    assert [body[:1] for body in await bodies(broker, client, 5)] == ["a", "b", "x", "c", "d"]


async def test_what_comes_before_a_commit_is_before_what_it_commits(broker: Broker) -> None:
    client = await broker.client().opened()
    transactions = await Transactions.open(client)
    sender = await client.sender("q", capabilities=["queue"])
    identifier = await transactions.declare()
    transactions.send(sender, identifier, "committed")
    await client.quiet()
    for body in ("a", "b"):
        client.send(sender, message(body))
    client.send(transactions.link, proton.Message(body=proton.Described(proton.ulong(DISCHARGE), [identifier, False])))
    await client.quiet()
    assert await bodies(broker, client, 3) == ["a", "b", "committed"]


async def test_what_comes_with_the_end_of_its_link_is_taken(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    for _ in range(3):
        client.send(sender, message("x"))
    sender.close()
    await client.until(lambda: sender.state & proton.Endpoint.REMOTE_CLOSED)
    await broker.settle()
    assert broker.count("q") == 3


async def test_each_is_told_what_became_of_it_when_they_are_not_taken_together(
    broker: Broker, refuse: Callable[[PolluxError], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    refuse(DiskFullError("no room for this one"))

    def full(_: Sequence[Message]) -> bool:
        raise DiskFullError("no room for all of them")

    monkeypatch.setattr(broker.post, "send_alike", full)
    deliveries = await client.send_all(sender, [message(f"m{n}") for n in range(3)])
    assert [each.remote_state for each in deliveries] == [ACCEPTED, REJECTED, ACCEPTED]
    assert deliveries[1].remote.condition.description == "no room for this one"
    assert await bodies(broker, client, 2) == ["m0", "m2"]


@pytest.mark.parametrize("behind", [{}, {"priority": 9}, {"group_id": "g"}], ids=["alike", "another", "special"])
async def test_a_settled_one_that_is_refused_ends_the_link_and_what_is_behind_it(
    broker: Broker,
    behind: dict[str, Any],
    refuse: Callable[[PolluxError], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    refuse(NotPermittedError("not any more"))
    monkeypatch.setattr(broker.post, "send_alike", lambda _: False)
    for number in range(2):
        client.send(sender, message(f"m{number}"), settled=True)
    client.send(sender, message("behind", **behind), settled=True)
    await client.until(lambda: sender.state & proton.Endpoint.REMOTE_CLOSED)
    assert sender.remote_condition.name == "amqp:unauthorized-access"
    assert await bodies(broker, client, 1) == ["m0"]
    assert broker.count("q") == 1


async def test_each_stays_as_durable_and_as_urgent_as_it_is(broker: Broker, taken: list[int]) -> None:
    """Breaks when messages of several kinds are one row: what is said of the first one holds for all."""
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    kinds = [(False, 4), (True, 4), (True, 4), (True, 9), (True, 9), (False, 9)]
    await client.send_all(sender, [message("x", durable=durable, priority=priority) for durable, priority in kinds])
    await broker.settle()
    queue = broker.post.queue("q")
    found = [(reference.message.durable, reference.message.priority) for reference in queue.iterate()]
    assert sorted(found) == sorted(kinds)
    assert taken == [2, 2]


async def test_what_came_before_a_failure_is_taken(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    engine = client.session.engine
    assert engine is not None
    receive = engine.receive

    def fail(*given: Any) -> None:
        receive(*given)
        raise RuntimeError("a defect")

    monkeypatch.setattr(type(engine), "receive", lambda _, *given: fail(*given))
    for _ in range(3):
        client.send(sender, message("x"), settled=True)
    await client.until(lambda: client.wire.closed)
    client.drop()
    await broker.settle()
    assert broker.count("q") == 3
