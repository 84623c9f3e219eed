"""Every state change is one log line with from, to, reason and epoch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from broker.ha.group import BACKUP, PATIENCE, PREFERRED, Store, wait_until
from pollux.ha.machine import REASON_PERIOD, REASONS, TRANSITIONS, Machine, Phase
from pollux.ha.node_state import StoreState

if TYPE_CHECKING:
    from pathlib import Path


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """The activation lines so far: (level, fields)."""
    return [
        (record.levelname, record.__dict__["fields"])
        for record in caplog.records
        if record.name == "pollux.ha" and record.getMessage() == "activation"
    ]


@pytest.mark.parametrize("before", list(Phase))
def test_each_transition_of_the_table_is_one_line(before: Phase, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pollux.ha")
    for after in Phase:
        caplog.clear()
        machine = Machine(lambda: 1)
        machine.position = machine.position._replace(phase=before, epoch=4)
        if after is before:
            machine.to(after, "the same state for another reason")
            assert lines(caplog) == [], "no transition"
        elif after in TRANSITIONS[before]:
            machine.to(after, "why", 5)
            level = "CRITICAL" if after is Phase.FENCED else "INFO"
            assert lines(caplog) == [(level, {"from": before.value, "to": after.value, "reason": "why", "epoch": 5})]


def reasons(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """The reasons so far that were logged without a transition, and how many before each were not."""
    return [
        (record.__dict__["fields"]["reason"], record.__dict__["fields"].get("unlogged", 0))
        for record in caplog.records
        if record.name == "pollux.ha" and record.getMessage() == "activation reason"
    ]


def test_each_reason_for_which_a_broker_waits_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Breaks when only transitions are logged: why a member waits is then never what was said first."""
    caplog.set_level(logging.INFO, "pollux.ha")
    told: list[str] = []
    machine = Machine(lambda: 1, lambda: 0.0)
    machine.on_reason(lambda position: told.append(position.reason))
    machine.to(Phase.JOINING, "started")
    machine.to(Phase.CATCHING_UP, "no answer")
    for reason in ("no answer", "newer data exists", "newer data exists", "no answer"):
        machine.to(Phase.CATCHING_UP, reason)
    assert reasons(caplog) == [("newer data exists", 0), ("no answer", 0)]
    assert told == ["newer data exists", "no answer"]


def test_a_reason_that_goes_back_and_forth_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pollux.ha")
    now = 0.0
    machine = Machine(lambda: 1, lambda: now)
    machine.to(Phase.JOINING, "started")
    for number in range(1000):
        machine.to(Phase.JOINING, f"reason {number}")
    assert reasons(caplog) == [(f"reason {number}", 0) for number in range(REASONS)]
    caplog.clear()
    now = REASON_PERIOD
    machine.to(Phase.JOINING, "reason 999")
    assert reasons(caplog) == [("reason 999", 1000 - REASONS - 1)], "what it stays at is said, and how much was not"
    machine.to(Phase.CATCHING_UP, "a transition is always logged")
    assert [fields["to"] for _, fields in lines(caplog)] == ["catching_up"]


def test_the_lives_of_a_pair_can_be_read_from_its_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pollux.ha")
    with Store(tmp_path) as store:
        live = store.member("a", PREFERRED).start().serve()
        first = [fields for _, fields in lines(caplog)]
        assert [(one["from"], one["to"], one["epoch"]) for one in first] == [
            ("stopped", "joining", 0),
            ("joining", "activating", 1),
            ("activating", "live", 1),
        ]
        assert first[1]["reason"] == "first start on this store"
        caplog.clear()
        backup = store.member("b", BACKUP).start().wait_for(Phase.READY)
        # A phase can be seen a moment before its line is written, and the next lines are another thread's.
        wait_until(lambda: len(lines(caplog)) >= 2, "both steps of the backup are logged")
        live.leave(StoreState.LIVE)
        backup.serve()
        wait_until(lambda: len(lines(caplog)) >= 5, "all is logged")
        found = [(one["from"], one["to"], one["epoch"]) for _, one in lines(caplog)]
        assert found == [
            ("stopped", "joining", 1),
            ("joining", "ready", 1),
            ("live", "stopping", 1),
            ("ready", "activating", 2),
            ("activating", "live", 2),
        ]
        assert all(one["reason"] for _, one in lines(caplog))
        caplog.clear()
        (store.node / "live.lock").unlink()
        assert backup.end.wait(PATIENCE)
        ((level, fields),) = lines(caplog)
        assert (level, fields["from"], fields["to"], fields["epoch"]) == ("CRITICAL", "live", "fenced", 2)
        assert "was deleted or replaced" in fields["reason"]
