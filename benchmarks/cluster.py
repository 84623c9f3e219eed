"""Clusters: produced on one node and consumed on another, redirects, a backlog that moves, twelve nodes on one machine.

    .venv/bin/python -m benchmarks.cluster                       # all parts
    .venv/bin/python -m benchmarks.cluster --only nodes --write  # one of them; rewrites docs/benchmarks.md when all ran

Durable storage in a temporary directory, everything on loopback. Nothing is asserted here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers
from benchmarks.failover_pairs import default_journal
from benchmarks.report import markdown, show, write_section
from benchmarks.shares import NoSharesError, put
from benchmarks.shares import share as a_share
from benchmarks.throughput import RUN_LIMIT
from harness.broker import PASSWORD, USER
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until
from harness.loadclient.process import cpu_seconds
from harness.ports import free_port
from pollux.client import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("forward", "shares", "redirect", "move", "nodes")
PROTOCOLS = ("amqp", "stomp", "mqtt")
#: Of a processor, for each broker: the client needs about as much as one, and nobody is to wait for a processor.
SHARE = 0.4
COLUMNS = ("what", "measured", "goal")
NODES, QUEUES = 12, 1000
IDLE_SECONDS = 10.0
Row = tuple[str, str, str]


def load(node: ClusterNode, *words: str) -> dict[str, Any]:
    """Run the load client against a node; return what it measured."""
    return run("--port", str(node.port), "--user", USER, *words)


def run(*words: str) -> dict[str, Any]:
    """Run the load client; return what it measured."""
    command = [sys.executable, "-m", "harness.loadclient", *words]
    environment = {**os.environ, "LOADCLIENT_PASSWORD": PASSWORD}
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=RUN_LIMIT, check=True, env=environment
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def forward(directory: Path, rounds: int, seconds: float) -> Iterator[Row]:
    """Compare what goes through one broker with what goes from one node to another, alternating.

    Two nodes, the client and whatever else runs share the machine's processors: what each node spends on a message
    is told beside the rates, and depends less on that. Journals are as large as they are by default.
    """
    for protocol in PROTOCOLS:
        by_one, across, spent = _compared(directory / protocol, protocol, rounds, seconds)
        what = f"{protocol.upper()}: produced on one node, consumed on another, window 512, 100 B"
        yield what, f"{across:,.0f}/s, {across / by_one:.0%} of one broker's {by_one:,.0f}/s", "60 %"
        on_one, on_a, on_b = (f"{each:.0f} ms" for each in spent)
        yield (
            f"{protocol.upper()}: processor time of 1,000 messages",
            f"{on_a} the producer's node, {on_b} the consumer's; one broker {on_one}",
            "-",
        )
        yield from _beside_rabbitmq(directory / f"rabbitmq-{protocol}", protocol, rounds, seconds, across)


def shares(directory: Path, rounds: int, seconds: float) -> Iterator[Row]:
    """Compare as `forward` does where each broker has the same share of a processor, and the client what is left."""
    try:
        for protocol in PROTOCOLS:
            by_one, across, _ = _compared(directory / f"shares-{protocol}", protocol, rounds, seconds, share=SHARE)
            what = f"{protocol.upper()}: the same where each broker has {SHARE:g} of a processor for itself"
            yield what, f"{across:,.0f}/s, {across / by_one:.0%} of one broker's {by_one:,.0f}/s", "60 %"
    except NoSharesError as error:
        sys.stderr.write(f"{error}\n")


def _compared(
    directory: Path, protocol: str, rounds: int, seconds: float, share: float = 0.0
) -> tuple[float, float, list[float]]:
    """Return the rate of one broker, that across two nodes, and what each of the three spent on 1,000 messages (ms).

    ``share``: of a processor that each of the three has; 0: what it gets.
    """
    single, both = Nodes(directory / "single", 1), Nodes(directory / "pair", 2)
    default_journal((*single.all, *both.all))
    with ExitStack() as stack:
        groups = [stack.enter_context(a_share(share, number)) for number in range(3)] if share else []
        (alone,), (one, two) = stack.enter_context(single).all, stack.enter_context(both).all
        for group, node in zip(groups, (alone, one, two), strict=False):
            assert node.process is not None
            put(group, node.process.pid)
        rates: tuple[list[float], list[float]] = [], []
        spent: dict[ClusterNode, list[float]] = {node: [] for node in (alone, one, two)}
        words = ("--protocol", protocol, "--window", "512", "--consumers", "1", "--seconds", str(seconds))
        there = ("--consumer-port", str(two.port))
        # Without that a topic gets a queue of its name where it is published, if nobody subscribes there, and each
        # message is stored twice: for that queue, which nobody reads, and for the other node.
        suffix = "/topic" if protocol == "mqtt" else ""
        load(one, *words[:-1], "1", *there, "--queue", f"warm{protocol}{suffix}")
        for turn in range(rounds):
            name = f"{protocol}{turn}{suffix}"
            rates[0].append(_load((alone,), spent, alone, *words, "--queue", name))
            rates[1].append(_load((one, two), spent, one, *words, *there, "--queue", name))
    by_one, across = map(statistics.median, rates)
    return by_one, across, [statistics.median(each) for each in spent.values()]


def _beside_rabbitmq(directory: Path, protocol: str, rounds: int, seconds: float, ours: float) -> Iterator[Row]:
    """Where RabbitMQ is installed: produced on one of two clustered nodes, consumed on the other, which has the queue.

    A queue is on the node where it was declared first. MQTT's are those of its sessions: on the consumer's node.
    """
    if not peers.RABBITMQ.exists():
        return
    directory.mkdir()
    rates = []
    with ExitStack() as stack:
        one, two = nodes = peers.start_rabbitmq_cluster(directory)
        for node in nodes:  # the last one is stopped first
            stack.callback(node.stop)
        words = ("--window", "512", "--consumers", "1")
        there = ("--consumer-port", str(two.ports[protocol]))
        for turn in range(rounds):
            name = ("--queue", f"{protocol}{turn}")
            run(*two.load_options(protocol), *words, "--messages", "1", *name)
            rates.append(run(*one.load_options(protocol), *words, *there, "--seconds", str(seconds), *name)["rate"])
    theirs = statistics.median(rates)
    what = f"{protocol.upper()}: the same with two clustered nodes of RabbitMQ, the queue on the consumer's"
    yield what, f"{theirs:,.0f}/s; ours is {ours / theirs:.1f} times that", "2 times"


def _load(nodes: Sequence[ClusterNode], spent: dict[ClusterNode, list[float]], node: ClusterNode, *words: str) -> float:
    """Return the rate of a load; what the nodes spent on 1,000 messages of it (milliseconds) is added to ``spent``."""
    before = {each: cpu_seconds(each.process.pid) for each in nodes if each.process is not None}
    found = load(node, *words)
    for each, at_first in before.items():
        if each.process is not None:
            took = cpu_seconds(each.process.pid) - at_first
            spent[each].append(took * 1e6 / max(1, found["messages"]))
    return float(found["rate"])


def redirect(directory: Path, times: int = 100) -> Iterator[Row]:
    """Time our client's connect to an acceptor that serves it, and to one whose router sends it to the other node."""
    router = (
        '<connection-routers><connection-router name="away"><key-type>USER_NAME</key-type>'
        '<policy name="FIRST_ELEMENT"/><pool><static-connectors><connector-ref>n1</connector-ref></static-connectors>'
        "</pool></connection-router></connection-routers>"
    )
    with Nodes(directory / "redirect", 2) as pair:
        one, two = pair.all
        port = free_port()
        text = one.configuration.read_text().replace("</core>", f"{router}</core>")
        acceptor = f'<acceptor name="away">tcp://127.0.0.1:{port}?protocols=AMQP;router=away</acceptor></acceptors>'
        one.configuration.write_text(text.replace("</acceptors>", acceptor))
        one.stop()
        one.start()
        wait_until(lambda: one.api("/api/v1/cluster/routers")["items"][0]["ready"] == 1, "the router is ready")
        direct = asyncio.run(_connects(two.port, times))
        away = asyncio.run(_connects(port, times))
        more = (statistics.median(away) - statistics.median(direct)) * 1000
        share = f"{statistics.median(away) * 1000:.1f} ms in place of {statistics.median(direct) * 1000:.1f} ms"
        yield "AMQP: a connect that is sent to another node", f"{more:.1f} ms more ({share})", "below 20 ms"


async def _connects(port: int, times: int) -> list[float]:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        client = await connect(f"tcp://127.0.0.1:{port}", user=USER, password=PASSWORD)
        took.append(time.perf_counter() - began)
        await client.close()
    return took


def move(directory: Path, messages: int) -> Iterator[Row]:
    """Time how a backlog goes to a consumer on another node: the first half alone, then while its producers go on."""
    nodes = Nodes(directory / "move", 2)
    default_journal(nodes.all)
    with nodes as pair:
        one, two = pair.all
        size = ("--protocol", "amqp", "--size", "1024", "--window", "512")
        load(one, *size, "--messages", str(messages), "--queue", "backlog")
        before = load(one, *size, "--seconds", "4", "--queue", "other")["rate"]
        consumer = subprocess.Popen(
            [
                *(sys.executable, "-m", "harness.loadclient", "--protocol", "amqp", "--port", str(one.port)),
                *("--consumer-port", str(two.port), "--user", USER, "--queue", "backlog", "--size", "1024"),
                *("--consumers", "1", "--messages", "1", "--waiting", str(messages)),
            ],
            cwd=ROOT,
            env={**os.environ, "LOADCLIENT_PASSWORD": PASSWORD},
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: _left(one) < messages, "it begins", RUN_LIMIT)
        alone = _drained(one, lambda left: left <= messages // 2)
        began, left = time.monotonic(), _left(one)
        beside = load(one, *size, "--seconds", "4", "--queue", "other")["rate"]
        meanwhile = (left - _left(one)) / (time.monotonic() - began)
        _drained(one, lambda left: not left or consumer.poll() is not None)
        consumer.kill()
        consumer.wait()
        yield f"a backlog of {messages:,} of 1 KiB moves to a consumer elsewhere", f"{alone:,.0f}/s", "30,000/s"
        yield "the same beside its node's producers", f"{meanwhile:,.0f}/s", "-"
        yield "these producers meanwhile", f"{beside / before:.0%} of {before:,.0f}/s", "50 %"


def _left(node: ClusterNode) -> int:
    return node.messages().get("backlog", 0)


def _drained(node: ClusterNode, enough: Callable[[int], bool]) -> float:
    """Wait until enough has left the backlog; return how many did in a second. Few questions: each costs the node."""
    began, before = time.monotonic(), _left(node)
    while not enough(left := _left(node)):
        if time.monotonic() - began > RUN_LIMIT:
            raise TimeoutError(f"{left:,} messages are left after {RUN_LIMIT:g} s")
        time.sleep(0.1)
    return (before - left) / max(0.001, time.monotonic() - began)


def nodes(directory: Path) -> Iterator[Row]:
    """Start twelve nodes, wait until they know each other, look at them idle, kill one."""
    cluster = Nodes(directory / "nodes", NODES)
    try:
        for node in cluster.all:
            node.spawn()
        for node in cluster.all:
            node.wait_until_ready()
        began = time.monotonic()
        cluster.wait_until_linked()
        yield f"{NODES} nodes know each other after the last start", f"{time.monotonic() - began:.1f} s", "5 s"
        for node in cluster.all:
            for number in range(QUEUES):
                body = {"name": f"{node.name}.{number}", "address": f"{node.name}.{number}", "routingType": "ANYCAST"}
                node.api("/api/v1/queues", method="POST", body=body)
        wanted = QUEUES * (NODES - 1)
        wait_until(
            lambda: all(len(node.cluster["routes"]) >= wanted for node in cluster.all), "all is known", RUN_LIMIT
        )
        pids = [node.process.pid for node in cluster.all if node.process is not None]
        before = sum(map(cpu_seconds, pids))
        time.sleep(IDLE_SECONDS)
        share = (sum(map(cpu_seconds, pids)) - before) / IDLE_SECONDS / NODES
        yield f"processor of an idle node among {NODES} with {QUEUES:,} queues each", f"{share:.1%} of a core", "1 %"
        victim, *others = cluster.all
        victim.kill()
        began = time.monotonic()
        wait_until(lambda: all(node.links() == NODES - 2 for node in others), "it is passed over", RUN_LIMIT)
        yield "a killed node is passed over by all others", f"{time.monotonic() - began:.2f} s", "1 s"
    finally:
        for node in cluster.all:
            if node.running:
                node.kill()


def main() -> None:
    """Measure and print; with --write also into the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the backlog that moves")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md, of all parts only")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pollux-cluster-") as directory:
        base = Path(directory)
        if "forward" in arguments.only:
            rows += forward(base, arguments.rounds, arguments.seconds)
        if "shares" in arguments.only:
            rows += shares(base, arguments.rounds, arguments.seconds)
        if "redirect" in arguments.only:
            rows += redirect(base)
        if "move" in arguments.only:
            rows += move(base, arguments.messages)
        if "nodes" in arguments.only:
            rows += nodes(base)
    show(COLUMNS, rows, "clusters")
    if arguments.write and set(arguments.only) == set(PARTS):
        write_section("cluster", markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
