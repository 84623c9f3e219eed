"""The phases of an engine, as a table; a change that it does not have is a defect. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where an engine is between its making and its end."""

    #: The client's input is looked at, and our side of the connection is open, or will be.
    OPEN = "open"
    #: The client broke the protocol: its input is not looked at any more, and our side is to be closed.
    BROKEN = "broken"
    #: Our side is closed, and of the client's input only its close and errors count.
    CLOSED = "closed"
    #: Our side is closed, and the client's input is not looked at any more.
    FAILED = "failed"
    #: All C memory was given back.
    FREED = "freed"


#: What may follow what. A connection may be lost at any time.
ENGINE: Final = {
    Phase.OPEN: frozenset({Phase.BROKEN, Phase.CLOSED, Phase.FREED}),
    Phase.BROKEN: frozenset({Phase.FAILED, Phase.FREED}),
    Phase.CLOSED: frozenset({Phase.FAILED, Phase.FREED}),
    Phase.FAILED: frozenset({Phase.FREED}),
    Phase.FREED: frozenset[Phase](),
}
#: Those in which the client's input is looked at.
TAKING: Final = frozenset({Phase.OPEN, Phase.CLOSED})
#: Those in which our side has said that it closes, and is still there.
CLOSING: Final = frozenset({Phase.CLOSED, Phase.FAILED})
