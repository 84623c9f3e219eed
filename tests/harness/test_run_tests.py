"""`make test` runs every test there is, side by side, and fails when one of them does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

import run_tests

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert 2 == 3, 'two is not three'\n"
SKIPPED = "import pytest\n@pytest.mark.skip(reason='no')\ndef test_skipped(): pass\n"


def run(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    directory: Path,
    *sources: str,
    option: str = "",
    program: str = "",
) -> tuple[int, str]:
    """Run lanes of one file each, and one that is a program; exit status and standard output."""
    lanes = {}
    for number, source in enumerate(sources):
        path = directory / f"test_{number}.py"
        path.write_text(source)
        lanes[f"lane{number}"] = (str(path),)
    monkeypatch.setattr(run_tests, "LANES", lanes)
    monkeypatch.setattr(run_tests, "PROGRAMS", {"lab": ("-c", program)} if program else {})
    monkeypatch.setattr(tempfile, "tempdir", str(directory))  # what failed tests leave goes with this test's directory
    if program and not option:
        option = f"--lanes {','.join([*lanes, 'lab'])}"
    monkeypatch.setattr(sys, "argv", ["run_tests.py", *option.split()])
    status = run_tests.main()
    return status, capfd.readouterr().out


def test_every_directory_of_tests_is_in_exactly_one_lane() -> None:
    """Breaks when a lane is changed and the last one does not leave out what that lane has."""
    (rest,) = (run_tests.arguments(name) for name, paths in run_tests.LANES.items() if not paths)
    taken = [path for paths in run_tests.LANES.values() for path in paths]
    assert rest == ["tests", *(f"--ignore={path}" for path in taken)]
    assert list(run_tests.LANES)[-1] == "broker", "the lane without a list is the last"
    assert all((run_tests.ROOT / path).is_dir() for path in taken)
    assert run_tests.arguments("bundle") == list(run_tests.LANES["bundle"])


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
    assert said.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    assert "two is not three" in said


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


@pytest.mark.parametrize(
    "case",
    [
        ("print('scenarios: 2 passed, 0 failed, 1 skipped')", 0, "3 passed, 0 failed, 1 skipped"),
        ("print('scenarios: 1 passed, 1 failed, 0 skipped'); exit(1)", 1, "2 passed, 1 failed, 0 skipped"),
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
    assert said.splitlines()[-1] == closing


def test_scenarios_begin_when_the_tests_are_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks when they run beside the tests: what a busy machine does to a broker is then taken for the fault's."""
    mark = tmp_path / "over"
    last = f"import pathlib, time\ndef test_last(): time.sleep(1); pathlib.Path({str(mark)!r}).touch()\n"
    program = f"import pathlib; exit(not pathlib.Path({str(mark)!r}).exists())"
    status, _ = run(monkeypatch, capfd, tmp_path, GOOD, last, program=program)
    assert status == 0


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
        "    try:\n        (HERE / 'began').write_text('')\n        print('x', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        (HERE / 'tidied').write_text('')\n"
    )
    code = (
        "import sys, run_tests\n"
        f"run_tests.LANES, run_tests.PROGRAMS = {{'one': ({str(waiting)!r},)}}, {{}}\n"
        "sys.argv = ['run_tests.py']\n"
        "sys.exit(run_tests.main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=run_tests.ROOT / "tools", stdout=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "began").exists():
            assert process.poll() is None
        process.send_signal(how)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "tidied").exists()
