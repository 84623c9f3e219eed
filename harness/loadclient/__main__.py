"""Run one load and print what it measured as one line of JSON; see `--help`. A process of its own.

python -m harness.loadclient --protocol amqp --port 5672 --messages 200000 --window 512 --size 100 --consumers 1
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from harness.loadclient import process
from harness.loadclient.amqp import AmqpConsumer, AmqpProducer
from harness.loadclient.connection import LoadError, run
from harness.loadclient.mqtt import MqttConsumer, MqttProducer
from harness.loadclient.stomp import StompConsumer, StompProducer
from harness.loadclient.target import Target
from harness.loadclient.traffic import Goal, Window, percentile

if TYPE_CHECKING:
    from harness.loadclient.connection import Connection


@dataclass(slots=True)
class Result:
    """Hold what one run measured."""

    protocol: str
    producers: int
    consumers: int
    window: int
    size: int
    queues: int
    messages: int
    seconds: float
    #: Messages per second: confirmed, and with consumers also received.
    rate: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    #: CPU seconds per second of the broker's process tree (1 = one core), and of this client.
    broker_cpu: float | None
    client_cpu: float
    broker_rss_mib: float | None


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="harness.loadclient", description="Drive a broker and measure it.")
    parser.add_argument("--protocol", choices=("amqp", "stomp", "mqtt"), required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--consumer-port", type=int, help="consumers take from another broker of the same host")
    parser.add_argument("--user", default="")
    parser.add_argument("--password", default=os.environ.get("LOADCLIENT_PASSWORD", ""), help="or LOADCLIENT_PASSWORD")
    parser.add_argument("--virtual-host", default="")
    parser.add_argument("--messages", type=int, help="send so many in all, instead of --seconds")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--window", type=int, default=512, help="unconfirmed messages per producer")
    parser.add_argument("--credit", type=int, default=1000, help="AMQP consumers: messages on their way at most")
    parser.add_argument("--size", type=int, default=100, help="bytes of the body")
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--consumers", type=int, default=0, help="0: publish and confirm only")
    parser.add_argument("--waiting", type=int, default=0, help="receive so many more messages, which wait already")
    parser.add_argument("--queue", default="load")
    parser.add_argument("--queues", type=int, default=1, help="spread over so many queues, numbered")
    parser.add_argument("--own-queues", action="store_true", help="each producer and consumer pair has its own queues")
    parser.add_argument("--ack-individually", action="store_true", help="STOMP: one ACK for each message")
    parser.add_argument("--pid", type=int, help="the broker's process, to measure its CPU and memory")
    for name in ("amqp-address", "stomp-destination", "mqtt-topic"):
        parser.add_argument(f"--{name}", default="{}", help="how this broker names a queue: {} is the name")
    parser.add_argument("--amqp-capability", default="queue")
    parser.add_argument("--amqp-durable", type=int, default=0, help="durable field of sources and targets")
    parser.add_argument("--stomp-subscribe-header", action="append", default=[])
    parser.add_argument("--stomp-send-header", action="append", default=[])
    return parser.parse_args()


def names(options: argparse.Namespace, pattern: str, member: int) -> list[str]:
    """Return the queues of one producer or consumer, as the protocol names them."""
    base = f"{options.queue}{member:03}" if options.own_queues else options.queue
    if options.queues == 1:
        return [pattern.format(base)]
    return [pattern.format(f"{base}.{number:05}") for number in range(options.queues)]


def connect(options: argparse.Namespace, goal: Goal, windows: list[Window]) -> list[Connection]:
    """Open every connection; consumers first, so that their queues exist."""
    target = Target(
        host=options.host,
        port=options.port,
        user=options.user,
        password=options.password,
        virtual_host=options.virtual_host,
        amqp_address=options.amqp_address,
        amqp_capability=options.amqp_capability,
        amqp_durable=options.amqp_durable,
        stomp_subscribe_headers="".join(f"{line}\n" for line in options.stomp_subscribe_header),
        stomp_send_headers="".join(f"{line}\n" for line in options.stomp_send_header),
    )
    there = replace(target, port=options.consumer_port) if options.consumer_port else target
    body = (b"Pollux! " * (options.size // 8 + 1))[: options.size]
    run_name = f"load-{os.getpid()}"
    connections: list[Connection] = []
    for member in range(options.consumers):
        if options.protocol == "amqp":
            queues = names(options, "{}", member)
            connections.append(AmqpConsumer(there, queues, goal, f"{run_name}-c{member}", options.credit))
        elif options.protocol == "stomp":
            queues = names(options, options.stomp_destination, member)
            connections.append(StompConsumer(there, queues, goal, individually=options.ack_individually))
        else:
            queues = names(options, options.mqtt_topic, member)
            connections.append(MqttConsumer(there, queues, goal, f"{run_name}-c{member}"))
    for member, window in enumerate(windows):
        if options.protocol == "amqp":
            queues = names(options, "{}", member)
            connections.append(AmqpProducer(target, queues, body, window, f"{run_name}-p{member}"))
        elif options.protocol == "stomp":
            queues = names(options, options.stomp_destination, member)
            connections.append(StompProducer(target, queues, body, window))
        else:
            queues = names(options, options.mqtt_topic, member)
            if not options.consumers:  # a session that is away stores them; without one MQTT drops messages
                MqttConsumer(target, queues, goal, f"{run_name}-away{member}").close()
            connections.append(MqttProducer(target, queues, body, window, f"{run_name}-p{member}"))
    return connections


def main() -> int:
    """Run; exit status 0 done, 1 the broker refused or fell silent."""
    options = parse()
    goal = Goal(
        options.messages,
        options.seconds,
        producers=options.producers,
        consumers=options.consumers,
        waiting=options.waiting,
    )
    windows = [Window(goal, options.window) for _ in range(options.producers)]
    try:
        connections = connect(options, goal, windows)
        broker_before = process.cpu_seconds(options.pid) if options.pid else 0.0
        usage = resource.getrusage(resource.RUSAGE_SELF)
        client_before = usage.ru_utime + usage.ru_stime
        goal.started = time.perf_counter()
        run(connections)
        elapsed = time.perf_counter() - goal.started
        usage = resource.getrusage(resource.RUSAGE_SELF)
        client_cpu = (usage.ru_utime + usage.ru_stime - client_before) / elapsed
        broker_cpu = (process.cpu_seconds(options.pid) - broker_before) / elapsed if options.pid else None
        rss = process.resident_bytes(options.pid) / 2**20 if options.pid else None
        for connection in connections:
            connection.close()
    except (LoadError, OSError) as error:
        sys.stderr.write(f"loadclient: {error}\n")
        return 1
    latencies = [item for window in windows for item in window.latencies]
    result = Result(
        protocol=options.protocol,
        producers=options.producers,
        consumers=options.consumers,
        window=options.window,
        size=options.size,
        queues=options.queues,
        messages=goal.sent,
        seconds=round(elapsed, 3),
        rate=round(goal.sent / elapsed, 1),
        p50_ms=round(percentile(latencies, 0.50), 3),
        p99_ms=round(percentile(latencies, 0.99), 3),
        max_ms=round(percentile(latencies, 1.0), 3),
        broker_cpu=None if broker_cpu is None else round(broker_cpu, 3),
        client_cpu=round(client_cpu, 3),
        broker_rss_mib=None if rss is None else round(rss, 1),
    )
    print(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
