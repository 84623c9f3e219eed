"""Errors of the user's input: one line, no traceback, exit code 2."""

from __future__ import annotations


class InputError(ValueError):
    """An input or an option cannot be used; the text names it, the place and the remedy."""
