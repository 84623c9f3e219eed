"""`make test` runs every test there is, side by side, and fails when one of them does."""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import run_tests
from harness import workers

if TYPE_CHECKING:
    from collections.abc import Iterator

GOOD = "def test_good(): pass\n"
BAD = "def test_bad():\n    assert 2 == 3, 'two is not three'\n"


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of this test keeps its own ways to end."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def run(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    directory: Path,
    *sources: str,
    scenarios: str = "print('scenarios: 1 passed')",
    ahead: str = "",
    options: tuple[str, ...] = (),
) -> tuple[int, str]:
    """Run files of tests, and programs in the place of the lab's; exit status and standard output."""
    paths = [directory / f"test_{number}.py" for number in range(len(sources))]
    for path, source in zip(paths, sources, strict=True):
        path.write_text(source)
    monkeypatch.setattr(run_tests, "TESTS", tuple(map(str, paths)))
    monkeypatch.setattr(run_tests, "SCENARIOS", ("-c", scenarios))
    monkeypatch.setattr(run_tests, "AHEAD", ("-c", ahead))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))  # what failed tests leave goes with this test's directory
    monkeypatch.setattr(sys, "argv", ["run_tests.py", *options])
    status = run_tests.main()
    return status, capfd.readouterr().out


def test_what_scenarios_need_is_made_beside_the_tests_and_they_run_when_both_are_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when they run beside the tests: what a busy machine does to a broker is then taken for the fault's."""
    made, over = tmp_path / "made", tmp_path / "over"
    source = (
        f"import pathlib, time\nMADE, OVER = pathlib.Path({str(made)!r}), pathlib.Path({str(over)!r})\n"
        "def test_beside():\n    while not MADE.exists(): time.sleep(0.01)\n    time.sleep(0.5); OVER.touch()\n"
    )
    ahead = (
        f"import pathlib, time\npathlib.Path({str(made)!r}).touch()\n"
        f"while not pathlib.Path({str(over)!r}).exists(): time.sleep(0.01)\n"
        f"time.sleep(0.5); pathlib.Path({str(made)!r}).unlink(); exit('its failure is not that of the scenarios')"
    )
    program = f"import pathlib; print('scenarios: 7 passed'); exit(pathlib.Path({str(made)!r}).exists())"
    status, said = run(monkeypatch, capfd, tmp_path, source, GOOD, scenarios=program, ahead=ahead)
    assert status == 0, said
    assert "tests | " in said
    scenarios, tests = said.splitlines()[-2:]
    assert scenarios == "scenarios: 7 passed"
    assert tests.startswith("2 passed in ")


def test_a_test_that_fails_fails_all_and_is_told_at_the_end_and_scenarios_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, said = run(monkeypatch, capfd, tmp_path, BAD, GOOD)
    assert status == 1
    told = said.rpartition("\n--- tests: exit status 1\n")[2]
    assert "E       AssertionError: two is not three" in told
    assert "FAILED" in told
    assert "test_0.py::test_bad" in told
    assert said.splitlines()[-2] == "scenarios: 1 passed"
    assert said.splitlines()[-1].startswith("1 failed, 1 passed in ")


@pytest.mark.parametrize("source", ["", "import os\nos._exit(3)\n"])
def test_tests_that_could_not_run_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, source: str
) -> None:
    """No test at all; dead in the middle."""
    status, _ = run(monkeypatch, capfd, tmp_path, source, options=("--without-scenarios",))
    assert status == 1


def test_a_scenario_that_fails_fails_all(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = "print('scenario x: failed in 3 s'); exit(1)"
    status, said = run(monkeypatch, capfd, tmp_path, GOOD, scenarios=program)
    assert status == 1
    assert "--- lab: exit status 1\nscenario x: failed in 3 s\n" in said


@pytest.mark.parametrize(("free", "missing"), [(40, ""), (29.5, ""), (28, "free 1.2 GiB "), (0, "free 29.2 GiB ")])
def test_a_disk_on_which_brokers_will_refuse_messages_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, missing: str
) -> None:
    """Breaks when nobody knows why tests of stores on that disk fail, half an hour later."""
    usage = SimpleNamespace(total=252 << 30, free=round(free * (1 << 30)))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    said = run_tests.short_of_room(tmp_path)
    assert missing in said
    assert bool(said) is bool(missing)


def test_the_scenarios_are_the_labs() -> None:
    assert run_tests.SCENARIOS == ("molecule/lab", "suite", "--down")
    assert run_tests.AHEAD == ("molecule/lab", "suite", "--prepare")
    assert (run_tests.ROOT / "molecule" / "lab" / "__main__.py").is_file()


def test_what_shares_something_costly_stays_together_and_is_begun_first() -> None:
    """Breaks when the deployed pair is made by each worker anew."""
    ids = ["tests/ledger/a.py::t", "tests/ansible/test_secrets.py::t", "tests/pipeline/test_jobs.py::t[x]"]
    assert [workers.together(each) for each in [*ids, "tests/ansible/test_site.py::u"]] == [
        *("tests/ledger/a.py", "a deployed pair", "Spark's session", "a deployed pair")
    ]
    assert sorted(ids, key=workers.begun) == [ids[2], ids[1], ids[0]]


def test_one_worker_has_all_that_uses_sparks_session_and_nothing_else() -> None:
    """Breaks when another worker makes a session, too, or when what needs none waits for the worker that has it."""
    shared: set[str] = set()
    alone: set[str] = set()
    for path in sorted((workers.ROOT / "tests" / "pipeline").glob("test_*.py")):
        file = str(path.relative_to(workers.ROOT))
        functions = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef)]
        uses = any(argument.arg == "spark" for one in functions for argument in one.args.args)
        (shared if uses else alone).add(workers.together(f"{file}::t"))
    assert shared == {"Spark's session"}
    assert {"tests/pipeline/test_startup.py", "tests/pipeline/test_report.py"} <= alone
    assert not alone & shared


def test_garbage_is_looked_for_while_tests_run() -> None:
    """Breaks when what keeps the collector away while tests are found leaves it so: cycles hold files and memory."""
    assert gc.isenabled()


#: A test that has started a program, and that another one: in a session of its own, deaf, and without a parent.
WAITING = """\
import pathlib, signal, subprocess, sys, time
HERE = pathlib.Path({here!r})
DEAF = "import os, pathlib, signal, time\\n" \\
    "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)]\\n" \\
    "pathlib.Path({here!r}, 'left').write_text(str(os.getpid())); time.sleep(600)"
LEAVES = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
def test_waits():
    try:
        subprocess.run([sys.executable, "-c", LEAVES, DEAF], check=True)
        while not (HERE / "left").exists() or not (HERE / "left").read_text(): time.sleep(0.01)
        (HERE / "began").write_text("")
        # A signal that comes right before a sleep begins is noticed when it is over.
        for _ in range(6000): time.sleep(0.01)
    finally:
        (HERE / "tidied").write_text("")
        for _ in range({tidies}): time.sleep(0.01)
"""


@contextlib.contextmanager
def waiting(directory: Path, *, tidies: int = 0, ignored: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Run all tests, with one that waits, until what it starts runs; its tidying takes `tidies` hundredths of a second.

    `ignored`: with SIGINT ignored, as a shell has it for what it starts in the background.
    """
    (directory / "test_waiting.py").write_text(WAITING.format(here=str(directory), tidies=tidies))
    undo = f"open({str(directory / 'undone')!r}, 'w')"
    tests = str(directory / "test_waiting.py")
    code = (
        "import sys, run_tests\n"
        f"run_tests.TESTS, run_tests.SCENARIOS, run_tests.AHEAD = ({tests!r},), ('-c', 'exit(1)'), ('-c', '')\n"
        f"run_tests.UNDO = ('-c', {undo!r})\n"
        "sys.argv = ['run_tests.py']\n"
        "sys.exit(run_tests.main())\n"
    )
    before = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    words = [*([sys.executable, "-c", before] if ignored else []), sys.executable, "-c", code]
    process = subprocess.Popen(words, cwd=run_tests.ROOT / "tools", stdout=subprocess.PIPE, text=True)
    try:
        while not (directory / "began").exists():
            assert process.poll() is None
            time.sleep(0.01)  # or it takes a core from what it waits for
        yield process
    finally:
        process.kill()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((directory / "left").read_text()), signal.SIGKILL)
        process.communicate()


def left(directory: Path) -> bool:
    """Whether what the waiting test has started is still there."""
    try:
        return "\0" in Path(f"/proc/{(directory / 'left').read_text()}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(("how", "ignored"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)])
def test_an_interrupt_ends_all_that_was_started(tmp_path: Path, how: signal.Signals, ignored: bool) -> None:
    """Ctrl-C, or a CI that has waited long enough: tests stop what they have started; the exit status is a shell's.

    Breaks when what is in a session of its own, or was started by one that was, is left behind and holds the pipe.
    """
    with waiting(tmp_path, ignored=ignored) as process:
        process.send_signal(how)
        assert process.wait(2 * run_tests.PATIENCE) == 130
        assert not left(tmp_path)
    assert (tmp_path / "tidied").exists()
    assert (tmp_path / "undone").exists()


def test_a_second_interrupt_ends_all_at_once(tmp_path: Path) -> None:
    """Breaks when it waits for the tests to tidy up, or is a traceback."""
    with waiting(tmp_path, tidies=60_000) as process:
        process.send_signal(signal.SIGINT)
        while not (tmp_path / "tidied").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(run_tests.PATIENCE) == 130
        assert not left(tmp_path)
    assert not (tmp_path / "undone").exists()
