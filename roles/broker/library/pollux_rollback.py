#!/usr/bin/python
"""Keeps what a broker ran with before an upgrade, and brings it back. Standard library only."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_rollback
short_description: What a Pollux broker ran with, kept so that it can be brought back
description:
  - V(saved) copies the broker's files, with owners and modes, and the name of its release into O(directory), which
    only its owner can read. What an upgrade that was broken off kept stays, because that, not what it left half done,
    is what worked; unless the broker runs the release that its link points to, or another release is upgraded to.
  - V(restored) brings all of it back and keeps the copy; files that were not there are removed. V(forgotten) removes
    the copy.
options:
  state:
    description: What is wanted; V(asked) only tells whether there is a copy.
    type: str
    choices: [saved, restored, forgotten, asked]
    required: true
  directory:
    description: Where the copy is kept.
    type: path
    required: true
  link:
    description: The link to the release; for V(saved) and V(restored).
    type: path
  files:
    description: Files to keep; for V(saved).
    type: list
    elements: path
    default: []
  running:
    description: Name of the release that runs, empty when that is not known; for V(saved).
    type: str
    default: ""
  target:
    description: Name of the release that is upgraded to; for V(saved).
    type: str
    default: ""
author: Pollux
"""
RETURN = r"""
kept: {description: Whether there is a copy now., type: bool, returned: always}
release: {description: Name of the release that the copy is of., type: str, returned: when there is a copy}
"""
MANIFEST = "manifest.json"


def manifest(directory: Path) -> dict[str, Any] | None:
    """Return what the copy holds; None when there is none, or an unfinished one."""
    try:
        found: dict[str, Any] = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def point(link: Path, target: str) -> None:
    """Switch a link atomically."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def write(path: Path, data: bytes, mode: int, owner: tuple[int, int]) -> None:
    """Replace a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if owner != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    temporary.replace(path)


def save(directory: Path, link: Path, files: list[str], running: str, target: str) -> bool:
    """Copy everything; returns whether it did, and did not keep an earlier copy."""
    pointed = link.readlink().name
    found = manifest(directory)
    if found is not None and found["target"] == target and running != pointed:
        return False
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    entries = []
    for number, name in enumerate(files):
        path = Path(name)
        entry: dict[str, Any] = {"path": name}
        if path.exists():
            status = path.stat()
            entry |= {"copy": str(number), "mode": status.st_mode & 0o7777, "owner": [status.st_uid, status.st_gid]}
            write(directory / str(number), path.read_bytes(), 0o600, (os.geteuid(), os.getegid()))
        entries.append(entry)
    # What runs, not what the link points to: site.yml may have switched the link already.
    told = {"release": running or pointed, "target": target, "files": entries}
    write(directory / MANIFEST, json.dumps(told, indent=1).encode(), 0o600, (os.geteuid(), os.getegid()))
    return True


def restore(directory: Path, link: Path) -> None:
    """Bring everything back."""
    found = manifest(directory)
    if found is None:
        raise FileNotFoundError(2, "nothing was kept to go back to", str(directory))
    if not (link.parent / "releases" / found["release"] / "complete").exists():
        raise FileNotFoundError(2, "the earlier release is not installed any more", found["release"])
    for entry in found["files"]:
        path = Path(entry["path"])
        if "copy" in entry:
            write(path, (directory / entry["copy"]).read_bytes(), entry["mode"], tuple(entry["owner"]))
        else:
            path.unlink(missing_ok=True)
    point(link, f"releases/{found['release']}")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["saved", "restored", "forgotten", "asked"], "required": True},
            "directory": {"type": "path", "required": True},
            "link": {"type": "path"},
            "files": {"type": "list", "elements": "path", "default": []},
            "running": {"type": "str", "default": ""},
            "target": {"type": "str", "default": ""},
        },
        required_if=[("state", "saved", ["link", "target"]), ("state", "restored", ["link"])],
        supports_check_mode=True,
    )
    params = module.params
    directory = Path(params["directory"])
    changed = False
    try:
        if params["state"] == "forgotten":
            changed = directory.exists()
        elif params["state"] in ("saved", "restored"):
            changed = True
        if not module.check_mode:
            if params["state"] == "saved":
                changed = save(directory, Path(params["link"]), params["files"], params["running"], params["target"])
            elif params["state"] == "restored":
                restore(directory, Path(params["link"]))
            elif params["state"] == "forgotten":
                shutil.rmtree(directory, ignore_errors=True)
        found = manifest(directory)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=changed, kept=found is not None, **({"release": found["release"]} if found else {}))


if __name__ == "__main__":
    main()
