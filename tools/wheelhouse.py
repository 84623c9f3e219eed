"""Make an offline wheelhouse: the broker's wheel, the wheels of all it needs, requirements.txt with their hashes.

Machines that reach no package index install from it (`broker_wheelhouse` of the broker role; with --pipeline a
directory of its own for `pipeline_wheelhouse`, which also holds Spark and is ten times as large):

    pip install --no-index --find-links DIRECTORY --require-hashes --requirement DIRECTORY/requirements.txt

is what the role does with less: PyPA's installer is among the wheels, and hosts need no pip.

Which packages, versions and hashes comes from requirements.lock; those that are published as source only are built
here. The wheels are for the Python and the platform that run this program: run it on a machine like the brokers'.
What is there and still right is kept: with nothing changed it returns at once, with changed sources only our own
wheels are built. requirements.txt is replaced last: what an interrupted run leaves is refused by its hashes.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from machine import STATE, SetupError, run
from setup_environment import LOCK, ROOT, SOURCE_ONLY, SPARK, source_only_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

BROKER = ROOT / "broker"
BROKER_PACKAGE = "pollux-broker"
#: Says what the directory was made from and for whom; pollux_release reads `python` and `platform`.
MANIFEST = "wheelhouse.json"
REQUIREMENTS = "requirements.txt"
FORMAT = 3
#: The extra of a store in a database, and what a wheelhouse with its packages has a file of this name for.
EXTRA, MARK = "database", "with-database"
#: Installs the others on the hosts (roles/broker/library/pollux_install.py).
INSTALLER = "installer"
#: No single step takes longer than this unless something hangs (seconds).
STEP_TIMEOUT = 1800


class Product(NamedTuple):
    """Hold what a wheelhouse is for: the packages of this checkout in it, its own first, and where it is made."""

    sources: tuple[Path, ...]
    source_only: tuple[str, ...]
    directory: Path

    @property
    def package(self) -> str:
        """Its name in file names."""
        return f"pollux_{self.sources[0].name}"


BROKER_PRODUCT = Product((BROKER,), (SOURCE_ONLY,), STATE / "wheelhouse")
PIPELINE_PRODUCT = Product((ROOT / "pipeline", BROKER), (SOURCE_ONLY, SPARK), STATE / "wheelhouse-pipeline")
EXAMPLES = """\
examples:
  tools/wheelhouse.py                          into .pollux/wheelhouse (what `make wheelhouse` does)
  tools/wheelhouse.py /srv/pollux-wheelhouse   then: broker_wheelhouse: /srv/pollux-wheelhouse
  tools/wheelhouse.py --database               with what brokers need whose store is in a database
  tools/wheelhouse.py --pipeline               into .pollux/wheelhouse-pipeline, for pipeline_wheelhouse
  tools/wheelhouse.py --json                   the result for a program: directory, changed, release, wheels, bytes

exit codes: 0 ready, 1 it could not be made (the reason is on standard error), 2 wrong usage
"""


class Progress:
    """Lines on standard error about steps that take a while; on a terminal a step's count stays on one line."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._open = False

    def say(self, text: str) -> None:
        """Tell about a step."""
        self.close()
        if not self._quiet:
            sys.stderr.write(f"wheelhouse: {text}\n")
            sys.stderr.flush()

    def count(self, done: int, total: int, what: str) -> None:
        """Show how far a step is; without a terminal, every tenth only."""
        if self._quiet:
            return
        if self._terminal:
            sys.stderr.write(f"\r\x1b[Kwheelhouse: {done}/{total} {what}")
            sys.stderr.flush()
            self._open = True
        elif done % 10 == 0 or done == total:
            self.say(f"{done}/{total} {what}")

    def close(self) -> None:
        """End a line that a count left open."""
        if self._open:
            sys.stderr.write("\r\x1b[K")
            self._open = False


# -- what belongs into it ---------------------------------------------------------------------------------------------


def blocks_of(lock: str) -> dict[str, str]:
    """The lock file's text by package; a package locked twice (for different Pythons) has both blocks."""
    found: dict[str, str] = {}
    for block in re.split(r"(?m)^(?=[a-zA-Z0-9])", lock)[1:]:
        name = re.split(r"[=\s]", block, maxsplit=1)[0]
        found[name] = found.get(name, "") + block
    return found


def needed_by(block: str) -> set[str]:
    """Who wants a package, from the comments that the lock file's maker leaves below it."""
    comments = re.findall(r"(?m)^[ ]+#[ ]+(?:via[ ]+)?(\S+)", block)
    return {name for name in comments if name != "via"}


def asked_for(sources: Path) -> set[str]:
    """The packages that a pyproject.toml of this checkout names, but for those of this checkout."""
    dependencies = tomllib.loads((sources / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", text, maxsplit=1)[0]).lower() for text in dependencies}
    return names - {BROKER_PACKAGE}


def extra_packages() -> set[str]:
    """The packages that the broker needs for a store in a database only."""
    extras = tomllib.loads((BROKER / "pyproject.toml").read_text())["project"]["optional-dependencies"][EXTRA]
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower() for text in extras}


def runtime_packages(lock: str, product: Product = BROKER_PRODUCT, *, database: bool = False) -> dict[str, str]:
    """The lock's blocks of what is needed when it runs; raises SetupError when one is missing."""
    blocks = blocks_of(lock)
    if not database:  # the lock does not tell what is of an extra
        for name in extra_packages():
            blocks.pop(name, None)
    wanted = {BROKER_PACKAGE}
    for sources in product.sources:  # the broker's own are named in the lock itself
        wanted |= asked_for(sources) if sources != BROKER else set()
    while True:
        more = {name for name, block in blocks.items() if name not in wanted and needed_by(block) & wanted}
        if not more:
            break
        wanted |= more
    wanted.discard(BROKER_PACKAGE)
    wanted.add(INSTALLER)
    if missing := (set(product.source_only) - wanted) | (wanted - blocks.keys()):
        raise SetupError(f"{LOCK.name} does not say what {product.package} needs ({min(missing)}): run make lock")
    return {name: blocks[name] for name in sorted(wanted)}


def tags() -> dict[str, str]:
    """For which Python and platform the wheels are."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": sysconfig.get_platform(),
    }


def release_module() -> ModuleType:
    """The role's module that builds the broker's wheel: one way to build it, wherever it goes."""
    path = ROOT / "roles" / "broker" / "library" / "pollux_release.py"
    specification = importlib.util.spec_from_file_location("pollux_release", path)
    if specification is None or specification.loader is None:
        raise SetupError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


# -- making it --------------------------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: str) -> str:
    """A hash of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextmanager
def only_one(directory: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a wheelhouse: a second maker waits for the first."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for another run that makes {directory}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def manifest_of(directory: Path) -> dict[str, Any]:
    """Return what a wheelhouse says of itself; nothing when it says nothing usable."""
    try:
        found = json.loads((directory / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}


def intact(directory: Path, wheels: Mapping[str, str]) -> bool:
    """Whether the named wheels are there with these hashes."""
    return all((directory / name).is_file() and sha256(directory / name) == hash_ for name, hash_ in wheels.items())


def fetch(packages: Mapping[str, str], target: Path, progress: Progress) -> None:
    """Fetch the locked wheels, each checked against its hash, into ``target``."""
    requirements = target / REQUIREMENTS
    requirements.write_text("".join(packages.values()))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--progress-bar", "off", "--dest", str(target)]
    command += ["--requirement", str(requirements)]
    said: list[str] = []
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=environment
    ) as pip:
        deadline = threading.Timer(STEP_TIMEOUT, pip.kill)
        deadline.start()
        try:
            for line in pip.stdout or ():
                said.append(line.rstrip()[:300])
                if line.startswith("Collecting "):
                    count = sum(1 for earlier in said if earlier.startswith("Collecting "))
                    progress.count(count, len(packages), line.split()[1].partition("==")[0])
        except BaseException:
            pip.kill()
            raise
        finally:
            deadline.cancel()
    progress.close()
    requirements.unlink()
    if pip.returncode != 0:
        raise SetupError("the packages cannot be fetched:\n" + "\n".join(said[-15:]))


def prove(directory: Path, requirements: Path) -> None:
    """Have pip resolve the wheelhouse as a machine without a network would; raises SetupError with what is missing."""
    command: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    command += ["--quiet", "--dry-run", "--ignore-installed", "--no-index", "--only-binary", ":all:"]
    run([*command, "--require-hashes", "--find-links", directory, "--requirement", requirements])


def requirement_lines(wheels: Mapping[str, str]) -> str:
    """The text of requirements.txt: each wheel's package, version and hash."""
    lines = ["# Made by tools/wheelhouse.py. Nothing that is not named here with its hash is installed."]
    for name, hash_ in sorted(wheels.items()):
        package, version = name.split("-")[:2]
        lines.append(f"{package.replace('_', '-').lower()}=={version} --hash=sha256:{hash_}")
    return "\n".join(lines) + "\n"


def replace(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one at each moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def make(
    directory: Path,
    progress: Progress,
    *,
    product: Product = BROKER_PRODUCT,
    anew: bool = False,
    database: bool = False,
) -> dict[str, Any]:
    """Make ``directory`` what the lock and the sources say; returns what ``--json`` prints."""
    release = release_module()
    packages = runtime_packages(LOCK.read_text(), product, database=database)
    files = {sources: release.sources(sources) for sources in product.sources}
    made_for = tags()
    needs = digest(*packages.values(), *made_for.values(), sys.version)
    sources = digest(*(str(release.digest_of(names, base)) for base, names in files.items()))
    with only_one(directory, progress):
        if not database:
            (directory / MARK).unlink(missing_ok=True)
        old = {} if anew else manifest_of(directory)
        wheels: dict[str, str] = dict(old.get("wheels", {})) if old.get("needs") == needs else {}
        own = [str(name) for name in old.get("own", [])]
        keep = {name: hash_ for name, hash_ in wheels.items() if name not in own}
        if not intact(directory, keep):
            keep = {}
        current = bool(keep) and old.get("sources") == sources and bool(own) and set(own) <= wheels.keys()
        if current and intact(directory, {name: wheels[name] for name in own}) and names_all(directory, wheels):
            mark(directory, database=database)
            return result(directory, wheels, own[0], made_for, changed=False)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".new-") as work:
            new = Path(work)
            if not keep:
                fetched = {name: block for name, block in packages.items() if name not in product.source_only}
                fetch(fetched, new, progress)
                for name in product.source_only:
                    built = source_only_wheel(Path(sys.executable), name)
                    shutil.copyfile(built, new / built.name)
            own = []
            for base, names in files.items():
                progress.say(f"building the {base.name}'s wheel")
                release.build(base, names, new / base.name, sys.executable)
                built = min((new / base.name).glob("*.whl"))
                own.append(built.name)
                built.rename(new / built.name)
            fresh = {path.name: sha256(path) for path in new.glob("*.whl")}
            for name in fresh:
                (new / name).replace(directory / name)
        wheels = {**keep, **fresh}
        text = requirement_lines(wheels)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".new-") as work:
            (Path(work) / REQUIREMENTS).write_text(text)
            prove(directory, Path(work) / REQUIREMENTS)
        replace(directory / REQUIREMENTS, text)
        manifest = {"format": FORMAT, **made_for, "own": own, "needs": needs, "sources": sources, "wheels": wheels}
        replace(directory / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        for path in directory.glob("*.whl"):
            if path.name not in wheels:
                path.unlink()
        mark(directory, database=database)
        return result(directory, wheels, own[0], made_for, changed=True)


def mark(directory: Path, *, database: bool) -> None:
    """Leave a word for inventories, which are judged before anything is unpacked."""
    if database:
        (directory / MARK).touch()


def names_all(directory: Path, wheels: Mapping[str, str]) -> bool:
    """Whether requirements.txt is the one for these wheels, and no other one of ours lies beside them."""
    ours = {path.name for path in directory.glob("pollux_*.whl")}
    try:
        return ours <= wheels.keys() and (directory / REQUIREMENTS).read_text() == requirement_lines(wheels)
    except OSError:
        return False


def result(
    directory: Path, wheels: Mapping[str, str], own: str, made_for: Mapping[str, str], *, changed: bool
) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "directory": str(directory),
        "changed": changed,
        "version": own.split("-")[1],
        "package": own,
        "wheels": len(wheels),
        "bytes": sum((directory / name).stat().st_size for name in wheels),
        **made_for,
    }


def main() -> int:
    """Run the program; see EXAMPLES for exit codes."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", nargs="?", type=Path, help="where to make it (.pollux/wheelhouse)")
    parser.add_argument("--pipeline", action="store_true", help="for the pipeline's hosts in place of the brokers'")
    parser.add_argument("--database", action="store_true", help="with the packages of a store in a database")
    parser.add_argument("--anew", action="store_true", help="fetch and build everything again")
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and no progress")
    arguments = parser.parse_args()
    product = PIPELINE_PRODUCT if arguments.pipeline else BROKER_PRODUCT
    directory = (arguments.directory or product.directory).resolve()
    progress = Progress(quiet=arguments.json)
    try:
        made = make(directory, progress, product=product, anew=arguments.anew, database=arguments.database)
    except (SetupError, OSError, subprocess.SubprocessError) as error:
        progress.close()
        told = getattr(error, "stderr", None) or error
        sys.stderr.write(f"wheelhouse: {directory} could not be made: {str(told).strip()}\n")
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(made) + "\n")
    else:
        progress.say(
            f"{made['directory']}: {made['wheels']} wheels, {made['bytes'] / 1e6:.0f} MB, Pollux {made['version']}, "
            f"Python {made['python']} on {made['platform']}, {'made' if made['changed'] else 'nothing to do'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
