"""Makes the wheels that hosts install: this checkout's, and those of the next version for the upgrade scenarios."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
import zipfile
from typing import TYPE_CHECKING

from harness.releases import BROKEN, VERSION_FILE, raised
from lab.places import PLACES, ROOT, LabError, Places
from lab.processes import run

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 900
#: Of the base image.
HOSTS_PYTHON = (3, 11)


def ensure(places: Places = PLACES) -> Path:
    """Make the wheelhouse what the sources are; what is right already is kept."""
    if sys.platform != "linux" or sys.version_info[:2] != HOSTS_PYTHON:
        mine = f"{sys.version_info.major}.{sys.version_info.minor} on {sys.platform}"
        given = places.wheelhouse / "requirements.txt"
        if given.exists():  # brought from elsewhere; the role refuses one for another Python
            return places.wheelhouse
        raise LabError(
            f"the lab's hosts have Python 3.11 on Linux, and wheels made here are for Python {mine}: "
            f"run `make wheelhouse` on Linux with Python 3.11 and copy .pollux/wheelhouse here"
        )
    tool = ROOT / "tools" / "wheelhouse.py"
    command: list[str | Path] = [sys.executable, tool, "--json", "--database", places.wheelhouse]
    done = run(command, timeout=_TIMEOUT)
    try:
        json.loads(done.stdout)
    except ValueError as error:
        raise LabError(f"tools/wheelhouse.py said: {done.stdout[-500:]}") from error
    return places.wheelhouse


def next_version(target: Path, *, broken: bool = False, places: Places = PLACES) -> Path:
    """A wheelhouse like the current one with a broker of the next version; `broken`: one that does not become ready."""
    current = ensure(places)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(current, target)
    old = next(target.glob("pollux_broker-*.whl"))
    version = old.name.split("-")[1]
    try:
        new = raised(raised(version)) if broken else raised(version)
    except ValueError as error:
        raise LabError(str(error)) from error
    wheel = target / old.name.replace(f"-{version}-", f"-{new}-")
    rewrite(old, wheel, version, new, broken=broken)
    old_hash = hashlib.sha256(old.read_bytes()).hexdigest()
    new_hash = hashlib.sha256(wheel.read_bytes()).hexdigest()
    old.unlink()
    for name in ("requirements.txt", "wheelhouse.json"):
        text = (target / name).read_text().replace(old_hash, new_hash).replace(old.name, wheel.name)
        (target / name).write_text(text.replace(f"pollux-broker=={version}", f"pollux-broker=={new}"))
    return target


def rewrite(old: Path, new: Path, version: str, raised_version: str, *, broken: bool) -> None:
    """Copy a wheel under another version: file names, metadata, what the program says of itself, and the record."""
    info, raised_info = (f"pollux_broker-{each}.dist-info/" for each in (version, raised_version))
    record: list[str] = []
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as target:
        for item in source.infolist():
            if item.filename == f"{info}RECORD":
                continue
            data = source.read(item)
            name = item.filename.replace(info, raised_info, 1)
            if name == f"{raised_info}METADATA":
                data = data.replace(f"\nVersion: {version}\n".encode(), f"\nVersion: {raised_version}\n".encode(), 1)
            if name == VERSION_FILE:
                data = data.replace(f'"{version}"'.encode(), f'"{raised_version}"'.encode())
            if broken and name == "pollux/cli/__init__.py":
                data += BROKEN.encode()
            target.writestr(zipfile.ZipInfo(name, item.date_time), data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
        record.append(f"{raised_info}RECORD,,")
        target.writestr(zipfile.ZipInfo(f"{raised_info}RECORD"), "\n".join(record) + "\n", zipfile.ZIP_DEFLATED)
