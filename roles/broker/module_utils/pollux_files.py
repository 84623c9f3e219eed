"""Writing files so that a crash leaves the old one or the new one. Standard library only, beside Ansible's own."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

VALIDATE_TIMEOUT = 120


def read(path: str) -> str | None:
    """Return the file's text; None when there is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def prepare(path: str, text: str) -> str:
    """Write and sync a new file beside ``path``, readable by its owner only; return its name."""
    temporary = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return str(temporary)


def add_line(module: AnsibleModule, path: str, line: str, wanted: dict[str, Any]) -> None:
    """Add a line to a file that notes what has to follow, unless it is there, or the file's directory is not."""
    lines = (read(path) or "").splitlines()
    if line not in lines and Path(path).parent.is_dir():
        replace(module, path, "".join(f"{each}\n" for each in [*lines, line]))
        attributes(module, path, {**wanted, "mode": "0640"})


def replace(module: AnsibleModule, path: str, text: str) -> None:
    """Replace a file's content atomically."""
    module.atomic_move(prepare(path, text), path)


def attributes(module: AnsibleModule, path: str, wanted: dict[str, Any], *, changed: bool = False) -> bool:
    """Give a file or directory its owner, group, mode and SELinux context; returns whether that changed it."""
    given = {"path": path, "unsafe_writes": False, "attributes": None}
    given.update({name: wanted.get(name) or None for name in ("mode", "owner", "group")})
    return bool(module.set_fs_attributes_if_different(module.load_file_common_arguments(given), changed))


def refusal(command: str, path: str, environment: dict[str, str]) -> str:
    """Return what a validating command (with %s for the file) says against a file; empty when it accepts it."""
    words = [word.replace("%s", path) for word in shlex.split(command)]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=VALIDATE_TIMEOUT,
            check=False,
            env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr + done.stdout).strip() or f"{words[0]} ended with exit code {done.returncode}"
