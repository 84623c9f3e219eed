"""Addresses, queues and what may be asked of them; driven with python-qpid-proton."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message, Timeout, float32, int32, symbol, timestamp, ubyte, ulong
from proton.reactor import Copy, Selector
from proton.utils import LinkDetached

from harness import stomp
from harness.amqp import (
    DELIVERY_DELAY,
    LinkProperties,
    SourceCapabilities,
    TargetCapabilities,
    bodies,
    connect,
    drain,
    grant,
    receive,
)

if TYPE_CHECKING:
    from harness.broker import BrokerProcess


def send(broker: BrokerProcess, address: str, *messages: Message) -> None:
    """Send messages, each confirmed."""
    with connect(broker) as connection:
        sender = connection.create_sender(address)
        for message in messages:
            message.durable = True
            sender.send(message)


def take(broker: BrokerProcess, address: str, **options: Any) -> list[Any]:
    """Receive and accept everything."""
    with connect(broker) as connection:
        return drain(connection.create_receiver(address, credit=100, **options))


def test_a_fully_qualified_queue_name(broker: BrokerProcess, name: str) -> None:
    address = f"topic.{name}"
    with connect(broker) as connection:
        one = connection.create_receiver(f"{address}::{name}-one", credit=10)
        two = connection.create_receiver(f"{address}::{name}-two", credit=10)
        connection.create_sender(address).send(Message("to both"))
        assert bodies(drain(one)) == ["to both"]
        assert bodies(drain(two)) == ["to both"]
        connection.create_sender(f"{address}::{name}-one").send(Message("to one"))
        assert bodies(drain(one)) == ["to one"]
        assert drain(two) == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("news.#", ["news.a", "news.a.b", "news.c.b"]), ("news.*", ["news.a"]), ("news.*.b", ["news.a.b", "news.c.b"])],
)
def test_wildcards(broker: BrokerProcess, name: str, pattern: str, expected: list[str]) -> None:
    prefix = name.replace(".", "-")
    with connect(broker) as connection:
        receiver = connection.create_receiver(f"{prefix}.{pattern}", credit=10, options=SourceCapabilities("topic"))
        for address in ("news.a", "news.a.b", "news.c.b", "sport.a"):
            sender = connection.create_sender(f"{prefix}.{address}", options=TargetCapabilities("topic"))
            sender.send(Message(address))
        assert bodies(drain(receiver)) == expected


def test_priorities(broker: BrokerProcess, name: str) -> None:
    send(broker, name, *(Message(number, priority=number) for number in range(10)), Message("4 again", priority=4))
    assert bodies(take(broker, name)) == [9, 8, 7, 6, 5, 4, "4 again", 3, 2, 1, 0]


def test_expired_messages_go_to_the_expiry_address(broker: BrokerProcess, name: str) -> None:
    send(broker, name, Message("old", ttl=0.2), Message("lasting"))
    time.sleep(0.5)  # the message's own time to live has to pass
    assert bodies(take(broker, name)) == ["lasting"]
    (expired,) = take(broker, "EXPIRY", options=Selector(f"_AMQ_ORIG_ADDRESS = '{name}'"))
    assert expired.body == "old"
    assert expired.annotations[symbol("x-opt-ORIG-ADDRESS")] == name


def test_scheduled_messages_do_not_block_others(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as connection:
        sender = connection.create_sender(name)
        receiver = connection.create_receiver(name, credit=10)
        sender.send(Message("later", annotations={DELIVERY_DELAY: 2000}))
        sender.send(Message("now"))
        assert receiver.receive(5).body == "now"
        assert receiver.receive(5).body == "later"
        receiver.accept()
        receiver.accept()


def test_redelivery_delay(broker: BrokerProcess, name: str) -> None:
    address = f"redelivery.{name}"
    send(broker, address, Message("x"))
    with connect(broker) as connection:
        receiver = connection.create_receiver(address)
        receiver.receive(5)
        started = time.monotonic()
        receiver.fetcher.unsettled[0].local.failed = True
        receiver.release(delivered=True)
        assert receiver.receive(5).body == "x"
        assert time.monotonic() - started >= 0.35
        receiver.accept()


def test_message_groups_stay_with_one_consumer(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        first, second = one.create_receiver(name, credit=100), other.create_receiver(name, credit=100)
        sender = one.create_sender(name)
        for number in range(40):
            sender.send(Message(number, group_id=f"g{number % 4}", group_sequence=number // 4 + 1))
        a, b = bodies(drain(first)), bodies(drain(second))
    assert sorted([*a, *b]) == list(range(40))
    assert {number % 4 for number in a}.isdisjoint({number % 4 for number in b})
    assert a == sorted(a)
    assert b == sorted(b)
    assert a
    assert b


def test_a_group_moves_on_when_its_consumer_leaves(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        first = one.create_receiver(name, credit=100)
        second = other.create_receiver(name, credit=100)
        sender = one.create_sender(name)
        for number in range(4):
            sender.send(Message(number, group_id="g"))
        mine = [bodies(drain(first)), bodies(drain(second))]
        assert sorted(mine) == [[], [0, 1, 2, 3]], "one consumer has the group"
        (first if mine[0] else second).close()
        sender.send(Message("next", group_id="g"))
        assert bodies(drain(second if mine[0] else first)) == ["next"]


def test_last_value(broker: BrokerProcess, name: str) -> None:
    key = "_AMQ_LVQ_NAME"
    send(
        broker,
        f"lastvalue.{name}",
        *(Message(f"{stock} {price}", properties={key: stock}) for price in (1, 2, 3) for stock in ("A", "B")),
    )
    assert bodies(take(broker, f"lastvalue.{name}")) == ["A 3", "B 3"]


def test_ring(broker: BrokerProcess, name: str) -> None:
    send(broker, f"ring.{name}", *map(Message, range(10)))
    assert bodies(take(broker, f"ring.{name}")) == [7, 8, 9]


def test_exclusive(broker: BrokerProcess, name: str) -> None:
    address = f"exclusive.{name}"
    with connect(broker) as one, connect(broker) as other:
        first, second = one.create_receiver(address, credit=10), other.create_receiver(address, credit=10)
        send(broker, address, *map(Message, range(6)))
        assert bodies(drain(first)) == list(range(6))
        assert drain(second) == []
        first.close()
        send(broker, address, Message("next"))
        assert bodies(drain(second)) == ["next"]


def test_redelivery_ends_at_the_dead_letter_address_whatever_speaks(broker: BrokerProcess, name: str) -> None:
    """Delivered by STOMP, given up, and read from the dead-letter address by AMQP, with where it came from."""
    send(broker, name, Message("unwanted", properties={"mine": 1}))
    with stomp.connect(broker) as client:
        client.subscribe(name, ack="client-individual")
        for _ in range(3):
            client.refuse(client.message())
        client.silence()
    (dead,) = take(broker, "DLA", options=Selector(f"_AMQ_ORIG_ADDRESS = '{name}'"))
    assert dead.body == "unwanted"
    assert dead.properties["mine"] == 1
    assert dead.annotations[symbol("x-opt-ORIG-ADDRESS")] == name
    assert dead.annotations[symbol("x-opt-ORIG-QUEUE")] == name


def test_duplicates_are_detected(broker: BrokerProcess, name: str) -> None:
    def message(body: str, identifier: str) -> Message:
        return Message(body, properties={"_AMQ_DUPL_ID": identifier})

    send(broker, name, message("a", "1"), message("a again", "1"), message("b", "2"))
    assert bodies(take(broker, name)) == ["a", "b"]


def test_consumer_priorities(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        low = one.create_receiver(name, credit=10, options=LinkProperties(priority=1))
        high = other.create_receiver(name, credit=0, options=LinkProperties(priority=5))
        grant(high, 3)
        send(broker, name, *map(Message, range(5)))
        with pytest.raises(Timeout):
            other.wait(lambda: high.fetcher.has_message > 3, timeout=0.4)
        assert [high.receive(1).body for _ in range(3)] == [0, 1, 2]
        assert bodies(drain(low)) == [3, 4], "without credit at the first consumer the next one gets them"


def test_a_non_durable_subscription_ends_with_its_link(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as connection:
        receiver = connection.create_receiver(name, credit=10, options=SourceCapabilities("topic"))
        receiver.close()
        connection.create_sender(name, options=TargetCapabilities("topic")).send(Message("nobody"))
        assert drain(connection.create_receiver(name, credit=10, options=SourceCapabilities("topic"))) == []


def browse(connection: Any, address: str, selector: str) -> list[Any]:
    """The bodies of a queue's messages that a selector lets through; they stay where they are."""
    receiver = connection.create_receiver(address, credit=100, options=[Copy(), Selector(selector)])
    found = bodies(drain(receiver, silence=0.2))
    receiver.close()
    return found


def test_three_valued_selectors(broker: BrokerProcess, name: str) -> None:
    """The whole truth tables: two properties that are true (T), false (F) or absent (N)."""
    values = {"T": True, "F": False, "N": None}
    every = [a + b for a in values for b in values]
    send(
        broker,
        name,
        *(
            Message(both, properties={key: values[each] for key, each in zip("ab", both, strict=True) if each != "N"})
            for both in every
        ),
    )
    tables: dict[str, Any] = {
        "a": lambda both: both[0] == "T",
        "NOT a": lambda both: both[0] == "F",
        "a AND b": lambda both: both == "TT",
        "NOT (a AND b)": lambda both: "F" in both,
        "a OR b": lambda both: "T" in both,
        "NOT (a OR b)": lambda both: both == "FF",
        "a IS NULL": lambda both: both[0] == "N",
        "a IS NOT NULL": lambda both: both[0] != "N",
        "NOT (a IS NULL) AND NOT (b IS NULL)": lambda both: "N" not in both,
        "a = b": lambda both: both in {"TT", "FF"},
        "a <> b": lambda both: both in {"TF", "FT"},
        "NOT (a = b)": lambda both: both in {"TF", "FT"},
        "a = TRUE OR 1 = 1": every.__contains__,
        "a = TRUE AND 1 = 2": [].__contains__,
    }
    with connect(broker) as connection:
        for selector, holds in tables.items():
            assert browse(connection, name, selector) == [both for both in every if holds(both)], selector


@pytest.mark.parametrize(
    "selector",
    [
        "s LIKE 'a\\_b%' ESCAPE '\\'",
        "s LIKE 'a_b_' AND s NOT LIKE '%x%'",
        "n IN ('x', 'y') OR s IN ('a_bc')",
        "s NOT IN ('axbc', 'other')",
        "quote = 'it''s'",
        "n BETWEEN 9 AND 11",
        "n NOT BETWEEN -3 AND 9",
        "n > 9 AND n >= 10 AND n < 11 AND n <= 10 AND n <> 3",
        "n * 2 + 1 > 20 AND n / 2 < 6",
        "(n - 4) * 2 = 12 AND n - 4 * 2 = 2",
        "1 = 2 AND 1 = 2 OR n = 10",
        "NOT n = 3",
        "-n = -10 AND +n = 10",
        "n = 1.0E1 AND n = 10.0 AND n = .1e2",
        "half = 0.5 AND n * half = 5",
        "b = TRUE",
        "b AND NOT (b = FALSE)",
        "missing IS NULL AND s IS NOT NULL",
        "b is not null and n between 10 and 10 or not b is not null",
        "$odd_Name1 = 'x'",
        "u8 = 7 AND u64 > 6 AND i32 < 8 AND f32 = 0.5 AND at > 1",
        "JMSXGroupSeq = 3 AND JMSXGroupID = 'group'",
        "JMSExpiration > JMSTimestamp",
        "JMSPriority = 4 AND JMSDeliveryMode = 'PERSISTENT'",
        "JMSCorrelationID = 'c'",
        "JMSType = 'kind'",
        "JMSMessageID = 'ID:one' OR JMSMessageID = 'one'",
        "JMSTimestamp > 1000000 AND JMSTimestamp < 99999999999999",
    ],
)
def test_selector_grammar(broker: BrokerProcess, name: str, selector: str) -> None:
    now = time.time()
    hit: dict[str, Any] = {"s": "a_bc", "n": 10, "b": True, "quote": "it's", "half": 0.5, "$odd_Name1": "x"}
    hit |= {"u8": ubyte(7), "u64": ulong(7), "i32": int32(7), "f32": float32(0.5), "at": timestamp(2)}
    miss = {"s": "axbc", "n": 3, "b": False, "quote": "its", "half": 0.25, "missing": 1}
    more: dict[str, Any] = {"group_id": "group", "group_sequence": 3, "expiry_time": now + 3600, "ttl": 3600}
    send(
        broker,
        name,
        Message("hit", id="one", correlation_id="c", subject="kind", creation_time=now, properties=hit, **more),
        Message("miss", id="two", priority=3, subject="other", creation_time=1, properties=miss),
    )
    assert bodies(take(broker, name, options=Selector(selector))) == ["hit"]


@pytest.mark.parametrize(
    "selector", ["n =", "n BETWEEN 1", "s LIKE 5", "s LIKE 'a' ESCAPE 'ab'", "(n = 1", "n IN ()", "AND", "s = 'open"]
)
def test_a_selector_outside_the_grammar_is_refused(broker: BrokerProcess, name: str, selector: str) -> None:
    with connect(broker) as connection, pytest.raises(LinkDetached) as refused:
        connection.create_receiver(name, options=Selector(selector))
    assert str(refused.value.condition).startswith("amqp:")


def test_an_unknown_address_is_refused_where_creation_is_not_allowed(broker: BrokerProcess) -> None:
    with connect(broker, "bob", "bob's password", reconnect=False) as connection, pytest.raises(LinkDetached):
        connection.create_receiver("not-there")


def test_receive_leaves_messages_for_later(broker: BrokerProcess, name: str) -> None:
    send(broker, name, Message(1), Message(2))
    with connect(broker) as connection:
        receiver = connection.create_receiver(name)
        first = receive(receiver)
        assert first is not None
        assert first.body == 1
        receiver.accept()
    assert bodies(take(broker, name)) == [2]


def test_browse_by_management(broker: BrokerProcess, name: str) -> None:
    send(broker, name, Message("a", properties={"n": 1}), Message("b", properties={"n": 2}))
    found = broker.api(f"/api/v1/queues/{name}/messages?filter=n%3D2&body=true")["items"]
    assert len(found) == 1
    assert "b" in str(found[0])
    assert bodies(take(broker, name)) == ["a", "b"]


def test_browsing_leaves_the_order_and_the_count(broker: BrokerProcess, name: str) -> None:
    send(broker, name, *(Message(number, properties={"n": number}) for number in range(4)))
    with connect(broker) as connection:
        assert browse(connection, name, "n > 1") == [2, 3]
        assert browse(connection, name, "n >= 0") == [0, 1, 2, 3]
    found = take(broker, name)
    assert [(message.body, message.delivery_count) for message in found] == [(number, 0) for number in range(4)]


def test_purge(broker: BrokerProcess, name: str) -> None:
    send(broker, name, *map(Message, range(5)))
    broker.api(f"/api/v1/queues/{name}/purge", method="POST", body={})
    assert take(broker, name) == []


def test_move(broker: BrokerProcess, name: str) -> None:
    send(broker, name, *(Message(number, properties={"n": number}) for number in range(4)))
    send(broker, f"{name}-other", Message("first"))
    answer = broker.api(
        f"/api/v1/queues/{name}/messages/move", method="POST", body={"target": f"{name}-other", "filter": "n > 1"}
    )
    assert answer["count"] == 2
    assert bodies(take(broker, name)) == [0, 1]
    assert bodies(take(broker, f"{name}-other")) == ["first", 2, 3]
