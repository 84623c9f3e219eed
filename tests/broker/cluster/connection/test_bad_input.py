"""All that peers do wrong is survived, with a line that says what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.test_links import consumer, pair
from pollux.cluster.routes.records import Telling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from broker.cluster.connection.conftest import Node

    Make = Callable[..., Awaitable[list[Node]]]


async def test_a_peer_that_tells_an_old_state_has_to_tell_everything_again(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await pair(nodes)
    await consumer(one, two)
    key = (two.id, "orders")
    now = one.cluster.table.listener(two.id).records[key]
    (incoming,) = two.cluster.incoming.values()
    number = incoming._teller._number + 1
    incoming._tell(Telling(number, whole=False, records=(replace(now, version=0),)))
    incoming._flush()
    await until(lambda: "a peer has to tell everything again" in caplog.text)
    said = caplog.records[-1].__dict__["fields"]["reason"]
    assert said == f"queue 'orders' was told of in version 0 after {now.version}"
    await until(lambda: not one.cluster.table.listener(two.id).missed)
    assert one.cluster.table.listener(two.id).records[key] == now
    assert one.cluster.peers.links[0].connected
