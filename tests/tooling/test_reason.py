"""Why a scenario failed, read off what molecule printed."""

from __future__ import annotations

from lab.reason import LENGTH, LINES, passage, reason, shorten

DRILL = """\
INFO     [default > side_effect] Executing

TASK [Tell what it measured] ***************************************************
ok: [localhost] =>
    msg:
    - 'TASK [broker : Start the service] ******'
    - '[ERROR]: Task failed: Module failed: something that the drill quotes'
    - 'fatal: [replica-castor]: FAILED! => '

TASK [Fail when an invariant broke] ********************************************
\x1b[31m[ERROR]: Task failed: Action failed: the drill ended with 1: lab: power-cut: 3 messages\x1b[0m
are lost
Origin: /work/molecule/lab/playbooks/drill.yml:69:11

67             msg: "..."
            ^ column 11

fatal: [castor -> localhost]: FAILED! =>
    changed: false

PLAY RECAP *********************************************************************
castor             : ok=8    changed=1    unreachable=0    failed=1
ERROR    [default > side_effect] Executed: Failed
"""
LOST = """\
TASK [Gathering Facts] *********************************************************
ok: [castor]
fatal: [pollux]: UNREACHABLE! =>
    changed: false
    msg: 'Failed to connect to the host via ssh'
    unreachable: true

PLAY RECAP *********************************************************************
"""
TESTS = """\
TASK [Start the service] *******************************************************
ok: [castor]
=========================== short test summary info ============================
FAILED tests/test_brokers.py::test_one_live[ansible://castor] - assert 0 == 1
============================== 1 failed, 4 passed in 3.00s =====================
"""


def test_the_task_that_failed_and_its_message() -> None:
    """Breaks when a task that is only quoted is taken for the one that failed, or only one line of its message is."""
    assert reason(DRILL) == (
        "task [Fail when an invariant broke]: Task failed: Action failed: the drill ended with 1: "
        "lab: power-cut: 3 messages are lost"
    )


def test_a_host_that_does_not_answer_is_named() -> None:
    assert reason(LOST).startswith(
        "task [Gathering Facts]: pollux is unreachable: changed: false msg: 'Failed to connect"
    )
    assert "RECAP" not in reason(LOST)


def test_tests_that_failed_are_named() -> None:
    assert reason(TESTS) == "FAILED tests/test_brokers.py::test_one_live[ansible://castor] - assert 0 == 1"


def test_nothing_is_made_up() -> None:
    assert reason("TASK [x] ****\nok: [castor]\n") == ""
    assert passage("TASK [x] ****\nok: [castor]\n") == ["TASK [x] ****", "ok: [castor]"]


def test_what_the_failed_task_said_is_told_in_its_own_lines() -> None:
    """Breaks when another task is told, or the words of one end before those of its hosts do, or after."""
    lines = passage(DRILL)
    assert lines[0].startswith("TASK [Fail when an invariant broke]")
    assert lines[-1] == "    changed: false"
    assert passage(LOST)[-1] == "    unreachable: true"


def test_what_failed_tests_of_hosts_said_is_told() -> None:
    failures = "= FAILURES =\n" + "".join(f"line {number}\n" for number in range(99)) + "E   assert 0 == 1\n"
    begin, summary = TESTS.splitlines(keepends=True)[:2], TESTS.splitlines(keepends=True)[2:]
    lines = passage("".join([*begin, failures, *summary]))
    assert lines[0] == "line 0"
    assert lines[-1] == "E   assert 0 == 1"
    assert len(lines) == LINES


def test_of_a_long_one_both_ends_are_kept() -> None:
    """Breaks when what the innermost error says, which comes last, is cut off."""
    long = shorten("begin " + "x" * LENGTH + " end")
    assert (long[:6], long[-4:]) == ("begin ", " end")
    assert len(long) <= LENGTH + 5
