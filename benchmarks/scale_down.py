"""How fast a broker is emptied into another one of its cluster. Prints a table.

    .venv/bin/python -m benchmarks.scale_down [--messages N] [--size 1024] [--queues 1] [--runs 3] [--directory DIR]

Two brokers as processes on this host, one disk. The first one's queues are filled with durable messages, then it is
drained: the time is from the request to the drain until its state is "drained", when all is on the other's disk. "stop"
is what SIGTERM takes then. Nothing here is asserted; tests/e2e/test_scale_down.py checks that it is right.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.broker import PASSWORD, USER
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until

#: The product's default size of a segment, where tests have small ones.
_SEGMENT = "10M"
_DRAIN = "/api/v1/cluster/drain"
COLUMNS = ("messages", "size", "queues", "drained s", "messages/s", "MiB/s", "stop s")


def fill(node: ClusterNode, queues: int, messages: int, size: int) -> None:
    """Send so many messages to each queue in turn, and wait until the last one is confirmed."""
    frames = [
        b"SEND\ndestination:q%d\npersistent:true\ncontent-length:%d\n\n%b\0" % (queue, size, b"x" * size)
        for queue in range(queues)
    ]
    with socket.create_connection(("127.0.0.1", node.ports["all"])) as connection:
        login = f"CONNECT\naccept-version:1.2\nhost:h\nlogin:{USER}\npasscode:{PASSWORD}\n\n\0"
        connection.sendall(login.encode())
        connection.recv(4096)
        for number in range(messages):
            connection.sendall(frames[number % queues])
        connection.sendall(b"SEND\ndestination:q0\npersistent:true\nreceipt:last\n\nlast\0")
        answer = b""
        while b"receipt-id:last" not in answer:
            got = connection.recv(4096)
            if not got:
                raise SystemExit(f"the broker ended the connection: {answer!r}")
            answer += got


def run(directory: Path, queues: int, messages: int, size: int) -> tuple[str, ...]:
    """Fill, drain and stop; return a row."""
    with Nodes(directory, 2) as nodes:
        for node in nodes.all:
            node.stop()
            text = node.configuration.read_text()
            node.configuration.write_text(text.replace("<journal-file-size>1M<", f"<journal-file-size>{_SEGMENT}<"))
            node.start()
        nodes.wait_until_linked()
        one = nodes.all[0]
        fill(one, queues, messages, size)
        wait_until(lambda: one.api(_DRAIN)["targets"] != [], "the other node takes messages")
        began = time.perf_counter()
        one.api(_DRAIN, method="POST")
        wait_until(lambda: one.api(_DRAIN)["state"] == "drained", "everything is handed over", seconds=600)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        one.stop()
        stopped = time.perf_counter() - began
    rate = messages / seconds
    figures = (f"{seconds:.2f}", f"{rate:,.0f}", f"{rate * size / (1 << 20):.1f}", f"{stopped:.2f}")
    return (f"{messages:,}", str(size), str(queues), *figures)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    given = parser.parse_args()
    table = Table(title="Scale-down", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            table.add_row(*run(Path(directory), given.queues, given.messages, given.size))
    Console().print(table)


if __name__ == "__main__":
    main()
