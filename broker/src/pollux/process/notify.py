"""sd_notify(3): tells the service manager when the broker is ready, reloading, stopping and alive.

Does nothing when the process was started with neither NOTIFY_SOCKET nor a descriptor. Knows nothing of the broker.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


#: The descriptor of a datagram socket to a supervisor: without a name, nobody else can speak in this process's place.
DESCRIPTOR_VARIABLE = "POLLUX_NOTIFY_DESCRIPTOR"


class Notifier:
    """Send state lines to the service manager's datagram socket; never blocks and never raises."""

    __slots__ = ("_address", "_socket", "watchdog_interval")

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        path = environment.get("NOTIFY_SOCKET", "")
        #: "@name" is the abstract name space (sd_notify(3)).
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket: socket.socket | None = None
        inherited = environment.get(DESCRIPTOR_VARIABLE, "")
        if inherited:
            # A process that begins another life executes itself anew, and needs the descriptor then.
            self._socket, self._address = socket.socket(fileno=os.dup(int(inherited))), ""
        elif path[:1] in ("@", "/"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        if self._socket is not None:
            self._socket.setblocking(False)
        #: Seconds between WATCHDOG=1 lines (half of what the manager allows), or None when it does not watch.
        self.watchdog_interval = _watchdog(environment)

    def ready(self, status: str) -> None:
        """Say that a start or reload is finished. ``status`` is a line for people."""
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self) -> None:
        """Say that a reload begins; :meth:`ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        """Say that the broker begins to stop."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Give one line to ``systemctl status``."""
        self._send(f"STATUS={status}")

    def extend(self, seconds: float) -> None:
        """Have the manager's timeout begin anew, as starting takes longer (a long recovery)."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def alive(self) -> None:
        """Send the watchdog's heart beat."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; later calls do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            try:
                words = "\n".join(lines).encode()
                if self._address:
                    self._socket.sendto(words, self._address)
                else:
                    self._socket.send(words)
            except OSError:
                return  # the manager is gone or does not read: the broker's work does not depend on it


def _watchdog(environment: Mapping[str, str]) -> float | None:
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", "0"))
        process = int(environment.get("WATCHDOG_PID", "0"))
    except ValueError:
        return None
    if microseconds <= 0 or process not in (0, os.getpid()):
        return None
    return microseconds / 2_000_000
