"""Which scenarios `make test` may leave out, and where."""

from __future__ import annotations

import pytest
import yaml

from lab import scenarios, suite
from lab.places import SCENARIOS


@pytest.mark.parametrize(
    ("hosts", "linux", "root", "engine", "runs"),
    [
        (True, True, True, False, True),  # the lab starts an engine of its own
        (True, True, False, True, True),
        (True, False, False, True, True),
        (True, True, False, False, False),
        (True, False, True, False, False),
        (False, False, False, False, True),
    ],
)
def test_a_scenario_that_could_run_must(*, hosts: bool, linux: bool, root: bool, engine: bool, runs: bool) -> None:
    why = suite.excuse(hosts=hosts, linux=linux, root=root, answers=lambda: engine)
    assert (why == "") == runs
    assert runs or "Docker" in why


def test_the_suite_names_scenarios_that_exist_and_knows_which_have_hosts() -> None:
    assert set(suite.SUITE) <= set(scenarios.names())
    having = {
        name for name in suite.SUITE if suite.has_hosts(yaml.safe_load((SCENARIOS / name / "molecule.yml").read_text()))
    }
    assert having == set(suite.SUITE) - {"validation"}
