"""The lives of a host with colocated backups, as any of them shows them: each by its name and node id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pollux.errors import InvalidRequestError
from pollux.supervisor.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from pollux.process.broker import Broker

_LABELS = ("life", "name", "node", "state")


def lives(broker: Broker) -> list[dict[str, Any]]:
    """Return every life of this broker's host; none where it is a process of its own."""
    return next((each.lives for each in broker.components if isinstance(each, Agent)), [])


async def remove(broker: Broker, node: str) -> dict[str, Any]:
    """Give up the backup of a node that is removed for good. Raises InvalidRequestError."""
    agent = next((each for each in broker.components if isinstance(each, Agent)), None)
    if agent is None:
        raise InvalidRequestError("this broker is no life of a host with a colocated policy")
    found = await agent.remove(node)
    return {"nodeId": found["node"], "name": found["name"]}


def families(broker: Broker) -> Iterator[Metric]:
    """Yield the metrics of all lives of this host."""
    found = lives(broker)
    if not found:
        return
    ready = GaugeMetricFamily("pollux_life_ready", "1 while a life of this host does its part.", labels=_LABELS)
    starts = CounterMetricFamily("pollux_life_starts", "Processes that a life had.", labels=_LABELS[:3])
    for life in found:
        of = (life["life"], life["name"], life["nodeId"])
        ready.add_metric((*of, life["state"]), float(life["ready"]))
        starts.add_metric(of, life["starts"])
    yield ready
    yield starts
