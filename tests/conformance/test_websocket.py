"""WebSocket with JavaScript clients (rhea, stompjs, MQTT.js), on the port of all and on one of its own, with TLS.

Two of them use node's WebSocket, which is made after that of browsers; test_browser.py has a browser's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.javascript import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.broker import BrokerProcess

#: More than one frame's short length, than one read of a socket, and than what a message may have to be kept in memory.
TIMES = 20_000
SCHEMES = {"all": "ws", "ws": "ws", "tls": "wss", "wss": "wss"}
CLIENTS: dict[str, dict[str, Any]] = {
    "amqp": {},
    "stomp": {"binary": False},
    "stomp, binary": {"binary": True},
    "mqtt 3.1": {"version": 3},
    "mqtt 3.1.1": {"version": 4},
    "mqtt 5": {"version": 5},
}


@pytest.fixture
def exchange(broker: BrokerProcess, name: str, certificates: Path) -> Callable[[str, str, int], None]:
    """A function that sends one message, whose size goes with the last number, and gets it back."""

    def run_client(client: str, acceptor: str, times: int) -> None:
        url = f"{SCHEMES[acceptor]}://localhost:{broker.ports[acceptor]}/"
        given = {"url": url, "address": name, "times": times, **CLIENTS[client]}
        scenario = client.partition(",")[0].partition(" ")[0]
        found = run("websocket_clients.js", scenario, broker, trusted=str(certificates / "ca.pem"), **given)
        assert found == "grüße " * times

    return run_client


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_on_the_port_of_all(exchange: Callable[[str, str, int], None], client: str) -> None:
    exchange(client, "all", TIMES)


@pytest.mark.parametrize("acceptor", ["ws", "tls", "wss"])
@pytest.mark.parametrize("client", ["amqp", "stomp", "mqtt 5"])
def test_on_its_own_and_with_tls(exchange: Callable[[str, str, int], None], client: str, acceptor: str) -> None:
    exchange(client, acceptor, 1)
