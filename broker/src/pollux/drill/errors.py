"""Why a drill could not be carried out. A drill that found something wrong is not an error: its report says so."""

from __future__ import annotations

from pollux.errors import PolluxError


class DrillError(PolluxError):
    """Base of the drill's errors."""


class InputError(DrillError):
    """The manifest or an option is wrong; nothing was done."""


class UnavailableError(DrillError):
    """No broker serves, or one could not be started: there was nothing to break or no way to repair it."""
