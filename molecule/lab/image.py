"""The base image: Debian with systemd, python3 and sshd, made from the Debian mirror. Nothing of Pollux is in it.

Where mmdebstrap is there (Debian as root), it makes a tar archive that every checkout shares; elsewhere (a laptop with
Docker Desktop) the engine builds the same from the public debian image. Either is done again only when its inputs
changed: the image's tag is their fingerprint.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from lab.places import IMAGE_REPOSITORY, PLACES, LabError, Places
from lab.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from lab.engine import Engine

SUITE = "bookworm"
#: What a Debian server has, what Ansible needs of it, and what the faults use.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "python3-apt", "openssh-server", "sudo"),
    *("iproute2", "iptables", "nftables", "procps", "ca-certificates", "acl", "kmod"),
)
#: Units that make no sense in a container or only make noise.
MASKED = (
    "systemd-logind.service",
    "getty.target",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
)
#: Changes with the way the image is made; the suite's updates come in when it does.
RECIPE = "1"
_BUILD_TIMEOUT = 900


def tag() -> str:
    """The image's tag: a fingerprint of everything it is made of."""
    text = "\0".join((RECIPE, SUITE, *PACKAGES, *MASKED))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def name() -> str:
    """The image's name."""
    return f"{IMAGE_REPOSITORY}:{tag()}"


def dockerfile() -> str:
    """The same image for an engine that can pull the public one."""
    return (
        f"FROM debian:{SUITE}\n"
        "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
        f"{' '.join(PACKAGES)} && apt-get clean && rm -rf /var/lib/apt/lists/*\n"
        f"RUN systemctl mask {' '.join(MASKED)}\n"
        'CMD ["/sbin/init"]\nSTOPSIGNAL SIGRTMIN+3\n'
    )


def ensure(engine: Engine, places: Places = PLACES) -> str:
    """Make the image unless the engine has it; return its name."""
    there = run(["docker", "image", "inspect", name()], check=False, environment=engine.environment)
    if there.returncode == 0:
        return name()
    if engine.own or (shutil.which("mmdebstrap") and os.geteuid() == 0):
        archive = _archive(places)
        command = ["docker", "import", "--change", 'CMD ["/sbin/init"]']
        run([*command, archive, name()], timeout=_BUILD_TIMEOUT, environment=engine.environment)
        return name()
    run(
        ["docker", "build", "--tag", name(), "-"],
        timeout=_BUILD_TIMEOUT,
        stdin=dockerfile(),
        environment=engine.environment,
    )
    return name()


def _archive(places: Places) -> Path:
    """The root file system as a tar archive, from the cache or made now."""
    archive = places.cache / f"{IMAGE_REPOSITORY}-{tag()}.tar"
    if archive.exists():
        return archive
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is missing for the base image: apt-get install mmdebstrap")
    places.cache.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}.tar")
    mask = f'chroot "$1" systemctl mask {" ".join(MASKED)}'
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    try:
        run([*command, f"--customize-hook={mask}", SUITE, unfinished], timeout=_BUILD_TIMEOUT)
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    for old in places.cache.glob(f"{IMAGE_REPOSITORY}-*.tar"):
        if old != archive:
            old.unlink(missing_ok=True)
    return archive
