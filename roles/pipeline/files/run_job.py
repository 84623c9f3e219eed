"""Runs a job of the pipeline: a directory for its output, and no more of them than are kept. Made by the Pollux bundle.

Standard library only. What there is to run is in etc/jobs.json beside this program's directory.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SETTINGS = Path(__file__).resolve().parent.parent / "etc" / "jobs.json"
#: Names of outputs: the time at which the run began (UTC).
OUTPUT = re.compile(r"\d{8}T\d{6}Z(-\d+)?")
#: Written last by a job: without it, a run did not finish.
RESULT = "result.json"
LATEST = "latest"
WORK = ".work"
EXIT_FAILED, EXIT_USAGE = 1, 2
EXAMPLES = """\
examples:
  run-job sizing                                       as its timer does
  run-job drill --input ledger.txt --input data        of other inputs
  run-job --check                                      whether Spark finds a Java it can use
  run-job --command split_brain --a A --b B -o OUT     any command of pollux-pipeline, with the site's Spark and Java

exit codes: 0 clean, 1 failed or it is running already, 2 bad input or usage, 3 findings
"""


class UsageError(Exception):
    """Say why what was asked for cannot be done."""


def settings() -> dict[str, Any]:
    """Return what the bundle wrote."""
    try:
        found: dict[str, Any] = json.loads(SETTINGS.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{SETTINGS}: cannot be used: {error}; run site.yml again") from error
    return found


def job_of(known: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a job by its name."""
    for job in known["jobs"]:
        if job["name"] == name:
            return dict(job)
    names = ", ".join(job["name"] for job in known["jobs"])
    raise UsageError(f"there is no job {name!r}; there are {names or 'none'}")


def spark_options(known: Mapping[str, Any]) -> list[str]:
    """Return where and with what Spark runs."""
    words = ["--master", known["master"], "--memory", known["memory"]]
    for name, value in sorted(known["conf"].items()):
        words += ["--conf", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    return words


def arguments_of(known: Mapping[str, Any], job: Mapping[str, Any], output: Path) -> list[str]:
    """Return the command line of a job."""
    words = [known["program"], job["job"], *spark_options(known)]
    for place in job["inputs"]:
        words += ["--input", place]
    if job["lake"]:
        words += ["--lake", job["lake"]]
    return [*words, "--output", str(output), *job["options"]]


def environment_of(known: Mapping[str, Any], work: Path | None = None) -> dict[str, str]:
    """Return the environment of a job: its Java, its scratch space, and no name of this host to look up."""
    found = dict(os.environ)
    if known["java_home"]:
        found["JAVA_HOME"] = known["java_home"]
    if work is not None:
        found["SPARK_LOCAL_DIRS"] = str(work)
    if known["master"].startswith("local"):
        found["SPARK_LOCAL_IP"] = "127.0.0.1"
    return found


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Hold the lock of a job; raises UsageError when it is running."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{directory.name} is running already") from None
        yield
    finally:
        os.close(handle)


def outputs(directory: Path) -> list[Path]:
    """Return the directories of runs, newest first."""
    found = [path for path in directory.iterdir() if OUTPUT.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: path.name, reverse=True)


def new_output(directory: Path) -> Path:
    """Return a name for a run that begins now."""
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    taken = {path.name for path in directory.iterdir()}
    return directory / next(one for one in (name, *(f"{name}-{count}" for count in range(1, 1000))) if one not in taken)


def clean(directory: Path, keep: int) -> None:
    """Remove outputs beyond those that are kept, and what runs left that did not finish."""
    finished = [path for path in outputs(directory) if (path / RESULT).exists()]
    kept = set(finished[:keep])
    for path in outputs(directory):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(directory / WORK, ignore_errors=True)


def point_latest(output: Path) -> None:
    """Have ``latest`` name an output; it is the old one or the new one at each moment."""
    temporary = output.with_name(f".{LATEST}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(output.name)
    temporary.replace(output.with_name(LATEST))


def run(known: Mapping[str, Any], job: Mapping[str, Any]) -> int:
    """Run a job; returns its exit code."""
    directory = Path(known["output"]) / job["name"]
    with only_one(directory):
        clean(directory, known["keep"])
        # A lake is added to; everything else is made anew each time.
        grows = job["job"] == "ingest"
        output = directory / "lake" if grows else new_output(directory)
        words = arguments_of(known, job, output)
        try:
            code = subprocess.run(words, env=environment_of(known, directory / WORK), check=False).returncode
            if not grows and (output / RESULT).exists():
                point_latest(output)
        finally:
            clean(directory, known["keep"])
    return code


def check(known: Mapping[str, Any]) -> int:
    """Tell whether Spark finds a Java; say what to install when it does not."""
    os.environ.update(environment_of(known))
    from pollux_pipeline.errors import InputError
    from pollux_pipeline.session import check_java

    try:
        check_java()
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    return 0


def execute(known: Mapping[str, Any], command: Sequence[str]) -> int:
    """Run one command of pollux-pipeline, with files that only this host has."""
    if not known["master"].startswith("local"):
        known = {**known, "master": "local[*]"}
    words = [known["program"], command[0], *spark_options(known), *command[1:]]
    return subprocess.run(words, env=environment_of(known), check=False).returncode


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; see EXAMPLES for exit codes."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", nargs="?", help="name of the job")
    parser.add_argument("--input", action="append", default=[], help="read this in place of its inputs; several times")
    parser.add_argument("--check", action="store_true", help="run nothing; see whether Spark could")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="run this command of pollux-pipeline, on this host")
    arguments = parser.parse_args(words)
    if bool(arguments.job) + arguments.check + bool(arguments.command) != 1:
        parser.error("name a job, or give --check or --command")
    try:
        known = settings()
        if arguments.command:
            return execute(known, arguments.command)
        if arguments.check:
            return check(known)
        job = job_of(known, arguments.job)
        if arguments.input:
            job["inputs"] = [str(Path(place).absolute()) for place in arguments.input]
        return run(known, job)
    except UsageError as error:
        sys.stderr.write(f"run-job: {error}\n")
        return EXIT_USAGE if "running" not in str(error) else EXIT_FAILED
    except OSError as error:
        sys.stderr.write(f"run-job: {error.filename or ''}: {error.strerror or error}\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
