"""The faults. Each is applied to a host, can be undone, and proves that it took effect.

A fault is not trusted: :meth:`Fault.apply` is followed by :meth:`Fault.check` (and :meth:`Fault.undo` by
:meth:`Fault.check_undone`), which ask the host and raise LabError when what was to be broken works. A scenario whose
fault did nothing would pass for no reason.

To add one: subclass :class:`Fault`, give it the four methods, and enter it into :data:`FAULTS`.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from lab import packets
from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lab.host import Host

#: How long a fault may take to show, seconds.
_PATIENCE = 30.0
#: How long a machine may need until it has booted, seconds. Generous: a virtual one without hardware acceleration on a
#: loaded machine.
_BOOT = 600.0
#: How often a disk is filled that a broker frees room on.
_FILLS = 10
SERVICE = "pollux.service"


def wait_for(condition: Callable[[], object], what: str, seconds: float = _PATIENCE) -> None:
    """Wait until it holds; raises LabError when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@dataclass
class Fault(ABC):
    """One fault on one host. What it finds out before (:meth:`prepare`) is remembered, so that the blow is quick."""

    host: Host
    name: ClassVar[str] = ""
    #: Whether the host goes on by itself what the fault broke (systemd starts a killed broker again).
    heals: ClassVar[bool] = False
    #: Whether it cannot be applied again: what it breaks stays broken.
    once: ClassVar[bool] = False

    def prepare(self) -> None:  # noqa: B027  (most faults need nothing)
        """Find out what is needed for the blow; what is already broken is an error here."""

    @property
    def text(self) -> str:
        """The fault in words, for ledgers and reports."""
        return f"{self.name} of {self.host.name}"

    @abstractmethod
    def apply(self) -> float | None:
        """Break it. Tells when: milliseconds of this machine's monotonic clock, None for right before it returned."""

    @abstractmethod
    def check(self) -> None:
        """Raise LabError unless it is broken."""

    @abstractmethod
    def undo(self) -> None:
        """Repair it; harmless when nothing is broken."""

    @abstractmethod
    def check_undone(self) -> None:
        """Raise LabError unless it is repaired."""

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Break, prove, and repair at the end whatever happens."""
        self.prepare()
        try:
            self.apply()
            self.check()
            yield
        finally:
            self.undo()
        self.check_undone()


# -- the broker's process -----------------------------------------------------------------------------------------


@dataclass
class _OfProcess(Fault):
    """A fault of the main process of a systemd service."""

    service: str = SERVICE
    _pid: str = field(default="", init=False)

    def _show(self, *properties: str) -> dict[str, str]:
        words = [f"--property={name}" for name in properties]
        lines = self.host.run("systemctl", "show", self.service, *words).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def _main_pid(self) -> str:
        return self._show("MainPID").get("MainPID", "0")

    def _process_state(self) -> str:
        """The letter of /proc/PID/stat; empty when there is no process."""
        status = self.host.run("sh", "-c", f"cat /proc/{self._pid}/status 2>/dev/null || true")
        return next((line.split()[1] for line in status.splitlines() if line.startswith("State:")), "")

    def prepare(self) -> None:
        """Remember the process."""
        self._pid = self._main_pid()
        if self._pid in ("", "0"):
            raise LabError(f"{self.service} does not run on {self.host.name}, so it cannot be broken")

    def undo(self) -> None:
        """Start the service if it does not run, unless that is a resource manager's to do (no boot can start it)."""
        if self.host.run("systemctl", "is-enabled", self.service, check=False).strip() == "static":
            return
        self.host.run("systemctl", "reset-failed", self.service, check=False)
        self.host.run("systemctl", "start", "--no-block", self.service)

    def check_undone(self) -> None:
        """Wait until it runs again."""
        wait_for(lambda: self._main_pid() not in ("", "0"), f"{self.service} runs again on {self.host.name}")


class Kill(_OfProcess):
    """kill -9 of the broker. systemd starts it again by itself."""

    name = "kill"
    heals = True

    def apply(self) -> float | None:
        """Kill it."""
        return self.host.strike("kill", "-KILL", self._pid)

    def check(self) -> None:
        """The process is gone (another one may have taken its place)."""
        wait_for(lambda: self._main_pid() != self._pid, f"process {self._pid} of {self.host.name} is gone")


class Stop(_OfProcess):
    """Clean stop of the service; it stays stopped until it is undone."""

    name = "stop"

    def apply(self) -> float | None:
        """Stop it."""
        return self.host.strike("systemctl", "stop", self.service, timeout=120)

    def check(self) -> None:
        """Require that it has ended, and has not failed either: a stop that had to kill is not clean."""
        found = self._show("ActiveState", "Result")
        if found != {"ActiveState": "inactive", "Result": "success"}:
            raise LabError(f"{self.service} on {self.host.name} did not stop cleanly: {found}")


class Pause(_OfProcess):
    """SIGSTOP of the broker: the zombie of every failover. Undone by SIGCONT."""

    name = "pause"

    def apply(self) -> float | None:
        """Stop its time."""
        return self.host.strike("kill", "-STOP", self._pid)

    def check(self) -> None:
        """The kernel says that it is stopped."""
        wait_for(lambda: self._process_state() == "T", f"process {self._pid} of {self.host.name} is stopped")

    def undo(self) -> None:
        """Let it go on, if it is still there (a watchdog may have killed it)."""
        if self._pid:
            self.host.run("kill", "-CONT", self._pid, check=False)

    def check_undone(self) -> None:
        """Require that it is not stopped any more."""
        if self._process_state() == "T":
            raise LabError(f"process {self._pid} of {self.host.name} is still stopped")


# -- the machine --------------------------------------------------------------------------------------------------


class PowerCut(Fault):
    """The machine is off at once: no FIN, nothing flushed that was not on the disk."""

    name = "power-cut"

    def prepare(self) -> None:
        """Require that it has power."""
        if not self.host.powered():
            raise LabError(f"{self.host.name} has no power already")

    def apply(self) -> float | None:
        """Cut it."""
        return self.host.cut_power()

    def check(self) -> None:
        """Require that it is off."""
        if self.host.powered():
            raise LabError(f"{self.host.name} still has power")

    def undo(self) -> None:
        """Power on."""
        if not self.host.powered():
            self.host.restore_power()

    def check_undone(self) -> None:
        """Wait until it answers, and systemd has started what it starts."""

        def booted() -> bool:
            with contextlib.suppress(LabError):
                # It answers when all is started, or at once while systemd cannot be asked yet.
                state = self.host.run("systemctl", "is-system-running", "--wait", check=False).strip()
                return state in ("running", "degraded")
            return False

        wait_for(booted, f"{self.host.name} has booted", _BOOT)


class Stun(Fault):
    """All processes of the machine are frozen, as a hypervisor does when it moves or snapshots one."""

    name = "freeze"

    def apply(self) -> float | None:
        """Freeze the machine."""
        self.host.stun()
        return None

    def check(self) -> None:
        """Require that it is frozen."""
        if not self.host.stunned():
            raise LabError(f"{self.host.name} is not frozen")

    def undo(self) -> None:
        """Let the machine go on."""
        if self.host.stunned():
            self.host.unstun()

    def check_undone(self) -> None:
        """Require an answer."""
        self.host.run("true")


# -- the network --------------------------------------------------------------------------------------------------


@dataclass
class Partition(Fault):
    """Packets between the host and others are dropped. `peers` are addresses; none is everybody."""

    name: ClassVar[str] = "partition"
    peers: tuple[str, ...] = ()
    direction: packets.Direction = "both"

    @property
    def text(self) -> str:
        """The fault in words."""
        whom = ", ".join(self.peers) or "everybody"
        return f"partition ({self.direction}) of {self.host.name} from {whom}"

    def apply(self) -> float | None:
        """Load the rules; all at once or none."""
        self.host.run("nft", "-f", "-", stdin=packets.partition(self.peers, self.direction))
        return None

    def check(self) -> None:
        """The rules are there, and what passed before does not."""
        listed = self.host.run("nft", "list", "table", "inet", packets.TABLE, check=False)
        if "drop" not in listed:
            raise LabError(f"{self.host.name} has no rules that drop packets")

    def undo(self) -> None:
        """Remove the rules."""
        self.host.run("nft", "delete", "table", "inet", packets.TABLE, check=False)

    def check_undone(self) -> None:
        """They are gone; if others fence the host for its silence, as soon as it answers again."""
        listed = ""

        def answered() -> bool:
            nonlocal listed
            with contextlib.suppress(LabError):
                listed = self.host.run("nft", "list", "tables")
                return True
            return False

        wait_for(answered, f"{self.host.name} says which packets it drops", _BOOT)
        if packets.TABLE in listed:
            raise LabError(f"{self.host.name} still drops packets")


@dataclass
class Netem(Fault):
    """Delay, jitter (milliseconds) and loss (percent) of everything the host sends; needs the kernel's netem."""

    name: ClassVar[str] = "netem"
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    interface: str = "eth0"

    @property
    def text(self) -> str:
        """The fault in words."""
        return f"delay {self.delay_ms:g} ms, loss {self.loss_percent:g} % of {self.host.name}"

    def _tc(self, verb: str, *words: str, check: bool = True) -> str:
        return self.host.run("tc", "qdisc", verb, "dev", self.interface, *words, check=check)

    def available(self) -> bool:
        """Whether the host's kernel can do it (where it cannot, lab.proxy delays instead)."""
        try:
            self._tc("replace", "root", "netem", "delay", "0ms")
        except LabError:
            return False
        self._tc("del", "root", check=False)
        return True

    def prepare(self) -> None:
        """The kernel must have it."""
        if not self.available():
            raise LabError(f"the kernel of {self.host.name} has no netem: use the proxy of molecule/lab/proxy.py")

    def apply(self) -> float | None:
        """Set it."""
        self._tc("replace", "root", *packets.netem(self.delay_ms, self.jitter_ms, self.loss_percent))
        return None

    def check(self) -> None:
        """The queueing discipline is there."""
        if "netem" not in self._tc("show"):
            raise LabError(f"{self.host.name} has no netem on {self.interface}")

    def undo(self) -> None:
        """Remove it."""
        self._tc("del", "root", check=False)

    def check_undone(self) -> None:
        """Require that the delay is gone."""
        if "netem" in self._tc("show"):
            raise LabError(f"{self.host.name} still has netem on {self.interface}")


# -- the disk and the clock ---------------------------------------------------------------------------------------


@dataclass
class FullDisk(Fault):
    """A file takes what is left of the file system that `path` is on."""

    name: ClassVar[str] = "full-disk"
    path: str = "/srv/pollux"

    @property
    def text(self) -> str:
        """The fault in words."""
        return f"full disk of {self.host.name}: {self.path}"

    @property
    def _ballast(self) -> str:
        return f"{self.path}/.lab-ballast"

    def prepare(self) -> None:
        """Never fill a file system that is not the lab's: what holds more than 4 GB is not a volume of ours."""
        size = int(self.host.run("df", "--output=size", "--block-size=1M", self.path).split()[1])
        if size > 4096:
            raise LabError(
                f"{self.path} of {self.host.name} is on a file system of {size} MB, not a small one of the lab"
            )

    def apply(self) -> float | None:
        """Fill it: quickly first, then to the last block."""
        script = (
            'free=$(df --output=avail --block-size=1 "$1" | tail -1); fallocate -l "$free" "$2" 2>/dev/null; '
            'dd if=/dev/zero of="$2" bs=4096 oflag=append conv=notrunc status=none 2>/dev/null; true'
        )
        self.host.run("sh", "-c", script, "fill", self.path, self._ballast)
        return None

    def _left(self) -> int:
        return int(self.host.run("df", "--output=avail", "--block-size=1", self.path).split()[1])

    def check(self) -> None:
        """Nothing is left. What a broker has freed meanwhile (journal that is not needed any more) is filled, too."""
        for _ in range(_FILLS):
            if (left := self._left()) < 65536:
                return
            self.apply()
        raise LabError(f"{left} bytes are still free below {self.path} on {self.host.name}")

    def undo(self) -> None:
        """Take the file away."""
        self.host.run("rm", "-f", self._ballast)

    def check_undone(self) -> None:
        """There is room again."""
        if self._left() < 1024 * 1024:
            raise LabError(f"{self.path} on {self.host.name} is still full")


@dataclass
class ClockJump(Fault):
    """The wall clock jumps by `seconds`; only on machines that have a clock of their own (virtual ones)."""

    name: ClassVar[str] = "clock-jump"
    seconds: int = 3600
    _before: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    @property
    def text(self) -> str:
        """The fault in words."""
        return f"clock of {self.host.name} jumps by {self.seconds:+d} s"

    def _offset(self) -> float:
        """The host's wall clock against this machine's, seconds."""
        return float(self.host.run("date", "+%s.%N")) - time.time()

    def prepare(self) -> None:
        """A container shares the clock of the machine that runs it: never touch that."""
        if self.host.run("systemd-detect-virt", "--container", check=False).strip() not in ("", "none"):
            raise LabError(f"{self.host.name} is a container: its clock is this machine's, and stays as it is")
        self._before = (self._offset(), time.monotonic())

    def apply(self) -> float | None:
        """Set the host's clock."""
        self.host.run("date", "--set", f"{self.seconds:+d} seconds")
        return None

    def check(self) -> None:
        """Require that it has jumped."""
        if abs(self._offset() - self._before[0] - self.seconds) > 5:
            raise LabError(f"the clock of {self.host.name} did not jump")

    def undo(self) -> None:
        """Jump back."""
        wrong = round(self._offset() - self._before[0])
        if abs(wrong) > 1:
            self.host.run("date", "--set", f"{-wrong:+d} seconds")

    def check_undone(self) -> None:
        """Require that it is right again."""
        if abs(self._offset() - self._before[0]) > 5:
            raise LabError(f"the clock of {self.host.name} is still wrong")


FAULTS: Mapping[str, type[Fault]] = {
    kind.name: kind for kind in (Kill, Stop, Pause, PowerCut, Stun, Partition, Netem, FullDisk, ClockJump)
}


def kinds() -> Mapping[str, type[Fault]]:
    """All faults by their names."""
    from lab import clustered, postgresql

    return {**FAULTS, **clustered.FAULTS, **postgresql.FAULTS}


def make(name: str, host: Host, **options: Any) -> Fault:
    """A fault by its name, with its options. Raises LabError with what there is."""
    kind = kinds().get(name)
    if kind is None:
        raise LabError(f"there is no fault {name!r}; there are: {', '.join(kinds())}")
    try:
        return kind(host, **options)
    except TypeError as error:
        raise LabError(f"fault {name}: {error}") from error
