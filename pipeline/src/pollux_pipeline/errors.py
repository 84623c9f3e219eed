"""Errors of the user's input: one line, no traceback, exit code 2. And the texts of others."""

from __future__ import annotations


class InputError(ValueError):
    """An input or an option cannot be used; the text names it, the place and the remedy."""


def text_of(error: Exception) -> str:
    """Return the text of an error; nothing where py4j asks a JVM for it that has ended."""
    try:
        return str(error)
    except Exception:  # of the connection, in as many ways as one can break
        return ""
