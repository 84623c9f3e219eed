"""AMQP clients that a connection router sends elsewhere, or refuses; part 2, 2.8.14 and 2.8.16 of the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.routers import FixedRouter
from harness.sessions.broker import PASSWORD
from pollux.protocols.redirects import Elsewhere, Refused

if TYPE_CHECKING:
    from harness.sessions.amqp import Broker


@pytest.mark.parametrize(
    ("answer", "condition", "info"),
    [
        (
            Elsewhere("other", 5672, tls=False),
            "amqp:connection:redirect",
            {"network-host": "other", "hostname": "other", "port": 5672},
        ),
        (
            Elsewhere("::1", 5671, tls=True),
            "amqp:connection:redirect",
            {"network-host": "::1", "hostname": "::1", "port": 5671, "scheme": "amqps"},
        ),
        (Refused("nobody is ready", later=True), "amqp:connection:forced", None),
    ],
)
async def test_where_the_client_is_served_is_said_behind_an_open(
    broker: Broker, answer: Elsewhere | Refused, condition: str, info: Any
) -> None:
    broker.router = router = FixedRouter(answer)
    client = broker.client("pump", user="alice", password=PASSWORD, mechanisms="PLAIN")
    await client.until(lambda: client.remote_condition)
    properties: Any = client.connection.remote_properties
    assert properties["amqp:connection-establishment-failed"] is True
    found: Any = client.remote_condition
    assert (found.name, found.info) == (condition, info)
    assert ("nobody is ready" in found.description) == isinstance(answer, Refused)
    (asked,) = router.asked
    assert (asked.protocol, asked.identity.user, asked.client_id) == ("AMQP", "alice", "pump")
    client.connection.close()
    await client.until(lambda: client.wire.closed)


async def test_who_sends_everything_at_once_gets_nothing_done_elsewhere(broker: Broker) -> None:
    broker.router = FixedRouter(Elsewhere("other", 5672, tls=False))
    client = broker.client()
    session = client.connection.session()
    session.open()
    sender = session.sender("s")
    sender.target.address = "q"
    sender.open()
    await client.until(lambda: client.remote_condition)
    assert broker.post.space.address("q") is None


async def test_clients_wait_until_enough_brokers_are_ready(broker: Broker) -> None:
    broker.router = router = FixedRouter(None, patience=True)
    client = broker.client()
    gone = broker.client("gone")
    await client.quiet()
    await gone.quiet()
    assert router.asked == []
    assert not client.wire.reading
    gone.drop()
    router.enough.set()
    await client.opened()
    assert [one.client_id for one in router.asked] == ["client"]
    assert client.session.user == "anonymous"
