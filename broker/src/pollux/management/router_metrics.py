"""Metrics of connection routers, by router: what became of clients, and how many brokers can take some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from pollux.cluster.routers.service import Routers


def families(routers: Routers | None) -> Iterator[Metric]:
    """Yield them; nothing on a broker without routers."""
    shown = routers.describe() if routers is not None else []
    if not shown:
        return
    labels = ("router",)
    clients = CounterMetricFamily(
        "pollux_router_clients", "Clients by what became of them.", labels=("router", "outcome")
    )
    ready = GaugeMetricFamily("pollux_router_targets_ready", "Brokers of the pool that are ready.", labels=labels)
    quorum = GaugeMetricFamily("pollux_router_quorum", "quorum-size.", labels=labels)
    for one in shown:
        for outcome in ("local", "redirected", "refused"):
            clients.add_metric((one["name"], outcome), one[outcome])
        ready.add_metric((one["name"],), one["ready"])
        quorum.add_metric((one["name"],), one["quorum"])
    yield from (clients, ready, quorum)
