"""site.yml on a pair that it has deployed: nothing changes, whichever hosts it is run for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.bundle import MEMBERS, tree

if TYPE_CHECKING:
    from harness.deployment import Deployment

pytestmark = [pytest.mark.timeout(900), pytest.mark.processes]
#: What site.yml renders, below a broker's root.
RENDERED = ("etc", "bin")


def rendered(pair: Deployment, *members: str) -> dict[str, dict[str, tuple[int, str]]]:
    """Everything that was rendered for a member, with modes; without what the broker itself writes into etc/run."""
    found = {f"{member}/{part}": tree(pair.site.local / member / part) for member in members for part in RENDERED}
    return {
        part: {name: what for name, what in files.items() if name.split("/")[0] != "run"}
        for part, files in found.items()
    }


def test_a_run_on_an_empty_directory_in_check_mode_fails_nowhere(deployment: Deployment) -> None:
    deployment.checked.succeeded()
    assert {result.host for result in deployment.checked.changed} == set(MEMBERS)


def test_the_preferred_live_serves_and_the_other_one_could_take_over(pair: Deployment) -> None:
    pair.first.succeeded()
    assert sorted(pair.site.states().values()) == ["live", "ready"]


def test_a_second_run_changes_nothing(pair: Deployment) -> None:
    before, pids = rendered(pair, *MEMBERS), pair.site.pids()
    run = pair.site.run("site.yml").succeeded()
    assert run.changed == []
    assert rendered(pair, *MEMBERS) == before
    assert pair.site.pids() == pids, "no broker was restarted"


def test_check_and_diff_of_a_deployed_pair_show_no_change(pair: Deployment) -> None:
    run = pair.site.run("site.yml", "--check", "--diff").succeeded()
    assert run.changed == []
    assert "--- before" not in run.output


def test_check_mode_shows_what_would_change_and_changes_nothing(pair: Deployment) -> None:
    before = rendered(pair, *MEMBERS)
    extra = {"broker_addresses": [{"name": "planned", "anycast": ["planned"]}]}
    run = pair.site.run("site.yml", "--check", "--diff", extra=extra).succeeded()
    assert '+      <address name="planned">' in run.output
    assert {result.host for result in run.changed} == set(MEMBERS)
    assert rendered(pair, *MEMBERS) == before


@pytest.mark.parametrize("member", MEMBERS)
def test_a_run_for_one_host_renders_every_file_as_a_run_for_all(pair: Deployment, member: str) -> None:
    other = next(name for name in MEMBERS if name != member)
    before, pids = rendered(pair, *MEMBERS), pair.site.pids()
    removed = [pair.site.local / name / file for name in MEMBERS for file in ("etc/broker.xml", "etc/secrets.env")]
    for path in removed:
        path.rename(path.with_name(f"{path.name}.kept"))
    try:
        run = pair.site.run("site.yml", "--limit", member).succeeded()
    finally:
        for path in removed:
            kept = path.with_name(f"{path.name}.kept")
            if path.exists():
                kept.unlink()
            else:
                kept.rename(path)
    assert {result.host for result in run.changed} == {member}
    assert rendered(pair, member) == {name: files for name, files in before.items() if name.startswith(member)}
    assert rendered(pair, other) == {name: files for name, files in before.items() if name.startswith(other)}
    assert pair.site.pids() == pids
