"""persist-delivery-count-before-delivery: a delivery is on disk before anything of it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.engine.conftest import Office, Receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.routing.reference import MessageReference


class Holds:
    """The connections of a server: which are held, and what came of it."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.released: list[Exception | None] = []

    def hold(self, connection: int) -> Callable[[Exception | None], None]:
        self.held.append(connection)
        return self.released.append


async def opened(office: Office, *, counted: bool = True) -> Holds:
    office.configuration = replace(office.configuration, persist_delivery_count_before_delivery=counted)
    await office.open()
    office.post.first_counts.hold = (holds := Holds()).hold
    return holds


async def taken(office: Office, count: int = 1, **attributes: Any) -> tuple[Receiver, list[MessageReference]]:
    receiver = Receiver(**{"origin": 7, **attributes})
    office.post.attach(office.post.queue("orders"), receiver)
    return receiver, await receiver.wait(count)


async def count_after_a_crash(office: Office) -> list[int]:
    """Put what a consumer was given into the queue again, by a start; return how often each was delivered."""
    await office.reopen()
    office.post.first_counts.hold = Holds().hold
    _, got = await taken(office, office.count("orders"))
    return [reference.delivery_count for reference in got]


async def test_what_is_sent_waits_until_the_count_is_on_disk(office: Office) -> None:
    holds = await opened(office)
    office.queue()
    await office.send(b"a", b"b")
    await taken(office, 2)
    assert holds.held == [7]
    assert holds.released == [], "the consumer has them, and nothing of them may have been sent"
    await office.stable()
    assert holds.released == [None]
    assert await count_after_a_crash(office) == [1, 1]
    assert await count_after_a_crash(office) == [2, 2]


async def test_without_it_only_failed_deliveries_are_counted(office: Office) -> None:
    holds = await opened(office, counted=False)
    office.queue()
    await office.send(b"a")
    await taken(office)
    assert holds.held == []
    assert await count_after_a_crash(office) == [0]


@pytest.mark.parametrize(("failed", "count"), [(True, 1), (False, 0)])
async def test_what_comes_back_counts_only_when_it_failed(office: Office, failed: bool, count: int) -> None:
    await opened(office)
    office.queue()
    await office.send(b"a")
    receiver, got = await taken(office, credit=1)
    office.post.release(got, failed=failed)
    office.post.detach(office.post.queue("orders"), receiver)
    assert await count_after_a_crash(office) == [count]


async def test_a_message_is_a_dead_letter_when_crashes_used_up_its_attempts(office: Office) -> None:
    office.settings("#", max_delivery_attempts=3, dead_letter_address="dead")
    await opened(office)
    office.queue()
    office.queue("dead")
    await office.send(b"a")
    await taken(office)
    assert await count_after_a_crash(office) == [1]
    await office.reopen()
    _, got = await taken(office, credit=1)
    assert got[0].delivery_count == 2
    office.post.release(got, failed=True)
    await office.stable()
    assert (office.count("orders"), office.count("dead")) == (0, 1)


@pytest.mark.parametrize(
    ("attributes", "consumer"),
    [
        ({}, {"browsing": True}),
        ({}, {"origin": 0}),
        ({"durable": False}, {}),
        ({"non_destructive": True}, {}),
    ],
    ids=["browser", "part of the broker", "queue in memory", "takes nothing away"],
)
async def test_what_is_no_delivery_of_what_is_on_disk_is_not_counted(
    office: Office, attributes: dict[str, Any], consumer: dict[str, Any]
) -> None:
    holds = await opened(office)
    office.queue(**attributes)
    await office.send(b"a")
    await taken(office, **consumer)
    assert holds.held == []


async def test_who_is_gone_is_not_waited_for(office: Office) -> None:
    await opened(office)
    office.post.first_counts.hold = lambda _connection: None
    office.queue()
    await office.send(b"a")
    await taken(office)
    assert await count_after_a_crash(office) == [1]
