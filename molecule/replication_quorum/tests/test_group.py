"""Each pair as one, and all pairs as one electorate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.asked import statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
PAIRS = (("quorum-1a", "quorum-1b"), ("quorum-2a", "quorum-2b"), ("quorum-3a", "quorum-3b"))


@pytest.mark.parametrize("pair", PAIRS, ids=("pair1", "pair2", "pair3"))
def test_one_is_live_and_the_other_has_a_copy_of_it(host: Host, pair: tuple[str, str]) -> None:
    found = [each["activation"] for each in statuses(*pair).values()]
    assert sorted(one["state"] for one in found) == ["live", "ready"]
    assert len({one["node_id"] for one in found}) == 1


def test_everybody_has_seen_all_pairs(host: Host) -> None:
    """The largest topology that each has seen, and the other members that it knows of."""
    names = [name for pair in PAIRS for name in pair]
    seen = [each["activation"]["replication"]["quorum"] for each in statuses(*names).values()]
    assert [(one["size"], one["members"]) for one in seen] == [(3, 5)] * 6
