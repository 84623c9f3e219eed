"""The disk of the virtual machines: Debian with a kernel that has NFS, made from the Debian mirror.

Nothing of Pollux is in it. One directory in the user's cache holds the root file system (read only from then on: each
machine writes to an overlay of its own), the kernel and its initial file system. It is made again only when its recipe
changes. What differs between machines (name, address, keys) comes from a second disk at each boot: a tar archive,
unpacked before the network is up.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import bytecode
from lab import image, journals
from lab.places import PLACES, LabError, Places
from lab.processes import run

#: Beside the packages of the containers: a kernel, what boots it, and both halves of NFS.
PACKAGES = (
    *image.PACKAGES,
    *("linux-image-cloud-amd64", "initramfs-tools", "lz4", "udev", "e2fsprogs", "nfs-common", "nfs-kernel-server"),
)
#: Drivers of the only hardware there is, loaded before the root file system is mounted: nothing looks for more.
DRIVERS = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "ext4", "crc32c_generic")
#: What a Debian machine does at boot and these need not. An emulated processor takes half a minute for it.
MASKED = (
    *image.MASKED,
    *("e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "nfs-blkmap.service"),
    # Looking for hardware, and for a network: lab-seed.service gives the address.
    *("systemd-udev-trigger.service", "systemd-networkd.service", "systemd-networkd.socket"),
    *("systemd-networkd-wait-online.service", "systemd-network-generator.service", "modprobe@.service"),
    *("systemd-modules-load.service", "kmod-static-nodes.service", "systemd-binfmt.service"),
    # File systems that nothing here looks at.
    *("sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-hugepages.mount"),
    *("dev-mqueue.mount", "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount"),
    # Records of boots and logins, and what a panic left.
    *("systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-pstore.service"),
)
#: The kernel's command line. Mitigations guard against neighbours on a real processor; emulated they double the cost of
#: a system call. QEMU keeps what it translated by its address: were that another one in each process, each start of a
#: program would be translated anew and take five times as long. The image is as its packages left it, and is taken so.
KERNEL_OPTIONS = (
    *("root=/dev/vda", "rw", "rootflags=noatime", "console=ttyS0", "quiet", "net.ifnames=0"),
    *("mitigations=off", "tsc=reliable", "norandmaps"),
    *("systemd.condition-first-boot=no", "systemd.condition-needs-update=no"),
)
SIZE = "4G"
_BUILD_TIMEOUT = 1200
#: Packages with what the machines need on this machine; tools/setup_environment.py --lab installs them.
PROGRAMS = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "unshare": "util-linux",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
_SEED_UNIT = """\
[Unit]
Description=What makes this machine of the lab itself: address, name, keys
DefaultDependencies=no
Before=ssh.service network-pre.target sysinit.target
Wants=network-pre.target
ConditionPathExists=/dev/vdb

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/tar --extract --no-overwrite-dir --directory=/ --file=/dev/vdb
ExecStart=/bin/sh -e /etc/lab-network

[Install]
WantedBy=sysinit.target
"""
#: Run with the directory of the new root file system, before its packages are unpacked and after they are configured.
_BEFORE = """\
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf '%s\\n' MODULES=list COMPRESS=lz4 > "$1/etc/initramfs-tools/conf.d/lab"
printf '%s\\n' {drivers} > "$1/etc/initramfs-tools/modules"
"""
_AFTER = """\
cat > "$1/etc/systemd/system/lab-seed.service" <<'UNIT'
{unit}UNIT
: > "$1/etc/fstab"
rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname"
chroot "$1" usermod --shell /bin/sh root
echo UsePAM no > "$1/etc/ssh/sshd_config.d/lab.conf"
{bytecode}
{journal}
chroot "$1" systemctl --quiet enable lab-seed.service ssh.service
chroot "$1" systemctl --quiet disable nfs-server.service
chroot "$1" systemctl --quiet mask {masked}
"""
#: In namespaces of its own: whatever ends the build, no process and no mount of it is left.
_BUILD = """\
set -e
mmdebstrap --quiet --mode=root --variant=minbase \
  --include="$2" --essential-hook="$3" --customize-hook="$4" "$5" "$1/root"
cp "$1"/root/boot/vmlinuz-* "$1/vmlinuz"
cp "$1"/root/boot/initrd.img-* "$1/initrd"
truncate --size="$6" "$1/root.img"
mkfs.ext4 -q -F -L root -d "$1/root" "$1/root.img"
rm -rf "$1/root"
"""


@dataclass(frozen=True)
class Disk:
    """Hold what a machine boots from."""

    directory: Path

    @property
    def root(self) -> Path:
        """The root file system, raw; never written to."""
        return self.directory / "root.img"

    @property
    def kernel(self) -> Path:
        """The kernel."""
        return self.directory / "vmlinuz"

    @property
    def initial(self) -> Path:
        """Its initial file system."""
        return self.directory / "initrd"


def _hooks() -> tuple[str, str]:
    return (
        _BEFORE.format(drivers=" ".join(DRIVERS)),
        _AFTER.format(
            unit=_SEED_UNIT,
            bytecode=bytecode.install('"$1"'),
            journal=journals.keep('"$1"'),
            masked=" ".join(MASKED),
        ),
    )


def tag() -> str:
    """A fingerprint of everything that the disk is made of."""
    text = "\0".join((image.RECIPE, image.SUITE, SIZE, _BUILD, *_hooks(), *PACKAGES))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def excuse() -> str:
    """Why this machine cannot have virtual machines, whatever is installed; empty when it can."""
    if platform.system() == "Linux" and platform.machine() == "x86_64" and os.geteuid() == 0:
        return ""
    return (
        "the scenarios on virtual machines need Linux on x86-64, and root (for a network namespace and its tap"
        " devices); the scenarios on containers do not"
    )


def needs() -> None:
    """Raise LabError that says what this machine lacks for virtual machines."""
    if why := excuse():
        raise LabError(why)
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        raise LabError(
            f"the scenarios on virtual machines need {', '.join(missing)}: run tools/setup_environment.py --lab, "
            f"or: apt-get install {' '.join(missing)}"
        )


def ensure(places: Places = PLACES) -> Disk:
    """Make the disk unless it is there. Raises LabError."""
    needs()
    disk = Disk(places.cache / f"machine-{tag()}")
    if disk.directory.is_dir():
        return disk
    places.cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".machine-", dir=places.cache))
    before, after = _hooks()
    script = ["sh", "-c", _BUILD, "build", str(unfinished), ",".join(PACKAGES), before, after, image.SUITE, SIZE]
    try:
        alone = ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
        run(["unshare", *alone, *script], timeout=_BUILD_TIMEOUT)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(disk.directory)
        except OSError:  # another checkout made the same meanwhile
            if not disk.directory.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return disk


def remove(places: Places = PLACES) -> None:
    """Remove all disks from the cache; machines that run keep theirs until they are switched off."""
    for directory in (*places.cache.glob("machine-*"), *places.cache.glob(".machine-*")):
        shutil.rmtree(directory, ignore_errors=True)
