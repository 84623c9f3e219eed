"""Retained messages and wills."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.lossy_disk import LossyDisk, lay_out, torn
from harness.sessions.mqtt import Broker, Client, publish
from pollux.engine.memory import Memory
from pollux.errors import LimitError
from pollux.protocols.mqtt.retained_store import RetainedStore
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V311, Ack, Filter, Publish, Will
from pollux.wire.mqtt.reasons import ReasonCode
from pollux.wire.mqtt.stored import encode_stored
from pollux.wire.mqtt.topics import matches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


async def subscriber(broker: Broker, *filters: str | Filter, client_id: str = "s", **more: Any) -> Client:
    client = broker.client()
    await client.connect(client_id, **more)
    await client.subscribe(*filters)
    return client


async def retained(broker: Broker, *topics: str, **more: Any) -> Client:
    client = broker.client()
    await client.connect("p")
    for topic in topics:
        await client.publish(topic, topic.encode(), 1, retain=True, **more)
    return client


async def got(broker: Broker, client: Client) -> list[Publish]:
    await broker.settle()
    return [packet for packet in client.taken() if isinstance(packet, Publish)]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_new_subscription_gets_what_is_retained(broker: Broker, restart: bool) -> None:
    producer = await retained(broker, "a/b", "a/c", "a", "b", "$SYS/x", content_type="text/plain")
    await producer.publish("a/b", b"newer", 1, retain=True)
    await producer.publish("b", b"", 1, retain=True)
    if restart:
        await broker.stable()
        await broker.restart()
    client = await subscriber(broker, "a/#")
    messages = await got(broker, client)
    assert {(m.topic, m.payload) for m in messages} == {("a/b", b"newer"), ("a/c", b"a/c"), ("a", b"a")}
    assert all(m.retain and m.qos == 1 for m in messages)
    client = await subscriber(broker, "#", client_id="all")
    assert {m.topic for m in await got(broker, client)} == {"a/b", "a/c", "a"}
    client = await subscriber(broker, "$SYS/#", "b", client_id="system")
    assert {m.topic for m in await got(broker, client)} == {"$SYS/x"}


async def test_retain_is_cleared_on_delivery_unless_asked_for(broker: Broker) -> None:
    plain = await subscriber(broker, Filter("t", 1), client_id="plain")
    asked = await subscriber(broker, Filter("t", 1, retain_as_published=True), client_id="asked")
    producer = await retained(broker, "t")
    assert not (await plain.message()).retain
    assert (await asked.message()).retain
    await producer.publish("t", b"x", 1)
    assert not (await plain.message()).retain
    assert not (await asked.message()).retain


async def test_retain_handling(broker: Broker) -> None:
    await retained(broker, "t")
    client = await subscriber(broker, Filter("t", 1, retain_handling=2))
    await client.silent()
    await client.subscribe(Filter("t", 1, retain_handling=1))
    await client.silent()
    await client.subscribe(Filter("t", 1, retain_handling=0))
    assert (await client.message()).retain
    await client.unsubscribe("t")
    await client.subscribe(Filter("t", 1, retain_handling=1))
    assert (await client.message()).retain


async def test_shared_subscriptions_get_nothing_retained(broker: Broker) -> None:
    await retained(broker, "t")
    client = await subscriber(broker, "$share/g/t")
    await client.silent()


async def test_retained_messages_expire(broker: Broker) -> None:
    await retained(broker, "short", message_expiry_interval=10)
    await retained(broker, "long", message_expiry_interval=100)
    broker.wall += 20_000
    client = await subscriber(broker, "#")
    (message,) = await got(broker, client)
    assert message.topic == "long"
    assert message.properties[p.PropertyId.MESSAGE_EXPIRY_INTERVAL] == 80
    assert client.session.mqtt_sessions.retained.store.count == 1
    broker.wall += 200_000
    client.session.mqtt_sessions.retained.sweep()
    assert client.session.mqtt_sessions.retained.store.count == 0


async def test_many_retained_messages_come_in_parts(broker: Broker) -> None:
    producer = broker.client()
    await producer.connect("p")
    for number in range(1_200):
        producer.write(publish(f"r/{number}", b"x", 0, retain=True))
    client = await subscriber(broker, Filter("r/+", 0))
    seen: set[str] = set()
    for _ in range(20):
        seen |= {message.topic for message in await got(broker, client)}
    assert len(seen) == 1_200


async def test_there_is_a_bound_on_what_is_retained(broker: Broker) -> None:
    client = await retained(broker, "one")
    client.session.mqtt_sessions.retained.store.limit = 1
    client.write(publish("two", b"x", 1, 9, retain=True))
    ack = await client.receive(Ack)
    assert ack.reason == ReasonCode.QUOTA_EXCEEDED
    await client.publish("one", b"still", 1, retain=True)


levels = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join)


@given(st.sets(levels, max_size=12), levels, st.data())
def test_the_tree_finds_what_matches(topics: set[str], pattern: str, data: st.DataObject) -> None:
    store = RetainedStore(lambda *_: None, Memory(lambda _: None, 1 << 30).user("retained"))
    for topic in topics:
        store.set(topic, encode_stored(topic, b"x", 1, True, {}), 0)
    parts = pattern.split("/")
    place = data.draw(st.integers(0, len(parts) - 1))
    parts[place] = data.draw(st.sampled_from(["+", parts[place]]))
    if data.draw(st.booleans()):
        parts[-1] = "#"
    pattern = "/".join(parts)
    assert {entry.topic for entry in store.match(pattern, 0)} == {t for t in topics if matches(pattern, t)}
    for topic in topics:
        store.clear(topic)
    assert (store.count, store.bytes, store._root.children) == (0, 0, {})


def test_the_bytes_are_bounded() -> None:
    store = RetainedStore(lambda *_: None, Memory(lambda _: None, 1 << 30).user("retained"))
    store.byte_limit = 2_500
    store.set("a", bytes(1_000), 0)
    with pytest.raises(LimitError, match="no room"):
        store.set("b", bytes(1_000), 0)
    store.set("a", bytes(1_400), 0)


# -- wills

WILL = Will("will/topic", b"gone", 1, False, {p.PropertyId.CONTENT_TYPE: "text/plain"})


def delayed(seconds: int) -> Will:
    return Will("will/topic", b"gone", 1, False, {p.PropertyId.WILL_DELAY_INTERVAL: seconds})


async def with_will(broker: Broker, will: Will = WILL, version: int = 5, **more: Any) -> tuple[Client, Client]:
    watcher, client = await subscriber(broker, Filter("will/#", 1), client_id="watcher"), broker.client(version)
    await client.connect("c", will=will, **more)
    return watcher, client


@pytest.mark.parametrize("version", [V311, 5])
async def test_a_will_when_the_connection_breaks(broker: Broker, version: int) -> None:
    will = WILL if version == 5 else Will("will/topic", b"gone", 1)
    watcher, client = await with_will(broker, will, version)
    client.lose()
    message = await watcher.message()
    assert (message.topic, message.payload, message.qos) == ("will/topic", b"gone", 1)
    assert message.properties.get(p.PropertyId.CONTENT_TYPE) == ("text/plain" if version == 5 else None)


async def end_normally(client: Client) -> None:
    await client.leave()


async def end_with_will(client: Client) -> None:
    await client.leave(ReasonCode.DISCONNECT_WITH_WILL)


async def end_by_violation(client: Client) -> None:
    client.raw(b"\xff\xff\xff\xff\xff")
    await client.closed()


async def end_by_silence(client: Client) -> None:
    client.session.keep_alive.silence = -1
    client.session.keep_alive.look()
    await client.closed()


async def end_by_takeover(client: Client) -> None:
    other = client.another()
    await other.connect("c")
    await client.closed()


@pytest.mark.parametrize(
    ("ending", "published"),
    [
        (end_normally, False),
        (end_with_will, True),
        (end_by_violation, True),
        (end_by_silence, True),
        (end_by_takeover, True),
    ],
)
async def test_when_a_will_is_published(broker: Broker, ending: Callable[[Client], Any], published: bool) -> None:
    watcher, client = await with_will(broker)
    await ending(client)
    if published:
        assert (await watcher.message()).payload == b"gone"
    await watcher.silent()


async def test_a_retained_will(broker: Broker) -> None:
    _, client = await with_will(broker, Will("will/topic", b"gone", 0, True))
    client.lose()
    late = await subscriber(broker, "will/topic", client_id="late")
    assert (await late.message()).retain


async def test_a_will_waits_for_its_delay(broker: Broker) -> None:
    watcher, client = await with_will(broker, delayed(5), expiry=100)
    client.lose()
    await watcher.silent()
    mqtt_sessions = client.session.mqtt_sessions
    state = mqtt_sessions.sessions["c"]
    assert state.will is not None
    broker.wall += 3_600_000  # a clock that is set makes nothing due
    state.gone_at -= 4
    mqtt_sessions.wills._due(state, state.will)
    await watcher.silent()
    assert state.will is not None
    broker.wall -= 7_200_000
    state.gone_at -= 1
    mqtt_sessions.wills._due(state, state.will)
    assert state.will is None, "it does not wait for the wall's clock"
    assert (await watcher.message()).payload == b"gone"


async def test_who_comes_back_in_time_has_no_will(broker: Broker) -> None:
    watcher, client = await with_will(broker, delayed(5), expiry=100)
    client.lose()
    client = broker.client()
    await client.connect("c", clean=False, expiry=100)
    broker.wall += 10_000
    assert client.session.mqtt_sessions.sessions["c"].will is None
    await watcher.silent()


async def test_a_will_comes_when_its_session_ends_first(broker: Broker) -> None:
    watcher, client = await with_will(broker, delayed(500), expiry=0)
    client.lose()
    assert (await watcher.message()).payload == b"gone"
    watcher, client = await with_will(broker, delayed(500), expiry=100)
    client.lose()
    await watcher.silent()
    client = broker.client()
    await client.connect("c", clean=True)
    assert (await watcher.message()).payload == b"gone"


async def test_a_will_survives_the_broker(broker: Broker) -> None:
    watcher = await subscriber(broker, Filter("will/#", 1), client_id="watcher", expiry=100)
    client = broker.client()
    await client.connect("c", will=delayed(5), expiry=100)
    watcher.lose()
    await broker.stable()
    await broker.restart()  # as after a kill: nobody said goodbye to c
    watcher = broker.client()
    await watcher.connect("watcher", clean=False, expiry=100)
    await watcher.silent()
    mqtt_sessions = watcher.session.mqtt_sessions
    state = mqtt_sessions.sessions["c"]
    assert state.will is not None
    state.gone_at -= 6
    mqtt_sessions.wills._due(state, state.will)
    assert state.will is None
    assert (await watcher.message()).payload == b"gone"


@pytest.mark.parametrize("ends", [False, True])
async def test_a_will_survives_a_power_cut_while_it_is_published(tmp_path: Path, ends: bool) -> None:
    """Breaks when its session is stored without it, or (``ends``) forgotten, before the message is on disk."""
    for name in ("journal", "bindings", "large", "paging"):
        (tmp_path / "disk" / name).mkdir(parents=True)
    disk = LossyDisk(tmp_path / "disk")
    broker = Broker(disk.root)
    broker.store_files = disk
    await broker.start()
    watcher = await subscriber(broker, Filter("will/#", 1), client_id="watcher", expiry=100)
    watcher.lose()
    client = broker.client()
    await client.connect("c", will=delayed(500) if ends else WILL, expiry=100)
    state = client.session.mqtt_sessions.sessions["c"]
    if ends:
        client.lose()
    await broker.stable()
    disk.note("it is due")
    if ends:
        client.session.mqtt_sessions.end(state)
    else:
        client.lose()
    for _ in range(3):
        await broker.stable()
    await broker.stop()
    for left in torn(disk, random.Random(5), 24):  # noqa: S311  (a reproducible test, no secret)
        lay_out(left, tmp_path / "left")
        again = Broker(tmp_path / "left")
        await again.start()
        watcher = again.client()
        await watcher.connect("watcher", clean=False, expiry=100)
        if ends and (found := watcher.session.mqtt_sessions.sessions.get("c")) is not None:
            watcher.session.mqtt_sessions.end(found)
        assert (await watcher.message()).payload == b"gone"
        await again.stop()


async def test_a_will_that_expires(broker: Broker) -> None:
    will = Will("will/topic", b"gone", 1, False, {p.PropertyId.MESSAGE_EXPIRY_INTERVAL: 30})
    watcher, client = await with_will(broker, will)
    client.lose()
    assert (await watcher.message()).properties[p.PropertyId.MESSAGE_EXPIRY_INTERVAL] == 30


async def test_a_stopping_broker_keeps_wills_of_durable_sessions(broker: Broker) -> None:
    watcher, client = await with_will(broker, WILL, expiry=100)
    client.session.shutdown("the broker stops")
    await client.closed()
    await watcher.silent()
    assert client.session.mqtt_sessions.sessions["c"].will is not None
