"""One small interface to publish and subscribe over AMQP, STOMP and MQTT, through failovers.

A publisher sends ids and says which were confirmed, by which broker; a subscriber says which it received. Both find
the live broker again by themselves. Publishers send what was not confirmed again under the same duplicate id, so that
a broker stores it once. This is what drills and benchmarks are made of; for programs there is
:func:`pollux.client.connect`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pollux.client.traffic_amqp import AmqpPublisher, AmqpSubscriber, AmqpTransactions
from pollux.client.traffic_base import PREFETCH, WINDOW
from pollux.client.traffic_mqtt import MqttPublisher, MqttSubscriber
from pollux.client.traffic_stomp import StompPublisher, StompSubscriber, StompTransactions
from pollux.client.url import Wire

if TYPE_CHECKING:
    from pollux.client.traffic_base import Confirmed, Publisher, Received, Subscriber
    from pollux.client.url import Target


class Kind(NamedTuple):
    """The classes that speak a protocol."""

    publisher: type[Publisher]
    subscriber: type[Subscriber]
    #: Publishes in local transactions; None where the protocol has none.
    transacted: type[Publisher] | None


_KINDS = {
    Wire.AMQP: Kind(AmqpPublisher, AmqpSubscriber, AmqpTransactions),
    Wire.STOMP: Kind(StompPublisher, StompSubscriber, StompTransactions),
    Wire.MQTT: Kind(MqttPublisher, MqttSubscriber, None),
}


def has_transactions(protocol: Wire) -> bool:
    """Return whether a protocol has transactions."""
    return _KINDS[protocol].transacted is not None


def publisher(
    protocol: Wire,
    target: Target,
    destination: str,
    on_confirmed: Confirmed,
    *,
    window: int = WINDOW,
    transacted: bool = False,
) -> Publisher:
    """Return a publisher that speaks `protocol`. Destinations are names of addresses; in MQTT their dots are slashes.

    With `transacted` messages go in local transactions of up to :data:`TRANSACTION` and are confirmed by the commit.
    Raises UrlError for TLS files that cannot be used, ValueError where a protocol has no transactions.
    """
    kind = _KINDS[protocol]
    made = kind.transacted if transacted else kind.publisher
    if made is None:
        raise ValueError(f"{protocol} has no transactions")
    return made(target, destination, on_confirmed, window=window)


def subscriber(
    protocol: Wire, target: Target, destination: str, on_message: Received, *, prefetch: int = PREFETCH
) -> Subscriber:
    """Return a subscriber that speaks `protocol`: of that queue, in MQTT of the topic (a session that lasts).

    Raises UrlError for TLS files that cannot be used.
    """
    return _KINDS[protocol].subscriber(target, destination, on_message, prefetch=prefetch)
