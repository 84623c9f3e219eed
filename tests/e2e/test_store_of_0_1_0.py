"""A real broker on what version 0.1.0 left: every message is there once, in its order, and none that was consumed.

``tests/data/0.1.0/README.md`` says how its broker.xml, users and store were made: by that version's own broker, which
was stopped, started, and killed in its second life. The other store is older than the inventory of files
(``tests/broker/store/test_inventory.py``), made by its store alone.
"""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message
from proton.reactor import DurableSubscription

from harness import amqp, mqtt, stomp
from harness.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
OLD = HERE.parent / "data/0.1.0"
#: When its scheduled messages are due, for machines whose clock is behind that.
LATER = 1796032800
OLDER = HERE.parent / "broker/store/store-0.1.0.tar.gz"


def extract(archive: Path, directory: Path) -> None:
    """Put what is in an archive of ours into a directory."""
    with tarfile.open(archive) as opened:
        opened.extractall(directory)  # noqa: S202  (ours)


@pytest.fixture
def told() -> dict[str, Any]:
    """Return what the clients of 0.1.0 were told is stored, by where it waits."""
    found: dict[str, Any] = json.loads((OLD / "told.json").read_text())
    return found


@pytest.fixture
def broker(tmp_path: Path, told: dict[str, Any]) -> Iterator[BrokerProcess]:
    """Run today's broker with the broker.xml, users and store of 0.1.0; only its ports are this run's."""
    broker = BrokerProcess(tmp_path)
    extract(OLD / "broker.tar.gz", tmp_path)
    text = broker.configuration.read_text()
    for before, now in ((told["ports"]["clients"], broker.port), (told["ports"]["management"], broker.management_port)):
        assert text.count(str(before)) == 1
        text = text.replace(str(before), str(now))
    broker.configuration.write_text(text)
    with broker.lives_to_the_end():
        yield broker


def texts(receiver: Any) -> list[str]:
    """Take all that there is; of bodies the padding is left out, and what STOMP sent may have come as bytes."""
    messages = amqp.drain(receiver)  # kept: a body may be a view of its memory
    bodies = [body if isinstance(body, str) else bytes(body).decode() for body in amqp.bodies(messages)]
    return [body.rstrip(".") for body in bodies]


def taken(broker: BrokerProcess, queue: str) -> list[str]:
    """Take all that a queue has."""
    with amqp.connect(broker) as connection:
        return texts(connection.create_receiver(queue, credit=300))


def session(broker: BrokerProcess) -> Any:
    """Connect as the MQTT client with the session."""
    expiry = mqtt.connect_properties(SessionExpiryInterval=1000)
    return mqtt.connect(broker, "mqtt-reader", connecting={"clean_start": False, "properties": expiry})


def amqp_subscription(broker: BrokerProcess) -> list[str]:
    """Take what waits in the durable subscription of AMQP."""
    options = [DurableSubscription(), amqp.SourceCapabilities("topic")]
    with amqp.connect(broker, container_id="amqp-reader") as connection:
        receiver = connection.create_receiver("news", name="news", credit=50, options=options)
        bodies = texts(receiver)
        receiver.detach()
    return bodies


def stomp_subscription(broker: BrokerProcess, count: int) -> list[str]:
    """Take so many messages from the durable subscription of STOMP, and see that there is no more."""
    with stomp.connect(broker, headers={"client-id": "stomp-reader"}) as client:
        client.subscribe("news", subscription_type="MULTICAST", durable_subscription_name="news")
        bodies = [client.message().body for _ in range(count)]
        client.silence()
    return bodies


def test_everything_that_a_broker_of_0_1_0_confirmed_is_there(broker: BrokerProcess, told: dict[str, Any]) -> None:
    assert (len(told["orders"]), len(told["jobs"]), len(told["news"]), len(told["sensors"])) == (30, 200, 14, 12)
    counts = {queue["name"]: queue["messages"] for queue in broker.queues()}
    assert [counts[queue] for queue in ("orders", "jobs", "large", "later")] == [30, 200, 2, 2]
    for queue in ("orders", "jobs", "large"):
        assert taken(broker, queue) == told[queue]
    assert taken(broker, "later") == (told["later"] if time.time() > LATER else [])
    assert amqp_subscription(broker) == told["news"]
    assert stomp_subscription(broker, len(told["news"])) == told["news"]
    with session(broker) as client:
        assert client.connack[0].session_present
        assert [client.message().payload.decode() for _ in told["sensors"]] == told["sensors"]
        client.subscribe("status/#", qos=1)
        message = client.message()
        assert ([message.payload.decode()], message.retain) == (told["retained"], True)
        client.silence()
    # What it writes behind that store is read as well, and what was taken does not come back.
    with amqp.connect(broker) as connection:
        connection.create_sender("orders").send(Message("new", durable=True))
    with mqtt.connect(broker, "mqtt-sender") as client:
        client.publish("sensors/door", b"new")
    broker.kill()
    broker.start()
    assert taken(broker, "orders") == ["new"]
    assert [taken(broker, queue) for queue in ("jobs", "large", "later")] == [[], [], []]
    assert (amqp_subscription(broker), stomp_subscription(broker, 0)) == ([], [])
    with session(broker) as client:
        assert client.connack[0].session_present
        assert client.message().payload == b"new"
        client.silence()
    assert broker.api("/api/v1/status")["damage"] == []


def test_a_broker_serves_the_older_store(tmp_path: Path) -> None:
    """Its messages were made without a client: their bodies are no sections of AMQP, so they are counted."""
    broker = BrokerProcess(tmp_path)
    extract(OLDER, tmp_path / "data")
    told = json.loads((tmp_path / "data/told.json").read_text())
    (tmp_path / "data/large").rename(tmp_path / "data/large-messages")
    counts = [len(told[name]) for name in ("messages", "large", "paged")]
    assert counts == [70, 2, 42]
    with broker.lives_to_the_end():
        for left in (sum(counts), 0):
            (orders,) = [queue for queue in broker.queues() if queue["name"] == "orders"]
            assert (orders["messages"], broker.api("/api/v1/status")["damage"]) == (left, [])
            with amqp.connect(broker) as connection:
                assert len(amqp.drain(connection.create_receiver("orders", credit=300))) == left
            broker.kill()
            broker.start()
