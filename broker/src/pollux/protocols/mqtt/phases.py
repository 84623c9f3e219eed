"""The phases of one MQTT connection and of its parts, as tables; a change that they do not have is a defect.

Pure. Each part holds one phase, and changes it with ``follow`` alone. The parts: the connection itself, its enhanced
log-in (section 4.12), what the client publishes, what is delivered to it, and the way out that packets and large
messages share.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(Enum):
    """Phases of a connection, from CONNECT to DISCONNECT."""

    #: Waits for CONNECT.
    NEW = "new"
    #: Logs in; the session's record is on its way to the disk. What comes meanwhile waits, and reading pauses.
    CONNECTING = "connecting"
    #: Packets are handled as they come.
    OPEN = "open"
    #: One packet is handled bit by bit; what the client sent after it waits.
    BUSY = "busy"
    #: Nothing is sent or taken any more.
    CLOSED = "closed"


class Exchange(Enum):
    """Phases of a SCRAM exchange in AUTH packets; there may be one after the other on a connection."""

    IDLE = "idle"
    #: The server's first message was sent.
    CHALLENGED = "challenged"
    #: The client's proof is looked at, which may have to wait for its turn.
    CHECKING = "checking"


class Intake(Enum):
    """Phases of what a client publishes."""

    #: Messages are taken as they come.
    TAKING = "taking"
    #: An address takes no messages: what comes is parked behind the first one for it.
    PARKING = "parking"
    #: The connection is gone; nothing is taken or answered any more.
    STOPPED = "stopped"


class Flow(Enum):
    """Phases of the deliveries to a client."""

    SENDING = "sending"
    #: The client's socket is full: QoS 0 is kept in part, the rest waits in its queues.
    PAUSED = "paused"
    STOPPED = "stopped"


class Way(Enum):
    """Phases of the way out to a client."""

    #: Packets are written as they come.
    THROUGH = "through"
    #: A large message is on its way; packets wait behind it.
    STREAMING = "streaming"
    STOPPED = "stopped"


SESSION: Mapping[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.CONNECTING, Phase.CLOSED}),
    Phase.CONNECTING: frozenset({Phase.OPEN, Phase.CLOSED}),
    Phase.OPEN: frozenset({Phase.BUSY, Phase.CLOSED}),
    Phase.BUSY: frozenset({Phase.OPEN, Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}
EXCHANGE: Mapping[Exchange, frozenset[Exchange]] = {
    Exchange.IDLE: frozenset({Exchange.CHALLENGED}),
    Exchange.CHALLENGED: frozenset({Exchange.CHECKING}),
    Exchange.CHECKING: frozenset({Exchange.IDLE}),
}
INTAKE: Mapping[Intake, frozenset[Intake]] = {
    Intake.TAKING: frozenset({Intake.PARKING, Intake.STOPPED}),
    Intake.PARKING: frozenset({Intake.TAKING, Intake.STOPPED}),
    Intake.STOPPED: frozenset(),
}
FLOW: Mapping[Flow, frozenset[Flow]] = {
    Flow.SENDING: frozenset({Flow.PAUSED, Flow.STOPPED}),
    Flow.PAUSED: frozenset({Flow.SENDING, Flow.STOPPED}),
    Flow.STOPPED: frozenset(),
}
WAY: Mapping[Way, frozenset[Way]] = {
    Way.THROUGH: frozenset({Way.STREAMING, Way.STOPPED}),
    Way.STREAMING: frozenset({Way.THROUGH, Way.STOPPED}),
    Way.STOPPED: frozenset(),
}
#: Those of a connection whose client is in.
ESTABLISHED = (Phase.OPEN, Phase.BUSY)
