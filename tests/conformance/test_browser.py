"""WebSocket in a browser: rhea, stompjs and MQTT.js, as they are made for browsers, in one headless Chromium.

On the port of all and on one of its own, with TLS and without.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from harness import chromium
from harness.broker import PASSWORD, USER

from .conftest import HOSTS

if TYPE_CHECKING:
    from pathlib import Path

    from harness.broker import BrokerProcess

#: More than one frame's short length, and than one read of a socket.
TIMES = 5_000
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rhea": ("amqp", {}),
    "stompjs": ("stomp", {"binary": True}),
    "MQTT.js": ("mqtt", {"version": 5}),
}

#: The port of all and one of its own, each with TLS and without; no browser without a screen has a certificate to show.
PORTS = {"all": ("all", "ws"), "all, TLS": ("all", "wss"), "own": ("ws", "ws"), "own, TLS": ("wss", "wss")}


@pytest.fixture(scope="module")
def found(
    broker: BrokerProcess, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return each client's results by each acceptor, of one browser for all."""
    given = {}
    for (name, (scenario, more)), (port, (acceptor, scheme)) in product(CLIENTS.items(), PORTS.items()):
        url = f"{scheme}://localhost:{broker.ports[acceptor]}/"
        told = {"url": url, "user": USER, "password": PASSWORD, "times": TIMES, **more}
        given[f"{name} {port}"] = (scenario, {**told, "address": f"browser.{scenario}.{acceptor}.{scheme}"})
    trusted = tuple(certificates / f"{each}.pem" for each in ("broker", *HOSTS))
    return chromium.run(given, tmp_path_factory.mktemp("chromium"), trusted=trusted)


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_in_a_browser_gets_what_it_sends(client: str, port: str, found: dict[str, dict[str, Any]]) -> None:
    assert found[f"{client} {port}"] == {"found": "grüße " * TIMES}
