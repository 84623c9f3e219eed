"""``pollux transaction``: what is said of half of one, whose other half a lost node may have."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from harness.prepared import append_half, settings_of
from harness.store import opened, stable
from pollux.message import Encoding, Message

if TYPE_CHECKING:
    from pathlib import Path

    from broker.conftest import Instance

XID, NODE = b"\x00\xffxid", "ab" * 16


async def write_half(configuration: Path) -> None:
    """Have it send one message to the queue that has one, and acknowledge two."""
    async with opened(settings_of(configuration)) as life:
        ((queue, priorities),) = [(each, found) for each, found in life.recovered.queues.items() if any(found.values())]
        ((there, *_),) = [ids for ids in priorities.values() if ids]
        (found,) = await life.storage.read_messages([there])
        assert found is not None
        sent = Message(Encoding.STOMP, "orders", found.data.replace(b"old", b"new"), durable=True)
        append_half(life.storage, XID, f"{NODE}/7", [(sent, [queue])], (queue, 2))
        await stable(life.storage)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_half_of_one_is_decided_and_what_may_be_lost_or_twice_is_said(instance: Instance, how: str) -> None:
    instance.start()
    with instance.stomp() as client:
        client.publish("orders", "old", persistent="true", receipt="r")
    instance.stop()
    asyncio.run(write_half(instance.file))
    instance.start()
    (listed,) = json.loads(instance.pollux("transaction", "list", "--json").stdout)
    assert (listed["xid"], listed["from"], listed["half"]) == (XID.hex(), NODE, True)
    assert (listed["sends"], listed["acknowledges"], listed["queues"]) == (1, 2, ["orders"])
    assert json.loads(instance.pollux("status", "--json").stdout)["store"]["preparedTransactions"] == 1
    done = instance.pollux("transaction", how, XID.hex())
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().splitlines()
    assert f"half of it had come from node {NODE}: " in second
    if how == "commit":
        assert first == f"transaction {XID.hex()} committed: 1 messages appeared in queues"
        assert "If it was committed on another node too, what it sends is there twice" in second
    else:
        assert first == f"transaction {XID.hex()} rolled back: 0 messages appeared in queues"
        assert "the 2 messages that it acknowledges were never here, and are lost if that node is" in second
    assert json.loads(instance.pollux("transaction", "list", "--json").stdout) == []
    answer = instance.request("GET", "/api/v1/queues/orders/messages?body=true")[1]
    assert [item["body"] for item in answer["items"]] == (["old", "new"] if how == "commit" else ["old"])
