"""The LSB scripts of active-passive clusters, as rgmanager runs them: every action, and every exit code."""

from __future__ import annotations

from .test_cluster_scripts import PRIMARY, QPIDD, Machine, machine

__all__ = ["machine"]


def test_the_broker_script_has_the_codes_of_lsb(machine: Machine) -> None:
    assert machine(QPIDD, "status") == 3
    assert [machine(QPIDD, one) for one in ("stop", "condrestart", "start", "start", "status")] == [0, 0, 0, 0, 0]
    first = machine.number
    assert machine(QPIDD, "condrestart") == 0
    assert machine.number != first
    assert machine(QPIDD, "restart") == 0
    machine.flag("hung")
    assert machine(QPIDD, "status") == 1
    machine.flag("hung", on=False)
    machine.kill()
    assert machine(QPIDD, "status") == 1
    assert "its pid file is there" in machine.said
    assert [machine(QPIDD, one) for one in ("reload", "force-reload", "")] == [3, 3, 2]
    assert machine(QPIDD, "status", POLLUX="/none") == 5
    assert machine(QPIDD, "status", POLLUX_CONFIG="/none") == 4


def test_a_primary_is_not_stopped_by_the_brokers_script(machine: Machine) -> None:
    """rgmanager stops everything before it starts anything."""
    assert machine(QPIDD, "start") == 0
    machine.becomes("active")
    assert machine(QPIDD, "stop") == 0
    assert "stop qpidd-primary" in machine.said
    assert machine.runs()


def test_the_primarys_script_promotes_and_demotes(machine: Machine) -> None:
    assert [machine(PRIMARY, one) for one in ("status", "stop", "condrestart")] == [3, 0, 0]
    assert [machine(PRIMARY, one) for one in ("start", "status")] == [0, 0]
    assert machine(PRIMARY, "stop") == 0
    assert machine.runs(), "it waits"
    assert machine(PRIMARY, "status") == 3
    assert machine(PRIMARY, "restart") == 0
    assert machine(PRIMARY, "status") == 0
    machine.flag("hung")
    assert machine(PRIMARY, "status") == 1
    machine.flag("hung", on=False)
    machine.flag("refuse")
    assert machine(PRIMARY, "stop") == 0
    assert not machine.runs(), "it would not be demoted"
    assert machine(PRIMARY, "start") != 0
    assert "Refused" in machine.said
    assert [machine(PRIMARY, one) for one in ("reload", "force-reload", "")] == [3, 3, 2]
    assert machine(PRIMARY, "status", POLLUX="/none") == 5
    assert machine(PRIMARY, "status", QPIDD_INIT="/none") == 5
    assert machine(PRIMARY, "status", POLLUX_CONFIG="/none") == 4
