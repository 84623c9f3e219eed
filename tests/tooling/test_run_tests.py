"""`make test` runs every test there is, side by side, and fails when one of them does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import run_tests

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "def test_good(): pass\n"
BAD = """\
import pytest
@pytest.mark.parametrize('x', [3], ids=['in words'])
def test_bad(x):
    print('ERROR pollux.ha of a broker')
    assert 2 == x, 'two is not three'
"""
SKIPPED = "import pytest\n@pytest.mark.skip(reason='no')\ndef test_skipped(): pass\n"


def run(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    directory: Path,
    *sources: str,
    option: str = "",
    program: str = "",
    ahead: str = "",
) -> tuple[int, str]:
    """Run lanes of one file each, and one that is a program; exit status and standard output."""
    lanes = {}
    for number, source in enumerate(sources):
        path = directory / f"test_{number}.py"
        path.write_text(source)
        lanes[f"lane{number}"] = (str(path),)
    monkeypatch.setattr(run_tests, "LANES", lanes)
    monkeypatch.setattr(run_tests, "PROGRAMS", {"lab": ("-c", program)} if program else {})
    monkeypatch.setattr(run_tests, "AHEAD", {"lab": ("-c", ahead)} if ahead else {})
    monkeypatch.setattr(tempfile, "tempdir", str(directory))  # what failed tests leave goes with this test's directory
    monkeypatch.setattr(sys, "argv", ["run_tests.py", *option.split()])
    status = run_tests.main()
    return status, capfd.readouterr().out


def taken(lane: str) -> set[Path]:
    """The files of tests that a lane's pytest is told to run."""
    words = run_tests.arguments(lane)
    without = [run_tests.ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    own = [run_tests.ROOT / word for word in words if not word.startswith("--")]
    files = [file for path in own for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return {file for file in files if not any(file.is_relative_to(path) for path in without)}


def test_every_file_of_tests_is_in_exactly_one_lane() -> None:
    """Breaks when a lane is changed and another one does not leave out what that lane has, or nobody has something."""
    everything = Counter(file for lane in run_tests.LANES for file in taken(lane))
    assert everything == Counter((run_tests.ROOT / "tests").rglob("test_*.py"))
    assert list(run_tests.LANES)[-1] == "broker", "the lane without a list is the last"


def test_all_is_well(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, said = run(monkeypatch, capfd, tmp_path, GOOD, GOOD + SKIPPED)
    assert status == 0
    assert said.splitlines()[-1] == "2 passed, 0 failed, 1 skipped"
    assert "lane0  | " in said


def test_one_failure_in_one_lane_fails_all_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when only the last lane's exit status counts."""
    status, said = run(monkeypatch, capfd, tmp_path, BAD, GOOD)
    assert status == 1
    lanes, _, told = said.rpartition("\n\n--- ")
    assert [line.split(" in ")[0] for line in lanes.splitlines()[-2:]] == ["lane0: 1 failed", "lane1: 1 passed"]
    name, *words, nothing, named, last = told.splitlines()
    assert re.fullmatch(r"lane0: \S*test_0::test_bad\[in words\]", name)
    assert [" ".join(line.split()) for line in words if line.startswith("E ")] == [
        "E AssertionError: two is not three",
        "E assert 2 == 3",
    ]
    assert last == "1 passed, 1 failed, 0 skipped"
    assert re.fullmatch(r"lane0: FAILED \S*test_0.py::test_bad\[in words\].*", named)
    assert not nothing, "a broker's own words are not the name of a test"


MANY = """\
import pytest
@pytest.mark.parametrize('x', range(7))
def test_bad(x):
    raise AssertionError('\\n'.join(['begin', *map(str, range(99)), f'end {x}', 'y' * 5000]))
@pytest.fixture
def broken():
    raise ValueError('not a test')
def test_that_does_not_begin(broken): pass
"""


def test_the_last_lines_tell_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when many failures, or long ones, push each other out of the end of the output."""
    status, said = run(monkeypatch, capfd, tmp_path, GOOD, MANY)
    assert status == 1
    _, *told = said.split("\n--- ")
    assert [one.split("\n")[0][-2] for one in told] == ["0", "1", "2", "3", "4"]
    for number, one in enumerate(told):
        lines = one.split("\n\n")[0].splitlines()[1:]
        assert len(lines) <= run_tests.LEAST
        assert lines[0].endswith("AssertionError: begin")
        assert any(line.endswith(f"end {number}") for line in lines)
        assert max(map(len, lines)) < 2 * run_tests.WIDTH
    assert said.splitlines()[-1] == "1 passed, 8 failed, 0 skipped"


def test_a_test_that_does_not_begin_is_told_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, said = run(monkeypatch, capfd, tmp_path, MANY.replace("range(7)", "[]"))
    assert "ValueError: not a test" in said.rpartition("\n--- ")[2]


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of this test keeps its own ways to end."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.parametrize("source", ["", "import os\nos._exit(3)\n"])
def test_a_lane_that_could_not_run_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, source: str
) -> None:
    """No test at all; dead in the middle."""
    status, said = run(monkeypatch, capfd, tmp_path, GOOD, source)
    assert status == 1
    assert said.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    assert "--- lane1: the last lines" in said


@pytest.mark.parametrize(
    "case",
    [
        ("print('scenarios: 2 passed, 0 failed, 1 skipped')", 0, "3 passed, 0 failed, 1 skipped"),
        (
            "print('scenario x: failed in 3 s'); print('scenarios: 1 passed, 1 failed, 0 skipped'); exit(1)",
            1,
            "lab: scenario x: failed in 3 s\n2 passed, 1 failed, 0 skipped",
        ),
        ("exit('the lab does not start')", 1, "1 passed, 1 failed, 0 skipped"),
    ],
)
def test_scenarios_count_as_tests(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, case: tuple[str, int, str]
) -> None:
    """Breaks when a lane that is no pytest is not started, or its exit status or its counts are not looked at."""
    program, status, closing = case
    found, said = run(monkeypatch, capfd, tmp_path, GOOD, program=program)
    assert found == status
    assert said.endswith(f"\n{closing}\n")
    last = {0: "", 1: "the lab does not start" if "exit('" in program else "scenario x: failed in 3 s"}[status]
    assert last in said.rpartition("\n--- lab: the last lines")[2]


def test_scenarios_begin_when_the_tests_are_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when they run beside the tests: what a busy machine does to a broker is then taken for the fault's."""
    mark = tmp_path / "over"
    last = f"import pathlib, time\ndef test_last(): time.sleep(1); pathlib.Path({str(mark)!r}).touch()\n"
    program = f"import pathlib; exit(not pathlib.Path({str(mark)!r}).exists())"
    status, _ = run(monkeypatch, capfd, tmp_path, GOOD, last, program=program)
    assert status == 0


def test_what_scenarios_need_is_made_before_they_begin_and_does_not_count(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when it is made after the tests, or not waited for, or its failure is told in the place of theirs."""
    made, over = tmp_path / "made", tmp_path / "over"
    source = (
        f"import pathlib, time\nMADE, OVER = pathlib.Path({str(made)!r}), pathlib.Path({str(over)!r})\n"
        "def test_beside():\n    while not MADE.exists(): time.sleep(0.01)\n    OVER.touch()\n"
    )
    ahead = (
        f"import pathlib, time\npathlib.Path({str(made)!r}).touch()\n"
        f"while not pathlib.Path({str(over)!r}).exists(): time.sleep(0.01)\n"
        f"time.sleep(1); pathlib.Path({str(made)!r}).unlink(); exit(1)"
    )
    program = f"import pathlib; exit(pathlib.Path({str(made)!r}).exists())"
    status, said = run(monkeypatch, capfd, tmp_path, source, program=program, ahead=ahead)
    assert status == 0
    assert said.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_lanes_can_be_chosen_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, said = run(monkeypatch, capfd, tmp_path, GOOD, BAD, option="--lanes lane0", program="exit(1)")
    assert status == 0
    assert said.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, capfd, tmp_path, GOOD, option="--lanes lane7")
    assert refused.value.code == 2
    assert "there is no lane lane7; there are: lane0" in capfd.readouterr().err


def test_the_scenarios_are_one_of_the_lanes() -> None:
    """Breaks when the lab's lane is taken out, or calls something that is not there."""
    assert run_tests.PROGRAMS == {"lab": ("molecule/lab", "suite", "--down")}
    assert run_tests.AHEAD == {"lab": ("molecule/lab", "suite", "--prepare")}
    assert run_tests.UNDO == {"lab": ("molecule/lab", "down")}
    assert (run_tests.ROOT / "molecule" / "lab" / "__main__.py").is_file()


def test_json_is_all_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, said = run(monkeypatch, capfd, tmp_path, GOOD, BAD, option="--json")
    assert status == 1
    assert {name: (one["status"], one["counts"]) for name, one in json_of(said).items()} == {
        "lane0": (0, {"passed": 1}),
        "lane1": (1, {"failed": 1}),
    }


def json_of(text: str) -> dict[str, dict[str, object]]:
    """What was printed."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_the_tests(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, or a CI that has waited long enough: tests stop what they have started; the exit status is a shell's."""
    waiting = tmp_path / "test_waiting.py"
    waiting.write_text(
        "import time\nfrom pathlib import Path\n"
        f"HERE = Path({str(tmp_path)!r})\n"
        "def test_waits():\n"
        "    try:\n        (HERE / 'began').write_text('')\n        print('x', flush=True)\n"
        # A signal that comes right before a sleep begins is noticed when it is over.
        "        for _ in range(6000): time.sleep(0.01)\n"
        "    finally:\n        (HERE / 'tidied').write_text('')\n"
    )
    undo = f"open({str(tmp_path / 'undone')!r}, 'w')"
    code = (
        "import sys, run_tests\n"
        f"run_tests.LANES, run_tests.PROGRAMS = {{'one': ({str(waiting)!r},)}}, {{'lab': ('-c', 'exit(1)')}}\n"
        "run_tests.AHEAD = {'lab': ('-c', 'pass')}\n"
        f"run_tests.UNDO = {{'lab': ('-c', {undo!r})}}\n"
        "sys.argv = ['run_tests.py']\n"
        "sys.exit(run_tests.main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=run_tests.ROOT / "tools", stdout=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "began").exists():
            assert process.poll() is None
            time.sleep(0.01)  # or it takes a core from what it waits for
        process.send_signal(how)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "tidied").exists()
    assert (tmp_path / "undone").exists()
