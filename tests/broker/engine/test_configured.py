"""Queues of broker.xml that are there already: what it says and they are not is told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from pollux.config.addresses import AddressConfig, QueueConfig
from pollux.message import RoutingType

if TYPE_CHECKING:
    from broker.engine.conftest import Office

pytestmark = pytest.mark.asyncio


def configure(office: Office, **attributes: Any) -> list[str]:
    """Apply a broker.xml with one queue; return what of it has no effect."""
    values = {"routing_type": RoutingType.ANYCAST, **attributes}
    address = AddressConfig("orders", queues=(QueueConfig("orders", **values),))
    office.post.address_manager.apply_configuration(replace(office.configuration, addresses=(address,)))
    return office.post.address_manager.differing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_consumers": 3}, "its max-consumers is -1, not 3"),
        ({"ring_size": 10}, "its ring-size is -1, not 10"),
        ({"filter": "a = 1"}, "its filter is None, not a = 1"),
        ({"exclusive": True, "enabled": False}, "its exclusive is False, not True, its enabled is True, not False"),
        ({"durable": False}, "its durable is True, not False"),
        ({"routing_type": RoutingType.MULTICAST}, "its routing type is ANYCAST, not MULTICAST"),
    ],
)
async def test_what_a_queue_that_is_there_does_not_become_is_told(
    office: Office, caplog: pytest.LogCaptureFixture, change: dict[str, Any], words: str
) -> None:
    await office.open()
    assert configure(office) == []
    assert configure(office) == []
    with caplog.at_level(logging.WARNING):
        told = configure(office, **change)
    assert told == [f"queue 'orders' stays as it is: {words}; delete it to have it made anew"]
    assert told[0] in caplog.text
    await office.reopen()
    assert configure(office, **change) == told
    office.post.delete_queue("orders")
    assert configure(office, **change) == []


async def test_what_broker_xml_leaves_open_is_no_difference(office: Office) -> None:
    """The settings of addresses may be other ones than when the queue was made."""
    await office.open()
    assert configure(office, max_consumers=3) == []
    office.settings("#", default_max_consumers=5, default_exclusive_queue=True)
    await office.reopen()
    assert configure(office, max_consumers=3) == []
    assert configure(office) == []
