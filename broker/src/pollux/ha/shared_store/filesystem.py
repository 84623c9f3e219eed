"""Is this directory fit to be shared? File system type, writability, and whether the others see the same one."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from pollux.errors import StoreRefusedError

MOUNTINFO = Path("/proc/self/mountinfo")


class StoreDirectoryError(StoreRefusedError):
    """The directory cannot hold a shared store; nothing was written to it."""


def mount_of(path: Path, mountinfo: str) -> tuple[str, str, str]:
    """(mount point, file system type, super options) of ``path``, from the text of /proc/self/mountinfo."""
    best = ("", "", "")
    text = str(path)
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if not separator or len(fields) < 5 or not kinds:
            continue
        point = fields[4].encode("latin-1", "replace").decode("unicode_escape")
        inside = text == point or text.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later one is what one sees.
        if inside and len(point) >= len(best[0]):
            best = (point, kinds[0], kinds[2] if len(kinds) > 2 else "")
    return best


def refusal(path: Path, kind: str, options: str) -> str:
    """Why a file system of this kind cannot hold a shared store; empty when it can."""
    if kind == "nfs" or (kind.startswith("nfs") and ("vers=3" in options or "vers=2" in options)):
        return (
            f"{path} is on NFS version 3, whose locks are not released when a client dies; mount it with version 4"
            " (vers=4.1 or 4.2)"
        )
    if kind == "ocfs2":
        return f"{path} is on OCFS2, which does not support locks between hosts with fcntl; use NFSv4 or GFS2"
    return ""


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_kind(path: Path) -> str:
    """The type of the file system ``path`` is on (or will be made on). Raises StoreDirectoryError for a refused one."""
    try:
        mountinfo = MOUNTINFO.read_text("utf-8", "replace")
    except OSError:
        return ""
    _, kind, options = mount_of(_existing(path).resolve(), mountinfo)
    reason = refusal(path, kind, options)
    if reason:
        raise StoreDirectoryError(reason)
    return kind


def check_access(path: Path) -> None:
    """Raises StoreDirectoryError when ``path`` (or where it has to be made) is read-only; writes nothing."""
    existing = _existing(path)
    if os.statvfs(existing).f_flag & os.ST_RDONLY or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        raise StoreDirectoryError(
            f"{path}: the shared store is read-only for this broker; mount it read-write and give the directory"
            " to the broker's user"
        )


def probe(path: Path) -> None:
    """Create and remove a file. Raises StoreDirectoryError when that does not work."""
    existing = _existing(path)
    file = existing / f".pollux-probe-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # a full disk is the store's matter: acknowledgements may still free it
        raise StoreDirectoryError(
            f"{existing}: nothing can be written there: {error.strerror}; give the directory to the broker's user"
        ) from error
    os.close(descriptor)
    file.unlink(missing_ok=True)
