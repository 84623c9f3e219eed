"""Messages that are held back, as their address is full at the other node; and histories of such links.

These are in simulated time (:mod:`broker.cluster.connection.held_model`): nothing is lost, nothing comes twice, and
each address keeps its order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.held_model import NODE, History
from broker.engine.conftest import message
from pollux.cluster.connection.forwarded import order_of, stored
from pollux.cluster.connection.held import Held
from pollux.cluster.connection.payloads import MOST_FULL, Kind, Payloads, full
from pollux.cluster.routes.numbers import LANES, Lanes, Number, base_of
from pollux.routing.reference import MessageReference
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from pollux.message import Message

LIFE, OTHER = b"1" * 8, b"2" * 8
SEEDS = range(600)
BLOCK = 100


def copy(address: str, life: bytes = LIFE, number: int = 1) -> Message:
    return stored(message(b"x", address), "sf", Number(life, number), ("q",), (NODE,))


class _Addresses(Held):
    """A message that has a number in a life of what is held back is sent all the same."""

    def _lets(self, message: Message) -> bool:
        order = order_of(message)
        return order is None or base_of(order.address) not in self._addresses


class _Lives(Held):
    """A message for an address of what is held back is sent all the same, unless that is full."""

    def _lets(self, message: Message) -> bool:
        order = order_of(message)
        if order is None or (base_of(order.address) not in self.full and order.life not in self._lives):
            return True
        self._lives.add(order.life)
        return False


class _Once(Held):
    """Nothing that was held back is looked at again."""

    def told(self, addresses: frozenset[str]) -> bool:  # type: ignore[override]  # what the model gives
        super().told(addresses)
        return False


class _Sifted(Held):
    """A message that was taken out of the queue before the address was full is sent all the same."""

    def sift(self, waiting: deque[MessageReference]) -> list[MessageReference]:
        return []


@pytest.mark.parametrize("first", range(0, len(SEEDS), BLOCK))
def test_every_history_ends_well(first: int) -> None:
    for seed in SEEDS[first : first + BLOCK]:
        assert not History(seed).run(), f"history {seed}"


@pytest.mark.parametrize(
    ("without", "words"),
    [(_Addresses, "lost"), (_Lives, "out of order"), (_Once, "nothing is full"), (_Sifted, "beyond its limit")],
    ids=["lives", "addresses", "another look", "what was taken already"],
)
def test_without_a_part_of_it_a_history_goes_wrong(without: type[Held], words: str) -> None:
    for seed in SEEDS:
        if any(words in each for each in History(seed, without).run()):
            return
    pytest.fail(f"no history found what happens without {without.__doc__}")


def test_addresses_have_lanes_as_far_as_there_are_some() -> None:
    lanes = Lanes(LIFE)
    assert lanes.next("a") == Number(LIFE, 1)
    assert lanes.next("b") == Number(LIFE, 2), "the other node knows only one"
    lanes.apart = True
    of = {f"a{at}": lanes.next(f"a{at}") for at in range(LANES)}
    assert len({number.life for number in of.values()}) == LANES
    assert {number.value for number in of.values()} == {1}
    assert lanes.next("a3::queue") == Number(of["a3"].life, 2)
    more = [lanes.next(f"b{at}").life for at in range(100)]
    assert len({*more, *(number.life for number in of.values())}) == LANES
    assert [lanes.next(f"b{at}").life for at in range(100)] == more
    assert Lanes(OTHER).of("a").life != LIFE


def test_what_is_full_is_held_back_with_what_must_not_overtake_it() -> None:
    held = Held()
    assert held.selector is None
    assert not held.told({"orders"})
    assert held.selector is not None
    assert held.lets(copy("prices", OTHER))
    assert not held.lets(copy("orders::queue"))
    assert not held.lets(copy("prices", LIFE)), "its number is behind one that waits"
    assert not held.lets(copy("prices", OTHER)), "it is behind one for its address"
    assert held.waits("prices")
    assert held.count == 3
    assert held.lets(message(b"no copy", "orders")), "no message of a link"
    assert held.told(set())
    assert held.selector is None
    assert not held.count
    assert held.lets(copy("orders"))


def test_what_was_let_through_is_not_behind_what_came_later() -> None:
    held = Held()
    held.told({"orders"})
    earlier = MessageReference(copy("prices", OTHER), None)  # type: ignore[arg-type]  # nobody asks for its queue
    assert held.lets(earlier.message)
    assert not held.lets(copy("orders"))
    assert not held.lets(copy("prices"))
    held.told({"orders", "news"})
    waiting = deque([earlier])
    assert not held.sift(waiting)
    assert [*waiting] == [earlier]
    assert not held.lets(copy("prices", OTHER, 2))


def test_a_node_that_tells_of_more_full_addresses_than_it_may_is_not_believed() -> None:
    """Breaks when what is kept of what another node says has no bound."""
    names = tuple(f"a{at}" for at in range(MOST_FULL + 1))
    (payload,) = full(names[1:], 1 << 16)
    assert Payloads().decode(payload) == (Kind.FULL, names[1:])
    (payload,) = full(names, 1 << 16)
    with pytest.raises(CoreError, match="cannot be read"):
        Payloads().decode(payload)
