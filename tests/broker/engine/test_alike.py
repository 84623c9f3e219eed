"""Messages that are alike are sent at once as they are one by one, or not at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.engine.conftest import Office, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.errors import AddressFullError
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.message import Message

SIZE = message(b"0").size
ONE: list[dict[str, Any]] = [{}]
TWO: list[dict[str, Any]] = [{"name": name, "routing_type": RoutingType.MULTICAST} for name in ("a", "b")]
FULL = AddressFullPolicy.FAIL


async def after(
    directory: Path, settings: dict[str, Any], queues: list[dict[str, Any]], *, at_once: bool
) -> tuple[bool, list[object]]:
    """Return what is there after a message that went before and nine more, and whether these were sent at once."""
    office = Office(directory)
    office.settings("orders", **settings)
    post = await office.open()
    for queue in queues:
        office.queue(**{"address": "orders", **queue})
    refused: list[bytes] = []

    def send(each: Message) -> None:
        try:
            post.send(each)
        except AddressFullError:
            refused.append(each.data)

    send(message(b"0"))
    others = [message(b"%d" % number) for number in range(1, 10)]
    together = at_once and post.send_alike(others)
    if not together:
        for each in others:
            send(each)
    await office.settle()
    gauge = post.accounts.of("orders").gauge
    state: list[object] = [refused, gauge.bytes, gauge.messages, post.accounts.of("orders").careful, post.routed_total]
    state += [[(each.message.data, each.message.references) for each in queue.iterate()] for queue in post.space.queues]
    post = await office.reopen()
    state += [[each.message.data for each in queue.iterate()] for queue in post.space.queues]
    await office.close()
    return together, state


@pytest.mark.parametrize(
    ("settings", "queues", "together"),
    [
        ({}, ONE, True),
        ({}, TWO, True),
        ({}, [{"durable": False}], True),
        ({}, [{"selector": "JMSPriority > 3"}], False),
        ({"enable_ingress_timestamp": True}, ONE, False),
        ({"expiry_delay": 60_000}, ONE, False),
        ({"max_size_messages": 11, "address_full_policy": FULL}, ONE, True),
        ({"max_size_messages": 10, "address_full_policy": FULL}, ONE, False),  # the last one reaches the limit
        ({"max_size_messages": 5, "address_full_policy": FULL}, ONE, False),
        ({"max_size_bytes": 10 * SIZE + 1, "address_full_policy": FULL}, ONE, True),
        ({"max_size_bytes": 10 * SIZE, "address_full_policy": FULL}, ONE, False),
        ({"max_size_bytes": 5 * SIZE, "address_full_policy": AddressFullPolicy.DROP}, ONE, False),
    ],
)
async def test_sent_at_once_they_are_what_they_are_one_by_one(
    tmp_path: Path, settings: dict[str, Any], queues: list[dict[str, Any]], together: bool
) -> None:
    _, one_by_one = await after(tmp_path / "one by one", settings, queues, at_once=False)
    assert await after(tmp_path / "at once", settings, queues, at_once=True) == (together, one_by_one)


async def test_while_the_disk_is_full_each_is_looked_at(office: Office) -> None:
    post = await office.open()
    office.queue()
    await office.send(b"0")
    office.storage.full = True
    assert not post.send_alike([message(b"1"), message(b"2")])
    office.storage.full = False
    await office.stable()
    assert office.count("orders") == 1


async def test_what_a_plugin_looks_at_is_shown_to_it(office: Office) -> None:
    post = await office.open()
    office.queue()
    await office.send(b"0")
    post.show(lambda _message: None)
    assert not post.send_alike([message(b"1"), message(b"2")])
