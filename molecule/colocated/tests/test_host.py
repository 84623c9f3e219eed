"""A host after deployment, and after every fault: what is on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.asked import status
from lab.checks import test_nothing_failed, test_the_unit_runs_and_starts_at_boot  # noqa: F401  (tests)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]


def test_it_is_live_at_home_and_all_of_its_lives_do_their_part(host: Host) -> None:
    found = status(host)
    assert found["activation"]["state"] == "live"
    (own,) = [life for life in found["lives"] if not life["slot"]]
    # Lives that asked at the same moment may be on one host, and none on another.
    assert {life["state"] for life in found["lives"] if life["slot"]} <= {"ready"}
    assert own["state"] == "live"
    assert own["backup"]["ready"]
    assert own["backup"]["at"] not in ("", own["name"])


def test_each_life_is_a_process_of_the_broker_s_user(host: Host) -> None:
    for life in status(host)["lives"]:
        assert host.check_output(f"stat --format=%U /proc/{life['pid']}") == "pollux"


def test_the_log_says_whose_each_line_is(host: Host) -> None:
    assert host.check_output("journalctl --unit=pollux --quiet --no-pager --output=cat | grep -c 'life=live'") != "0"
