"""Does set-up's work on the machine it runs on: commands, a cache, Debian's packages, with root and without.

Standard library only: :mod:`setup_environment` runs before there is an environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STATE = Path(__file__).resolve().parent.parent / ".pollux"
#: No single step takes longer than this unless something hangs (seconds).
STEP_TIMEOUT = 1800
#: apt-get refuses to work while another one does.
_ONE_APT = threading.Lock()


class SetupError(Exception):
    """Set-up cannot go on; the text says what the user has to do."""


def say(text: str) -> None:
    """Tell the user about a step that takes a while."""
    sys.stderr.write(f"set-up: {text}\n")
    sys.stderr.flush()


def run(command: Sequence[str | Path], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command quietly; return its standard output, or raise SetupError with the last lines of what it said."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        told = "\n".join(line[:300] for line in (done.stdout + done.stderr).strip().splitlines()[-25:])
        raise SetupError(f"{' '.join(str(word) for word in command[:6])} ... failed:\n{told}")
    return done.stdout


def cache_directory() -> Path:
    """Return a directory of the user's that outlives this checkout, or one inside of it where there is none."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME", "") + "/.cache")
    for candidate in (Path(base) / "pollux", STATE / "cache"):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=candidate):
                return candidate
        except OSError:
            continue
    raise SetupError(f"cannot write to {STATE}")


def install_debian(packages: Sequence[str]) -> None:
    """Install Debian packages; for root."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with _ONE_APT:
        run(["apt-get", "-qq", "update"])
        run(["apt-get", "-qq", "-y", "--no-install-recommends", "install", *packages], environment=quiet)


def fetch_debian(packages: Sequence[str], target: Path, *, with_dependencies: bool) -> None:
    """Unpack Debian packages below `target`, with apt directories of our own; nothing is installed.

    `with_dependencies` adds those that are not installed on this machine.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SetupError(f"this machine has no {tool}")
    with tempfile.TemporaryDirectory(dir=cache_directory()) as work:
        base = Path(work)
        for name in ("lists/partial", "cache/archives/partial", "log", "debs"):
            (base / name).mkdir(parents=True)
        apt: list[str | Path] = ["apt-get", "-qq", "-y", "--no-install-recommends"]
        for option in (
            f"Dir::State::Lists={base}/lists",
            f"Dir::Cache={base}/cache",
            f"Dir::Log={base}/log",
            "Debug::NoLocking=1",
            "APT::Sandbox::User=",
            "Acquire::Languages=none",
            "Acquire::Retries=3",
        ):
            apt += ["-o", option]
        run([*apt, "update"])
        wanted = list(packages)
        if with_dependencies:
            listed = run([*apt, "--print-uris", "install", *packages])
            wanted = re.findall(r"^'\S+' ([^_\s]+)_\S+\.deb ", listed, re.MULTILINE)
        run([*apt, "download", *wanted], cwd=base / "debs")
        unpacked = base / "root"
        for package in sorted((base / "debs").glob("*.deb")):
            run(["dpkg-deb", "-x", package, unpacked])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
