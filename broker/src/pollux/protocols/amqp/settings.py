"""The limits of an AMQP connection, from its acceptor's settings and the broker's limits. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.config.acceptors import AcceptorSettings
from pollux.protocols.prefixes import most_specific_first

if TYPE_CHECKING:
    from pollux.protocols.services import Services

#: Artemis's default; larger frames cost memory for each connection that sends them.
_DEFAULT_FRAME = 128 << 10
_MAX_SESSIONS = 32767
_DEFAULTS = AcceptorSettings()


class AmqpSettings(Struct):
    """Bytes and milliseconds; 0 for "no limit" of ``max_message_size`` and "never" of ``idle_timeout``."""

    max_frame: int = _DEFAULT_FRAME
    max_sessions: int = 256
    max_links: int = 4096
    max_unsettled: int = 100_000
    max_message_size: int = 0
    credits: int = _DEFAULTS.amqp_credits
    low_credits: int = _DEFAULTS.amqp_low_credits
    min_large: int = _DEFAULTS.amqp_min_large_message_size
    idle_timeout: int = _DEFAULTS.amqp_idle_timeout
    duplicate_detection: bool = True
    anycast_prefixes: tuple[str, ...] = ()
    multicast_prefixes: tuple[str, ...] = ()
    mechanisms: tuple[str, ...] = ()
    populate_user: bool = False


def settings_of(services: Services) -> AmqpSettings:
    """Return the settings of connections with these services."""
    acceptor = services.acceptor
    configuration = services.configuration
    limits = configuration.limits
    frame = acceptor.max_frame_size if acceptor.max_frame_size > 0 else _DEFAULT_FRAME
    return AmqpSettings(
        max_frame=min(frame, limits.max_frame_size),
        max_sessions=min(limits.max_sessions_per_connection, _MAX_SESSIONS),
        max_links=limits.max_consumers_per_connection,
        max_unsettled=limits.max_unsettled_per_connection,
        max_message_size=max(limits.max_message_size, 0),
        credits=acceptor.amqp_credits,
        # At the mark a producer is given more; with all of its credit left there is nothing to give.
        low_credits=min(acceptor.amqp_low_credits, acceptor.amqp_credits - 1),
        min_large=acceptor.amqp_min_large_message_size,
        idle_timeout=acceptor.amqp_idle_timeout,
        duplicate_detection=acceptor.amqp_duplicate_detection,
        anycast_prefixes=most_specific_first(acceptor.anycast_prefix),
        multicast_prefixes=most_specific_first(acceptor.multicast_prefix),
        mechanisms=acceptor.sasl_mechanisms,
        populate_user=configuration.populate_validated_user,
    )
