"""How fast messages are moved beside clients: the share of time that movers leave them, and how much is on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, quiet, waits, wanted
from broker.cluster.connection.nodes import fill, linked, take
from broker.engine.conftest import message
from pollux.cluster.connection import mover as mover_module
from pollux.cluster.connection.pace import GAIN, MOST, Pace

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.cluster.connection.mover import Mover


def paced() -> tuple[list[int], Pace]:
    served = [1000]
    return served, Pace(lambda: served[0])


def test_alone_it_does_not_rest() -> None:
    served, pace = paced()
    for turn in range(5):
        served[0] += 200  # what is moved was served, too
        assert pace.rest(200, 0.003, turn * 0.01) == 0


def test_clients_that_want_little_cost_little_and_those_that_want_much_get_most_of_the_time() -> None:
    served, pace = paced()
    served[0] += 200 + 2
    assert pace.rest(200, 0.003, 1.0) == pytest.approx(0.003 * GAIN / 100)
    served[0] += 200 + 100  # half as many as were moved: who is held up sends less
    assert pace.rest(200, 0.003, 2.0) == pytest.approx(0.003 * MOST)
    served[0] += 200 + 1_000_000
    assert pace.rest(200, 0.003, 3.0) == pytest.approx(0.003 * MOST)
    assert pace.rest(200, 0.003, 4.0) == 0


def test_many_movers_together_take_no_more_than_one() -> None:
    served, pace = paced()
    rests = []
    for _ in range(3):
        served[0] += 200 + 1_000_000
        rests.append(pace.rest(200, 0.003, 1.0))
    assert rests == pytest.approx([0.003 * MOST * turn for turn in (1, 2, 3)])


def test_what_others_confirmed_first_is_nobody_s_work() -> None:
    """Other nodes confirm what was moved in their own time: no more is counted off than was counted."""
    served, pace = paced()
    assert pace.rest(200, 0.003, 1.0) == 0
    served[0] += 200
    assert pace.rest(200, 0.003, 2.0) == 0


def _mover(node: Node) -> Mover:
    return node.cluster.moving._movers[node.post.queue("orders").id]


@pytest.mark.asyncio
async def test_what_is_on_the_way_has_a_bound(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of a million went to the node's queue at once, and what its clients sent there waited behind it."""
    monkeypatch.setattr(mover_module, "_ON_THE_WAY", 300)
    one, two = await linked(nodes)
    bodies = await fill(one, 2000)
    link = one.cluster.peers.links[0]
    link.credit = 0
    other = take(two)
    await until(lambda: waits(one) >= 300)
    for _ in range(5):
        one.cluster.moving.review(one.post.space.queues)
        await one.office.stable()
    assert waits(one) <= 300 + mover_module._CREDIT
    link.credit = 2000
    one.post.wake(next(iter(one.cluster.spreading.outlets.values())).queue)
    await other.wait(2000)
    assert other.bodies == bodies


@pytest.mark.asyncio
async def test_where_all_goes_to_one_place_nobody_asks_for_each_message(nodes: Make) -> None:
    """But for those that came from elsewhere just now: these stay, and hold up nothing."""
    one, two = await linked(nodes)
    queue = one.post.queue("orders")
    take(two)
    await until(lambda: wanted(one, two) and queue.consumers)
    mover = _mover(one)
    assert mover.selector is None
    held = message(b"held")
    one.post.put(held, queue, 0)
    one.cluster.moving.arrived([queue], [held])
    one.post.put(message(b"other"), queue, 0)
    await one.office.stable()
    await quiet([one, two])
    await until(lambda: count(two) == 1)
    assert mover.selector is not None
    assert count(one) == 1
    assert queue.id in one.cluster.moving._due
    await until(lambda: count(one) == 0)
    await until(lambda: _mover(one).selector is None)


@pytest.mark.asyncio
async def test_a_delay_that_is_over_is_not_forgotten_for_a_later_one(nodes: Make) -> None:
    one, two = await nodes()
    one.office.settings("soon", redistribution_delay=50)
    one.office.settings("late", redistribution_delay=60_000)
    await one.reopen()
    for source, sink in ((one, two), (two, one)):
        link = source.reach(sink)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    for name in ("soon", "late"):
        one.office.queue(name)
        two.office.queue(name)
        one.post.send(message(b"x", f"{name}::{name}"))
        take(two, name)
        await until(lambda name=name: wanted(one, two, name))  # type: ignore[misc]
    await until(lambda: count(two, "soon") == 1)
    assert count(one, "late") == 1
    assert list(one.cluster.moving._due) == [one.post.queue("late").id]
