"""Which queues are looked at without a word: those that are other ones than before, however few are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.nodes import linked, take
from broker.engine.conftest import Receiver, message
from pollux.cluster.connection.looks import Looks
from pollux.config.address_settings import AddressSettings
from pollux.routing.queue import Queue
from pollux.routing.reference import MessageReference
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.nodes import Make


def queue(number: int, *, internal: bool = False) -> Queue:
    return Queue.create(QueueSpec(f"q{number}", "a", internal=internal), AddressSettings(), number)


def test_a_queue_at_rest_is_looked_at_once() -> None:
    """1,000 of them at each of twelve nodes took every node more than a hundredth of a processor."""
    one, two, looks = queue(1), queue(2), Looks()
    assert looks.stirred([one, two, queue(3, internal=True)]) == [one, two]
    assert looks.stirred([one, two]) == []
    looks.forget()
    assert looks.stirred([one, two]) == [one, two]


def test_whatever_others_are_told_of_a_queue_has_it_looked_at() -> None:
    one, other, looks = queue(1), queue(2), Looks()
    consumer = Receiver(credit=0)

    def stirred() -> bool:
        return looks.stirred([one, other]) == [one]

    looks.stirred([one, other])
    one.add_consumer(consumer)
    assert stirred()
    consumer.credit = 10
    assert stirred()
    consumer.credit = 0
    assert stirred()
    one.add([MessageReference(message(b"x"), one)])
    assert stirred()
    one.restore(4, [1, 2])
    assert stirred()
    one.remove_consumer(consumer)
    assert stirred()
    assert not looks.stirred([one, other])


def test_very_many_are_asked_about_with_pauses_in_between() -> None:
    looks, many = Looks(), [queue(number) for number in range(4100)]
    portions = list(looks.portions(many))
    assert [len(each) for each in portions] == [*[200] * 20, 100]
    assert [one for each in portions for one in each] == many
    assert list(looks.portions(many)) == [[], []]
    assert list(looks.portions(many[:2000])) == []


@pytest.mark.asyncio
async def test_credit_that_came_without_a_word_is_told(nodes: Make) -> None:
    one, two = await linked(nodes)
    consumer = take(two, credit=0)
    key = (two.id, "orders")

    def credit() -> int:
        path = one.cluster.table.path(key)
        return path.record.credit if path is not None and path.record.consumers else -1

    await until(lambda: credit() == 0)
    for more in (64, 128):  # the first look finds every queue to be another one
        consumer.credit = more
        await until(lambda more=more: credit() == more)  # type: ignore[misc]
