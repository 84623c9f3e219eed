"""Why a queue does not drain, in words: each sentence says what is the case and what to do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pollux.cluster.routes.choice import Balancing


#: Addresses that are named of those that are full.
_NAMED = 10


class Other(NamedTuple):
    """A queue of the same group at another node. ``full``: its address is, so that what is for it waits."""

    node: str
    consumers: int
    filtered: int
    connected: bool
    credit: int
    full: bool = False


class Queue(NamedTuple):
    """Hold what is known of a queue. ``delay``: redistribution-delay in ms; ``kept``: why nothing moves."""

    name: str
    address: str
    messages: int
    consumers: int
    filtered: int
    paused: bool
    delay: int
    covered: bool
    kept: str
    others: Sequence[Other]


class Outlet(NamedTuple):
    """Hold what is known of a store-and-forward queue: whose it is, and whether its node is reached.

    ``held`` messages wait as addresses there are ``full``, and ``behind`` those what was not read from disk yet.
    """

    name: str
    node: str
    messages: int
    connected: bool
    in_flight: int
    reason: str
    forgetting: str
    held: int = 0
    full: Sequence[str] = ()
    behind: int = 0


def of_outlet(one: Outlet) -> Iterator[str]:
    """Say why messages for another node wait."""
    if not one.messages:
        yield "it is empty"
    elif one.forgetting:
        yield f"its node was forgotten, and a message has no other place yet: {one.forgetting}"
    elif not one.connected:
        reason = f" ({one.reason})" if one.reason else ""
        yield (
            f"broker {one.node!r} is not reached{reason}: start it; if it does not come back, `pollux cluster forget"
            f" {one.node}` routes anew what waits for it"
        )
    elif one.full:
        names = ", ".join(one.full[:_NAMED]) + (", ..." if len(one.full) > _NAMED else "")
        yield (
            f"{one.held} messages wait for room at broker {one.node!r}, where these addresses are full: {names}; take"
            " from their queues there. What is for others goes on"
        )
        if one.behind:
            yield f"{one.behind} messages are behind these on disk, and are read when there is memory: they wait, too"
    elif one.in_flight:
        yield (
            f"{one.in_flight} messages were sent and are not on the disk of broker {one.node!r} yet: its disk may"
            " be slow, or it is full (global-max-size; of an older version: one of its addresses, BLOCK or FAIL)"
        )
    else:
        yield (
            f"broker {one.node!r} gives no credit: it has to store what was sent before, or is full (global-max-size;"
            " of an older version: one of its addresses, BLOCK or FAIL); see its log"
        )


def _of_takers(one: Queue, reached: Sequence[Other]) -> Iterator[str]:
    """Say what is in the way of messages to nodes that are reached and have consumers."""
    if reached and not any(other.consumers for other in reached):
        yield "the consumers elsewhere have filters: what none of them lets through stays"
    if crowded := sorted(other.node for other in reached if other.full):
        yield f"{one.address!r} is full at {', '.join(crowded)}: what is for there waits until there is room"


def of_queue(one: Queue, balancing: Balancing) -> Iterator[str]:
    """Say why messages of a queue wait that others could take."""
    if not one.messages:
        yield "it is empty"
        return
    if one.paused:
        yield f"it is paused: `pollux queue resume {one.name}`"
    if one.consumers:
        yield f"{one.consumers} consumers take everything here: they have no credit, or are slow; nothing is moved then"
        return
    if one.filtered:
        yield f"{one.filtered} consumers here have filters: what no filter lets through waits for another consumer"
    takers = [other for other in one.others if other.consumers or other.filtered]
    if not takers:
        words = "none of them has a consumer" if one.others else "no other node is known to have one of its group"
        yield f"nobody takes it elsewhere: {words}; `pollux cluster routes {one.address}` lists them"
        return
    if not one.covered:
        yield f"the cluster connection leaves {one.address!r} out: see its `address`"
    if not balancing.moves:
        yield f"message-load-balancing is {balancing.value}: what is here stays; ON_DEMAND moves it"
    if one.delay < 0:
        yield (
            f"redistribution-delay of {one.address!r} is -1, never: set it to 0 or more, and what is here is moved to"
            f" {', '.join(sorted(other.node for other in takers))}"
        )
    if one.kept:
        yield f"it is left alone: {one.kept}"
    reached = [other for other in takers if other.connected]
    if not reached:
        yield f"no node with a consumer is reached: {', '.join(sorted(other.node for other in takers))}; start them"
    yield from _of_takers(one, reached)
    if reached and balancing.moves and one.delay >= 0 and one.covered and not one.kept:
        if one.delay > 0:
            yield f"it is moved when nobody took it for {one.delay} ms"
        if one.filtered:
            yield "messages with a group stay while somebody takes others here"
        yield "a message that was moved here stays for 2 s"
