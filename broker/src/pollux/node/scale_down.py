"""Join scale-down to a node's cluster connection: whom broker.xml names, what of the protocols goes too."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from pollux.cluster.scale_down.drain import Drain
from pollux.cluster.scale_down.plan import wanted_of
from pollux.cluster.scale_down.receiving import Receiving
from pollux.protocols.mqtt.moving import MovingRetained, MovingSessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.scale_down.states import States
    from pollux.config.model import Configuration


def join(cluster: Cluster, configuration: Configuration, copied: Callable[[], bool]) -> Drain:
    """Return what hands over all that ``cluster``'s node has; the node takes from others from now on, too.

    ``copied``: whether another broker copies its store. That one may serve as soon as this one stops, and goes on.
    """
    post = cluster.post
    states: tuple[States, ...] = (MovingSessions(post), MovingRetained(post))
    cluster.requests.update(Receiving(post).requests)
    cluster.requests.update({each.name: each.take for each in states})
    return Drain(
        cluster,
        wanted_of(configuration.scale_down),
        free=lambda: post.storage.usage().free,
        host=socket.gethostname(),
        states=states,
        copied=copied,
    )
