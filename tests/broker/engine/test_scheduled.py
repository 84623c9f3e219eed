"""Messages that wait for their time are delivered before it, and a restart knows of it."""

from __future__ import annotations

import pytest

from broker.engine.conftest import Office, Receiver
from broker.engine.test_orphans import crash
from pollux.store import inspect

NOW = 1_000_000
LATER = NOW + 3_600_000


def ids(office: Office) -> list[int]:
    return [number for _, number, _ in office.post.queue("orders").scheduled_in_order()]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("killed", [False, True])
async def test_a_message_delivered_before_its_time_does_not_wait_again_after_a_restart(
    office: Office, on_disk: bool, killed: bool
) -> None:
    """Breaks when nothing is recorded of it: the message would be away until its time."""
    office.wall = NOW
    await office.open()
    office.queue()
    await office.send(b"1", b"2", deliver_at=LATER)
    if on_disk:
        await office.reopen()
    post = office.post
    first, second = ids(office)
    assert post.scheduled.deliver(post.queue("orders"), {first, 99}) == 1
    assert ids(office) == [second]
    await office.stable()
    if killed:
        await crash(office)
    else:
        await office.close()
    post = await office.open()
    assert ids(office) == [second]
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    await receiver.wait(1)
    assert receiver.bodies == [b"1"]
    assert post.scheduled.deliver(post.queue("orders"), {second}) == 1
    await receiver.wait(2)
    assert receiver.bodies == [b"1", b"2"]
    post.acknowledge(receiver.got)
    await office.stable()
    assert office.count("orders") == 0


async def test_one_that_is_not_durable_is_delivered_and_in_no_record(office: Office) -> None:
    """Breaks when a record is written of a message that the journal does not have."""
    office.wall = NOW
    await office.open()
    office.queue()
    await office.send(b"1", deliver_at=LATER, durable=False)
    receiver = Receiver()
    office.post.attach(office.post.queue("orders"), receiver)
    assert office.post.scheduled.deliver(office.post.queue("orders"), ids(office)) == 1
    await receiver.wait(1)
    await office.stable()
    assert not list(inspect.dump(office.configuration.journal_directory, types=["SCHEDULE"]))


async def test_one_that_expired_while_it_waited_goes_where_expired_ones_go(office: Office) -> None:
    """Breaks when a queue without a consumer is not looked at: the message would be in no list, and in the queue."""
    office.wall = NOW
    office.settings("#", expiry_address="expired")
    await office.open()
    office.queue()
    office.queue("expired")
    await office.send(b"1", deliver_at=LATER, expiration=NOW + 5)
    office.now = 10
    assert office.post.scheduled.deliver(office.post.queue("orders"), ids(office)) == 1
    await office.settle()
    assert (office.count("orders"), office.count("expired")) == (0, 1)
