"""Three brokers that are a cluster, on this machine and without root: produced on one, consumed on another, one killed.

    make demo-cluster

node2 and node3 name node1 alone; they hear of each other from it. Messages are sent to node1 and taken from node3,
which is killed with SIGKILL in between: what is sent meanwhile waits, and moves to it when it is back. Everything is in
a temporary directory, and the brokers are stopped at the end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from asyncio import FIRST_COMPLETED
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from pollux.client import ClientError, Message, connect

POLLUX = str(Path(sys.executable).parent / "pollux")
MESSAGES = 3000
LIMIT = 60.0
XML = """<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
  <core xmlns="urn:activemq:core">
    <name>{name}</name>
    <security-enabled>false</security-enabled>
    <acceptors><acceptor name="all">tcp://127.0.0.1:{port}</acceptor></acceptors>
    <connectors>
      <connector name="me">tcp://127.0.0.1:{port}</connector>
      <connector name="node1">tcp://127.0.0.1:{first}</connector>
    </connectors>
    <cluster-user>nodes</cluster-user>
    <cluster-password>only for this demo</cluster-password>
    <cluster-connections>
      <cluster-connection name="demo">
        <connector-ref>me</connector-ref>
        <retry-interval>100</retry-interval>
        <static-connectors><connector-ref>{member}</connector-ref></static-connectors>
      </cluster-connection>
    </cluster-connections>
    <address-settings>
      <address-setting match="#">
        <redistribution-delay>0</redistribution-delay>
        <default-queue-routing-type>ANYCAST</default-queue-routing-type>
        <default-address-routing-type>ANYCAST</default-address-routing-type>
        <auto-delete-queues>false</auto-delete-queues>
      </address-setting>
    </address-settings>
  </core>
  <px:management><px:port>{management}</px:port></px:management>
</configuration>
"""
console = Console(highlight=False, soft_wrap=True)


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


class Node:
    """One broker: its directory, its ports, its process."""

    def __init__(self, directory: Path, number: int, port: int, first: int) -> None:
        self.name = f"node{number}"
        self.port = port
        self._directory = directory / self.name
        (self._directory / "etc").mkdir(parents=True)
        self.configuration = self._directory / "etc" / "broker.xml"
        self.configuration.write_text(
            XML.format(
                name=self.name,
                port=port,
                first=first,
                member="me" if port == first else "node1",
                management=free_port(),
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        ready = self._directory / "ports.json"
        ready.unlink(missing_ok=True)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [POLLUX, "run", str(self.configuration), "--ports-file", str(ready)],
                cwd=self._directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(ready.exists, f"{self.name} serves (see {self._directory / 'log'})")

    def end(self, number: signal.Signals) -> None:
        """End it by a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait()

    def ask(self, *words: str) -> Any:
        """Return what a command of `pollux` says of it."""
        command = [POLLUX, *words, "--json", "--config", str(self.configuration)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT)
        return json.loads(done.stdout)

    @property
    def links(self) -> Any:
        """The other nodes, and what waits for each."""
        return self.ask("cluster", "links")

    @property
    def routes(self) -> Any:
        """The queues of other nodes."""
        return self.ask("cluster", "routes")

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"tcp://127.0.0.1:{self.port}?reconnectAttempts=-1&retryInterval=50"


def wait_until(condition: Any, what: str) -> None:
    """Wait for a condition, within a minute."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"demo: not within {LIMIT:g} s: {what}")
        time.sleep(0.05)


def text_of(body: bytes | str) -> str:
    """Return a body as text."""
    return body if isinstance(body, str) else body.decode()


async def consume(node: Node, found: Counter[str], everything: asyncio.Event) -> None:
    """Take messages from a node, also after it was killed; count how often each came."""
    while True:
        try:
            async with await connect(node.url) as connection:
                consumer = await (await connection.session()).consumer("orders")
                while True:
                    delivery = await consumer.receive(timeout=LIMIT)
                    if delivery is not None:
                        found[text_of(delivery.body)] += 1
                        delivery.accept()
                        if len(found) == MESSAGES:
                            everything.set()
        except (ClientError, OSError):
            await asyncio.sleep(0.1)


async def produce(node: Node, numbers: range) -> None:
    """Send messages to a node; each is on its disk when this returns."""
    async with await connect(node.url) as connection:
        producer = await (await connection.session()).producer("orders")
        for number in numbers:
            await producer.send(Message(str(number)))


async def traffic(one: Node, three: Node) -> Counter[str]:
    """Produce on one node and consume on another one, which is killed meanwhile; return what was received."""
    found, everything = Counter[str](), asyncio.Event()
    consumer = asyncio.create_task(consume(three, found, everything))
    await asyncio.to_thread(
        wait_until, lambda: any(route["consumers"] for route in one.ask("cluster", "routes")), "it is known"
    )
    third = MESSAGES // 3
    await produce(one, range(third))
    console.print(f"  {third:,} messages sent to node1; kill -9 node3")
    three.end(signal.SIGKILL)
    await produce(one, range(third, 2 * third))
    console.print(f"  {third:,} more sent while it is gone; `pollux cluster links` and `pollux queue list` on node1:")
    for link in one.links:
        stands = "stands" if link["connected"] else f"does not stand ({link['reason']})"
        console.print(f"    the link to {link['node']} {stands}; {link['waiting']:,} messages wait for it")
    for queue in one.ask("queue", "list"):
        if queue["name"] == "orders":
            # Its client knows the other nodes, and goes on at one of them.
            console.print(f"    {queue['messages']:,} wait in its own queue; consumers there: {queue['consumers']}")
    await asyncio.to_thread(three.start)
    console.print("  node3 is back")
    await produce(one, range(2 * third, MESSAGES))
    await asyncio.wait([consumer, asyncio.create_task(everything.wait())], timeout=LIMIT, return_when=FIRST_COMPLETED)
    if consumer.done():
        consumer.result()  # it never ends but by an error
    consumer.cancel()
    return found


def main() -> int:
    """Run the demo; exit status 0 when everything arrived, 1 when something did not."""
    with tempfile.TemporaryDirectory(prefix="pollux-cluster-") as directory:
        ports = [free_port() for _ in range(3)]
        nodes = [Node(Path(directory), number, port, ports[0]) for number, port in enumerate(ports, start=1)]
        try:
            for node in nodes:
                node.start()
                console.print(f"  {node.name} serves on port {node.port}")
            one, _, three = nodes
            wait_until(
                lambda: len([link for link in three.ask("cluster", "links") if link["connected"]]) == 2,
                "all are linked",
            )
            console.print("  node3 named node1 alone, and is linked to node1 and node2")
            found = asyncio.run(traffic(one, three))
        finally:
            for node in nodes:
                node.end(signal.SIGTERM)
    missing = {str(number) for number in range(MESSAGES)} - set(found)
    again = found.total() - len(found)
    console.print(
        f"  {MESSAGES:,} sent, {len(found):,} received, {len(missing)} lost, {again} delivered again after the kill"
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
