"""QEMU for the lab: which accelerator works, the network of the machines, starting and ending them.

All machines of a checkout are in one network namespace of their own with a bridge for each scenario; nothing of it is
visible outside. What runs is known by its command line (:func:`lab.processes.processes_with`), so a crash of the lab
leaves nothing that :func:`clean` does not find.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.places import PLACES, LabError, Places
from lab.processes import is_ours, processes_with, read_pid, run, stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.disks import Disk

#: What a guest's kernel says when it got as far as its initial file system.
_BOOTED = "Run /init"
#: How long a guest may take for that with hardware acceleration, seconds; where it hangs, it hangs for ever.
_PROBE_LIMIT = 20.0
_START_LIMIT = 30.0


def enter(command: Sequence[str | Path], places: Places = PLACES) -> list[str]:
    """The command as it has to be run to reach the machines."""
    return ["nsenter", f"--net={Path('/run/netns') / places.machines_namespace}", *map(str, command)]


def prepare(places: Places = PLACES) -> None:
    """Make the namespace unless it is there."""
    places.machines_runtime.mkdir(parents=True, exist_ok=True)
    if not (Path("/run/netns") / places.machines_namespace).exists():
        run(["ip", "netns", "add", places.machines_namespace])
        run(["ip", "-n", places.machines_namespace, "link", "set", "lo", "up"])


def _short(text: str) -> str:
    """A name that fits into the 15 characters of an interface."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def bridge(network: str, address: str, places: Places = PLACES) -> str:
    """The bridge of a network (a name), made unless it is there; `address` is this machine's in it, with its prefix."""
    name, space = f"br-{_short(network)}", places.machines_namespace
    if run(["ip", "-n", space, "link", "show", name], check=False).returncode != 0:
        run(["ip", "-n", space, "link", "add", name, "type", "bridge"])
        run(["ip", "-n", space, "address", "add", address, "dev", name])
        run(["ip", "-n", space, "link", "set", name, "up"])
    return name


def remove_bridge(network: str, places: Places = PLACES) -> None:
    """Remove it; harmless when it is not there."""
    run(["ip", "-n", places.machines_namespace, "link", "delete", f"br-{_short(network)}"], check=False)


def tap(machine: str, bridge_name: str, places: Places = PLACES) -> str:
    """The interface of a machine, attached to a bridge."""
    name, space = f"t-{_short(machine)}", places.machines_namespace
    remove_tap(machine, places)
    run(["ip", "-n", space, "tuntap", "add", "dev", name, "mode", "tap"])
    run(["ip", "-n", space, "link", "set", name, "master", bridge_name, "up"])
    return name


def remove_tap(machine: str, places: Places = PLACES) -> None:
    """Remove it; harmless when it is not there."""
    run(["ip", "-n", places.machines_namespace, "link", "delete", f"t-{_short(machine)}"], check=False)


def hardware_address(address: str) -> str:
    """A MAC address of QEMU's range that follows from an IPv4 address."""
    return "52:54:00:" + ":".join(f"{int(part):02x}" for part in address.split(".")[1:])


def accelerator(disk: Disk, places: Places = PLACES) -> str:
    """`kvm` where a guest really boots with it, else `tcg`. That /dev/kvm opens proves nothing; asked once a boot."""
    kept = places.machines_runtime / "accelerator"
    if kept.exists():
        return kept.read_text(encoding="ascii").strip()
    found = "kvm" if os.access("/dev/kvm", os.R_OK | os.W_OK) and _boots(disk, places) else "tcg"
    kept.write_text(f"{found}\n", encoding="ascii")
    return found


def _boots(disk: Disk, places: Places) -> bool:
    """Whether a guest without a disk gets as far as its initial file system with KVM."""
    console = places.machines_runtime / "probe.console"
    console.unlink(missing_ok=True)
    command = ["qemu-system-x86_64", "-accel", "kvm", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-serial", f"file:{console}", "-kernel", str(disk.kernel), "-initrd", str(disk.initial)]
    command += ["-append", "console=ttyS0 panic=-1"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as probe:
        try:
            deadline = time.monotonic() + _PROBE_LIMIT
            while probe.poll() is None and time.monotonic() < deadline:
                if console.exists() and _BOOTED in console.read_text(errors="replace"):
                    return True
                time.sleep(0.1)
            return console.exists() and _BOOTED in console.read_text(errors="replace")
        finally:
            probe.kill()


def start(command: Sequence[str | Path], pid_file: Path, log: Path, places: Places = PLACES) -> None:
    """Start QEMU in the namespace; returns when it runs. Raises LabError with what it said."""
    pid_file.unlink(missing_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            enter([*command, "-pidfile", pid_file], places),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_LIMIT
    while read_pid(pid_file) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise LabError(f"QEMU does not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def running(pid_file: Path) -> int | None:
    """The process of a machine, None when it is off."""
    pid = read_pid(pid_file)
    return pid if pid is not None and is_ours(pid, str(pid_file)) else None


def cut(pid_file: Path) -> float:
    """End a machine as a power cut does; tells when (milliseconds of this machine's monotonic clock)."""
    at = time.monotonic() * 1000
    if (pid := running(pid_file)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _START_LIMIT
        while is_ours(pid, str(pid_file)):
            if time.monotonic() > deadline:
                raise LabError(f"QEMU (process {pid}) does not end")
            time.sleep(0.01)
    pid_file.unlink(missing_ok=True)
    return at


def _is_of_the_lab(pid: int) -> bool:
    """Machines and connections to them; a user's shell or editor that names a path of ours is not."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return False
    return name.startswith(("qemu-system", "ssh"))


def clean(places: Places = PLACES) -> None:
    """End every machine of this checkout, also what a crash left, and remove the namespace."""
    for pid, argument in processes_with(f"{places.machines_runtime}/"):
        if _is_of_the_lab(pid):
            stop(pid, argument, patience=2.0)
    if (Path("/run/netns") / places.machines_namespace).exists():
        run(["ip", "netns", "delete", places.machines_namespace], check=False)
    shutil.rmtree(places.machines_runtime, ignore_errors=True)
