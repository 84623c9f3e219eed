"""The patches of `make mutants` follow the code they break: a change that leaves one behind is noticed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutant_applies_and_names_a_test() -> None:
    command = [sys.executable, str(ROOT / "tools" / "mutants.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(list((ROOT / 'tests' / 'mutants').glob('*.patch')))} patches apply" in done.stdout
