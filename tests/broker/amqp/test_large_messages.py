"""Large AMQP messages: both ways, bounded, and whose file is gone or changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from harness.sessions.amqp import Broker, message
from harness.store import FaultyFiles

from .test_sending import ACCEPTED

if TYPE_CHECKING:
    from pathlib import Path


async def test_large_message_both_ways(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    body = bytes(range(256)) * 20_000  # 5 MB
    delivery = client.send(sender, message(body, id="big", properties={"n": 1}))
    after = client.send(sender, message("after"))
    await client.until(lambda: delivery.settled and after.settled)
    assert delivery.remote_state == ACCEPTED
    assert len(list((broker.directory / "large").glob("*.msg"))) == 1
    stored = next(iter(broker.post.queue("q").iterate())).message
    assert stored.large is not None
    assert len(stored.data) <= 4096
    await broker.restart()
    client = await broker.client().opened()
    session = client.begin()
    session.incoming_capacity = 1 << 20
    await client.receiver("q", session=session, credit=10)
    got = await client.get_large()
    assert got.id == "big"
    assert got.properties == {"n": 1}
    assert bytes(got.body) == body
    assert (await client.get()).body == "after"
    await client.quiet()
    await broker.settle()
    await client.until(lambda: not list((broker.directory / "large").glob("*.msg")))


async def test_large_message_waits_for_the_clients_window(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message(b"z" * 6_000_000)])
    receiving = await broker.client("two", max_frame=16384).opened()
    session = receiving.begin()
    session.incoming_capacity = 65536
    link = await receiving.receiver("q", session=session, credit=1)
    await receiving.quiet()
    held = len(receiving.wire.written)
    consumer: Any = next(iter(receiving.session.opened().links.values()))
    assert held + consumer.buffered() < 1_000_000
    assert session.incoming_bytes <= 65536
    got = await receiving.get_large()
    assert len(got.body) == 6_000_000
    assert link.credit == 0


async def test_message_beyond_the_limit_ends_the_link(broker: Broker) -> None:
    broker.configuration = replace(
        broker.configuration, limits=replace(broker.configuration.limits, max_message_size=200_000)
    )
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    assert sender.remote_max_message_size == 200_000
    client.send(sender, message(b"z" * 300_000))
    await client.until(lambda: sender.remote_condition)
    assert sender.remote_condition.name == "amqp:link:message-size-exceeded"
    await client.until(lambda: not list((broker.directory / "large").glob("*.msg")))


@pytest.mark.parametrize(("size", "files"), [("5000", 1), ("-1", 0)])
async def test_the_size_from_which_a_message_goes_through_a_file(broker: Broker, size: str, files: int) -> None:
    broker.parameters = {"amqpMinLargeMessageSize": size}
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    await client.send_all(sender, [message("x" * 1000), message("x" * 200_000)])
    await broker.settle()
    assert len(list((broker.directory / "large").glob("*.msg"))) == files


async def test_a_large_message_without_its_file_is_set_aside_and_the_link_goes_on(broker: Broker) -> None:
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    first, after = client.send(sender, message(bytes(500_000))), client.send(sender, message("behind it"))
    await client.until(lambda: first.settled and after.settled)
    (path,) = (broker.directory / "large").glob("*.msg")
    os.truncate(path, 1000)
    await client.receiver("q", credit=10)
    assert (await client.get()).body == "behind it"
    await client.until(lambda: broker.post.queue("q").message_count == 0)
    assert [one.file for one in broker.storage.damage] == [path]
    assert path.exists(), "what is left of it is for whoever repairs it"


async def test_a_large_message_that_the_disk_does_not_give_now_is_given_later(tmp_path: Path) -> None:
    """It was a dead letter at once, and dropped where there is no address for these."""
    disk = FaultyFiles()
    broker = Broker(tmp_path, files=disk)
    await broker.start()
    client = await broker.client().opened()
    await client.send_all(await client.sender("q", capabilities=["queue"]), [message(b"z" * 300_000), message("after")])
    disk.unreadable = 2
    await client.receiver("q", credit=10)
    assert (await client.get_large()).body == b"z" * 300_000
    assert disk.unreadable == 0
    assert (await client.get()).body == "after"
    await broker.stop()


@pytest.mark.parametrize("size", [110_000, 500_000])
async def test_a_large_message_whose_file_was_changed_is_set_aside(broker: Broker, size: int) -> None:
    """One that fits in a read is not begun; the delivery of another is given up before its end, with its link."""
    client = await broker.client().opened()
    sender = await client.sender("q", capabilities=["queue"])
    first, after = client.send(sender, message(bytes(size))), client.send(sender, message("behind it"))
    await client.until(lambda: first.settled and after.settled)
    (path,) = (broker.directory / "large").glob("*.msg")
    with path.open("r+b") as stream:
        stream.seek(50_000)
        stream.write(b"y")
    await client.receiver("q", credit=10)
    if size > 128 << 10:
        await client.until(lambda: broker.storage.damage)
        await broker.settle()
        client = await broker.client().opened()
        await client.receiver("q", credit=10)
    assert (await client.get()).body == "behind it"
    await broker.settle()
    assert broker.post.queue("q").message_count == 1
    assert [(one.file, one.kind) for one in broker.storage.damage] == [(path, "lost-body")]
