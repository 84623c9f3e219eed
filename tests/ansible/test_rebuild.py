"""When a backup's copy may be set aside: only while another member serves with the newest data. Pure."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load() -> Any:
    specification = importlib.util.spec_from_file_location("pollux_report", ROOT / "filter_plugins" / "report.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def refusals(
    host: str = "b",
    *,
    live: str = "live",
    backup: str = "stopped",
    sequence: int = 7,
    agreed: int | None = 7,
    policy: str = "replication",
    asked: str = "ab",
) -> str:
    """Why it is refused to set the copy of ``host`` aside in a pair of a and b."""
    topology = {
        "brokers": {name: {"group": "twins"} for name in "ab"},
        "groups": {"twins": {"members": ["a", "b"], "policy": policy}},
    }
    replication = {"sequence": sequence, "coordinated_sequence": agreed}
    said = {
        "a": {"answer": {"state": live, "status": {"activation": {"replication": replication}}}},
        "b": {"answer": {"state": backup}},
    }
    return "\n".join(_load().rebuild(topology, host, said, "answer", list(asked)))


@pytest.mark.parametrize("state", ["stopped", "ready", "catching_up", "failed"])
def test_a_backup_of_a_live_with_the_newest_data(state: str) -> None:
    assert refusals(backup=state) == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"host": ""}, "rebuild_confirm is not set"),
        ({"host": "c"}, "there is no broker 'c'"),
        ({"host": "a"}, "a is live, so its store may be the one that counts"),
        ({"backup": "activating"}, "b is activating, so its store may be the one that counts"),
        ({"backup": "unreachable"}, "b is unreachable, so its store may be the one that counts: stop it first"),
        ({"backup": "live"}, "b is live"),
        ({"live": "stopped"}, "no other member of group twins is the one live (a is stopped, b is stopped)"),
        ({"live": "unreachable"}, "no other member of group twins is the one live"),
        ({"sequence": 6}, "a serves with sequence 6, and 7 was agreed on"),
        ({"agreed": None}, "a serves with sequence 7, and None was agreed on"),
        ({"sequence": 0, "agreed": 0}, "a serves with sequence 0"),
        ({"policy": "shared_store"}, "group twins has shared_store, so b has no copy of its own"),
        ({"asked": "b"}, "--limit leaves out a"),
    ],
)
def test_what_is_not_safe_is_refused(given: dict[str, Any], why: str) -> None:
    assert why in refusals(**given)
