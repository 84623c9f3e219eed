"""STOMP clients that a connection router sends elsewhere: by ERROR with headers of our own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harness.routers import FixedRouter
from pollux.protocols.redirects import Elsewhere, Refused

if TYPE_CHECKING:
    from harness.sessions.held import HeldBroker
    from harness.sessions.stomp import Client


async def refused(broker: HeldBroker, router: FixedRouter) -> tuple[dict[str, str], bytes]:
    broker.router = router
    client = broker.client()
    client.send(b"CONNECT\naccept-version:1.2\nhost:h\nlogin:user\npasscode:secret\nclient-id:pump\n\n\0")
    await until_closed(client)
    ((command, headers, body),) = client.received()
    assert command == "ERROR"
    return headers, body


async def until_closed(client: Client) -> None:
    async with asyncio.timeout(10):
        while not client.transport.closed:  # noqa: ASYNC110  (a fake signals nothing)
            await asyncio.sleep(0)


async def test_where_the_client_is_served_is_in_headers_and_in_words(broker: HeldBroker) -> None:
    router = FixedRouter(Elsewhere("other", 61613, tls=False))
    headers, body = await refused(broker, router)
    assert (headers["redirect-host"], headers["redirect-port"]) == ("other", "61613")
    assert "served at other:61613" in headers["message"]
    assert b"connect there" in body
    assert [(one.protocol, one.client_id) for one in router.asked] == [("STOMP", "pump")]


async def test_a_client_that_is_served_nowhere_is_told_so(broker: HeldBroker) -> None:
    headers, _ = await refused(broker, FixedRouter(Refused("nobody is ready", later=True)))
    assert headers["message"] == "nobody is ready"
    assert "redirect-host" not in headers


async def test_a_client_waits_until_enough_brokers_are_ready(broker: HeldBroker) -> None:
    broker.router = router = FixedRouter(None, patience=True)
    client = broker.client()
    client.send(b"CONNECT\naccept-version:1.2\nhost:h\nlogin:user\npasscode:secret\n\n\0")
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.received() == []
    assert router.asked == []
    router.enough.set()
    async with asyncio.timeout(10):
        while not (found := client.received()):  # noqa: ASYNC110  (a fake signals nothing)
            await asyncio.sleep(0)
    assert found[0][0] == "CONNECTED"
