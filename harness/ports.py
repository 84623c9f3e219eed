"""Ports on loopback for brokers of tests: never given twice, never one that a client gets by itself.

A port of the kernel's own range may be a client's side of some connection by the time that a broker that was killed
starts again. These are below that range, one after the other for all test runs of this machine.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

#: How many there are, below the kernel's range.
_COUNT = 16_000


def free_port() -> int:
    """A port that nobody listens on now, and that nobody was given lately."""
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    path = Path(tempfile.gettempdir()) / f"pollux-test-ports-{os.getuid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        last = int(os.pread(descriptor, 10, 0) or b"0")
        for step in range(1, _COUNT):
            number = (last + step) % _COUNT
            port = least - _COUNT + number
            if is_free(port):
                os.pwrite(descriptor, b"%-10d" % number, 0)
                return port
    finally:
        os.close(descriptor)
    raise AssertionError(f"no port below {least} is free")


def is_free(port: int) -> bool:
    """Whether a listener would get this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
