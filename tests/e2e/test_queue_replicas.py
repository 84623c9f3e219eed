"""Queue replicas between real brokers, in clusters and not, through kills and failovers.

Each case that Qpid's own suite has, too, is named after it in its docstring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from proton import Message, ProtonException
from proton.utils import SendException

from harness import amqp
from harness.passive import Cluster
from harness.replicas import Standalone, texts, wait_for_texts
from pollux.cli import qpid_ha

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.broker import BrokerProcess

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Standalone, Standalone]]:
    """A source and a broker that has replicas of its queues."""
    source, replica = Standalone(tmp_path / "source"), Standalone(tmp_path / "replica")
    try:
        yield source.start(), replica.start()
    finally:
        replica.close()
        source.close()


def send(broker: BrokerProcess, queue: str, found: list[str], **properties: object) -> None:
    with amqp.connect(broker) as connection:
        sender = connection.create_sender(queue)
        for text in found:
            sender.send(Message(text, durable=True, **properties))


def consume(broker: BrokerProcess, queue: str, count: int) -> None:
    with amqp.connect(broker) as connection:
        receiver = connection.create_receiver(queue, credit=count)
        for _ in range(count):
            receiver.receive(timeout=30)
            receiver.accept()


def numbered(first: int, last: int) -> list[str]:
    return [f"m{number}" for number in range(first, last)]


def test_a_replica_outside_a_cluster_follows_its_queue(pair: tuple[Standalone, Standalone]) -> None:
    """By both tools, with dequeues (test_standalone_queue_replica); a restart of either side ends nothing."""
    source, replica = pair
    send(source, "orders", numbered(0, 20))
    send(source, "others", ["one"])
    done = replica.ha("replicate", "orders", source.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    words = ["replicate", "-b", replica.address, "--config", str(replica.configuration), source.address, "others"]
    assert qpid_ha.run(words) == 0
    replica.command(
        *("queue", "create", "late", "--start-replica", source.address, "--config", str(replica.configuration))
    )
    wait_for_texts(replica, "orders", numbered(0, 20))
    wait_for_texts(replica, "others", ["one"])
    consume(source, "orders", 5)
    send(source, "orders", numbered(20, 30))
    send(source, "late", ["first"])
    wait_for_texts(replica, "orders", numbered(5, 30))
    wait_for_texts(replica, "late", ["first"])
    assert replica.ha("replicate", "orders", source.address).returncode == 0, "asked again nothing changes"

    with pytest.raises(ProtonException, match="replica"), amqp.connect(replica) as connection:
        connection.create_receiver("orders")
    with pytest.raises(SendException):
        send(replica, "orders", ["stranger"])
    assert texts(replica, "orders") == numbered(5, 30)

    replica.kill()
    consume(source, "orders", 5)
    send(source, "orders", ["while it was away"])
    replica.start()
    wait_for_texts(replica, "orders", [*numbered(10, 30), "while it was away"])
    source.kill()
    source.start()
    consume(source, "orders", 10)
    wait_for_texts(replica, "orders", [*numbered(20, 30), "while it was away"])

    source.kill()
    done = replica.ha("detach", "orders")
    assert (done.returncode, done.stdout) == (0, "")
    consume(replica, "orders", 3)
    send(replica, "orders", ["of its own"])
    assert texts(replica, "orders") == [*numbered(23, 30), "while it was away", "of its own"]
    replica.kill()
    replica.start()
    consume(replica, "orders", 1)


def test_what_cannot_be_replicated_is_refused(pair: tuple[Standalone, Standalone]) -> None:
    """With Qpid's exit codes, and distinct ones on request."""
    source, replica = pair
    send(replica, "mine", ["a message"])
    done = replica.ha("replicate", "mine", source.address)
    assert (done.returncode, "has 1 messages of its own" in done.stdout) == (1, True)
    assert replica.ha("replicate", "mine", source.address, "--pollux-exit-codes").returncode == 2
    assert replica.ha("replicate", "x", "user@host", "--pollux-exit-codes").returncode == 2
    assert replica.ha("detach", "mine", "--pollux-exit-codes").returncode == 2
    assert replica.ha("replicate", "away", source.address).returncode == 0
    assert "there is no queue 'away'" in replica.ha("replicas").stdout
    send(source, "away", ["it is there now"])
    wait_for_texts(replica, "away", ["it is there now"])
    source.api("/api/v1/queues/away", method="DELETE")
    send(source, "away", ["another queue"])
    wait_for_texts(replica, "away", ["another queue"])


def test_a_large_message_is_in_the_replica_as_it_was(pair: tuple[Standalone, Standalone]) -> None:
    source, replica = pair
    body = "large " * 100_000
    send(source, "large", ["before", body, "after"])
    assert replica.ha("replicate", "large", source.address).returncode == 0
    wait_for_texts(replica, "large", ["before", None, "after"])
    assert replica.ha("detach", "large").returncode == 0
    with amqp.connect(replica) as connection:
        receiver = connection.create_receiver("large", credit=3)
        assert [receiver.receive(timeout=30).body for _ in range(3)] == ["before", body, "after"]


def test_a_replica_goes_on_when_either_side_fails_over(tmp_path: Path) -> None:
    """Source and replica are clusters; each fails over (test_standalone_queue_replica_failover)."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    with Cluster(tmp_path / "there", 2) as there, Cluster(tmp_path / "here", 2) as here:
        first, second = there.start()
        one, two = here.start()
        send(first, "orders", numbered(0, 10))
        source = f"{first.address},{second.address}"
        assert one.ha("replicate", "orders", source).returncode == 0
        wait_for_texts(one, "orders", numbered(0, 10))
        first.kill()
        second.promote()
        second.wait_for_status("active")
        consume(second, "orders", 3)
        send(second, "orders", numbered(10, 15))
        wait_for_texts(one, "orders", numbered(3, 15))
        one.kill()
        two.promote()
        consume(second, "orders", 3)
        send(second, "orders", ["after both"])
        two.wait_for_status("active")
        wait_for_texts(two, "orders", [*numbered(6, 15), "after both"])
        first.spawn()
        first.wait_for_status("ready")
        second.kill()
        first.promote()
        first.wait_for_status("active")
        consume(first, "orders", 9)
        wait_for_texts(two, "orders", ["after both"])
