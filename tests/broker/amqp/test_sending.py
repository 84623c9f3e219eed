"""Clients send: settlement, outcomes, credit, frames, anonymous relays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import proton
import pytest
from msgspec.structs import replace

from harness.sessions.amqp import Broker, Client, decode, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.model import AddressSetting, Configuration
from pollux.errors import StoreError
from pollux.message import Encoding

if TYPE_CHECKING:
    from pathlib import Path

ACCEPTED = proton.Delivery.ACCEPTED
REJECTED = proton.Delivery.REJECTED


def settings(**values: Any) -> Configuration:
    return Configuration(address_settings=(AddressSetting("#", values),))


async def test_send_confirm_receive_settle(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("orders", capabilities=["queue"])
    deliveries = await client.send_all(sender, [message(f"m{i}") for i in range(10)])
    assert all(each.remote_state == ACCEPTED for each in deliveries)
    assert broker.count("orders") == 10
    await client.receiver("orders", credit=20)
    assert [(await client.get()).body for _ in range(10)] == [f"m{i}" for i in range(10)]
    await client.quiet()
    await broker.settle()
    assert broker.count("orders") == 0


async def test_confirmed_only_when_stable(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    held: list[Any] = []
    when_stable = broker.post.when_stable
    monkeypatch.setattr(broker.post, "when_stable", held.append)
    delivery = client.send(sender, message("x"))
    await client.quiet()
    assert not delivery.settled
    assert len(held) == 1
    when_stable(held[0])
    monkeypatch.setattr(broker.post, "when_stable", when_stable)
    await client.until(lambda: delivery.settled)
    assert delivery.remote_state == ACCEPTED


async def test_a_store_that_fails_settles_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when closing the connection settles what it holds: clients took that for a confirmation."""
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    held: list[Any] = []
    monkeypatch.setattr(broker.post, "when_stable", held.append)
    delivery = client.send(sender, message("x"))
    await client.until(lambda: held)
    held[0](StoreError("the right to acknowledge has expired"))
    await client.until(lambda: client.connection.state & proton.Endpoint.REMOTE_CLOSED)
    assert client.remote_condition.name == "amqp:internal-error"
    assert not delivery.settled
    assert not delivery.remote_state


async def test_confirmations_are_ranges(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.quiet()
    frames = client.transport.frames_input
    await client.send_all(sender, [message("x") for _ in range(100)])
    assert client.transport.frames_input - frames <= 4


async def test_presettled(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender(
        "q", capabilities=["queue"], prepare=lambda link: setattr(link, "snd_settle_mode", proton.Link.SND_SETTLED)
    )
    assert sender.remote_snd_settle_mode == proton.Link.SND_SETTLED
    for i in range(5):
        client.send(sender, message(str(i)), settled=True)
    await client.quiet()
    await broker.settle()
    assert broker.count("q") == 5


async def test_receiver_settles_second(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender(
        "q", capabilities=["queue"], prepare=lambda link: setattr(link, "rcv_settle_mode", proton.Link.RCV_SECOND)
    )
    assert sender.remote_rcv_settle_mode == proton.Link.RCV_SECOND
    delivery = client.send(sender, message("x"))
    await client.until(lambda: delivery.remote_state == ACCEPTED)
    assert not delivery.settled
    producer = next(iter(client.session.opened().links.values()))
    from pollux.wire.amqp.proton import lib

    assert lib.pn_link_unsettled(producer.pointer) == 1
    delivery.settle()
    await client.quiet()
    assert lib.pn_link_unsettled(producer.pointer) == 0


async def test_credit_is_replenished_in_batches(broker: Broker) -> None:
    broker.parameters = {"amqpCredits": "10", "amqpLowCredits": "4"}
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    assert sender.credit == 10
    await client.send_all(sender, [message("x")] * 5)
    await client.quiet()
    assert sender.credit == 5
    await client.send_all(sender, [message("x")])
    await client.until(lambda: sender.credit == 10)


async def test_transfer_without_credit_ends_the_link(broker: Broker) -> None:
    broker.parameters = {"amqpCredits": "2", "amqpLowCredits": "0"}
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    producer: Any = next(iter(client.session.opened().links.values()))
    producer.credit = 0  # as if the client had used it already
    client.send(sender, message("x"))
    await client.until(lambda: sender.remote_condition)
    assert sender.remote_condition.name == "amqp:link:transfer-limit-exceeded"


async def test_message_of_many_frames(broker: Broker) -> None:
    broker.parameters = {"maxFrameSize": "4096"}
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    body = bytes(range(256)) * 300  # 76,800 bytes: below a large message
    await client.send_all(sender, [message(body)])
    await client.receiver("q", credit=1)
    assert bytes((await client.get()).body) == body


async def test_interleaved_multi_frame_messages_of_two_links(broker: Broker) -> None:
    client = await broker.client().opened()
    session = client.begin()
    one = await client.sender("q1", "one", session=session, capabilities=["queue"])
    two = await client.sender("q2", "two", session=session, capabilities=["queue"])
    encoded = {link: bytes(message(link.name * 2000).encode()) for link in (one, two)}
    deliveries = [one.delivery("a"), two.delivery("b")]
    for at in range(0, 6100, 500):
        for link in (one, two):
            link.stream(encoded[link][at : at + 500])
            await client.quiet(2)
    one.advance()
    two.advance()
    await client.until(lambda: all(each.settled for each in deliveries))
    await client.receiver("q1", "r1", credit=1)
    assert (await client.get()).body == "one" * 2000
    await client.receiver("q2", "r2", credit=1)
    assert (await client.get()).body == "two" * 2000


async def test_aborted_transfer(broker: Broker) -> None:
    broker.parameters = {"amqpMinLargeMessageSize": "10000"}
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    for size in (500, 50_000):
        delivery = sender.delivery(f"abort{size}")
        sender.stream(bytes(message("y" * size).encode())[: size // 2])
        await client.quiet()
        delivery.abort()
        await client.quiet()
    await client.send_all(sender, [message("whole")])
    await broker.settle()
    assert broker.count("q") == 1
    assert not list((broker.directory / "large").glob("*.msg"))


async def test_undecodable_message_is_rejected(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    for data in (b"rubbish", b"\x00Sp\xc0\xff\x01A", b"\x00Su\xa0\x64short", b"\x00Ss\xc0\x02\x0c\xa1"):
        delivery = client.send(sender, data)
        await client.until(lambda: delivery.settled)  # noqa: B023  (awaited within the turn)
        assert delivery.remote_state == REJECTED
        assert delivery.remote.condition.name == "amqp:decode-error"
    await client.send_all(sender, [message("good")])


async def test_anonymous_relay(broker: Broker) -> None:
    client = await broker.client().opened()
    broker.post.address_manager.ensure_sendable("a", None)
    broker.security.denied |= {("send", "secret"), ("createAddress", "new"), ("createDurableQueue", "a")}
    assert "ANONYMOUS-RELAY" in client.connection.remote_offered_capabilities
    sender = await client.sender(None)
    await client.receiver("a", "ra", credit=5)
    await client.send_all(sender, [message("to a", address="a")])
    assert (await client.get()).body == "to a"
    refused = client.send(sender, message("x", address="secret"))
    nowhere = client.send(sender, message("x"))
    await client.until(lambda: refused.settled and nowhere.settled)
    creating = [client.send(sender, message("x", address=name)) for name in ("new", "a::q")]
    await client.until(lambda: all(each.settled for each in creating))
    assert [each.remote.condition.name for each in creating] == ["amqp:unauthorized-access"] * 2
    assert refused.remote.condition.name == "amqp:unauthorized-access"
    assert nowhere.remote.condition.name == "amqp:not-found"


async def test_address_full_rejects(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings(max_size_bytes=2000, address_full_policy=AddressFullPolicy.FAIL))
    await broker.start()
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    deliveries = await client.send_all(sender, [message("x" * 1000)] * 3)
    assert deliveries[0].remote_state == ACCEPTED
    assert deliveries[2].remote_state == REJECTED
    assert deliveries[2].remote.condition.name == "amqp:resource-limit-exceeded"
    await broker.stop()


async def test_blocked_address_withholds_credit(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings(max_size_bytes=20_000, address_full_policy=AddressFullPolicy.BLOCK))
    broker.parameters = {"amqpCredits": "4", "amqpLowCredits": "3"}
    await broker.start()
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    sent = 0
    while sent < 100:
        await client.quiet(5)
        if sender.credit <= 0:
            break
        client.send(sender, message("x" * 1000))
        sent += 1
    assert sent < 30
    waiters = broker.post.accounts.get("q").waiters
    gone = await broker.client("gone").opened()
    await gone.sender("q", capabilities=["queue"], wait=False)
    await gone.quiet()
    assert len(waiters) == 2
    gone.drop()
    assert len(waiters) == 1, "a client that is gone still waits"
    await client.receiver("q", credit=100)
    for _ in range(sent):
        await client.get()
    await client.until(lambda: sender.credit > 0)
    await broker.stop()


async def test_no_permission_to_send(broker: Broker) -> None:
    broker.security.denied.add(("send", "secret"))
    client = await broker.client().opened()
    sender = await client.sender("secret", capabilities=["queue"])
    assert sender.remote_target.type == proton.Terminus.UNSPECIFIED
    assert sender.remote_condition.name == "amqp:unauthorized-access"


async def test_durable_survives_a_restart_marked_redelivered(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message("durable"), message("gone", durable=False)])
    await broker.restart()
    client = await broker.client().opened()
    await client.receiver("q", credit=10)
    got = await client.get()
    assert (got.body, got.durable, got.delivery_count, got.first_acquirer) == ("durable", True, 1, False)
    await client.quiet()
    assert not client.received


async def test_duplicates_are_accepted_once(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    twice = message("x", properties={"_AMQ_DUPL_ID": "same"})
    deliveries = await client.send_all(sender, [twice, twice])
    assert [each.remote_state for each in deliveries] == [ACCEPTED, ACCEPTED]
    await broker.settle()
    assert broker.count("q") == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"priority": 9}, {"priority": 9}),
        ({"ttl": 60}, {"expiration": 1_700_000_060_000}),
        ({"expiry_time": 1_800_000_000}, {"expiration": 1_800_000_000_000}),
        ({"group_id": "g", "group_sequence": 3}, {"group": "g", "group_sequence": 3}),
        ({"creation_time": 1_600_000_000}, {"timestamp": 1_600_000_000_000}),
        ({"annotations": {proton.symbol("x-opt-delivery-delay"): 5000}}, {"deliver_at": 1_700_000_005_000}),
        (
            {"annotations": {proton.symbol("x-opt-delivery-time"): proton.timestamp(1_700_000_009_000)}},
            {"deliver_at": 1_700_000_009_000},
        ),
        ({"properties": {"_AMQ_LVQ_NAME": "key"}}, {"last_value": "key"}),
        ({"durable": False}, {"durable": False}),
    ],
)
async def test_what_routing_learns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    broker.wall = 1_700_000_000_000
    client = await broker.client().opened()
    sent: list[Any] = []
    original = broker.post.send

    def send(each: Any, tx: Any = None) -> None:
        sent.append(each)
        original(each, tx)

    monkeypatch.setattr(broker.post, "send", send)
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message("x", **fields)])
    assert sent[0].encoding is Encoding.AMQP
    assert {name: getattr(sent[0], name) for name in expected} == expected
    assert decode(sent[0].data).body == "x"


async def test_delivery_annotations_are_not_kept(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    one = message("x", instructions={proton.symbol("hop"): 1}, annotations={proton.symbol("keep"): 2})
    await client.send_all(sender, [one])
    await client.receiver("q", credit=1)
    got = await client.get()
    assert not got.instructions
    assert got.annotations == {"keep": 2}


async def test_closed_link_with_unconfirmed_messages(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    for _ in range(20):
        client.send(sender, message("x"))
    client.pump()
    sender.close()
    await client.until(lambda: sender.state & proton.Endpoint.REMOTE_CLOSED)
    await broker.settle()
    assert broker.count("q") == 20


async def test_lost_connection_with_unconfirmed_messages(broker: Broker) -> None:
    client: Client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    for _ in range(20):
        client.send(sender, message("x"))
    client.pump()
    client.drop()
    await broker.settle()
    assert broker.count("q") == 20
    assert not broker.security.open


async def test_slow_disk_holds_the_client_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollux.protocols.amqp.session.MAX_UNSTABLE", 50_000)
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    held: list[Any] = []
    when_stable = broker.post.when_stable
    monkeypatch.setattr(broker.post, "when_stable", held.append)
    for _ in range(100):
        client.send(sender, message("x" * 1000), settled=True)
        client.pump()
    assert not client.wire.reading
    assert len(held) < 60
    monkeypatch.setattr(broker.post, "when_stable", when_stable)
    for callback in held:
        when_stable(callback)
    await client.until(lambda: client.wire.reading)
    await client.quiet()
    await broker.settle()
    assert broker.count("q") == 100


async def test_unfinished_messages_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollux.protocols.amqp.producer.MAX_PARTIAL", 100_000)
    client = await broker.client().opened()
    session = client.begin()
    links = [await client.sender("q", f"s{i}", session=session, capabilities=["queue"]) for i in range(3)]
    for link in links:
        link.delivery(link.name)
        link.stream(bytes(message("x" * 200_000).encode())[:50_000])
        await client.quiet()
    assert links[2].remote_condition.name == "amqp:resource-limit-exceeded"
    assert client.session.partial_bytes == 100_000
    links[0].close()
    await client.quiet()
    assert client.session.partial_bytes == 50_000


async def test_one_frame_beyond_the_limit_is_rejected(broker: Broker) -> None:
    broker.configuration = replace(
        broker.configuration, limits=replace(broker.configuration.limits, max_message_size=2000)
    )
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    refused, taken = await client.send_all(sender, [message("x" * 3000), message("x")])
    assert refused.remote.condition.name == "amqp:resource-limit-exceeded"
    assert taken.remote_state == ACCEPTED


async def test_a_client_that_never_settles_gets_no_more_credit(broker: Broker) -> None:
    broker.parameters = {"amqpCredits": "10", "amqpLowCredits": "5"}
    client = await broker.client().opened()
    sender = await client.sender(
        "q", capabilities=["queue"], prepare=lambda link: setattr(link, "rcv_settle_mode", proton.Link.RCV_SECOND)
    )
    deliveries = []
    for _ in range(100):
        await client.quiet(3)
        if sender.credit <= 0:
            break
        deliveries.append(client.send(sender, message("x")))
    assert len(deliveries) < 40
    for delivery in deliveries:
        delivery.settle()
    await client.until(lambda: sender.credit > 0)


async def test_blocked_address_of_an_anonymous_relay(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings(max_size_bytes=20_000, address_full_policy=AddressFullPolicy.BLOCK))
    broker.parameters = {"amqpCredits": "4", "amqpLowCredits": "3"}
    await broker.start()
    client = await broker.client().opened()
    await client.sender("q", "makes it", capabilities=["queue"])
    sender = await client.sender(None)
    sent = 0
    while sent < 100:
        await client.quiet(5)
        if sender.credit <= 0:
            break
        client.send(sender, message("x" * 1000, address="q"))
        sent += 1
    assert sent < 30
    await client.receiver("q", credit=100)
    for _ in range(sent):
        await client.get()
    await client.until(lambda: sender.credit > 0)
    await broker.stop()


@pytest.mark.parametrize(("detection", "kept"), [("true", 1), ("false", 2)])
async def test_duplicate_detection_of_the_acceptor(broker: Broker, detection: str, kept: int) -> None:
    broker.parameters = {"amqpDuplicateDetection": detection}
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    twice = message("x", properties={"_AMQ_DUPL_ID": "same"})
    await client.send_all(sender, [twice, twice])
    await broker.settle()
    assert broker.count("q") == kept
