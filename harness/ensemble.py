"""Three ZooKeeper servers on loopback, of which one follower can be cut off from the leader without noticing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from harness.ports import free_port
from harness.relay import Relay
from harness.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from pathlib import Path

#: Milliseconds, and ticks: a follower that hears nothing believes in its leader for the product of both.
TICK, SYNC_LIMIT = 100, 600


class Ensemble:
    """Servers 1, 2 and 3. The first one never leads: it is started last, and its number is the lowest."""

    def __init__(self, directory: Path) -> None:
        ports = {number: (free_port(), free_port()) for number in (1, 2, 3)}
        self.links = {number: Relay(ports[number][0]) for number in (2, 3)}
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

    def heal(self) -> None:
        """Let the first one hear its leader again."""
        for link in self.links.values():
            link.heal()

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
