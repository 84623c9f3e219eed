"""A broker, or a node of ZooKeeper, as the rules and the model see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Variables = Mapping[str, Any]
#: Tells whether a file or directory of the controller exists.
Exists = Callable[[str], bool]


@dataclass
class Member:
    """Hold one host with the value of each public variable, and where it is."""

    name: str
    given: Variables
    value: dict[str, Any]
    group: str = ""
    address: str = ""
    machine: str = ""
    acceptors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def preferred(self) -> str:
        """``live``, ``backup`` or nothing."""
        return str(self.value["broker_preferred"])
