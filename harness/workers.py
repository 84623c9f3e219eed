"""The beginning of tools/run_tests.py's workers, and what one of them runs alone."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Begun first: so the last ones to end are short.
FIRST = (
    "tests/pipeline/",
    "tests/ansible/",
    "tests/e2e/",
    "tests/broker/store/",
    "tests/hostile/",
    "tests/conformance/",
)


def begun(nodeid: str) -> int:
    """The turn of a test."""
    return next((turn for turn, path in enumerate(FIRST) if nodeid.startswith(path)), len(FIRST))


def together(nodeid: str) -> str:
    """Return what of the tests one worker runs in one go: a file; what shares Spark's session, or a deployed pair."""
    file = nodeid.partition("::")[0]
    # Those with a JVM of their own, or with none, need not wait for the session's worker: that one has most to do.
    if file.startswith("tests/pipeline/") and "spark: " in (ROOT / file).read_text():
        return "Spark's session"
    if file.startswith("tests/ansible/") and "harness.deployment" in (ROOT / file).read_text():
        return "a deployed pair"
    return file
