"""Duties of the event loop that nobody waits for: one that fails is said, and begun again. None ends in silence."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pollux.logs import failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

logger = logging.getLogger("pollux.ha")

#: Before it is begun again, seconds.
PAUSE = 1.0


async def carry_out(name: str, duty: Callable[[], Awaitable[None]], *, pause: float = PAUSE) -> None:
    """Carry out ``duty`` until it has ended by itself, or is cancelled. What fails is logged once for each reason."""
    said = ""
    while True:
        try:
            await duty()
        except Exception as error:
            if repr(error) != said:
                failure(logger, logging.ERROR, "a duty failed and is begun again", duty=name)
            said = repr(error)
            await asyncio.sleep(pause)
        else:
            return
