"""Caches with a bound: what is full forgets a few of its oldest entries."""

from __future__ import annotations

from itertools import islice
from typing import Any

#: Entries that are forgotten at a time. All at once would hold everybody up: some objects of each have to go.
_SOME = 16


def make_room(cache: dict[Any, Any], limit: int) -> None:
    """Have room for one more entry in a cache of at most ``limit``, at least 1."""
    if len(cache) >= limit:
        for key in list(islice(cache, _SOME)):
            del cache[key]
