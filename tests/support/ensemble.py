"""Three ZooKeeper servers on loopback, of which one follower can be cut off from the leader without noticing it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from support.broker import free_port
from support.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from pathlib import Path

#: Milliseconds, and ticks: a follower that hears nothing believes in its leader for the product of both.
TICK, SYNC_LIMIT = 100, 600
_PIECE = 65536


class Link:
    """A way to a port on loopback. While it is cut nothing arrives at either side, and neither side is told so."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._passes = threading.Event()
        self._passes.set()
        self._ended = False
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing pass any more."""
        self._passes.clear()

    def close(self) -> None:
        """End all connections."""
        self._ended = True
        self._passes.set()
        for one in (self._server, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self._sockets.append(near)
                self._passes.wait()
                if self._ended:
                    return
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._passes.wait()
                target.sendall(piece)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Ensemble:
    """Servers 1, 2 and 3. The first one never leads: it is started last, and its number is the lowest."""

    def __init__(self, directory: Path) -> None:
        ports = {number: (free_port(), free_port()) for number in (1, 2, 3)}
        self.links = {number: Link(ports[number][0]) for number in (2, 3)}
        self.servers: dict[int, ZooKeeperProcess] = {}
        for number in ports:
            lines = [f"tickTime={TICK}", "initLimit=600", f"syncLimit={SYNC_LIMIT}", "standaloneEnabled=false"]
            for other, (peer, election) in ports.items():
                # It is the follower that connects to its leader.
                seen = self.links[other].port if number == 1 and other in self.links else peer
                lines.append(f"server.{other}=127.0.0.1:{seen}:{election}")
            self.servers[number] = ZooKeeperProcess(
                directory / f"server{number}", number=number, ensemble="\n".join(lines) + "\n"
            )

    def start(self) -> Self:
        """Start them; a leader is there, and the first one follows it."""
        for numbers in ((2, 3), (1,)):
            for number in numbers:
                self.servers[number].launch()
            for number in numbers:
                self.servers[number].await_answer()
        return self

    def isolate(self) -> None:
        """Cut the first one off. It goes on answering what needs no leader."""
        for link in self.links.values():
            link.cut()

    @property
    def follower(self) -> str:
        """Where clients of the first one connect to."""
        return self.servers[1].connect_string

    @property
    def majority(self) -> str:
        """Where clients of the others connect to."""
        return f"{self.servers[2].connect_string},{self.servers[3].connect_string}"

    def stop(self) -> None:
        """Kill them."""
        for server in self.servers.values():
            server.stop()
        for link in self.links.values():
            link.close()
