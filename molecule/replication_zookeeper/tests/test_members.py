"""Asserts the state of the brokers' hosts after deployment and after every fault."""

from __future__ import annotations

from lab.checks import (  # noqa: F401  (tests)
    test_each_has_a_journal_of_its_own,
    test_nothing_failed,
    test_the_broker_is_live_or_can_take_over,
    test_the_unit_runs_and_starts_at_boot,
)

testinfra_hosts = ["ansible://brokers"]
