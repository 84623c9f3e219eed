"""Rules for every test, and the options that single ones take (pytest reads options only from here)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from harness import workers

if TYPE_CHECKING:
    from collections.abc import Iterator

# No deadline for an example, and no check that examples are quickly made (too_slow): both are wall-clock times, which
# say how much else the machine does and nothing about Pollux; a test that fails for that is one that is run again until
# it passes. A test that hangs fails by pytest-timeout. CI tries the same examples each time, as hypothesis itself would
# have it: what it says of a change does not hang on luck. Everybody else's runs search on.
settings.register_profile(
    "pollux", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("pollux")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many random fault sequences tests/e2e/test_failover_random.py tries, from which seed, and which one alone."""
    parser.addoption("--sequences", default="500", help="random fault sequences of test_failover_random")
    parser.addoption("--seed", default="20261120", help="seed of the random fault sequences")
    parser.addoption("--sequence", default=None, help="only the batch with this sequence")


#: Fixtures that start a `pollux` process.
PROCESSES = frozenset(("drill_broker", "drill_pair", "instance", "make_instance", "running", "shared"))
#: Fixtures, and kinds that a fixture comes in, that start a server which set-up brings for `make test` alone.
SERVERS = frozenset(("ensemble", "postgresql", "zookeeper"))


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and let interrupts be heard: who starts the tests in the background has them ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup, which our own programs heed
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.addinivalue_line("markers", "processes: starts a real broker, or a server; not in `make check` (set here)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a real broker: what uses one of the fixtures above, or its module knows a kind of BrokerProcess.

    Other processes (a writer of journals that is killed) are marked where they are started. What takes long is first.
    """
    items.sort(key=lambda item: workers.begun(item.nodeid))
    judged: dict[object, bool] = {}
    for item in items:
        module = getattr(item, "module", None)
        if module not in judged:
            judged[module] = any(map(starts_brokers, vars(module or object).values()))
        if judged[module] or needs_processes(item):
            item.add_marker("processes")


def needs_processes(item: pytest.Item) -> bool:
    """Whether a test uses one of the fixtures above, or is one of several kinds that is a server's."""
    kinds = getattr(getattr(item, "callspec", None), "params", {}).values()
    return not (
        (PROCESSES | SERVERS).isdisjoint(getattr(item, "fixturenames", ()))
        and SERVERS.isdisjoint(each for each in kinds if isinstance(each, str))
    )


def starts_brokers(found: object) -> bool:
    """Whether this is harness.broker.BrokerProcess or made from it, like a pair's Member."""
    return isinstance(found, type) and any(each.__name__ == "BrokerProcess" for each in found.__mro__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one worker run what belongs together."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return workers.together(nodeid)

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Keep the collector away: what is found stays, half a million objects that it would look at again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


#: How Python collects garbage and switches threads where no broker has said otherwise.
COLLECTOR, SWITCH = gc.get_threshold(), sys.getswitchinterval()
#: Open files of this process above which what tests dropped is collected: cycles hold files, and select(2) knows 1,024.
MANY_FILES = 300


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A broker in this process makes the collector its own, as if nothing else lived here; a test's end undoes that."""
    yield
    if gc.get_threshold() != COLLECTOR or not gc.isenabled():
        gc.unfreeze()
        gc.set_threshold(*COLLECTOR)
        gc.enable()
        sys.setswitchinterval(SWITCH)
    if len(list(Path("/proc/self/fd").iterdir())) > MANY_FILES:
        gc.collect()
