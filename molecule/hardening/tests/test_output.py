"""Asserts that no secret is in what Ansible said with -vvv --diff, when it worked and in check mode."""

from __future__ import annotations

from pathlib import Path

import pytest

LOGS = Path(__file__).resolve().parents[3] / ".pollux" / "lab" / "hardening"


@pytest.mark.parametrize(
    ("name", "difference"), [("ansible.log", "+++ after"), ("check.log", '+      <address name="planned">')]
)
def test_no_secret_is_in_the_output(name: str, difference: str) -> None:
    text = (LOGS / name).read_text()
    assert "PLAY RECAP" in text
    assert difference in text  # differences were shown, so they could have held secrets
    lines = [line for line in text.splitlines() if "canary-" in line]
    assert lines == []


def test_check_mode_ran_to_its_end() -> None:
    recap = (LOGS / "check.log").read_text().split("PLAY RECAP")[-1]
    assert "failed=0" in recap
    assert "failed=1" not in recap
