"""Faults of hosts under pacemaker: a node leaves, an address is removed, a backup is stale. See :mod:`lab.faults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lab import packets
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
        """Require that it is a node."""
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
    """Somebody removes the virtual address by hand. Whoever holds it there (the cluster, a unit) puts it back."""

    name: ClassVar[str] = "address-gone"
    address: str = ""
    prefix: int = 24
    interface: str = "eth0"

    def _there(self) -> bool:
        return f" {self.address}/" in self.host.run("ip", "-brief", "address", "show", "dev", self.interface)

    def prepare(self) -> None:
        """Require that the address is there."""
        if not self._there():
            raise LabError(f"{self.host.name} does not have {self.address}")

    def apply(self) -> float | None:
        """Remove it; fails when it is not removed."""
        words = ("ip", "address", "del", f"{self.address}/{self.prefix}", "dev", self.interface)
        return self.host.strike(*words)

    def check(self) -> None:
        """Nothing: it may be back already, and the blow fails where it has no effect."""

    def undo(self) -> None:
        """Nothing: that is for whoever holds it."""

    def check_undone(self) -> None:
        """Wait until the address is back."""
        wait_for(self._there, f"{self.host.name} has {self.address} again", 60)


@dataclass
class Stale(Fault):
    """A backup is away while messages are confirmed, comes back without a way to the others, and is told to serve.

    It has to refuse. What the resource manager knows is not deceived: nothing but the brokers' port is closed.
    """

    name: ClassVar[str] = "stale"
    peers: tuple[str, ...] = ()
    port: int = 61616
    program: str = "/opt/pollux/bin/pollux"

    def _standby(self, *words: str) -> tuple[str, ...]:
        return ("crm_attribute", "--node", self.host.name, "--name", "standby", "--lifetime", "reboot", *words)

    def _says(self, word: str) -> bool:
        return self.host.run(self.program, "ha", "status", check=False).strip() == word

    def prepare(self) -> None:
        """Require that it has everything."""
        if not self._says("ready"):
            raise LabError(f"{self.host.name} is no backup that is ready")

    def apply(self) -> float | None:
        """Have the resource manager stop it; the others go on."""
        at = self.host.strike(*self._standby("--update", "on"))
        wait_for(lambda: not active(self, SERVICE), f"the broker of {self.host.name} is stopped", 60)
        return at

    def check(self) -> None:
        """Bring it back alone, and have it promoted: it refuses, and stays what it is."""
        peers = [peer for peer in self.peers if peer != self.host.address()]
        self.host.run("nft", "-f", "-", stdin=packets.apart(peers, self.port))
        self.host.run(*self._standby("--delete"))
        wait_for(lambda: self._says("joining"), f"{self.host.name} is joining", 60)
        told = self.host.run(self.program, "ha", "promote", "--cluster-manager", check=False, timeout=60)
        if "may have newer data" not in told:
            raise LabError(
                f"{self.host.name} was not refused for data that others may have: {told.strip() or 'it serves'}"
            )
        if not self._says("joining"):
            raise LabError(f"{self.host.name} is not joining any more")

    def undo(self) -> None:
        """Let it to the others."""
        self.host.run("nft", "delete", "table", "inet", packets.TABLE, check=False)
        self.host.run(*self._standby("--delete"), check=False)

    def check_undone(self) -> None:
        """There is a way, and it runs; that it becomes ready the step waits for."""
        if packets.TABLE in self.host.run("nft", "list", "tables"):
            raise LabError(f"{self.host.name} still drops packets")
        wait_for(lambda: active(self, SERVICE), f"the broker runs again on {self.host.name}", 60)


FAULTS: Mapping[str, type[Fault]] = {kind.name: kind for kind in (Leave, AddressGone, Stale)}
