"""The images: Debian with systemd, python3 and sshd, made from the Debian mirror. Nothing of Pollux is in them.

Hosts reach no mirror, so what a role installs from the distribution has to be there: the second image has ZooKeeper and
Java too. It is made only for scenarios that name it.

Where mmdebstrap is there (Debian as root), it makes a tar archive that every checkout shares; elsewhere (a laptop with
Docker Desktop) the engine builds the same from the public debian image. Either is done again only when its inputs
changed: an image's tag is their fingerprint.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from harness import bytecode
from lab import journals
from lab.places import IMAGE_REPOSITORY, PLACES, LabError, Places
from lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lab.engine import Engine

SUITE = "bookworm"
#: What a Debian server has, what Ansible needs of it, and what the faults use.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "python3-apt", "openssh-server", "sudo"),
    *("iproute2", "iptables", "nftables", "procps", "ca-certificates", "acl", "kmod"),
)
#: The images by the variable in which a scenario finds the name of one, with the packages that it has besides.
IMAGES: Mapping[str, tuple[str, ...]] = {
    "POLLUX_LAB_IMAGE": (),
    # What roles/zookeeper installs (vars/Debian.yml).
    "POLLUX_LAB_IMAGE_ZOOKEEPER": ("libzookeeper-java", "libslf4j-java", "openjdk-17-jre-headless"),
    # What roles/pacemaker installs, on members and on the machine with the third vote.
    "POLLUX_LAB_IMAGE_PACEMAKER": (
        *("corosync", "pacemaker", "pacemaker-cli-utils", "resource-agents"),
        *("corosync-qdevice", "corosync-qnetd"),
    ),
    # A database of somebody's, as Debian starts it.
    "POLLUX_LAB_IMAGE_POSTGRESQL": ("postgresql",),
}
BASE = "POLLUX_LAB_IMAGE"
#: Units that make no sense in a container or only make noise.
MASKED = (
    "systemd-logind.service",
    "getty.target",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
)
#: Units that an installation enables, and that start with no sample of a configuration here: only what a role starts.
DISABLED = {
    "POLLUX_LAB_IMAGE_PACEMAKER": tuple(
        f"{name}.service" for name in ("corosync", "pacemaker", "corosync-qdevice", "corosync-qnetd")
    )
}
#: Changes with the way the image is made; the suite's updates come in when it does.
RECIPE = "2"
_BUILD_TIMEOUT = 900


def packages(variable: str = BASE) -> tuple[str, ...]:
    """The Debian packages of an image."""
    return (*PACKAGES, *IMAGES[variable])


def tag(variable: str = BASE) -> str:
    """The image's tag: a fingerprint of everything it is made of."""
    disabled = DISABLED.get(variable, ())
    text = "\0".join((RECIPE, SUITE, *packages(variable), *MASKED, *disabled, bytecode.module(), journals.keep()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def name(variable: str = BASE) -> str:
    """The image's name."""
    return f"{IMAGE_REPOSITORY}:{tag(variable)}"


def units(variable: str) -> str:
    """Return what is done with units, as a shell command."""
    disabled = DISABLED.get(variable, ())
    return f"systemctl mask {' '.join(MASKED)}" + (f" && systemctl disable {' '.join(disabled)}" if disabled else "")


def dockerfile(variable: str = BASE) -> str:
    """The same image for an engine that can pull the public one."""
    return (
        f"FROM debian:{SUITE}\n"
        "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
        f"{' '.join(packages(variable))} && apt-get clean && rm -rf /var/lib/apt/lists/*\n"
        f"RUN {units(variable)}\nRUN {bytecode.install()}\nRUN {journals.keep()}\n"
        'CMD ["/sbin/init"]\nSTOPSIGNAL SIGRTMIN+3\n'
    )


def ensure(engine: Engine, places: Places = PLACES, variable: str = BASE) -> str:
    """Make the image unless the engine has it; return its name."""
    wanted = name(variable)
    there = run(["docker", "image", "inspect", wanted], check=False, environment=engine.environment)
    if there.returncode == 0:
        return wanted
    if engine.own or (shutil.which("mmdebstrap") and os.geteuid() == 0):
        archive = _archive(places, variable)
        command = ["docker", "import", "--change", 'CMD ["/sbin/init"]']
        run([*command, archive, wanted], timeout=_BUILD_TIMEOUT, environment=engine.environment)
        return wanted
    run(
        ["docker", "build", "--tag", wanted, "-"],
        timeout=_BUILD_TIMEOUT,
        stdin=dockerfile(variable),
        environment=engine.environment,
    )
    return wanted


def _archive(places: Places, variable: str) -> Path:
    """The root file system as a tar archive, from the cache or made now."""
    archive = places.cache / f"{IMAGE_REPOSITORY}-{tag(variable)}.tar"
    if archive.exists():
        return archive
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is missing for the base image: apt-get install mmdebstrap")
    places.cache.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}.tar")
    hook = f"chroot \"$1\" sh -c '{units(variable)}' && " + bytecode.install('"$1"')
    hook += " && " + journals.keep('"$1"')
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages(variable))}"]
    try:
        run([*command, f"--customize-hook={hook}", SUITE, unfinished], timeout=_BUILD_TIMEOUT)
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    current = {f"{IMAGE_REPOSITORY}-{tag(each)}.tar" for each in IMAGES}
    for old in places.cache.glob(f"{IMAGE_REPOSITORY}-*.tar"):
        if old.name not in current:
            old.unlink(missing_ok=True)
    return archive
