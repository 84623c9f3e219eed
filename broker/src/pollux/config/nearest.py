"""The nearest known name to a misspelt one, for error messages. Pure."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 100


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that is most like ``name``, or None when none is close."""
    by_folded = {candidate.lower().replace("_", "-"): candidate for candidate in known}
    folded = name[:_LONGEST].lower().replace("_", "-")
    if folded in by_folded:
        return by_folded[folded]
    found = get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` or an empty string."""
    found = nearest(name, known)
    return f" (did you mean {found!r}?)" if found else ""
