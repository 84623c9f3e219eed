#!/usr/bin/python
"""Finds, or builds, what a release is made of. Runs on the controller; standard library only."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_release
short_description: The wheel of a Pollux release, built from sources or taken from a wheelhouse
description:
  - Names a release after its version and a digest of what it is made of, so that a release is never changed afterwards.
  - With O(source), builds the wheel unless one of the same sources was built before.
options:
  source:
    description: Directory with the package's pyproject.toml and src.
    type: path
  wheelhouse:
    description: Directory with wheels and a requirements.txt with their hashes.
    type: path
  package:
    description: Which package the release is, as its wheel is called.
    type: str
    default: pollux_broker
  cache:
    description: Directory for wheels built from O(source), and for archives of wheelhouses.
    type: path
    required: true
  python:
    description: Python with pip, setuptools and wheel, which builds the wheel; else the one that runs this module.
    type: path
author: Pollux
"""
RETURN = r"""
name: {description: Name of the release., type: str, returned: always}
version: {description: Version of the package., type: str, returned: always}
wheel: {description: Path of the package's wheel., type: str, returned: always}
archive: {description: "Path of one file with the whole wheelhouse, empty with O(source).", type: str, returned: always}
made_for: {description: "The Python of its wheels, as MAJOR.MINOR; else empty.", type: str, returned: always}
"""
BUILD_TIMEOUT = 300


def digest_of(paths: list[Path], base: Path) -> str:
    """Return a digest of the names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(base)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sources(source: Path) -> list[Path]:
    """Return the files a wheel is made of."""
    found = [source / "pyproject.toml", source / "README.md"]
    for directory, names, files in os.walk(source / "src"):
        names[:] = [name for name in names if name != "__pycache__" and not name.endswith(".egg-info")]
        found += [Path(directory) / name for name in files if not name.endswith(".pyc")]
    return [path for path in found if path.is_file()]


def build(source: Path, files: list[Path], target: Path, python: str) -> None:
    """Build the wheel of a copy of the sources (so that nothing appears beside them) into the directory ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        copy, wheels = Path(work) / "source", Path(work) / "wheels"
        for file in files:
            place = copy / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
        command = [python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "--no-cache-dir", "--wheel-dir", str(wheels), str(copy)]
        # One timestamp for everything in the archive: the same sources give the same wheel.
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1577836800", "PIP_REQUIRE_VIRTUALENV": "0"}
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_TIMEOUT, env=environment)
        try:
            wheels.rename(target)
        except OSError:
            if not target.is_dir():
                raise  # else another run has built the same one meanwhile


def from_source(module: AnsibleModule, source: Path) -> dict[str, object]:
    """Return the release that the sources are."""
    files = sources(source)
    text = (source / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'(?m)^version\s*=\s*"([^"]+)"', text)
    if version is None:
        module.fail_json(msg=f"{source}/pyproject.toml names no version")
    digest = digest_of(files, source)
    target = Path(module.params["cache"]) / digest[:32]
    changed = not list(target.glob("*.whl"))
    if changed and not module.check_mode:
        try:
            build(source, files, target, module.params["python"] or sys.executable)
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip()[-2000:]
            module.fail_json(msg=f"the wheel cannot be built from {source}: {said}")
    wheel = next(iter(target.glob("*.whl")), target / f"{module.params['package']}-{version[1]}-py3-none-any.whl")
    return {
        "changed": changed,
        "name": f"{version[1]}-{digest[:12]}",
        "version": version[1],
        "wheel": str(wheel),
        "archive": "",
        "made_for": "",
    }


def from_wheelhouse(module: AnsibleModule, wheelhouse: Path) -> dict[str, object]:
    """Return the release that a wheelhouse holds."""
    requirements = wheelhouse / "requirements.txt"
    package = module.params["package"]
    wheels = sorted(wheelhouse.glob(f"{package}-*.whl"))
    if len(wheels) != 1 or not requirements.is_file():
        module.fail_json(
            msg=f"{wheelhouse} must hold requirements.txt and one {package} wheel (it has {len(wheels)}); "
            f"make it anew with tools/wheelhouse.py{' --pipeline' if package == 'pollux_pipeline' else ''}"
        )
    text = requirements.read_text(encoding="utf-8")
    pinned = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if pinned not in text:
        module.fail_json(msg=f"{wheels[0].name} is not the wheel whose hash {requirements} names; make it anew")
    version = wheels[0].name.split("-")[1]
    digest = hashlib.sha256(text.encode()).hexdigest()
    archive = Path(module.params["cache"]) / f"{digest[:32]}.tar"
    changed = not archive.is_file()
    if changed and not module.check_mode:
        pack([requirements, *sorted(wheelhouse.glob("*.whl"))], archive)
    return {
        "changed": changed,
        "name": f"{version}-{digest[:12]}",
        "version": version,
        "wheel": str(wheels[0]),
        "archive": str(archive),
        "made_for": made_for(wheelhouse),
    }


def pack(files: list[Path], archive: Path) -> None:
    """Write the files into one archive: it is copied to a broker's machine much faster than file by file."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=archive.parent, suffix=".tar", delete=False) as temporary:
        try:
            with tarfile.open(fileobj=temporary, mode="w") as tar:
                for file in files:
                    member = tarfile.TarInfo(file.name)  # neither the controller's times nor its users are in it
                    member.size, member.mode = file.stat().st_size, 0o644
                    with file.open("rb") as content:
                        tar.addfile(member, content)
            temporary.flush()
            Path(temporary.name).replace(archive)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise


def made_for(wheelhouse: Path) -> str:
    """Return the Python the wheels are for, as MAJOR.MINOR; empty where the wheelhouse does not say."""
    try:
        return str(json.loads((wheelhouse / "wheelhouse.json").read_text(encoding="utf-8"))["python"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path"},
            "wheelhouse": {"type": "path"},
            "package": {"type": "str", "default": "pollux_broker"},
            "cache": {"type": "path", "required": True},
            "python": {"type": "path"},
        },
        mutually_exclusive=[["source", "wheelhouse"]],
        required_one_of=[["source", "wheelhouse"]],
        supports_check_mode=True,
    )
    try:
        if module.params["wheelhouse"]:
            result = from_wheelhouse(module, Path(module.params["wheelhouse"]))
        else:
            result = from_source(module, Path(module.params["source"]))
    except OSError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
