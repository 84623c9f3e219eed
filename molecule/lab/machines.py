"""Virtual machines as hosts that can be broken, and making, ending and finding those of a scenario.

A machine is a directory (`.pollux/lab/machines/NAME`): what it was made of (`machine.json`), an overlay over the common
disk, the seed (address, name, keys) and its console. The lab talks to it by ssh with a key made for this checkout, and
knows its host key before it boots.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import json
import shutil
import tarfile
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import yaml

from lab import disks, hypervisor, qmp
from lab.places import PLACES, SCENARIOS, LabError, Places
from lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

#: Without hardware acceleration, on a loaded machine: a boot took 45 s when it was alone (seconds).
BOOT_LIMIT = 1500.0
#: A command by ssh, without an open connection, on such a machine.
COMMAND_LIMIT = 60.0


@dataclass(frozen=True)
class Specification:
    """Hold what a scenario says of a machine (an entry of `platforms` in molecule.yml)."""

    name: str
    scenario: str
    address: str
    #: The network's prefix length; this machine (the bridge) has the network's first address.
    prefix: int = 24
    memory_mb: int = 768
    processors: int = 1

    @classmethod
    def parse(cls, scenario: str, platform: Mapping[str, Any]) -> Specification:
        """From `platforms`; raises LabError for what it does not know."""
        known = {"name", "address", "prefix", "memory_mb", "processors"}
        if unknown := sorted(set(platform) - known - {"groups"}):
            raise LabError(f"a machine has no {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
        try:
            ipaddress.IPv4Address(str(platform.get("address")))
        except ValueError as error:
            raise LabError(f"machine {platform.get('name')}: address: {error}") from error
        given = {name: platform[name] for name in known if name in platform}
        return cls(scenario=scenario, **given)

    @property
    def network(self) -> ipaddress.IPv4Network:
        """Its network."""
        return ipaddress.IPv4Network(f"{self.address}/{self.prefix}", strict=False)

    @property
    def bridge_address(self) -> str:
        """This machine's address there, with prefix."""
        return f"{next(self.network.hosts())}/{self.prefix}"


class Machine:
    """A virtual machine as a host. (The methods are those of :class:`lab.host.Host`.)"""

    def __init__(self, specification: Specification, places: Places = PLACES) -> None:
        self.specification = specification
        self._places = places
        self.directory = places.machines / specification.name

    @property
    def name(self) -> str:
        """As in the inventory."""
        return self.specification.name

    @property
    def _pid_file(self) -> Path:
        return self._places.machines_runtime / f"{self.name}.pid"

    @property
    def _monitor(self) -> Path:
        return self._places.machines_runtime / f"{self.name}.qmp"

    def _ssh(self, *words: str) -> list[str]:
        """A command line; ssh joins its words with spaces, and the shell over there splits them again."""
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
        return hypervisor.enter(["ssh", "-F", ssh_config(self._places), self.name, quoted], self._places)

    def run(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = COMMAND_LIMIT) -> str:
        """Run a command as root on it."""
        return run(self._ssh(*words), stdin=stdin, check=check, timeout=max(timeout, COMMAND_LIMIT)).stdout

    def strike(self, *words: str, timeout: float = COMMAND_LIMIT) -> float | None:
        """Run a command and tell when it was sent: the machine has another clock than this one."""
        self.run("true")  # opens the connection, which takes longer than the command
        at = time.monotonic() * 1000
        self.run(*words, timeout=timeout)
        return at

    def address(self) -> str:
        """Its address in the lab's network."""
        return self.specification.address

    def reach(self, port: int) -> str:
        """HOST:PORT that leads to a port of it, inside of the machines' namespace."""
        return f"{self.address()}:{port}"

    def cut_power(self) -> float | None:
        """End QEMU: nothing in the machine notices, no packet says goodbye."""
        at = hypervisor.cut(self._pid_file)
        self.forget_connection()
        return at

    def restore_power(self) -> None:
        """Switch it on with the disk it had; returns when QEMU runs, not when the machine has booted."""
        disk, specification = disks.ensure(self._places), self.specification
        hypervisor.prepare(self._places)
        bridge = hypervisor.bridge(specification.scenario, specification.bridge_address, self._places)
        interface = hypervisor.tap(self.name, bridge, self._places)
        # A processor as plain as every server's: what is newer is slow when it is emulated.
        kind = hypervisor.accelerator(disk, self._places)
        # What the guest flushed is with this machine's kernel then: ending QEMU loses no more than a power cut would.
        drive = f"file={self.directory / 'disk.qcow2'},if=virtio,format=qcow2,discard=unmap,cache=unsafe"
        number = hashlib.sha256(self.name.encode()).hexdigest()[:32]
        identity = (f"systemd.hostname={self.name}", f"systemd.machine_id={number}")
        command = [
            *("qemu-system-x86_64", "-name", self.name, "-machine", "q35", "-accel", kind),
            *("-cpu", "host" if kind == "kvm" else "Nehalem", "-smp", str(specification.processors)),
            *("-m", str(specification.memory_mb), "-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", str(disk.kernel), "-initrd", str(disk.initial)),
            *("-append", " ".join((*disks.KERNEL_OPTIONS, *identity))),
            *("-drive", drive),
            *("-drive", f"file={self.directory / 'seed.tar'},if=virtio,format=raw,readonly=on"),
            *("-netdev", f"tap,id=lab,ifname={interface},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=lab,mac={hypervisor.hardware_address(specification.address)}"),
            *("-device", "virtio-rng-pci", "-serial", f"file:{self.directory / 'console.log'}"),
            *("-qmp", f"unix:{self._monitor},server=on,wait=off"),
        ]
        hypervisor.start(command, self._pid_file, self.directory / "qemu.log", self._places)

    def powered(self) -> bool:
        """Whether it is on."""
        return hypervisor.running(self._pid_file) is not None

    def stun(self) -> None:
        """Stop its processors, as a hypervisor does that moves it."""
        qmp.ask(self._monitor, "stop")

    def unstun(self) -> None:
        """Let them go on."""
        qmp.ask(self._monitor, "cont")

    def stunned(self) -> bool:
        """Whether they are stopped."""
        return bool(qmp.ask(self._monitor, "query-status")["status"] == "paused")

    def forget_connection(self) -> None:
        """End the open ssh connection, which a machine without power does not."""
        command = ["ssh", "-F", str(ssh_config(self._places)), "-O", "exit", self.name]
        run(hypervisor.enter(command, self._places), check=False)

    def make(self, keys: Mapping[str, bytes]) -> None:
        """Write its directory: an empty overlay and the seed with these files."""
        disk = disks.ensure(self._places)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True, mode=0o700)
        overlay = self.directory / "disk.qcow2"
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", disk.root, overlay])
        (self.directory / "seed.tar").write_bytes(seed(self.specification, keys))
        (self.directory / "machine.json").write_text(json.dumps(asdict(self.specification)), encoding="utf-8")

    def wait_until_booted(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Wait until systemd has started what it starts. Raises LabError with the end of the console."""
        deadline = time.monotonic() + BOOT_LIMIT
        while True:
            said = run(self._ssh("systemctl", "is-system-running"), check=False, timeout=COMMAND_LIMIT)
            state = said.stdout.strip()
            if any(words in said.stderr for words in ("verification failed", "Permission denied")):
                raise LabError(f"{self.name}: {said.stderr.strip()}")
            if state in ("running", "degraded"):
                tell(f"{self.name}: {state}")
                return
            if not self.powered() or time.monotonic() > deadline:
                console = (self.directory / "console.log").read_text(errors="replace")[-1500:]
                raise LabError(f"{self.name} does not boot ({state or 'no answer'}); its console ends with:\n{console}")
            time.sleep(0.5)

    def destroy(self) -> None:
        """Switch it off and remove it."""
        self.cut_power()
        hypervisor.remove_tap(self.name, self._places)
        shutil.rmtree(self.directory, ignore_errors=True)


def seed(specification: Specification, files: Mapping[str, bytes]) -> bytes:
    """The tar archive that a machine unpacks over its root file system at each boot."""
    network = f"ip address replace {specification.address}/{specification.prefix} dev eth0\nip link set eth0 up\n"
    everything = {
        "etc/hostname": f"{specification.name}\n".encode(),
        "etc/lab-network": network.encode(),
        **files,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in everything.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o600 if path.endswith(("_key", "authorized_keys")) else 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def ssh_config(places: Places = PLACES) -> Path:
    """The configuration with which ssh (and Ansible) reaches the machines."""
    return places.machines / "ssh_config"


def ssh_settings(machines: Sequence[Specification], places: Places = PLACES) -> str:
    """Its text: names and addresses, the lab's key, and the only host keys that are believed."""
    lines = []
    for machine in machines:
        lines += [f"Host {machine.name} {machine.address}", f"  HostName {machine.address}"]
    return "\n".join(
        [
            *lines,
            "Host *",
            "  User root",
            f"  IdentityFile {places.machines / 'key'}",
            "  IdentitiesOnly yes",
            "  BatchMode yes",
            "  StrictHostKeyChecking yes",
            f"  UserKnownHostsFile {places.machines / 'known_hosts'}",
            "  GlobalKnownHostsFile /dev/null",
            "  ConnectTimeout 20",
            # A machine without power does not close its connections.
            "  ServerAliveInterval 5",
            "  ServerAliveCountMax 6",
            "  ControlMaster auto",
            f"  ControlPath {places.machines_runtime}/%n.ssh",
            "  ControlPersist 300",
            "  LogLevel ERROR",
            "",
        ]
    )


def specified(scenario: str) -> list[Specification]:
    """The machines of a scenario, from its molecule.yml. Raises LabError when it is not one on machines."""
    path = SCENARIOS / scenario / "molecule.yml"
    if not path.is_file():
        raise LabError(f"there is no scenario {scenario!r}")
    if not on_machines(scenario):
        raise LabError(f"scenario {scenario} is on containers, not on virtual machines")
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = [Specification.parse(scenario, platform) for platform in settings["platforms"]]
    if len({machine.network for machine in found}) != 1:
        raise LabError(f"the machines of scenario {scenario} must be in one network")
    return found


def on_machines(scenario: str) -> bool:
    """Whether a scenario is on virtual machines: its driver is molecule's `default`, and it has hosts at all."""
    settings = yaml.safe_load((SCENARIOS / scenario / "molecule.yml").read_text(encoding="utf-8")) or {}
    driver = settings.get("driver") or {}
    return bool(driver.get("name") == "default" and (driver.get("options") or {}).get("managed", True))


def existing(places: Places = PLACES) -> dict[str, Machine]:
    """The machines that were made and not destroyed, of all scenarios."""
    found = {}
    for path in sorted(places.machines.glob("*/machine.json")):
        specification = Specification(**json.loads(path.read_text(encoding="utf-8")))
        found[specification.name] = Machine(specification, places)
    return found


def up(scenario: str, tell: Callable[[str], None], places: Places = PLACES) -> None:
    """Make and boot the machines of a scenario, anew if they are there. Raises LabError."""
    wanted = specified(scenario)
    tell(f"disk: {disks.ensure(places).directory}")
    down(scenario, places)
    places.machines.mkdir(parents=True, exist_ok=True, mode=0o700)
    hypervisor.prepare(places)
    _make_key(places.machines / "key")
    others = [one.specification for one in existing(places).values()]
    names = "".join(f"{one.address} {one.name}\n" for one in wanted)
    known = places.machines / "known_hosts"
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    machines = [Machine(one, places) for one in wanted]
    for machine in machines:
        _make_key(host_key := places.machines / f"{machine.name}.host_key")
        public = host_key.with_name(f"{host_key.name}.pub").read_text(encoding="utf-8").split()
        known_as = f"{machine.name},{machine.address()}"
        lines = [line for line in lines if line.split(" ", 1)[0] != known_as]
        lines.append(f"{known_as} {' '.join(public[:2])}")
        machine.make(
            {
                "etc/hosts": f"127.0.0.1 localhost\n{names}".encode(),
                "etc/ssh/ssh_host_ed25519_key": host_key.read_bytes(),
                "root/.ssh/authorized_keys": (places.machines / "key.pub").read_bytes(),
            }
        )
    known.write_text("\n".join([*lines, ""]), encoding="utf-8")
    ssh_config(places).write_text(ssh_settings([*others, *wanted], places), encoding="utf-8")
    for machine in machines:
        machine.restore_power()
    tell(f"accelerator: {hypervisor.accelerator(disks.ensure(places), places)}")
    for machine in machines:
        machine.wait_until_booted(tell)


def _make_key(path: Path) -> None:
    if not path.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "pollux-lab", "-f", path])


def down(scenario: str, places: Places = PLACES) -> None:
    """Remove the machines of a scenario; harmless when there are none."""
    for machine in existing(places).values():
        if machine.specification.scenario == scenario:
            machine.destroy()
    hypervisor.remove_bridge(scenario, places)


def clean(places: Places = PLACES, *, everything: bool = False) -> None:
    """Remove all machines of this checkout, also after a crash; `everything`: the common disks too."""
    hypervisor.clean(places)
    shutil.rmtree(places.machines, ignore_errors=True)
    if everything:
        disks.remove(places)
