"""Eleven nodes of twelve are scaled down: the last one has everything, and takes the clients of all of them.

The reference's target remembers ten of the nodes that it took in; clients of any more waited for good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from harness.broker import PASSWORD, USER
from harness.cluster import ClusterNode, Nodes
from pollux.client.traffic import publisher
from pollux.client.url import Wire, parse_url
from pollux.process.exits import EXIT_OK

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.client.traffic_base import Publisher

pytestmark = pytest.mark.timeout(300)
NODES, EACH = 12, 25


def leaves(node: ClusterNode) -> None:
    """Have a node that does not run yet hand over what it has when it is stopped."""
    policy = "<ha-policy><live-only><scale-down/></live-only></ha-policy>"
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace("<cluster-connections>", f"{policy}<cluster-connections>", 1))


def client_of(node: ClusterNode, last: ClusterNode, protocol: Wire) -> Publisher:
    """Return a client that knows its own node and the last one."""
    login = f"user={USER}&password={quote(PASSWORD)}&reconnectAttempts=-1&retryInterval=50"
    url = f"(tcp://127.0.0.1:{node.port},tcp://127.0.0.1:{last.port})?{login}"
    return publisher(protocol, parse_url(url), "orders", lambda _name, _stream: None)


async def send(client: Publisher, name: str) -> None:
    """Send some, and wait until all are confirmed."""
    for number in range(EACH):
        await client.send(f"{name}-{number}", b"x" * 100)
    await asyncio.wait_for(client.drain(), 60)


async def scaled_down(leaving: list[ClusterNode], last: ClusterNode) -> None:
    protocols = list(Wire)
    clients = [client_of(node, last, protocols[place % len(protocols)]) for place, node in enumerate(leaving)]
    for place, client in enumerate(clients):
        await client.start()
        await send(client, f"before {place}")
    for node in leaving:
        assert await asyncio.to_thread(node.stop) == EXIT_OK, node.log_tail()
    for place, client in enumerate(clients):
        await send(client, f"after {place}")
        await client.close()


def test_clients_of_eleven_nodes_get_into_the_twelfth(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, NODES)
    *leaving, last = nodes.all
    for node in leaving:
        leaves(node)
    with nodes:
        asyncio.run(scaled_down(leaving, last))
        assert last.messages() == {"orders": 2 * EACH * len(leaving)}
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
