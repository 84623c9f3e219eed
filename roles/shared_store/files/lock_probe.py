"""Proves what a shared store promises about locks and syncs, with the real mount and two machines.

The role shared_store copies it to both machines of a pair and lets them play against each other:

    lock_probe.py hold FILE --seconds N [--cut ADDRESS]   take the lock, hold it until SIGTERM or N seconds have passed
    lock_probe.py try FILE                                is the lock free, and what did its holder write?
    lock_probe.py wait FILE --seconds N                   wait for the lock, and tell how long that took; 2 N at most

`hold` writes a line to FILE and syncs it before it says that it is ready (to systemd, as a notify service). With
`--cut` it then drops every packet to the server with nftables, tries to sync once more, and reports (`--report`)
whether that was confirmed although it cannot have reached the server. The rules end by themselves, whatever happens to
this program. One line of JSON is printed. Standard library only.

Exit codes: 0 done, 1 it could not be done (the reason is in "error"), 2 wrong usage, 3 this machine may not be cut off.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid; the broker takes the same locks.
_WRITE_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_F_OFD_SETLK = 37
_POLL = 0.25
TABLE = "pollux_lock_probe"


class ProbeError(Exception):
    """Say why the probe cannot be carried out."""


class MayNotCutError(ProbeError):
    """Others on this machine need the server."""


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock; False when somebody else has it. Raises OSError."""
    try:
        fcntl.fcntl(descriptor, _F_OFD_SETLK, _WRITE_LOCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


@contextlib.contextmanager
def acting_as(user: str) -> Iterator[None]:
    """Open files as this user, who may not be root for the server; nothing is changed when it is empty."""
    if not user or os.geteuid() != 0:
        yield
        return
    entry = pwd.getpwnam(user)
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def open_file(path: Path, user: str) -> int:
    """Open (and make) the file whose lock is tried."""
    with acting_as(user):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def write(descriptor: int, text: str) -> None:
    """Write and sync a line."""
    data = f"{text}\n".encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
    os.fsync(descriptor)


def read(descriptor: int) -> str:
    """Return what is written there."""
    return os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()


# -- being cut off --------------------------------------------------------------------------------------------------


def other_mounts(mountinfo: str, address: str, path: str) -> list[str]:
    """Mounts of the same server that are not the one `path` is on: their locks would be lost, too."""
    points = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 5 or len(rest) < 3 or rest[0] not in ("nfs", "nfs4"):
            continue
        if f"addr={address}" in rest[2].split(","):
            points.append(fields[4].replace("\\040", " "))
    ours = max((point for point in points if f"{path}/".startswith(f"{point.rstrip('/')}/")), key=len, default="")
    return [point for point in points if point != ours]


def users_of(descriptor: int) -> list[str]:
    """Other processes with a file open on the file system of this one, which root may not even look at by its path."""
    device = os.fstat(descriptor).st_dev
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for link in (entry / "fd").iterdir():
                # The target's text first: a stat of a file on a store that hangs would hang.
                target = str(link.readlink())
                if target.startswith("/") and link.stat().st_dev == device:
                    found.append(f"{(entry / 'comm').read_text().strip()} ({entry.name})")
                    break
    return found


def rules(address: str, seconds: int) -> str:
    """Return rules that drop all to and from the server's port; their only element expires by itself."""
    kind = "ipv6_addr" if ipaddress.ip_address(address).version == 6 else "ipv4_addr"
    family = "ip6" if kind == "ipv6_addr" else "ip"
    return (
        f"table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n"
        f"  set server {{ type {kind}; flags timeout; elements = {{ {address} timeout {seconds}s }} }}\n"
        f"  chain out {{ type filter hook output priority -150; {family} daddr @server tcp dport 2049 drop; }}\n"
        f"  chain in {{ type filter hook input priority -150; {family} saddr @server tcp sport 2049 drop; }}\n"
        "}\n"
    )


def cut(address: str, seconds: int) -> None:
    """Drop the packets. Raises ProbeError."""
    command = ["nft", "-f", "-"]
    done = subprocess.run(command, input=rules(address, seconds), text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise ProbeError(f"nft cannot cut this machine off from {address}: {done.stderr.strip()}")


def join_again() -> None:
    """Let them pass again."""
    subprocess.run(["nft", "delete", "table", "inet", TABLE], capture_output=True, check=False)


class Sync(threading.Thread):
    """Hold a write and a sync that may hang; `outcome` is what became of it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._descriptor = descriptor
        self.outcome = "waiting"

    def run(self) -> None:
        """Write and sync."""
        try:
            os.pwrite(self._descriptor, b"written while the server was out of reach\n", 0)
            os.fsync(self._descriptor)
        except OSError as error:
            self.outcome = errno.errorcode.get(error.errno or 0, str(error))
        else:
            self.outcome = "confirmed"


# -- the commands ---------------------------------------------------------------------------------------------------


def ready() -> None:
    """Tell systemd that the lock is held, where it wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            notify.send(b"READY=1")


def hold(path: Path, user: str, seconds: float, line: str, address: str) -> dict[str, Any]:
    """Take the lock, say so, and hold it."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    descriptor = open_file(path, user)
    second = open_file(path.with_name(f"{path.name}.sync"), user) if address else -1
    if not try_lock(descriptor):
        raise ProbeError(f"{path}: somebody holds the lock already: {read(descriptor)}")
    write(descriptor, line)
    report: dict[str, Any] = {"held": True, "cut": bool(address)}
    if not address:
        ready()
        ended.wait(seconds)
        return report
    others = other_mounts(Path("/proc/self/mountinfo").read_text(), address, str(path))
    others += users_of(descriptor)
    if others:
        raise MayNotCutError(f"this machine uses {address} besides: {', '.join(others)}")
    os.pwrite(second, b"\n", 0)
    os.fsync(second)
    try:
        cut(address, int(seconds))
        sync = Sync(second)
        sync.start()
        ready()
        ended.wait(seconds)
        report["sync"] = sync.outcome
    finally:
        join_again()
    return report


def attempt(path: Path, user: str) -> dict[str, Any]:
    """Try the lock once, and let go of it."""
    descriptor = open_file(path, user)
    try:
        return {"free": try_lock(descriptor), "line": read(descriptor)}
    finally:
        os.close(descriptor)


def wait(path: Path, user: str, seconds: float) -> dict[str, Any]:
    """Ask for the lock again and again; how long that took, and the longest from one answer to the next (seconds).

    Given up after as many questions as fit into `seconds`: a machine that stood still for a while did not ask then, and
    its server may have stood still, too. On a machine that is slow that takes longer, twice as long at most.
    """
    descriptor = open_file(path, user)
    questions = max(1, round(seconds / _POLL))
    began = before = time.monotonic()
    asked, longest = 0, 0.0
    try:
        while True:
            free = try_lock(descriptor)
            now = time.monotonic()
            asked, longest, before = asked + 1, max(longest, now - before), now
            if free or asked >= questions or now - began > 2 * seconds:
                return {"free": free, "seconds": round(now - began, 1), "asked": asked, "longest": round(longest, 1)}
            time.sleep(_POLL)
    finally:
        os.close(descriptor)


def main() -> int:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["hold", "try", "wait"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long at most")
    parser.add_argument("--user", default="", help="who opens the file; the broker's user")
    parser.add_argument("--line", default="", help="what a holder writes")
    parser.add_argument("--cut", default="", metavar="ADDRESS", help="drop every packet to this server")
    parser.add_argument("--report", type=Path, help="write the line of JSON to this file, too")
    given = parser.parse_args()
    status = 0
    try:
        if given.command == "hold":
            found = hold(given.file, given.user, given.seconds, given.line, given.cut)
        elif given.command == "try":
            found = attempt(given.file, given.user)
        else:
            found = wait(given.file, given.user, given.seconds)
    except (ProbeError, OSError, KeyError) as error:
        found, status = {"error": str(error)}, 3 if isinstance(error, MayNotCutError) else 1
    text = json.dumps(found)
    if given.report:
        given.report.write_text(f"{text}\n")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    # A thread that hangs in the store does not keep this program.
    os._exit(status)


if __name__ == "__main__":
    main()
