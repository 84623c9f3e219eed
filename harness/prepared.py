"""Prepared transactions in a store, as a transaction manager's client leaves them, or a node that gave one away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harness import stomp
from harness.store import opened, stable
from pollux.config.loader import load
from pollux.engine.prepared import ORIGIN
from pollux.message import Encoding, Message
from pollux.process.exits import EXIT_OK
from pollux.store.data_lock import node_id
from pollux.store.settings import StoreSettings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from harness.cluster import Nodes
    from pollux.store.storage import Storage

#: Where they are listed and decided.
PREPARED = "/api/v1/prepared-transactions"


def xid(number: int) -> bytes:
    """Return the id of the n-th."""
    return b"\x00\xff" + number.to_bytes(4, "big")


def settings_of(configuration: Path) -> StoreSettings:
    """Return the settings of the store of a broker that has run."""
    found = load(configuration)
    return StoreSettings.from_configuration(found, node_id(found.journal_directory))


def append_half(
    storage: Storage, xid: bytes, origin: str, sends: Iterable[tuple[Message, list[int]]], acknowledges: tuple[int, int]
) -> None:
    """Write what is written first of one that another node gives. ``acknowledges``: of which queue how many messages.

    Those are not written, nor the word that all of it is there. ``origin``: that node and the number it has there.
    """
    queue, count = acknowledges
    tx = storage.next_id()
    for sent, queues in sends:
        sent.id = storage.next_id()
        storage.append_message(sent, queues, tx)
    for _ in range(count):
        storage.append_acks(queue, (storage.next_id(),), tx)
    storage.append_link(ORIGIN + origin, bytes(8), 1, tx)
    storage.append_prepare(tx, xid)


async def prepare(configuration: Path, count: int) -> None:
    """Write so many to a store that has messages in one queue, sent by STOMP, the first of which is "1".

    Number n acknowledges the n-th message of the queue, and sends one with -n.
    """
    async with opened(settings_of(configuration)) as life:
        storage = life.storage
        ((queue_id, priorities),) = [
            (queue, priorities) for queue, priorities in life.recovered.queues.items() if any(priorities.values())
        ]
        ids = [one for priority in priorities.values() for one in priority]
        (first,) = await storage.read_messages(ids[:1])
        assert first is not None
        head = first.data.removesuffix(b"1")
        for number in range(1, count + 1):
            tx = storage.next_id()
            sent = Message(Encoding.STOMP, "orders", head + str(-number).encode(), durable=True)
            sent.id = storage.next_id()
            storage.append_message(sent, [queue_id], tx)
            storage.append_acks(queue_id, [ids[number - 1]], tx)
            storage.append_prepare(tx, xid(number))
        await stable(storage)


def begin_prepared(nodes: Nodes, count: int, more: int = 0) -> None:
    """Have the first node, which is empty, hold so many, and ``more`` messages that none of them acknowledges."""
    node = nodes.all[0]
    with stomp.connect(node) as sender:
        for number in range(1, count + more + 1):
            sender.send("orders", str(number), persistent="true")
    assert node.stop() == EXIT_OK
    asyncio.run(prepare(node.configuration, count))
    node.start()
    nodes.wait_until_linked()
