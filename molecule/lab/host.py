"""A host that can be broken, as all that breaks or asks one knows it: a fault knows no more than this.

It runs commands as root, has an address, and can lose its power or be stunned. Containers (lab.hosts) and virtual
machines (lab.machines) are such.
"""

from __future__ import annotations

from typing import Protocol

#: A command on a host that hangs (a full disk, a frozen store) is given up after this, seconds.
HOST_TIMEOUT = 30.0


class Host(Protocol):
    """One machine of the lab."""

    @property
    def name(self) -> str:
        """As in the inventory."""

    def run(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = HOST_TIMEOUT) -> str:
        """Run a command as root; its standard output. Raises LabError when it fails (unless told not to check)."""

    def strike(self, *words: str, timeout: float = HOST_TIMEOUT) -> float | None:
        """Run a command and tell when it began: milliseconds of this machine's monotonic clock, None if unknown."""

    def address(self) -> str:
        """Its IPv4 address in the lab's network."""

    def reach(self, port: int) -> str:
        """HOST:PORT that leads from this machine to a port of it."""

    def cut_power(self) -> float | None:
        """Stop it at once: no process sees a signal, no packet says goodbye. Tells when, as `strike` does."""

    def restore_power(self) -> None:
        """Start it as a machine starts after a power cut."""

    def powered(self) -> bool:
        """Whether it has power (a stunned one has)."""

    def stun(self) -> None:
        """Stop the time of all its processes, as a hypervisor does."""

    def unstun(self) -> None:
        """Let them go on."""

    def stunned(self) -> bool:
        """Whether their time is stopped."""
