"""The steps of a stop: each may fail or take too long, the stop goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.logs import event, failure

if TYPE_CHECKING:
    from collections.abc import Coroutine

logger = logging.getLogger("pollux.broker")

#: Seconds that a step may take.
STEP_TIMEOUT = 5.0


async def bounded(step: Coroutine[Any, Any, None], seconds: float, name: str) -> bool:
    """Carry out a step of the stop. Returns whether it worked."""
    try:
        # In a task of its own (wait_for), its end could hide that the stop is cancelled meanwhile.
        async with asyncio.timeout(seconds):
            await step
    except TimeoutError:
        event(logger, logging.ERROR, "a step of the stop took too long", step=name, seconds=seconds)
    except Exception:
        failure(logger, logging.ERROR, "a step of the stop failed", step=name)
    else:
        return True
    return False
