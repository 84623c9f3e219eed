"""What `make test` runs of the scenarios, and when leaving one out is legitimate.

A machine that could run a scenario must: on Linux as root the lab brings its own engine; where an engine answers it
is used. Only where neither is so, scenarios with hosts are left out, with one line each that says why; those without
hosts run everywhere.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import yaml

from lab import engine, scenarios
from lab.places import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

#: In this order: the quick one first.
SUITE = ("validation", "hardening", "upgrade")


def has_hosts(settings: Mapping[str, Any]) -> bool:
    """Whether a scenario (its molecule.yml) needs hosts that the lab makes."""
    driver = settings.get("driver") or {}
    return bool((driver.get("options") or {}).get("managed", True))


def excuse(*, hosts: bool, linux: bool, root: bool, answers: Callable[[], bool]) -> str:
    """Why a scenario cannot run on this machine; empty when it must. `answers`: whether a Docker engine does."""
    if not hosts or (linux and root) or answers():
        return ""
    who = "this is not root" if linux else "this is not Linux"
    return f"no Docker engine answers, and the lab cannot start one: {who}; start Docker, or run it on Linux as root"


def run() -> int:
    """Run what can be run here; raises LabError for the first scenario that fails."""
    passed, skipped = 0, 0
    for name in SUITE:
        settings = yaml.safe_load((SCENARIOS / name / "molecule.yml").read_text(encoding="utf-8"))
        why = excuse(
            hosts=has_hosts(settings),
            linux=sys.platform == "linux",
            root=os.geteuid() == 0,
            answers=lambda: engine.find() is not None,
        )
        if why:
            skipped += 1
            sys.stdout.write(f"scenario {name}: SKIPPED: {why}\n")
        else:
            seconds = scenarios.run_whole(name)
            passed += 1
            sys.stdout.write(f"scenario {name}: passed in {seconds:.0f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"scenarios: {passed} passed, {skipped} skipped\n")
    return 0
