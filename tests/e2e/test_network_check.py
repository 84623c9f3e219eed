"""A live whose host is cut off from the network gives the right to serve away, and waits until the network is back."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from harness.failover import wait_until
from harness.replication import PEER, Pair, file_manager

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)


class Alive(BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def web(port: int = 0) -> HTTPServer:
    """A web server."""
    found = HTTPServer(("127.0.0.1", port), Alive)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    return found


def end(server: HTTPServer) -> None:
    """Nobody listens any more."""
    server.shutdown()
    server.server_close()


def test_a_live_that_is_cut_off_hands_over_and_comes_back(tmp_path: Path) -> None:
    server = web()
    port = server.server_address[1]
    checks = (
        f"<network-check-URL-list>http://127.0.0.1:{port}/</network-check-URL-list>"
        "<network-check-period>200</network-check-period><network-check-timeout>10000</network-check-timeout>"
    )
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PEER, PEER) as pair:
        first, second = pair.replicas
        text = first.configuration.read_text()
        assert "<cluster-user>" in text
        first.configuration.write_text(text.replace("<cluster-user>", checks + "<cluster-user>", 1))
        pair.start()
        pair.start_traffic(pause=0.02)
        pair.wait_for_confirms(30)
        pair.fault("the live is cut off from the network, not from its backup")
        end(server)
        second.wait_for("live")
        pair.wait_for_confirms(30)
        # Not while it stops and starts again, which it does for the same reason.
        first.wait_for("catching_up")
        wait_until(lambda: "cut off from the network" in first.activation.get("reason", ""), "the first one says why")
        assert str(port) in first.activation["warnings"][0]
        wait_until(lambda: first.replication.get("in_sync"), "it follows all the same")
        server = web(port)
        pair.wait_for_sync(first)
        pair.finish()
    end(server)
