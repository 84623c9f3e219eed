"""AMQP 1.0 with python-qpid-proton, Apache Qpid's client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from proton import ConnectionException, Delivery, LinkException, Message, Timeout, symbol
from proton.reactor import AtMostOnce, Copy, DurableSubscription, Selector
from proton.utils import BlockingConnection, LinkDetached

from harness.amqp import (
    DELIVERY_DELAY,
    DELIVERY_TIME,
    SILENCE,
    TIMEOUT,
    Presettled,
    SettleSecond,
    SourceCapabilities,
    TargetCapabilities,
    bodies,
    connect,
    drain,
    grant,
    no_local,
    receive,
)
from harness.broker import PASSWORD, USER

if TYPE_CHECKING:
    from harness.broker import BrokerProcess


def send(broker: BrokerProcess, address: str, *contents: Any, **fields: Any) -> None:
    """Send messages with these bodies; each is confirmed."""
    with connect(broker) as connection:
        sender = connection.create_sender(address)
        for body in contents:
            sender.send(Message(body, durable=True, **fields))


def take(broker: BrokerProcess, address: str, **options: Any) -> list[Any]:
    """Receive and accept everything that an address's queue holds."""
    with connect(broker) as connection:
        return drain(connection.create_receiver(address, credit=100, **options))


# -- log-in


def test_plain(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "in")
    assert bodies(take(broker, name)) == ["in"]


@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody-we-know", PASSWORD)])
def test_a_wrong_log_in_is_refused(broker: BrokerProcess, user: str, password: str) -> None:
    with (
        pytest.raises(ConnectionException),
        connect(broker, user, password, allowed_mechs="PLAIN", reconnect=False),
    ):
        pass


def test_anonymous_may_do_what_its_role_may(broker: BrokerProcess, name: str) -> None:
    with connect(broker, None, allowed_mechs="ANONYMOUS", reconnect=False) as connection:
        connection.create_sender(f"open.{name}").send(Message("hello"))
        with pytest.raises((LinkException, LinkDetached)):
            connection.create_sender(f"closed.{name}")


def test_a_user_without_permission_is_told_so(broker: BrokerProcess, name: str) -> None:
    with connect(broker, "bob", "bob's password", reconnect=False) as connection:
        with pytest.raises(LinkDetached) as refused:
            connection.create_receiver(name)
        assert refused.value.condition == "amqp:unauthorized-access"


# -- messages


def test_everything_in_a_message_arrives(broker: BrokerProcess, name: str) -> None:
    sent = Message(
        {"text": "ä\0€", "list": [1, 2.5, None, True], "binary": b"\0\xff"},
        durable=True,
        priority=7,
        id=uuid4(),
        user_id=USER.encode(),
        subject="subject",
        reply_to="reply",
        correlation_id="correlation",
        content_type=symbol("application/x-thing"),
        content_encoding=symbol("identity"),
        group_id="group",
        group_sequence=3,
        reply_to_group_id="answers",
        properties={"text": "value", "int": 42, "double": 1.5, "bool": True, "none": None},
        annotations={symbol("x-opt-thing"): "annotation"},
    )
    with connect(broker) as connection:
        connection.create_sender(name).send(sent)
    (got,) = take(broker, name)
    for field in (
        *("body", "durable", "priority", "id", "user_id", "subject", "reply_to", "correlation_id", "content_type"),
        *("content_encoding", "group_id", "group_sequence", "reply_to_group_id", "properties"),
    ):
        assert getattr(got, field) == getattr(sent, field), field
    assert got.annotations[symbol("x-opt-thing")] == "annotation"
    assert got.first_acquirer is True or got.delivery_count == 0


@pytest.mark.parametrize("body", [b"", b"\0" * 10, "text", None, [1, [2, [3]]], 2**63 - 1], ids=repr)
def test_bodies_of_every_kind(broker: BrokerProcess, name: str, body: object) -> None:
    send(broker, name, body)
    assert bodies(take(broker, name)) == [body]


@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_a_message_of_many_frames(broker: BrokerProcess, name: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    with connect(broker, max_frame_size=4096) as connection:
        connection.create_sender(name).send(Message(body, durable=True))
        receiver = connection.create_receiver(name)
        assert receiver.receive().body == body
        receiver.accept()
    assert take(broker, name) == []


# -- settlement


def test_at_most_once(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as connection:
        sender = connection.create_sender(name, options=AtMostOnce())
        for number in range(5):
            sender.send(Message(number))
        receiver = connection.create_receiver(name, credit=10, options=Presettled())
        got = [receiver.receive().body for _ in range(5)]
    assert got == [0, 1, 2, 3, 4]
    assert take(broker, name) == [], "what was sent settled is gone without an acknowledgement"


def test_the_receiver_settles_second(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "x")
    with connect(broker) as connection:
        receiver = connection.create_receiver(name, options=SettleSecond())
        assert receiver.receive().body == "x"
        delivery = receiver.fetcher.unsettled[0]
        delivery.update(Delivery.ACCEPTED)
        connection.wait(lambda: delivery.settled, timeout=TIMEOUT, msg="the broker settles")
        delivery.settle()
    assert take(broker, name) == []


def test_unsettled_messages_come_back(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "a", "b", "c")
    with connect(broker) as connection:
        receiver = connection.create_receiver(name, credit=10)
        assert [receiver.receive().body for _ in range(3)] == ["a", "b", "c"]
    again = take(broker, name)
    assert bodies(again) == ["a", "b", "c"]
    assert all(not message.first_acquirer or message.delivery_count for message in again)


def test_released_messages_come_back_uncounted(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "x")
    with connect(broker) as connection:
        receiver = connection.create_receiver(name)
        for _ in range(5):  # more often than max-delivery-attempts
            message = receiver.receive()
            assert message.delivery_count == 0
            receiver.release(delivered=False)
        assert receiver.receive().body == "x"
        receiver.accept()


def test_modified_messages_are_counted_and_end_as_dead_letters(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "x")
    with connect(broker) as connection:
        receiver = connection.create_receiver(name)
        for attempt in range(3):
            message = receiver.receive()
            assert message.delivery_count == attempt
            delivery = receiver.fetcher.unsettled[0]
            delivery.local.failed = True
            receiver.release(delivered=True)
        assert receive(receiver) is None
        dead = drain(connection.create_receiver("DLA", credit=10, options=Selector(f"_AMQ_ORIG_ADDRESS = '{name}'")))
    assert bodies(dead) == ["x"]


def test_rejected_messages_are_dead_letters_at_once(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "x", properties={"mine": 1})
    with connect(broker) as connection:
        receiver = connection.create_receiver(name)
        receiver.receive()
        receiver.reject()
        assert receive(receiver) is None
        (dead,) = drain(connection.create_receiver("DLA", credit=10, options=Selector(f"_AMQ_ORIG_ADDRESS = '{name}'")))
    assert dead.body == "x"
    assert dead.properties["mine"] == 1
    assert dead.annotations[symbol("x-opt-ORIG-ADDRESS")] == name
    assert dead.annotations[symbol("x-opt-ORIG-QUEUE")] == name


def test_undeliverable_here_is_dead_where_nobody_else_listens(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "x")
    with connect(broker) as connection:
        receiver = connection.create_receiver(name)
        assert receiver.receive().body == "x"
        receiver.fetcher.unsettled[0].local.undeliverable = True
        receiver.release(delivered=True)
        assert receive(receiver) is None
        dead = drain(connection.create_receiver("DLA", credit=10, options=Selector(f"_AMQ_ORIG_ADDRESS = '{name}'")))
    assert bodies(dead) == ["x"]


def test_undeliverable_here_goes_to_another_receiver(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "x")
    with connect(broker) as connection, connect(broker) as elsewhere:
        receiver = connection.create_receiver(name)
        assert receiver.receive().body == "x"
        other = elsewhere.create_receiver(name, credit=0)
        receiver.fetcher.unsettled[0].local.undeliverable = True
        receiver.release(delivered=True)
        assert receive(receiver) is None
        grant(other, 1)
        assert other.receive(5).body == "x"
        other.accept()


# -- flow


def test_no_more_than_the_credit_arrives(broker: BrokerProcess, name: str) -> None:
    send(broker, name, *range(10))
    with connect(broker) as connection:
        receiver = connection.create_receiver(name, credit=0)  # otherwise proton tops the credit up
        grant(receiver, 3)
        with pytest.raises(Timeout):
            connection.wait(lambda: receiver.fetcher.has_message > 3, timeout=SILENCE)
        assert receiver.fetcher.has_message == 3
        grant(receiver, 2)
        connection.wait(lambda: receiver.fetcher.has_message == 5, timeout=TIMEOUT)


def test_drain(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "a", "b")
    with connect(broker) as connection:
        receiver = connection.create_receiver(name, credit=0)
        receiver.link.drain(10)
        connection.wait(lambda: receiver.link.credit == 0 and receiver.link.drained() is not None, timeout=TIMEOUT)
        connection.wait(lambda: receiver.fetcher.has_message == 2, timeout=TIMEOUT)
        assert receiver.link.credit == 0
        receiver.link.flow(1)
        send(broker, name, "c")
        connection.wait(lambda: receiver.fetcher.has_message == 3, timeout=TIMEOUT)


# -- nodes


def test_a_dynamic_node_lives_with_its_link(broker: BrokerProcess) -> None:
    with connect(broker) as connection, connect(broker) as other:
        receiver = connection.create_receiver(None, dynamic=True)
        address = receiver.remote_source.address
        assert address
        other.create_sender(address).send(Message("to you"))
        assert receiver.receive().body == "to you"
        receiver.accept()
        receiver.close()
    assert address not in {queue["name"] for queue in broker.queues()}


def test_a_queue_gives_each_message_to_one(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        first = one.create_receiver(name, credit=10, options=SourceCapabilities("queue"))
        second = other.create_receiver(name, credit=10, options=SourceCapabilities("queue"))
        sender = one.create_sender(name, options=TargetCapabilities("queue"))
        for number in range(10):
            sender.send(Message(number))
        a, b = bodies(drain(first)), bodies(drain(second))
    assert sorted([*a, *b]) == list(range(10))
    assert len(a) == len(b) == 5


def test_a_topic_gives_each_message_to_all(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        sender = one.create_sender(name, options=TargetCapabilities("topic"))
        sender.send(Message("before anybody listened"))
        first = one.create_receiver(name, credit=10, options=SourceCapabilities("topic"))
        second = other.create_receiver(name, credit=10, options=SourceCapabilities("topic"))
        sender.send(Message("now"))
        assert bodies(drain(first)) == ["now"]
        assert bodies(drain(second)) == ["now"]


def test_the_anonymous_relay(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as connection:
        sender = connection.create_sender(None)
        for number in (1, 2):
            sender.send(Message(number, address=f"{name}-{number}", durable=True))
    assert bodies(take(broker, f"{name}-1")) == [1]
    assert bodies(take(broker, f"{name}-2")) == [2]


# -- subscriptions


def subscriber(broker: BrokerProcess, container: str) -> Any:
    """Connect under a container id of one's own."""
    return BlockingConnection(
        f"amqp://127.0.0.1:{broker.port}",
        timeout=10,
        user=USER,
        password=PASSWORD,
        allow_insecure_mechs=True,
        container_id=container,
    )


def test_a_durable_subscription_waits_for_its_subscriber(broker: BrokerProcess, name: str) -> None:
    options = [DurableSubscription(), SourceCapabilities("topic")]
    connection = subscriber(broker, name)
    receiver = connection.create_receiver(name, name="news", options=options)
    receiver.detach()
    connection.close()

    with connect(broker) as other:
        other.create_sender(name, options=TargetCapabilities("topic")).send(Message("while away", durable=True))

    connection = subscriber(broker, name)
    receiver = connection.create_receiver(name, name="news", credit=10, options=options)
    assert bodies(drain(receiver)) == ["while away"]
    receiver.close()  # close, not detach: unsubscribe
    connection.close()

    with connect(broker) as other:
        other.create_sender(name, options=TargetCapabilities("topic")).send(Message("after", durable=True))
    connection = subscriber(broker, name)
    receiver = connection.create_receiver(name, name="news", credit=10, options=options)
    assert drain(receiver) == []
    receiver.close()
    connection.close()


@pytest.mark.parametrize("extra", [("shared",), ("shared", "global")], ids=["container", "global"])
def test_a_shared_subscription_spreads_messages(broker: BrokerProcess, name: str, extra: tuple[str, ...]) -> None:
    options = SourceCapabilities("topic", *extra)
    one = subscriber(broker, name)
    other = subscriber(broker, name if extra == ("shared",) else name + "-other") if "global" in extra else one
    first = one.create_receiver(name, name="team|1", credit=10, options=options)
    second = other.create_receiver(name, name="team|2", credit=10, options=options)
    with connect(broker) as connection:
        sender = connection.create_sender(name, options=TargetCapabilities("topic"))
        for number in range(10):
            sender.send(Message(number))
    a, b = bodies(drain(first)), bodies(drain(second))
    assert sorted([*a, *b]) == list(range(10))
    assert a
    assert b
    one.close()
    if other is not one:
        other.close()


@pytest.mark.parametrize("extra", [("shared",), ("shared", "global")], ids=["container", "global"])
def test_a_shared_durable_subscription_waits(broker: BrokerProcess, name: str, extra: tuple[str, ...]) -> None:
    options = [DurableSubscription(), SourceCapabilities("topic", *extra)]
    connection = subscriber(broker, name)
    connection.create_receiver(name, name="team", options=options).detach()
    connection.close()
    with connect(broker) as other:
        sender = other.create_sender(name, options=TargetCapabilities("topic"))
        for number in range(10):
            sender.send(Message(number, durable=True))
    connection = subscriber(broker, name if extra == ("shared",) else name + "-other")
    first = connection.create_receiver(name, name="team|1", credit=5, options=options)
    second = connection.create_receiver(name, name="team|2", credit=5, options=options)
    a, b = bodies(drain(first)), bodies(drain(second))
    assert sorted([*a, *b]) == list(range(10))
    second.detach()
    first.close()
    connection.close()


# -- filters


def test_a_selector(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as connection:
        sender = connection.create_sender(name)
        for number in range(6):
            sender.send(Message(number, properties={"n": number, "colour": "red" if number % 2 else "blue"}))
        receiver = connection.create_receiver(name, credit=10, options=Selector("colour = 'red' AND n BETWEEN 2 AND 5"))
        assert bodies(drain(receiver)) == [3, 5]
    assert bodies(take(broker, name)) == [0, 1, 2, 4]


def test_a_bad_selector_is_refused(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as connection, pytest.raises(LinkDetached) as refused:
        connection.create_receiver(name, options=Selector("colour = "))
    assert str(refused.value.condition).startswith("amqp:")


def test_no_local(broker: BrokerProcess, name: str) -> None:
    with connect(broker) as one, connect(broker) as other:
        receiver = one.create_receiver(name, credit=10, options=[no_local(), SourceCapabilities("topic")])
        one.create_sender(name, options=TargetCapabilities("topic")).send(Message("mine"))
        other.create_sender(name, options=TargetCapabilities("topic")).send(Message("yours"))
        assert bodies(drain(receiver)) == ["yours"]


def test_browsing_takes_nothing(broker: BrokerProcess, name: str) -> None:
    send(broker, name, "a", "b")
    with connect(broker) as connection:
        browser = connection.create_receiver(name, credit=10, options=Copy())
        assert bodies(drain(browser)) == ["a", "b"]
    assert bodies(take(broker, name)) == ["a", "b"]


# -- time


@pytest.mark.parametrize("by", ["delay", "time"])
def test_delayed_delivery(broker: BrokerProcess, name: str, by: str) -> None:
    delay = 2000
    started = time.monotonic()
    when = {DELIVERY_DELAY: delay} if by == "delay" else {DELIVERY_TIME: int(time.time() * 1000) + delay}
    with connect(broker) as connection:
        receiver = connection.create_receiver(name)
        connection.create_sender(name).send(Message("later", annotations=when))
        assert receiver.receive().body == "later"
        assert time.monotonic() - started >= delay / 1000 - 0.05
        receiver.accept()


def test_the_broker_keeps_an_idle_connection_alive(broker: BrokerProcess, name: str) -> None:
    with connect(broker, heartbeat=2) as connection:
        with pytest.raises(Timeout):  # proton would close the connection if the broker fell silent
            connection.wait(lambda: False, timeout=5)
        connection.create_sender(name).send(Message("still here"))
        assert connection.conn.transport.remote_idle_timeout > 0, "the broker announces its own idle timeout"
