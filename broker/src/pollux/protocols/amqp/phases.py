"""The phases of an AMQP connection, and of a link that a client receives on, as tables. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where a connection is between its first byte and its loss."""

    #: The client proves who it is; there is no engine.
    LOGIN = "login"
    #: Between two passes: output that comes up now is written at the end of this turn of the loop.
    IDLE = "idle"
    #: In a pass: received bytes go through the engine, and all output is written when they are through.
    RECEIVING = "receiving"
    #: One side said that it closes, or the log-in was refused: nothing is delivered any more.
    CLOSING = "closing"
    #: The connection is lost, and everything was given back.
    ENDED = "ended"


class ConsumerPhase(StrEnum):
    """Where a consumer is; its queue knows it in the first and the last but one."""

    ATTACHED = "attached"
    #: The queue was deleted, and has let go of it; its client is told.
    ORPHANED = "orphaned"
    #: The link is over; outcomes in open transactions keep it at its queue.
    RETIRING = "retiring"
    DETACHED = "detached"


#: What may follow what. A connection may be lost at any time.
CONNECTION: Final = {
    Phase.LOGIN: frozenset({Phase.IDLE, Phase.CLOSING, Phase.ENDED}),
    Phase.IDLE: frozenset({Phase.RECEIVING, Phase.CLOSING, Phase.ENDED}),
    Phase.RECEIVING: frozenset({Phase.IDLE, Phase.CLOSING, Phase.ENDED}),
    # Both sides may close at the same time, and each with an error.
    Phase.CLOSING: frozenset({Phase.CLOSING, Phase.ENDED}),
    Phase.ENDED: frozenset[Phase](),
}
#: The phases in which there is nothing to close any more.
ENDING: Final = frozenset({Phase.CLOSING, Phase.ENDED})
CONSUMER: Final = {
    ConsumerPhase.ATTACHED: frozenset({ConsumerPhase.ORPHANED, ConsumerPhase.RETIRING, ConsumerPhase.DETACHED}),
    ConsumerPhase.ORPHANED: frozenset({ConsumerPhase.DETACHED}),
    ConsumerPhase.RETIRING: frozenset({ConsumerPhase.DETACHED}),
    ConsumerPhase.DETACHED: frozenset[ConsumerPhase](),
}
#: The phases of a consumer whose link is over.
OVER: Final = frozenset({ConsumerPhase.RETIRING, ConsumerPhase.DETACHED})
