"""The error of a selector that cannot be understood."""

from __future__ import annotations

from pollux.errors import InvalidRequestError


class SelectorError(InvalidRequestError):
    """A selector was refused. ``position`` is the offset of the offending character, from 0."""

    def __init__(self, problem: str, text: str, position: int) -> None:
        shown = text if len(text) <= 80 else f"{text[: max(position - 30, 0) + 60][-60:]}..."
        super().__init__(f"selector {shown!r}, character {position + 1}: {problem}")
        self.problem = problem
        self.position = position
