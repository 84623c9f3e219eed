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


class LoginPhase(StrEnum):
    """Name what a client that logs in has to send next (5.3.2 of the specification's part 5)."""

    #: A protocol header: of the SASL layer, or of AMQP when it comes in without.
    LAYER = "layer"
    MECHANISM = "mechanism"
    #: The first and the final message of SCRAM (RFC 5802).
    FIRST = "first"
    FINAL = "final"
    #: Nothing: a password or a proof is checked, and what it sends ahead is kept.
    CHECKING = "checking"
    #: AMQP's protocol header: the outcome was said.
    PROVEN = "proven"
    OVER = "over"


class ConsumerPhase(StrEnum):
    """Where a consumer is; its queue knows it while it is attached, and while it leaves."""

    ATTACHED = "attached"
    #: The queue was deleted, and has let go of it; its client is told.
    ORPHANED = "orphaned"
    #: The link is over, and still at its queue: others end before it, or it has outcomes in open transactions.
    RETIRING = "retiring"
    #: The same, and the client has closed the link for good, and not only detached it.
    CLOSING = "closing"
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
LOGIN: Final = {
    LoginPhase.LAYER: frozenset({LoginPhase.MECHANISM, LoginPhase.OVER}),
    LoginPhase.MECHANISM: frozenset(LoginPhase) - {LoginPhase.LAYER, LoginPhase.MECHANISM},
    LoginPhase.FIRST: frozenset({LoginPhase.FINAL, LoginPhase.OVER}),
    LoginPhase.FINAL: frozenset({LoginPhase.CHECKING, LoginPhase.OVER}),
    LoginPhase.CHECKING: frozenset({LoginPhase.PROVEN, LoginPhase.OVER}),
    LoginPhase.PROVEN: frozenset({LoginPhase.OVER}),
    LoginPhase.OVER: frozenset[LoginPhase](),
}
CONSUMER: Final = {
    ConsumerPhase.ATTACHED: frozenset({ConsumerPhase.ORPHANED, ConsumerPhase.RETIRING, ConsumerPhase.CLOSING}),
    ConsumerPhase.ORPHANED: frozenset({ConsumerPhase.DETACHED}),
    ConsumerPhase.RETIRING: frozenset({ConsumerPhase.DETACHED}),
    ConsumerPhase.CLOSING: frozenset({ConsumerPhase.DETACHED}),
    ConsumerPhase.DETACHED: frozenset[ConsumerPhase](),
}
#: The phases of a consumer whose link is over.
OVER: Final = frozenset({ConsumerPhase.RETIRING, ConsumerPhase.CLOSING, ConsumerPhase.DETACHED})
#: Those of them in which its queue still knows it.
LEAVING: Final = frozenset({ConsumerPhase.RETIRING, ConsumerPhase.CLOSING})
