"""Random fault sequences on pairs under traffic, from a fixed seed; a failure names the seed and the sequence.

    pytest tests/e2e/test_failover_random.py --sequences 500 --seed 20261120 --sequence 17

One group lives through many sequences (starting processes is what costs time), several groups at the same time, each
in a process of its own. The ledger is judged at the end of each batch; `--sequence` repeats the batch of that number.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TYPE_CHECKING

import pytest

from e2e.random_faults import Batch, run_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(900)
#: Sequences that one group lives through, and groups at the same time.
BATCH, GROUPS = 20, 4


def batches_of(config: pytest.Config) -> dict[int, int]:
    """The first number of each batch, and how many sequences are in it."""
    count = int(config.getoption("--sequences"))
    only = config.getoption("--sequence")
    if only is not None:
        return {int(only) // BATCH * BATCH: BATCH}
    return {first: min(BATCH, count - first) for first in range(0, count, BATCH)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each batch of sequences."""
    metafunc.parametrize("first", list(batches_of(metafunc.config)))


@pytest.fixture(scope="module")
def batches(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Future[Batch]]]:
    """All batches, on their way."""
    seed = int(request.config.getoption("--seed"))
    with ProcessPoolExecutor(GROUPS, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = {
            first: pool.submit(run_batch, str(tmp_path_factory.mktemp(f"batch{first}-")), seed, first, count)
            for first, count in batches_of(request.config).items()
        }
        yield found
        pool.shutdown(wait=True, cancel_futures=True)
    ended = [each.result() for each in found.values() if not each.cancelled() and each.exception() is None]
    faults, longest = sum(each.faults for each in ended), max((each.longest for each in ended), default=0.0)
    plugins = request.config.pluginmanager
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.write("\n")
            reporter.write_line(f"seed {seed}: {faults} faults; then somebody confirmed after {longest:.1f} s at most")


def test_random_faults(batches: dict[int, Future[Batch]], first: int) -> None:
    if problem := batches[first].result().problem:
        pytest.fail(problem, pytrace=False)
