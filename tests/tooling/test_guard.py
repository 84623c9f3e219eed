"""The guard against silent green: runs that ended with 0 and did nothing must not pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import guard

ROOT = Path(__file__).resolve().parents[2]
BASE: dict[str, Any] = {
    "scenario": {"test_sequence": ["create", "converge", "side_effect kill.yml", "verify", "destroy"]}
}
GOOD = """\
INFO     [default > create] Executing
INFO     [default > converge] Executing
INFO     [default > side_effect] Executing
\x1b[34mINFO     [default > verify] Executing\x1b[0m
INFO     [default > destroy] Executing
"""
RAN = {
    "tests": {
        "molecule/default/tests/test_a.py::test_one[ansible://x]": "passed",
        "tests/test_a.py::test_two": "passed",
    }
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "default"
    (made / "tests").mkdir(parents=True)
    (made / "molecule.yml").write_text("platforms: []\n")
    for name in ("converge.yml", "kill.yml"):
        (made / name).write_text("---\n")
    (made / "tests" / "test_a.py").write_text("def test_one(host): ...\n\ndef test_two(): ...\n\ndef helper(): ...\n")
    return made


def judge(directory: Path, output: str = GOOD, records: Any = (RAN,)) -> list[str]:
    return guard.problems(guard.read(directory, BASE), output, list(records))


def test_a_run_that_did_everything_passes(directory: Path) -> None:
    assert judge(directory) == []


@pytest.mark.parametrize("said", [said for said, _ in guard.SILENT])
def test_what_molecule_says_when_it_did_nothing_is_a_failure(directory: Path, said: str) -> None:
    assert any(said in problem for problem in judge(directory, f"{GOOD}WARNING  {said}\n"))


PIPELINE = """\
[WARNING]: Could not match supplied host pattern, ignoring: pollux_pipeline

PLAY [6. Install the pipeline and set the times of its jobs] *******************
skipping: no hosts matched

PLAY RECAP *********************************************************************
"""


def test_a_group_that_a_site_needs_not_have_may_be_missing(directory: Path) -> None:
    assert judge(directory, GOOD + PIPELINE) == []
    # Another group, and another play that ran on no host, are noticed beside it.
    assert len(judge(directory, GOOD + PIPELINE.replace("pollux_pipeline", "brokers"))) == 2
    assert judge(directory, f"{GOOD}{PIPELINE}skipping: no hosts matched\n") != []


def test_a_side_effect_whose_file_was_renamed_is_a_failure(directory: Path) -> None:
    (directory / "kill.yml").rename(directory / "kil.yml")
    assert judge(directory) == ["default: there is no kill.yml"]


def test_a_step_that_was_not_executed_is_a_failure(directory: Path) -> None:
    silent = GOOD.replace("INFO     [default > side_effect] Executing\n", "")
    assert judge(directory, silent) == ["default: side_effect is 1 times in its sequence and was executed 0 times"]


def test_a_verify_without_a_record_is_a_failure(directory: Path) -> None:
    assert judge(directory, records=()) == ["default: 1 verify steps, 0 ran"]


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_test_that_did_not_pass_is_a_failure(directory: Path, outcome: str) -> None:
    record = {"tests": {**RAN["tests"], "tests/test_a.py::test_two": outcome}}
    assert any("test_two" in problem for problem in judge(directory, records=[record]))


def test_fewer_tests_than_the_files_hold_is_a_failure(directory: Path) -> None:
    record = {"tests": {"tests/test_a.py::test_one[ansible://x]": "passed"}}
    assert judge(directory, records=[record]) == ["default: verify 1: tests/test_a.py: not run: test_two"]


def test_imported_tests_count(directory: Path) -> None:
    (directory / "tests" / "test_a.py").write_text("from lab.checks import status, test_one, test_two\n")
    assert judge(directory) == []
    (directory / "tests" / "test_a.py").write_text("from lab.checks import test_one, test_two, test_three\n")
    assert judge(directory) == ["default: verify 1: tests/test_a.py: not run: test_three"]


def test_a_scenario_that_verifies_nothing_is_a_failure(directory: Path) -> None:
    (directory / "tests" / "test_a.py").unlink()
    assert "default: it has no tests" in judge(directory)
    (directory / "molecule.yml").write_text("scenario: {test_sequence: [create, destroy]}\n")
    assert "default: its sequence verifies nothing" in judge(directory)


def test_the_scenarios_of_this_checkout_name_files_that_exist_and_verify_something() -> None:
    base = yaml.safe_load((ROOT / "molecule/lab/base.yml").read_text())
    found = sorted(path.parent for path in (ROOT / "molecule").glob("*/molecule.yml"))
    assert found
    for directory in found:
        scenario = guard.read(directory, base)
        assert scenario.missing == ()
        assert scenario.verifies
        assert scenario.tests
