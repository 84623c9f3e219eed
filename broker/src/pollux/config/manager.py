"""The properties of a replicated pair's ``<manager>``: their names, ranges and defaults, and what they become.

Pure. Which service a manager is tells its class name; Artemis's names are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Class names of Artemis's ZooKeeper managers, older and newer, and Pollux's own short name.
ZOOKEEPER_MANAGERS = (
    "zookeeper",
    "org.apache.activemq.artemis.quorum.zookeeper.CuratorDistributedPrimitiveManager",
    "org.apache.activemq.artemis.lockmanager.zookeeper.CuratorDistributedManager",
)
#: The same for managers that are a directory all members see, for members on one machine.
FILE_MANAGERS = (
    "file",
    "org.apache.activemq.artemis.quorum.file.FileBasedPrimitiveManager",
    "org.apache.activemq.artemis.lockmanager.file.FileBasedLockManager",
)
FILE_PROPERTIES = ("locks-folder",)


class Whole(NamedTuple):
    """A property that is a whole number from ``least`` to ``most``."""

    default: int
    least: int
    most: int
    meaning: str


#: What session-percent leaves of a session is the margin in which nobody may serve: with more than 80 a live that is
#: slow to notice could still confirm when the next one has the lock.
ZOOKEEPER_NUMBERS = {
    "session-ms": Whole(
        18_000,
        200,
        3_600_000,
        "Milliseconds a lock outlives the last sign of life of its holder; less if ZooKeeper says so.",
    ),
    "session-percent": Whole(
        66,
        10,
        80,
        "Part of the session granted that may pass without proof of the lock; then the live stops by itself.",
    ),
    "connection-ms": Whole(
        8_000,
        10,
        600_000,
        "Milliseconds for a connection to one server, then the next is tried; at most session-ms by their number.",
    ),
    "retries": Whole(
        0,
        0,
        1_000,
        "How often a question is asked again when its connection broke, within half of the time the lock has.",
    ),
    "retries-ms": Whole(1_000, 0, 600_000, "Milliseconds between these."),
}
ZOOKEEPER_TEXTS = {
    "connect-string": "Required: servers as host:port, separated by commas.",
    "namespace": "Node below which those of the brokers are (pollux).",
}
ZOOKEEPER_PROPERTIES = (*ZOOKEEPER_TEXTS, *ZOOKEEPER_NUMBERS)


class ZooKeeperTimes(NamedTuple):
    """Seconds, but for ``retries`` and ``part``, which is how much of a session may pass without proof of the lock."""

    session: float = 18.0
    part: float = 0.66
    connection: float = 8.0
    retries: int = 0
    pause: float = 1.0


def bad_numbers(given: Mapping[str, str]) -> list[str]:
    """Say what is wrong with those properties that are numbers, as text for the user."""
    found = []
    for name, (_, least, most, _meaning) in ZOOKEEPER_NUMBERS.items():
        text = given.get(name)
        if text is None:
            continue
        # isdigit alone takes digits of other scripts; more than ten are above every limit.
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
            found.append(f"property {name!r} is {text[:60]!r}: give a whole number from {least} to {most}")
    return found


def zookeeper_times(given: Mapping[str, str]) -> ZooKeeperTimes:
    """The times of a manager whose properties were found good."""
    number = {name: int(given.get(name, known.default)) for name, known in ZOOKEEPER_NUMBERS.items()}
    return ZooKeeperTimes(
        number["session-ms"] / 1000,
        number["session-percent"] / 100,
        number["connection-ms"] / 1000,
        number["retries"],
        number["retries-ms"] / 1000,
    )
