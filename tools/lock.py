"""Choose the versions of every package anew and write the lock files; run by `make lock`.

The lock files hold for every supported Python on Linux and name no index:
where packages come from is the machine's business.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS: dict[str, tuple[str, ...]] = {
    "requirements.lock": ("broker/pyproject.toml", "--extra", "database", "requirements-dev.in"),
    "requirements-build.lock": ("requirements-build.in",),
    "requirements-compiler.lock": ("requirements-compiler.in",),
    "requirements-jars.lock": ("--no-deps", "requirements-jars.in"),
}
OPTIONS = (
    *("--quiet", "--upgrade", "--universal", "--python-version", "3.11"),
    *("--generate-hashes", "--no-emit-index-url", "--custom-compile-command", "make lock"),
)


def main() -> None:
    """Write every lock file."""
    uv = Path(sys.executable).with_name("uv")
    for lock, inputs in LOCKS.items():
        command: list[str | Path] = [uv, "pip", "compile", *OPTIONS, *inputs, "--output-file", lock]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
