#!/usr/bin/python
"""Packs one side of a split brain, once nobody uses its data directory any more. Standard library only."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_side
short_description: A data directory of a broker that does not run, as one file
description:
  - Fails when O(directory) holds no journal, or when a process of this host holds a lock of a file in it, which a
    broker does as long as it lives.
  - With O(archive), packs everything in it but the tokens of broker lives. Changes nothing in the directory.
options:
  directory:
    description: The directory with journal, bindings, pages and large messages.
    type: path
    required: true
  archive:
    description: File (tar, gzip) that is written; it keeps its owner when it is there already.
    type: path
author: Pollux
"""
RETURN = r"""
digest: {description: "Of names, sizes and times of files: the same while nobody writes.", type: str, returned: always}
bytes: {description: Size of all files., type: int, returned: always}
"""
#: The secret of a broker life; of no use to anybody any more, and nobody's business.
LEFT_OUT = ("pollux.token",)
_LOCK = re.compile(r"^\d+: (?:-> )?\S+\s+\S+\s+\S+\s+(-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def files_of(directory: Path) -> list[Path]:
    """Return every file below a directory, sorted."""
    found = [Path(place) / name for place, _, names in os.walk(directory) for name in names]
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def holders(files: list[Path], locks: str) -> list[tuple[int, Path]]:
    """Return who locks one of the files: process id (-1 when the kernel does not say) and file.

    ``locks`` is the text of /proc/locks.
    """
    wanted: dict[tuple[int, int], Path] = {}
    for path in files:
        status = path.stat()
        wanted[(status.st_dev, status.st_ino)] = path
    found = []
    for pid, major, minor, inode in _LOCK.findall(locks):
        path = wanted.get((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
        if path is not None:
            found.append((int(pid), path))
    return found


def digest_of(files: list[Path], directory: Path) -> str:
    """Return a digest of names, sizes and times."""
    digest = hashlib.sha256()
    for path in files:
        if path.name in LEFT_OUT:
            continue
        status = path.stat()
        digest.update(f"{path.relative_to(directory)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def pack(directory: Path, archive: Path) -> None:
    """Write the archive. Segments are as long as they may become and mostly empty: fast compression is enough."""

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        # Sockets and the like are a running broker's.
        plain = member.isreg() or member.isdir()
        return member if plain and Path(member.name).name not in LEFT_OUT else None

    handle = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            tar.add(directory, arcname=".", filter=wanted)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"directory": {"type": "path", "required": True}, "archive": {"type": "path"}},
        supports_check_mode=True,
    )
    directory = Path(module.params["directory"])
    if not (directory / "journal").is_dir():
        module.fail_json(msg=f"{directory} holds no directory called journal: it is no data directory of a broker")
    try:
        files = files_of(directory)
        held = holders(files, Path("/proc/locks").read_text(encoding="utf-8"))
        if held:
            pid, path = held[0]
            who = f"process {pid}" if pid > 0 else "a process"
            module.fail_json(
                msg=f"a broker still lives: {who} holds a lock of {path}; stop it before anything is recovered"
            )
        digest = digest_of(files, directory)
        size = sum(stat.S_ISREG(path.stat().st_mode) * path.stat().st_size for path in files)
        if module.params["archive"] and not module.check_mode:
            pack(directory, Path(module.params["archive"]))
            if digest_of(files_of(directory), directory) != digest:
                module.fail_json(msg=f"{directory} changed while it was packed: somebody still writes to it")
    except OSError as error:
        module.fail_json(msg=f"{error.filename or directory}: {error.strerror or error}")
    module.exit_json(changed=False, digest=digest, bytes=size)


if __name__ == "__main__":
    main()
