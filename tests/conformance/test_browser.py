"""WebSocket in a browser: rhea, stompjs and MQTT.js, as they are made for browsers, in one headless Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness import chromium
from harness.broker import PASSWORD, USER

if TYPE_CHECKING:
    from harness.broker import BrokerProcess

#: More than one frame's short length, and than one read of a socket.
TIMES = 5_000
CLIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rhea": ("amqp", {}),
    "stompjs": ("stomp", {"binary": True}),
    "MQTT.js": ("mqtt", {"version": 5}),
}


@pytest.fixture(scope="module")
def found(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each client got, of one browser for all."""
    common = {"url": f"ws://localhost:{broker.ports['all']}/", "user": USER, "password": PASSWORD, "times": TIMES}
    given = {
        name: (scenario, {**common, "address": f"browser.{scenario}", **more})
        for name, (scenario, more) in CLIENTS.items()
    }
    return chromium.run(given, tmp_path_factory.mktemp("chromium"))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_in_a_browser_gets_what_it_sends(client: str, found: dict[str, dict[str, Any]]) -> None:
    assert found[client] == {"found": "grüße " * TIMES}
