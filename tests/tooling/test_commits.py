"""Subjects of commits fit into a line of a log, as CONTRIBUTING.md asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Some subjects before it are longer, and stay so.
SINCE = "4f7c9065"
SHORTEST, LONGEST = 15, 72


def git(*words: str) -> str | None:
    """Return what git says of this tree; None where there is no git, no history, or none that it lets us read."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def unfit(subjects: list[str]) -> list[str]:
    """Return the subjects that are too short or too long."""
    return [subject for subject in subjects if not SHORTEST <= len(subject) <= LONGEST]


def test_subjects_of_commits_fit_into_a_line() -> None:
    if git("merge-base", "--is-ancestor", SINCE, "HEAD") is None:
        pytest.skip(f"no history back to {SINCE} here (a copy without git, or a shallow clone)")
    # Those of merges are the forge's.
    subjects = git("log", "--no-merges", "--format=%s", f"{SINCE}..HEAD")
    assert subjects is not None
    assert unfit(subjects.splitlines()) == []


def test_the_limits_are_noticed() -> None:
    kept = ["A" * SHORTEST, "A" * LONGEST]
    assert unfit(["Mend a typo", *kept, "A" * (LONGEST + 1)]) == ["Mend a typo", "A" * (LONGEST + 1)]
