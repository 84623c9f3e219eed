"""Derive what a STOMP connection may use from its acceptor's settings and the broker's limits. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from pollux.config.acceptors import AcceptorSettings
from pollux.protocols.prefixes import most_specific_first
from pollux.wire.stomp.decoder import Limits

if TYPE_CHECKING:
    from pollux.protocols.services import Services

#: A larger body is streamed even where large messages are off or begin later: what one client can
#: make the broker hold has a bound.
MAX_IN_MEMORY: Final = 16 << 20
_DEFAULTS: Final = AcceptorSettings()


class StompSettings(Struct, frozen=True):
    """Sizes in bytes, durations in milliseconds, -1 for none."""

    limits: Limits = field(default_factory=Limits)
    #: Bytes a subscription may hold unacknowledged (stompConsumerCredits).
    window: int = _DEFAULTS.stomp_consumer_credits
    #: Messages a subscription may hold unacknowledged.
    prefetch: int = 1000
    anycast_prefixes: tuple[str, ...] = ()
    multicast_prefixes: tuple[str, ...] = ()
    #: Silence after which a client without heart-beats is dead (connection-ttl-override, connectionTtl).
    ttl: int = -1
    #: A client is dead after this many heart-beat intervals (heartBeatToConnectionTtlModifier).
    tolerance: float = _DEFAULTS.heart_beat_to_connection_ttl_modifier
    #: Heart-beats are neither sent nor asked for more often (milliseconds).
    heartbeat_min: int = 100
    server_header: bool = True
    #: Bytes of SENDs kept while their address takes no more, before reading stops.
    park_limit: int = 1 << 20
    #: Things a connection may have open.
    max_subscriptions: int = 10_000
    max_transactions: int = 1_000
    #: Set JMSXUserID of what clients send (populate-validated-user).
    populate_user: bool = False


def settings_of(services: Services) -> StompSettings:
    """The settings of connections with these services."""
    acceptor = services.acceptor
    configuration = services.configuration
    override = configuration.connection_ttl_override
    return StompSettings(
        limits=_limits(acceptor, configuration.limits.max_message_size),
        window=acceptor.stomp_consumer_credits,
        anycast_prefixes=most_specific_first(acceptor.anycast_prefix),
        multicast_prefixes=most_specific_first(acceptor.multicast_prefix),
        ttl=override if override > 0 else acceptor.connection_ttl,
        tolerance=acceptor.heart_beat_to_connection_ttl_modifier,
        server_header=not acceptor.disable_stomp_server_header,
        max_subscriptions=configuration.limits.max_consumers_per_connection,
        populate_user=configuration.populate_validated_user,
    )


def _limits(acceptor: AcceptorSettings, max_message_size: int) -> Limits:
    """Return the bounds of a frame; ``max_message_size`` is that of ``<px:limits>`` (bytes of a body, -1: none)."""
    large = acceptor.stomp_min_large_message_size
    limits = Limits(large_size=MAX_IN_MEMORY if large < 0 else min(large, MAX_IN_MEMORY))
    frame = acceptor.max_frame_size
    if frame > 0:
        limits = Limits(
            block=min(limits.block, frame),
            line=min(limits.line, frame),
            large_size=min(limits.large_size, frame),
            body=frame,
        )
    if max_message_size > 0 and not 0 <= limits.body <= max_message_size:
        # The decoder looks at the size of what is not streamed only against large_size.
        limits = replace(limits, body=max_message_size, large_size=min(limits.large_size, max_message_size))
    return limits
