"""A pytest plugin: notes which tests of a verify step really ran, so that the guard can compare with what there is.

`-p lab.record` with the environment variable POLLUX_LAB_RECORD: one line of JSON is appended for each pytest run.
"""

from __future__ import annotations

import json
import os

import pytest

# A check that several scenarios have in common says what it compared, as one in a test module does.
pytest.register_assert_rewrite("lab.checks", "lab.asked")

VARIABLE = "POLLUX_LAB_RECORD"
_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's phases; a skip is not a pass."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the line."""
    if path := os.environ.get(VARIABLE):
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123  (one write, appended)
            file.write(json.dumps({"tests": _outcomes}) + "\n")
    _outcomes.clear()
