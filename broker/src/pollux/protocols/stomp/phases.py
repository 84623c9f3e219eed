"""Say which phases a STOMP session and its subscriptions go through, as tables. Pure.

A change that the tables do not have is a defect of the broker, whatever a client sent: it raises
(:mod:`pollux.transitions`), and the session ends with "internal error".
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class SessionPhase(Enum):
    """Where the conversation with a client is."""

    GREETING = "greeting"  #: waits for CONNECT or STOMP
    LOGGING_IN = "logging in"  #: CONNECT came; nothing is read while the login is decided
    CONNECTED = "connected"
    ENDING = "ending"  #: no more frames are handled; what was promised is still said
    SAID = "said"  #: all is said; the transport closes when it is written
    CLOSED = "closed"  #: the connection is gone


class SubscriptionPhase(Enum):
    """Where a subscription is; it is attached to its queue in the first two."""

    ACTIVE = "active"
    DRAINING = "draining"  #: ended by its client; takes nothing more, and waits for transactions with messages of it
    DETACHED = "detached"
    QUEUE_DELETED = "queue deleted"


#: What may follow what.
SESSION: Final = {
    SessionPhase.GREETING: frozenset({SessionPhase.LOGGING_IN, SessionPhase.ENDING, SessionPhase.CLOSED}),
    SessionPhase.LOGGING_IN: frozenset({SessionPhase.CONNECTED, SessionPhase.ENDING, SessionPhase.CLOSED}),
    SessionPhase.CONNECTED: frozenset({SessionPhase.ENDING, SessionPhase.CLOSED}),
    SessionPhase.ENDING: frozenset({SessionPhase.SAID, SessionPhase.CLOSED}),
    SessionPhase.SAID: frozenset({SessionPhase.CLOSED}),
    SessionPhase.CLOSED: frozenset[SessionPhase](),
}
#: The phases in which no frame is handled any more.
ENDED: Final = frozenset({SessionPhase.ENDING, SessionPhase.SAID, SessionPhase.CLOSED})
SUBSCRIPTION: Final = {
    SubscriptionPhase.ACTIVE: frozenset({SubscriptionPhase.DRAINING, SubscriptionPhase.QUEUE_DELETED}),
    SubscriptionPhase.DRAINING: frozenset({SubscriptionPhase.DETACHED, SubscriptionPhase.QUEUE_DELETED}),
    SubscriptionPhase.DETACHED: frozenset[SubscriptionPhase](),
    SubscriptionPhase.QUEUE_DELETED: frozenset[SubscriptionPhase](),
}
