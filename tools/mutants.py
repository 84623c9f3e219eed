"""Break the product on purpose and see that the test named for it fails; run by `make mutants`.

    .venv/bin/python tools/mutants.py [--list] [--check] [--jobs N] [--keep] [NAME ...]

Every file in tests/mutants is a patch with a head: what it breaks (`What:`) and the test that must fail (`Test:`). Each
is applied to a copy of its own, and only that test runs there. Before, the tests run on a copy without any patch: one
that fails anyway proves nothing. A patch that does not apply any more is an error: the code it breaks has changed, and
the patch has to follow it.

Exit status: 0 every mutant was noticed, 1 one was not, 2 a patch or a test cannot be used.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"
#: What a copy needs to run the tests of the broker and of the bundle.
PARTS = (
    *("broker", "harness", "tests", "benchmarks", "tools", "docs", "pyproject.toml"),
    *("roles", "playbooks", "inventories", "filter_plugins", "collections", "callback_plugins"),
    *("ansible.cfg", "molecule", "pipeline"),
)
IGNORED = ("__pycache__", "*.egg-info", "node_modules", ".hypothesis", ".pytest_cache")
#: Seconds one test may take on a busy machine, and those it gets to stop what it started when it takes longer.
LIMIT, PATIENCE = 600, 60
FAILED, PASSED = 1, 0
_LINE = re.compile(r"^(What|Test): (.+)$", re.MULTILINE)


class Mutant(NamedTuple):
    """One patch."""

    name: str
    path: Path
    what: str
    test: str


class Run(NamedTuple):
    """How a test ended: pytest's exit status, its last words, and how long it took in seconds."""

    code: int
    output: str
    seconds: float


class UnusableError(Exception):
    """A patch or a test that proves nothing."""


def read(path: Path) -> Mutant:
    """The mutant in a file. Raises UnusableError."""
    head = path.read_text().partition("\n--- ")[0]
    found = dict(_LINE.findall(head))
    if set(found) != {"What", "Test"}:
        raise UnusableError(f"{path}: its head must say `What:` and `Test:`")
    file, _, name = found["Test"].partition("::")
    if not (ROOT / file).is_file() or f"def {name.partition('[')[0]}(" not in (ROOT / file).read_text():
        raise UnusableError(f"{path}: there is no test {found['Test']}")
    return Mutant(path.stem, path, found["What"], found["Test"])


def copy(target: Path) -> None:
    """Hold what is tested, in another place."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns(*IGNORED))
        else:
            shutil.copy2(source, target / part)
    # What tests run that is no Python package; nobody writes there.
    programs = ROOT / ".pollux" / "zookeeper"
    if programs.exists():
        (target / ".pollux").mkdir()
        (target / ".pollux" / programs.name).symlink_to(programs)


def apply(mutant: Mutant, tree: Path) -> None:
    """Break the copy. Raises UnusableError when the patch does not apply as it is."""
    # Outside any repository, or git would take the paths for those of the one around it.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    command = ["git", "apply", "--whitespace=nowarn", str(mutant.path)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    changed = [line[6:] for line in mutant.path.read_text().splitlines() if line.startswith("+++ b/")]
    if done.returncode or not changed:
        raise UnusableError(f"{mutant.path}: does not apply any more, write it anew:\n{done.stderr.strip()}")
    for name in changed:
        if (tree / name).read_bytes() == (ROOT / name).read_bytes():
            raise UnusableError(f"{mutant.path}: changed nothing in {name}")


def check(mutants: list[Mutant]) -> None:
    """Check that every patch still applies, and run nothing. Raises UnusableError."""
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="pollux-mutant-") as name:
            tree = Path(name) / "tree"
            for line in mutant.path.read_text().splitlines():
                if line.startswith("--- a/") and (ROOT / line[6:]).is_file():
                    (tree / line[6:]).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / line[6:], tree / line[6:])
            tree.mkdir(exist_ok=True)
            apply(mutant, tree)


def run(tree: Path, tests: list[str]) -> Run:
    """Run tests on a copy. Raises UnusableError when they do not end."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--basetemp", str(tree / "tmp")]
    environment = {**os.environ, "PYTHONPATH": str(tree / "broker" / "src")}
    limit = LIMIT * len(tests)
    with subprocess.Popen(
        [*command, *tests], cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # so that it ends the brokers it has started
            try:
                output, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            ended = "\n".join(output.splitlines()[-15:])
            raise UnusableError(f"{', '.join(tests)}: no end after {limit} s:\n{ended}") from None
    return Run(process.returncode, output, time.monotonic() - began)


def judge(mutant: Mutant, directory: Path) -> str:
    """Break a copy and run the test; "" when it failed as it must, else what is wrong. Raises UnusableError."""
    tree = directory / mutant.name
    tree.mkdir()
    copy(tree)
    apply(mutant, tree)
    result = run(tree, [mutant.test])
    words = result.output.strip().splitlines()
    if result.code == PASSED:
        print(f"NOT NOTICED  {mutant.name}: {mutant.what}; {mutant.test} passed", flush=True)
        return mutant.name
    if result.code != FAILED or not any(line.startswith("FAILED ") for line in words):
        raise UnusableError(f"{mutant.name}: {mutant.test} did not run:\n" + "\n".join(words[-15:]))
    reason = next(line for line in words if line.startswith("FAILED "))
    print(f"noticed in {result.seconds:4.0f} s  {mutant.name}: {mutant.what}\n    {reason[:300]}", flush=True)
    return ""


def baseline(mutants: list[Mutant], directory: Path) -> None:
    """Check that the tests pass on what is not broken. Raises UnusableError."""
    tree = directory / "unbroken"
    tree.mkdir()
    copy(tree)
    tests = sorted({mutant.test for mutant in mutants})
    result = run(tree, tests)
    if result.code != PASSED:
        raise UnusableError("a test fails without any patch:\n" + "\n".join(result.output.splitlines()[-30:]))
    print(f"{len(tests)} tests pass on the unbroken product ({result.seconds:.0f} s)", flush=True)


def main() -> int:
    """Judge the mutants; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Break the product on purpose and see that the test named for it fails.",
        epilog="examples: tools/mutants.py --list; tools/mutants.py fencing_off; tools/mutants.py --jobs 1",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (file names in tests/mutants)")
    parser.add_argument("--list", action="store_true", help="only show what there is")
    parser.add_argument("--check", action="store_true", help="only see that every patch applies and names a test")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at the same time (default: 2)")
    parser.add_argument("--keep", action="store_true", help="leave the copies for a look")
    arguments = parser.parse_args()
    try:
        mutants = [read(path) for path in sorted(MUTANTS.glob("*.patch"))]
        known = {mutant.name for mutant in mutants}
        if unknown := set(arguments.names) - known:
            parser.error(f"no such mutant: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}")
        mutants = [mutant for mutant in mutants if not arguments.names or mutant.name in arguments.names]
        if arguments.list:
            for mutant in mutants:
                print(f"{mutant.name}: {mutant.what}\n    {mutant.test}")
            return 0
        if arguments.check:
            check(mutants)
            print(f"{len(mutants)} patches apply")
            return 0
        directory = Path(tempfile.mkdtemp(prefix="pollux-mutants-"))
        try:
            baseline(mutants, directory)
            with ThreadPoolExecutor(max(1, arguments.jobs)) as threads:
                survivors = [name for name in threads.map(lambda mutant: judge(mutant, directory), mutants) if name]
        finally:
            if arguments.keep:
                print(f"the copies are in {directory}")
            else:
                shutil.rmtree(directory, ignore_errors=True)
    except UnusableError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants were noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
