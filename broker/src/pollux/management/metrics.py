"""Prometheus metrics: counters the broker keeps anyway, read when somebody asks.

Rendered family by family with a turn of the loop between, so that thousands of queues do not hold messages up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import PROCESS_COLLECTOR, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pollux.ha.machine import Phase
from pollux.management import lives, router_metrics
from pollux.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from pollux.cluster.connection.connections import Connections
    from pollux.ha.activation import Activation
    from pollux.node.engine import Engine
    from pollux.process.broker import Broker
    from pollux.routing.queue import Queue
    from pollux.store.latency import LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_QUEUE_GAUGES: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
    ("messages_delivering", "Messages with consumers, not acknowledged yet.", lambda queue: queue.delivering),
    ("messages_scheduled", "Messages that wait for their time.", lambda queue: queue.scheduled),
    ("messages_on_disk_only", "Messages that are not in memory.", lambda queue: queue.cold),
    ("bytes", "Memory of the queue's messages.", lambda queue: queue.bytes),
    ("consumers", "Consumers.", lambda queue: queue.consumer_count),
    ("paused", "1 while deliveries are paused.", lambda queue: float(queue.paused)),
)
_QUEUE_COUNTERS: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
    ("messages_added", "Messages that entered the queue.", lambda queue: queue.counters.added),
    ("messages_acknowledged", "Messages consumed.", lambda queue: queue.counters.acknowledged),
    ("messages_expired", "Messages expired.", lambda queue: queue.counters.expired),
    ("messages_killed", "Messages that became dead letters.", lambda queue: queue.counters.killed),
    ("messages_replaced", "Messages displaced by last value or ring.", lambda queue: queue.counters.replaced),
    ("messages_removed", "Messages removed by management.", lambda queue: queue.counters.removed),
)


class _One(Collector):
    """A collector of one family, which is all that ``generate_latest`` asks of a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def render(broker: Broker) -> bytes:
    """All metrics in Prometheus' text format."""
    parts = []
    for family in families(broker):
        parts.append(generate_latest(_One(family)))
        await asyncio.sleep(0)
    return b"".join(parts)


def families(broker: Broker) -> Iterator[Metric]:
    """Yield every metric, computed one after the other as the caller asks for them."""
    node = broker.node
    yield from PROCESS_COLLECTOR.collect()
    yield InfoMetricFamily("pollux_broker", "The broker.", {"name": node.configuration.name, "version": VERSION})
    yield _gauge("ready", "1 while the broker serves everything.", float(not node.not_ready()))
    yield _gauge("start_time_seconds", "When the broker started, Unix time.", node.started_at)
    if node.activation is not None:
        yield from _activation(node.activation)
    yield from lives.families(broker)
    if node.links.cluster is not None:
        yield from _clusters(node.links.cluster)
    yield from _connections(broker)
    yield from router_metrics.families(node.links.routers)
    if node.engine is not None:
        yield from _broker(broker, node.engine)
        yield from _store(node.engine)
        yield from _addresses(node.engine)
        yield from _queues(node.engine)


def _activation(activation: Activation) -> Iterator[Metric]:
    position = activation.machine.position
    states = GaugeMetricFamily("pollux_activation_state", "1 for the state the broker is in.", labels=("state",))
    for phase in Phase:
        states.add_metric((phase.value,), float(phase is position.phase))
    yield states
    yield _gauge("activation_epoch", "The epoch of the last known activation.", position.epoch)
    left = activation.lease.left()
    yield _gauge("activation_lease_seconds", "Time left to prove the right to serve again.", left)
    if (astray := activation.address_astray) is not None:
        what = "1 where the virtual address is not with the primary, or is where a backup waits, for 10 s."
        yield _gauge("activation_address_astray", what, int(astray))


def _clusters(connections: Connections) -> Iterator[Metric]:
    labels = ("connection", "link")
    up = GaugeMetricFamily("pollux_cluster_link_up", "1 while the link to a node stands.", labels=labels)
    waiting = GaugeMetricFamily("pollux_cluster_link_messages", "Messages that wait for the node.", labels=labels)
    flight = GaugeMetricFamily("pollux_cluster_link_in_flight", "Messages sent, not confirmed.", labels=labels)
    full = GaugeMetricFamily("pollux_cluster_link_full_addresses", "Addresses that are full there.", labels=labels)
    sent = CounterMetricFamily("pollux_cluster_link_messages_sent", "Messages sent.", labels=labels)
    confirmed = CounterMetricFamily("pollux_cluster_link_messages_confirmed", "Messages confirmed.", labels=labels)
    nodes = GaugeMetricFamily("pollux_cluster_nodes", "Nodes known, with this one.", labels=("connection",))
    routes = GaugeMetricFamily("pollux_cluster_routes", "Queues of other nodes.", labels=("connection",))
    moved = CounterMetricFamily("pollux_cluster_messages_moved", "Messages redistributed.", labels=("connection",))
    for cluster in connections.all:
        name = cluster.settings.name
        nodes.add_metric((name,), len(cluster.members.others) + 1)
        routes.add_metric((name,), len(cluster.table.queues))
        moved.add_metric((name,), sum(cluster.moving.moved.values()))
        for link in cluster.peers.links:
            outlet = cluster.spreading.outlets.get(link.node)
            of = (name, link.name)
            up.add_metric(of, link.connected)
            waiting.add_metric(of, cluster.post.message_count(outlet.queue) if outlet is not None else 0)
            flight.add_metric(of, link.in_flight)
            full.add_metric(of, len(link.held.full))
            sent.add_metric(of, link.sent)
            confirmed.add_metric(of, link.confirmed)
    yield from (up, waiting, flight, full, sent, confirmed, nodes, routes, moved)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pollux_{name}", text, value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"pollux_{name}", text, value)


def _broker(broker: Broker, engine: Engine) -> Iterator[Metric]:
    post = engine.post
    yield _gauge("addresses", "Addresses.", len(engine.space.addresses))
    yield _gauge("queues", "Queues.", len(engine.space.queues))
    yield _counter("messages_routed", "Messages accepted and routed to a queue.", post.routed_total)
    yield _counter("messages_acknowledged", "Messages acknowledged by consumers.", post.acknowledged_total)
    yield _counter("messages_dropped", "Messages dropped for want of a place to go.", post.dead_letters.dropped)
    yield _counter(
        "messages_stayed",
        "Times a message stayed because no queue took it where it was to go.",
        post.dead_letters.stayed,
    )
    used = "Memory charged to messages and to what clients hold beside them."
    yield _gauge("memory_used_bytes", used, post.accounts.total.bytes)
    yield _gauge("memory_limit_bytes", "global-max-size.", post.accounts.total.max_bytes)
    yield _gauge("state_used_bytes", "What clients hold beside messages; it is in memory_used_bytes.", post.memory.used)
    yield _gauge("state_limit_bytes", "max-state-size.", post.memory.limit)
    yield _counter("state_refused", "Requests refused because their client holds too much.", post.memory.refused)
    yield _gauge("loop_lag_seconds", "How late the event loop last ran.", broker.analyzer.lag)
    yield _gauge("loop_lag_maximum_seconds", "Its worst in the last minute.", broker.analyzer.maximum_lag)
    shared = "Turns of the event loop in which a slice of what clients ask for by the thousand was done."
    yield _counter("shared_turns", shared, broker.acceptors.share.turns)


def _store(engine: Engine) -> Iterator[Metric]:
    usage = engine.storage.usage()
    yield _gauge("store_epoch", "The journal's epoch.", engine.storage.epoch)
    yield _gauge("store_full", "1 while producers are blocked by the disk.", float(engine.storage.full))
    yield _gauge("store_disk_free_bytes", "Free bytes on the journal's disk.", usage.free)
    yield _gauge("store_disk_total_bytes", "Size of the journal's disk.", usage.total)
    yield _gauge("store_recovered_messages", "Messages recovered at start.", engine.recovered_messages)
    yield _gauge("store_recovery_seconds", "How long the recovery took.", engine.recovery_seconds)
    yield _gauge("store_damage", "Damaged or missing places of the store found so far.", len(engine.damage))
    yield _gauge("store_orphan_messages", "Messages whose queue nobody knows.", engine.post.orphans.messages)
    yield _histogram(
        "store_stable_seconds",
        "Time from a record's append to its confirmation as stable; every record counts, those without a sync too.",
        engine.storage.latencies,
    )


def _histogram(name: str, text: str, samples: LatencyHistogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"pollux_{name}", text, buckets=samples.cumulative(), sum_value=samples.total)


def _connections(broker: Broker) -> Iterator[Metric]:
    connections, security = broker.acceptors.connections, broker.node.security
    count: Counter[tuple[str, str]] = Counter()
    incoming = outgoing = 0
    for connection in connections:
        session = connection.session
        count[connection.peer.acceptor, session.protocol if session is not None else ""] += 1
        incoming += connection.bytes_in
        outgoing += connection.bytes_out
    family = GaugeMetricFamily("pollux_connections", "Connections.", labels=("acceptor", "protocol"))
    for labels, number in sorted(count.items()):
        family.add_metric(labels, number)
    yield family
    yield _gauge("connections_open", "Connections in all.", len(connections))
    yield _gauge("connections_limit", "Connections allowed.", connections.maximum)
    yield _counter("connections_accepted", "Connections accepted.", connections.accepted)
    yield _counter("connections_refused", "Connections refused.", connections.refused)
    strangers = connections.strangers
    yield _gauge("before_login_bytes", "Held by connections that have not logged in.", strangers.held)
    yield _gauge("before_login_limit_bytes", "max-handshake-size.", strangers.limit)
    yield _counter("connections_dropped", "Connections without log-in that made room for others.", strangers.dropped)
    yield _counter("received_bytes", "Bytes received from clients.", connections.closed_bytes_in + incoming)
    yield _counter("sent_bytes", "Bytes sent to clients.", connections.closed_bytes_out + outgoing)
    yield _counter("logins", "Successful log-ins.", security.successes)
    yield _counter("logins_refused", "Refused log-ins.", security.failures)
    yield _counter("login_checks", "Passwords and proofs that were really looked at.", security.checks)


def _addresses(engine: Engine) -> Iterator[Metric]:
    labels = ("address",)
    size = GaugeMetricFamily("pollux_address_memory_bytes", "Memory of the address's messages.", labels=labels)
    paging = GaugeMetricFamily("pollux_address_paging", "1 while the address pages.", labels=labels)
    blocked = GaugeMetricFamily("pollux_address_blocked", "1 while producers wait.", labels=labels)
    routed = CounterMetricFamily("pollux_address_messages_routed", "Messages routed.", labels=labels)
    unrouted = CounterMetricFamily("pollux_address_messages_unrouted", "Messages no queue took.", labels=labels)
    accounts = engine.post.accounts
    for address in engine.space.addresses:
        if not engine.space.settings(address.name).enable_metrics:
            continue
        account = accounts.get(address.name)
        label = (address.name,)
        size.add_metric(label, account.gauge.bytes)
        paging.add_metric(label, float(account.pages.active))
        blocked.add_metric(label, float(not accounts.writable(address.name)))
        routed.add_metric(label, address.routed)
        unrouted.add_metric(label, address.unrouted)
    yield from (size, paging, blocked, routed, unrouted)


def _queues(engine: Engine) -> Iterator[Metric]:
    shown = [queue for queue in engine.space.queues if engine.space.settings(queue.address).enable_metrics]
    labels = ("address", "queue", "routing_type")
    paged = engine.post.pages.unread_by_queue()
    counts: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
        (
            "messages",
            "Messages in the queue, those in pages and in delivery included.",
            lambda queue: queue.message_count + paged.get(queue.id, 0),
        ),
        ("messages_paged", "Messages that wait in pages.", lambda queue: paged.get(queue.id, 0)),
    )
    for name, text, value in (*counts, *_QUEUE_GAUGES):
        family: GaugeMetricFamily | CounterMetricFamily = GaugeMetricFamily(f"pollux_queue_{name}", text, labels=labels)
        for queue in shown:
            family.add_metric((queue.address, queue.name, queue.routing_type.name), value(queue))
        yield family
    for name, text, value in _QUEUE_COUNTERS:
        family = CounterMetricFamily(f"pollux_queue_{name}", text, labels=labels)
        for queue in shown:
            family.add_metric((queue.address, queue.name, queue.routing_type.name), value(queue))
        yield family
