"""A broker that has much of every kind is drained: elsewhere all of it is what it was, and nothing comes twice."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from proton import Delivery, Message

from harness import amqp
from harness.cluster import Nodes
from harness.failover import wait_until
from harness.prepared import PREPARED, begin_prepared, settings_of, xid
from harness.store import opened
from pollux.process.exits import EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from harness.cluster import ClusterNode

pytestmark = pytest.mark.timeout(600)
SCHEDULED, GROUPED, BIG, TRANSACTIONS, IDS = 10_000, 1_000, 100, 10, 1_000
MIB = 1 << 20
#: Of the messages with a duplicate id, so many were taken before: their ids stay known.
TAKEN = IDS // 2
#: When the first of the scheduled ones is due, milliseconds from now.
LATER = 3_600_000
DRAIN = "/api/v1/cluster/drain"
PAGE = 10_000


def scheduled(due: int) -> Iterable[Message]:
    """Messages of which each is due a millisecond after the one before, the first at ``due`` (Unix, milliseconds)."""
    for number in range(SCHEDULED):
        yield Message(
            body=f"later {number}",
            durable=True,
            priority=number % 10,
            subject=f"s{number}",
            correlation_id=number,
            annotations={amqp.DELIVERY_TIME: due + number},
            properties={
                "number": number,
                "half": number / 2,
                "even": number % 2 == 0,
                "none": None,
                "raw": b"\x00\xff",
            },
        )


def grouped() -> Iterable[Message]:
    """Messages of 37 groups."""
    for number in range(GROUPED):
        yield Message(body=number, durable=True, group_id=f"g{number % 37}", group_sequence=number // 37)


def big() -> Iterable[Message]:
    """Messages of a mebibyte each, none of which compresses."""
    for number in range(BIG):
        body = random.Random(number).randbytes(MIB)  # noqa: S311  (no secret)
        yield Message(body=body, durable=True, content_type="application/octet-stream", id=f"big {number}")


def marked() -> Iterable[Message]:
    """Messages with a binary duplicate id each."""
    for number in range(IDS):
        yield Message(
            body=number, durable=True, properties={"_AMQ_DUPL_ID": hashlib.sha256(number.to_bytes(4, "big")).digest()}
        )


def send(node: ClusterNode, queue: str, messages: Iterable[Message]) -> None:
    """Send them, and wait until each of them was accepted."""
    with amqp.connect(node) as connection:
        sender = connection.create_sender(queue)
        link = sender.link
        deliveries = []
        for message in messages:
            if link.credit <= 0:
                connection.wait(lambda: link.credit > 0, timeout=60)
            deliveries.append(link.send(message))
        connection.wait(lambda: all(each.settled for each in deliveries), timeout=120)
        assert {each.remote_state for each in deliveries} == {Delivery.ACCEPTED}


def take(node: ClusterNode, queue: str, count: int) -> list[Message]:
    """Take so many messages out of a queue."""
    with amqp.connect(node) as connection:
        receiver = connection.create_receiver(queue, credit=min(count, 100))
        found = []
        for _ in range(count):
            found.append(receiver.receive(60))
            receiver.accept()
    return found


def shown(node: ClusterNode, queue: str) -> list[dict[str, Any]]:
    """Return what the API shows of the messages of a queue; ids are a node's own."""
    items: list[dict[str, Any]] = node.api(f"/api/v1/queues/{queue}/messages?limit={PAGE}&body=true")["items"]
    for item in items:
        del item["id"]
    return items


async def delayed(configuration: Path) -> list[tuple[object, ...]]:
    """Return what is in the store of a stopped broker of messages that wait for their time, in the order of that."""
    async with opened(settings_of(configuration)) as life:
        dues = sorted((due, message) for (_, message), due in life.recovered.schedules.items())
        kept = await life.storage.read_messages([message for _, message in dues])
    return [
        (due, each.address, each.encoding, bytes(each.data), each.priority, each.durable, each.annotations)
        for (due, _), each in zip(dues, kept, strict=True)
        if each is not None
    ]


def fields(message: Message) -> tuple[object, ...]:
    """Return what a client sees of a message."""
    content = (message.body, message.properties, message.annotations, message.group_id, message.group_sequence)
    return (*content, message.id, message.content_type, message.priority, message.durable)


def test_all_of_it_is_what_it_was_and_every_resend_is_refused(tmp_path: Path) -> None:
    due = int(time.time() * 1000) + LATER
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        begin_prepared(nodes, TRANSACTIONS)
        send(one, "later", scheduled(due))
        send(one, "grouped", grouped())
        send(one, "big", big())
        send(one, "marked", marked())
        assert [message.body for message in take(one, "marked", TAKEN)] == list(range(TAKEN))
        assert one.stop() == EXIT_OK
        later = asyncio.run(delayed(one.configuration))
        assert [each[0] for each in later] == list(range(due, due + SCHEDULED))
        one.start()
        nodes.wait_until_linked()
        before = {queue: shown(one, queue) for queue in ("grouped", "big", "marked")}
        assert [len(items) for items in before.values()] == [GROUPED, BIG, IDS - TAKEN]
        one.api(DRAIN, method="POST")
        wait_until(lambda: one.api(DRAIN)["state"] == "drained", "nothing is left", seconds=300)
        assert one.messages() == {}
        assert one.stop() == EXIT_OK
        two.kill()
        two.start()
        assert {queue: shown(two, queue) for queue in before} == before
        assert {each["xid"] for each in two.api(PREPARED)["items"]} == {xid(n + 1).hex() for n in range(TRANSACTIONS)}
        send(two, "marked", marked())
        assert two.messages() == {"later": SCHEDULED, "grouped": GROUPED, "big": BIG, "marked": IDS - TAKEN}
        for queue, sent in (("grouped", grouped()), ("big", big())):
            expected = list(sent)
            assert list(map(fields, take(two, queue, len(expected)))) == list(map(fields, expected))
        assert two.stop() == EXIT_OK
        assert asyncio.run(delayed(two.configuration)) == later
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
