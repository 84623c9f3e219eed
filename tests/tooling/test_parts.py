"""The parts of a failover, from lines as corosync, pacemaker and the broker write them."""

from __future__ import annotations

from lab.parts import parts

LINES = """\
99.000000 b pacemaker-controld[9]:  notice: Initiating promote operation pollux_promote_0 on b
101.000000 b corosync[1]:   [TOTEM ] A processor failed, forming new configuration: token timed out (1000ms)
102.200000 c corosync[1]:   [TOTEM ] A new membership (2.1a) was formed. Members left: 1
102.300000 b corosync[1]:   [TOTEM ] A new membership (2.1a) was formed. Members left: 1
103.200000 b pacemaker-controld[9]:  notice: Requesting fencing (reboot) of node a
103.300000 b pacemaker-controld[9]:  notice: Peer a was terminated (reboot) by c on behalf of pacemaker-controld.9: OK
104.300000 b pacemaker-controld[9]:  notice: Initiating promote operation pollux_promote_0 on c
104.500000 c pacemaker-controld[7]:  notice: Result of promote operation for pollux on c: ok
104.700000 c pacemaker-controld[7]:  notice: Result of start operation for pollux-address on c: ok
not a line of a journal
""".splitlines()


def test_each_part_of_the_loss_of_a_machine() -> None:
    assert parts(LINES, 100_000.0, 5_000.0) == {
        "token": 1000,
        "consensus": 1200,
        "told": 1000,
        "fencing": 100,
        "controller": 1000,
        "promotion": 200,
        "address": 200,
        "clients": 300,
    }


def test_a_process_that_ends_costs_no_token_and_no_fencing() -> None:
    lines = [line for line in LINES if "TOTEM" not in line and "fencing" not in line and "terminated" not in line]
    assert parts(lines, 104_000.0, 1_000.0) == {
        "told": 300,
        "controller": 0,
        "promotion": 200,
        "address": 200,
        "clients": 300,
    }


def test_nodes_that_miss_each_other_after_pacemaker_acted_are_no_part() -> None:
    """On a busy machine a token is lost at any time."""
    lines = [line for line in LINES if "TOTEM" not in line and "fencing" not in line and "terminated" not in line]
    later = "104.600000 b corosync[1]:   [TOTEM ] A processor failed, forming new configuration: token timed out"
    assert parts([*lines, later], 104_000.0, 1_000.0) == parts(lines, 104_000.0, 1_000.0)


def test_they_add_up() -> None:
    assert sum(parts(LINES, 100_000.0, 5_000.0).values()) == 5_000
