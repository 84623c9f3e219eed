"""The seconds of each step, read off what molecule says."""

from __future__ import annotations

from lab.guard import Scenario
from lab.steps import Steps

SCENARIO = Scenario("default", ("create", "side_effect kill.yml", "side_effect stop.yml", "verify"), {}, ())


def told(*lines: tuple[float, str]) -> list[str]:
    """Return the words about lines that come at these times."""
    at = 0.0
    steps = Steps(SCENARIO, lambda: at)
    said = []
    for at, line in lines:  # noqa: B007  (the clock shows it)
        said.append(steps.read(f"{line}\n"))
    return [each for each in said if each]


def test_each_step_has_its_name_from_the_sequence_and_its_seconds() -> None:
    """Breaks when the steps are counted from the beginning of the run, or files are not told apart."""
    assert told(
        (0, "INFO     [default > discovery] scenario test matrix: create"),
        (1, "\x1b[34mINFO     [default > create] Executing\x1b[0m"),
        (3, "TASK [Create] ***"),
        (4, "INFO     [default > create] \x1b[32mExecuted: Successful\x1b[0m"),
        (5, "INFO     [default > side_effect] Executing"),
        (7.25, "INFO     [default > side_effect] Executed: Successful"),
        (8, "INFO     [default > side_effect] Executing"),
        (9, "ERROR    [default > side_effect] Executed: Failed"),
    ) == [
        "default: create: successful after 3.0 s",
        "default: side_effect kill.yml: successful after 2.2 s",
        "default: side_effect stop.yml: failed after 1.0 s",
    ]


def test_what_molecule_does_after_a_failure_keeps_its_own_name() -> None:
    assert told(
        (0, "INFO     [default > destroy] Executing"),
        (2, "INFO     [default > destroy] Executed: Successful"),
        (3, "INFO     [other > create] Executed: Successful"),
    ) == ["default: destroy: successful after 2.0 s"]


def test_the_step_that_failed_is_known_by_its_whole_name() -> None:
    """Breaks when what is carried out after a failure is taken for it."""
    steps = Steps(SCENARIO)
    for line in ("create] Executing", "create] Executed: Successful", "side_effect] Executing"):
        steps.read(f"INFO     [default > {line}\n")
    assert steps.failed == ""
    for line in ("side_effect] Executed: Failed", "destroy] Executing", "destroy] Executed: Failed"):
        steps.read(f"INFO     [default > {line}\n")
    assert steps.failed == "side_effect kill.yml"
