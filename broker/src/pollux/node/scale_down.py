"""Join scale-down to a node's cluster connections: whom broker.xml names, what of the protocols goes too."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from pollux.cluster.scale_down.drain import Drain
from pollux.cluster.scale_down.plan import wanted_of
from pollux.cluster.scale_down.receiver import Receiving
from pollux.protocols.mqtt.handover import MovingRetained, MovingSessions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.scale_down.states import States
    from pollux.config.model import Configuration
    from pollux.protocols.mqtt.sessions import MqttSessions


def join(
    clusters: Sequence[Cluster],
    configuration: Configuration,
    copied: Callable[[], bool],
    mqtt_sessions: MqttSessions | None,
) -> Drain:
    """Return what hands over all that a node has; by each connection it takes from others from now on, too.

    ``copied``: whether another broker copies its store. That one may serve as soon as this one stops, and goes on.
    ``mqtt_sessions``: None where no acceptor speaks MQTT.
    """
    first = clusters[configuration.scale_down_number]
    post = first.post
    states: tuple[States, ...] = (MovingSessions(mqtt_sessions), MovingRetained(mqtt_sessions))
    for cluster in clusters:
        cluster.requests.update(Receiving(post).requests)
        cluster.requests.update({each.name: each.take for each in states})
    return Drain(
        [first, *(cluster for cluster in clusters if cluster is not first)],
        wanted_of(configuration.scale_down),
        free=lambda: post.storage.usage().free,
        host=socket.gethostname(),
        states=states,
        copied=copied,
    )
