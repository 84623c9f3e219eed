"""Where the lab keeps things, and what its things are called. Pure names; nothing is opened or made here.

One lab belongs to one checkout: two checkouts on one machine have two engines, which know nothing of each other.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "molecule"
#: The repository of the base image; its tag is the fingerprint of what it is made of.
IMAGE_REPOSITORY = "pollux-lab"


class LabError(Exception):
    """The lab cannot do what was asked; the text says what the user has to do."""


@dataclass(frozen=True)
class Places:
    """Paths and names of the lab of one checkout."""

    root: Path

    @property
    def key(self) -> str:
        """Short, the same for the same checkout; part of everything that is visible outside of it."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:8]

    @property
    def state(self) -> Path:
        """Reports, records and the engine's own data; inside of the checkout."""
        return self.root / ".pollux" / "lab"

    @property
    def reports(self) -> Path:
        """Return what drills reported, one directory for each."""
        return self.state / "reports"

    @property
    def wheelhouse(self) -> Path:
        """Return what hosts install from."""
        return self.root / ".pollux" / "wheelhouse"

    @property
    def namespace(self) -> str:
        """Network namespace of the engine that the lab starts itself."""
        return f"pollux-lab-{self.key}"

    @property
    def namespace_path(self) -> Path:
        """Where `ip netns` keeps it."""
        return Path("/run/netns") / self.namespace

    @property
    def runtime(self) -> Path:
        """Sockets and process ids; short, because the path of a socket may not be long. Gone after a reboot."""
        return Path("/run") / self.namespace

    @property
    def socket(self) -> Path:
        """The engine's API."""
        return self.runtime / "docker.sock"

    @property
    def data(self) -> Path:
        """Images and containers of the lab's own engine."""
        return self.state / "engine"

    @property
    def machines(self) -> Path:
        """Disks, keys and consoles of the virtual machines."""
        return self.state / "machines"

    @property
    def machines_namespace(self) -> str:
        """Network namespace of the virtual machines and their bridges."""
        return f"pollux-vms-{self.key}"

    @property
    def machines_runtime(self) -> Path:
        """Their process ids and sockets. Gone after a reboot, as they are."""
        return Path("/run") / self.machines_namespace

    @property
    def cache(self) -> Path:
        """The user's cache: base images are shared by all checkouts."""
        base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME", str(self.state)) + "/.cache")
        return Path(base) / "pollux" / "lab"


PLACES = Places(ROOT)
