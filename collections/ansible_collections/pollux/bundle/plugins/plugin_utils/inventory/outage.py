"""The cost of losing a primary under a resource manager, part by part: from the variables, in milliseconds. Pure.

Upper bounds, not what is seen as a rule. Where each figure comes from: docs/active-passive.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Corosync's own rule: consensus is at least so many times the token.
LEAST_CONSENSUS = 1.2
#: What pacemaker's controller pauses when updates of its database are pending: twice one second.
CONTROLLER = 2000
#: A primary that hangs is asked once more, for 2 s, and has a second to end.
END = 3000
#: How much longer than the grant of an old primary a promoted broker waits (pollux.ha.active_passive.ready.MARGIN).
MARGIN = 1.05
#: Promotion by the agent, whatever the journal's size: its program starts, asks the others, and is answered.
PROMOTION = 1500
#: The virtual address is set and announced.
ADDRESS = 500
#: Clients find a dead connection and connect again.
CLIENT = 1000


class Part(NamedTuple):
    """A part of an interruption: its name in reports, and the most it takes."""

    name: str
    most_ms: int


def consensus(value: Mapping[str, Any]) -> int:
    """Return how long corosync waits for agreement: what the inventory says, else the least that it takes."""
    given = int(value["pacemaker_consensus_ms"])
    return given or round(int(value["pacemaker_token_ms"]) * LEAST_CONSENSUS)


def detection(value: Mapping[str, Any]) -> list[Part]:
    """Return what passes from a power cut until a backup is told to serve."""
    return [
        Part("token", int(value["pacemaker_token_ms"])),
        Part("consensus", consensus(value)),
        Part("controller", CONTROLLER),
        *([Part("fencing", int(value["pacemaker_fencing_seconds"]) * 1000)] if fences(value) else []),
    ]


def fences(value: Mapping[str, Any]) -> bool:
    """Tell whether a machine that is silent is known to be off before a backup is told to serve."""
    return bool(value["pacemaker_fencing"] == "required")


def outlasted(value: Mapping[str, Any]) -> list[Part]:
    """Return what a promoted broker waits for until an older grant has run out: only where nobody fences."""
    grant = int(value["broker_grant_lease_ms"])
    if fences(value) or not grant:
        return []
    # It serves at the first word after that.
    return [Part("grant", round(grant * MARGIN)), Part("monitor", int(value["pacemaker_monitor_seconds"]) * 1000)]


def cut_off(value: Mapping[str, Any]) -> list[Part]:
    """Return what passes until a primary ends that is cut off and not fenced: its node misses the others first."""
    return [
        Part("token", int(value["pacemaker_token_ms"])),
        Part("consensus", consensus(value)),
        Part("grant", int(value["broker_grant_lease_ms"])),
    ]


def rest(*, address: bool) -> list[Part]:
    """Return what follows."""
    return [
        Part("promotion", PROMOTION),
        *([Part("virtual address", ADDRESS)] if address else []),
        Part("clients", CLIENT),
    ]


def process_death(value: Mapping[str, Any], *, address: bool) -> list[Part]:
    """Return what the end of the primary's process costs, where nobody tells the cluster at once."""
    monitor = int(value["pacemaker_monitor_seconds"]) * 1000
    return [Part("monitor", monitor), Part("controller", CONTROLLER), *rest(address=address)]


def silence(value: Mapping[str, Any]) -> list[Part]:
    """Return what passes from the moment a primary hangs until it is ended and a backup is told to serve."""
    return [
        Part("monitor", int(value["pacemaker_monitor_seconds"]) * 1000),
        Part("answer", int(value["pacemaker_answer_seconds"]) * 1000),
        Part("controller", CONTROLLER),
        Part("end", END),
    ]


def hang(value: Mapping[str, Any], *, address: bool) -> list[Part]:
    """Return what a primary costs that hangs."""
    return [*silence(value), *rest(address=address)]


def host_death(value: Mapping[str, Any], *, address: bool) -> list[Part]:
    """Return what a power cut of the primary's machine costs."""
    return [*detection(value), *outlasted(value), *rest(address=address)]


def total(parts: list[Part]) -> int:
    """Return the sum in milliseconds."""
    return sum(part.most_ms for part in parts)


def told(parts: list[Part]) -> str:
    """Return the sum and its parts, for a plan."""
    return f"{total(parts)} ms at most ({', '.join(f'{part.name} {part.most_ms}' for part in parts)})"
