"""Faults of hosts under pacemaker: a node that leaves, and a virtual address that is removed. See :mod:`lab.faults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lab.faults import SERVICE, Fault, wait_for
from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Mapping


def active(fault: Fault, unit: str) -> bool:
    """Whether a unit of the host runs."""
    return fault.host.run("systemctl", "is-active", unit, check=False).strip() == "active"


class Leave(Fault):
    """Clean stop of the node: pacemaker has everything on it moved away, and ends."""

    name = "leave"

    def prepare(self) -> None:
        """It must be a node."""
        if not active(self, "pacemaker.service"):
            raise LabError(f"pacemaker does not run on {self.host.name}, so it cannot be stopped")

    def apply(self) -> float | None:
        """Stop it; that takes until its broker has ended."""
        return self.host.strike("systemctl", "stop", "pacemaker.service", timeout=180)

    def check(self) -> None:
        """Neither it nor the broker runs."""
        running = [unit for unit in ("pacemaker.service", SERVICE) if active(self, unit)]
        if running:
            raise LabError(f"{', '.join(running)} of {self.host.name} still run")

    def undo(self) -> None:
        """Start it; it starts the broker."""
        self.host.run("systemctl", "start", "pacemaker.service", timeout=120)

    def check_undone(self) -> None:
        """Both run."""
        wait_for(lambda: active(self, SERVICE), f"the broker runs again on {self.host.name}", 120)


@dataclass
class AddressGone(Fault):
    """Somebody removes the virtual address by hand. The cluster puts it back."""

    name: ClassVar[str] = "address-gone"
    address: str = ""
    prefix: int = 24
    interface: str = "eth0"

    def _there(self) -> bool:
        return f" {self.address}/" in self.host.run("ip", "-brief", "address", "show", "dev", self.interface)

    def prepare(self) -> None:
        """It must be there."""
        if not self._there():
            raise LabError(f"{self.host.name} does not have {self.address}")

    def apply(self) -> float | None:
        """Remove it; fails when it is not removed."""
        words = ("ip", "address", "del", f"{self.address}/{self.prefix}", "dev", self.interface)
        return self.host.strike(*words)

    def check(self) -> None:
        """Nothing: it may be back already, and the blow fails where it has no effect."""

    def undo(self) -> None:
        """Nothing: that is the cluster's to do."""

    def check_undone(self) -> None:
        """It is back."""
        wait_for(self._there, f"{self.host.name} has {self.address} again", 60)


FAULTS: Mapping[str, type[Fault]] = {kind.name: kind for kind in (Leave, AddressGone)}
