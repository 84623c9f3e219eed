"""The answers of brokers among the variables of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def said(hostvars: Mapping[str, Any], host: str, variable: str) -> Mapping[str, Any]:
    """Return the answer of a host's broker (of pollux_info), which ``variable`` holds; empty when it has none."""
    try:
        found = hostvars[host][variable]
    except KeyError:
        return {}
    return found if isinstance(found, Mapping) else {}
