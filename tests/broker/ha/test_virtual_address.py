"""Role and virtual address that disagree are noticed, and a failover is no reason to say so."""

from __future__ import annotations

import logging

import pytest

from pollux.ha.active_passive.virtual_address import PATIENCE, PERIOD, VirtualAddress, is_here

VIRTUAL = "192.0.2.1"


class Machine:
    """Has the address, or not."""

    def __init__(self) -> None:
        self.has = False
        self.looks = 0

    def look(self, address: str) -> bool:
        assert address == VIRTUAL
        self.looks += 1
        return self.has


@pytest.mark.parametrize(("serves", "says"), [(True, "not on this machine"), (False, "on this machine, which has a b")])
def test_an_address_that_is_elsewhere_is_told_after_a_while_and_once(
    serves: bool, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    watched = VirtualAddress(VIRTUAL, machine.look)
    machine.has = not serves
    with caplog.at_level(logging.INFO, "pollux.ha"):
        watched.look(100, serves=serves)
        watched.look(100 + PATIENCE - PERIOD, serves=serves)
        assert (watched.astray, watched.problem) == (False, "")
        watched.look(100 + PATIENCE, serves=serves)
        watched.look(100 + 2 * PATIENCE, serves=serves)
        assert watched.astray
        assert says in watched.problem
        assert watched.view() == {"address": VIRTUAL, "here": not serves}
        machine.has = serves
        watched.look(100 + 3 * PATIENCE, serves=serves)
    assert (watched.astray, watched.problem) == (False, "")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_a_failover_is_no_reason() -> None:
    """The role comes first and the address after it; each change begins anew."""
    machine = Machine()
    watched = VirtualAddress(VIRTUAL, machine.look)
    for began in (0.0, 2 * PATIENCE, 4 * PATIENCE):
        watched.look(began, serves=not machine.has)
        machine.has = not machine.has
        watched.look(began + PATIENCE - PERIOD, serves=machine.has)
        watched.look(began + PATIENCE, serves=machine.has)
        assert not watched.problem


def test_it_is_looked_for_once_a_second_and_not_without_an_address() -> None:
    machine = Machine()
    watched = VirtualAddress(VIRTUAL, machine.look)
    for tenth in range(21):
        watched.look(tenth / 10, serves=False)
    assert machine.looks == 3
    nobodys = VirtualAddress("", machine.look)
    nobodys.look(0, serves=True)
    assert (machine.looks, nobodys.astray, nobodys.view()) == (3, None, None)


def test_the_system_says_what_addresses_it_has() -> None:
    assert is_here("127.0.0.1")
    assert not is_here(VIRTUAL)
    assert not is_here("2001:db8::1")
