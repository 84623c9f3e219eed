"""Clusters in simulated time (:mod:`harness.cluster_model`): joins, kills, partitions, restored stores, consumers that
come and go. After all is healed every route is right, every message was consumed once, none is thrown to and fro.
"""

from __future__ import annotations

import pytest

from harness.cluster_model import Cluster, Without

SEEDS = range(2000)
#: Histories of one test: a second or two.
BLOCK = 100


@pytest.mark.parametrize("first", range(0, len(SEEDS), BLOCK))
def test_every_history_ends_well(first: int) -> None:
    for seed in SEEDS[first : first + BLOCK]:
        assert not Cluster(seed).run(), f"history {seed}"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (Without(horizon=False), "has routes"),
        (Without(numbers=False), "consumed twice"),
        (Without(hold=0.0), "moved on after"),
    ],
    ids=["split horizon", "link numbers", "hold time"],
)
def test_without_a_part_of_it_a_history_goes_wrong(parts: Without, words: str) -> None:
    for seed in SEEDS:
        if any(words in each for each in Cluster(seed, parts).run()):
            return
    pytest.fail(f"no history found what happens {parts}")
