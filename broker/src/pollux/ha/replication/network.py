"""The network check: whether this host is cut off from everybody. Pure.

A check only ever takes something away. Who is cut off does not serve and does not ask for the right to; who gets an
answer has no more right to serve than before. :mod:`pollux.ha.replication.network_check` asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class NetworkSettings(NamedTuple):
    """Who is asked, and how. Times in seconds; ``ping`` and ``ping6`` are commands as words, with places in them."""

    hosts: tuple[str, ...]
    urls: tuple[str, ...]
    period: float
    timeout: float
    ping: tuple[str, ...]
    ping6: tuple[str, ...]


class Checked(NamedTuple):
    """One check: when it began (monotonic, seconds), and why this host counts as cut off; empty: it does not."""

    began: float
    problem: str


def judge(targets: Sequence[str], answered: bool, failures: Mapping[str, str], timeout: float) -> str:
    """Why this host is cut off: nobody has answered. Empty when somebody did, or nobody was to be asked.

    ``failures``: why a target could not even be asked.
    """
    if answered or not targets:
        return ""
    said = [f"{target} ({failures[target]})" if target in failures else target for target in targets]
    return f"cut off from the network: no answer within {timeout:g} s from {', '.join(said)}"


def current(last: Checked | None, since: float) -> Checked | None:
    """The last check, if it says something about what has been since ``since``."""
    return last if last is not None and last.began >= since else None
