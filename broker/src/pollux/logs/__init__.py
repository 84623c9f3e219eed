"""Structured log lines, and the folding of those that repeat: :mod:`pollux.logs.lines`, :mod:`pollux.logs.repeats`."""

from pollux.logs.lines import (
    MAXIMUM_VALUE,
    JsonFormatter,
    TextFormatter,
    configure,
    event,
    failure,
    flush,
    parse_level,
    timestamp,
)

__all__ = [
    "MAXIMUM_VALUE",
    "JsonFormatter",
    "TextFormatter",
    "configure",
    "event",
    "failure",
    "flush",
    "parse_level",
    "timestamp",
]
