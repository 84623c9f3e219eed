"""Whether the virtual address is where it should be: with whoever serves, and nowhere else.

The resource manager moves it. What is seen here is only told: in the log, in the status and as a metric.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import TYPE_CHECKING

from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("pollux.ha")

#: Between two looks, and how long a failover may have it elsewhere before that is told, seconds.
PERIOD, PATIENCE = 1.0, 10.0
#: Any port: nothing is sent there.
_DISCARD = 9


def is_here(address: str) -> bool:
    """Whether an interface of this machine has the address: then the system would send from it to itself."""
    wanted = ipaddress.ip_address(address)
    family = socket.AF_INET6 if wanted.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _DISCARD))
            return ipaddress.ip_address(probe.getsockname()[0]) == wanted
    except OSError:
        return False


class VirtualAddress:
    """The address of a cluster; empty: it has none. Times are seconds of a clock that never goes back."""

    def __init__(self, address: str, look: Callable[[str], bool] = is_here) -> None:
        self.address = address
        self.here = False
        #: What is wrong; empty: nothing, or not for long enough.
        self.problem = ""
        self._look = look
        self._looked: float | None = None
        self._astray_since: float | None = None

    @property
    def astray(self) -> bool | None:
        """Whether it is where it should not be; None: there is none."""
        return bool(self.problem) if self.address else None

    def view(self) -> dict[str, object] | None:
        """Return what the status shows."""
        return {"address": self.address, "here": self.here} if self.address else None

    def look(self, now: float, *, serves: bool) -> None:
        """Look where it is, if that is due. ``serves``: this broker is the primary."""
        if not self.address or (self._looked is not None and now - self._looked < PERIOD):
            return
        self._looked, self.here = now, self._look(self.address)
        if self.here == serves:
            if self.problem:
                event(logger, logging.INFO, "virtual address is where it should be", address=self.address)
            self._astray_since, self.problem = None, ""
            return
        if self._astray_since is None:
            self._astray_since = now
        if not self.problem and now - self._astray_since >= PATIENCE:
            where = "not on this machine, which has the primary" if serves else "on this machine, which has a backup"
            self.problem = f"the virtual address {self.address} is {where}: see what the resource manager says of it"
            event(logger, logging.ERROR, "virtual address is astray", address=self.address, reason=self.problem)
