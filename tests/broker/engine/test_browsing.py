"""Browsing what is only on disk, and queues that do not take their own client's messages, across restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.message import RoutingType

from .conftest import Receiver

if TYPE_CHECKING:
    from .conftest import Office


async def test_a_browser_sees_recovered_messages_and_leaves_them(office: Office) -> None:
    await office.open()
    office.queue()
    await office.send(*[b"%d" % i for i in range(2500)])
    post = await office.reopen()
    queue = post.queue("orders")
    await office.send(b"new")
    browser = Receiver(browsing=True)
    post.attach(queue, browser)
    await browser.wait(2500)
    assert browser.bodies[:2500] == [b"%d" % i for i in range(2500)]
    assert queue.cold == 2500
    assert queue.message_count == 2501
    consumer = Receiver()
    post.attach(queue, consumer)
    await consumer.wait(2501)
    assert consumer.bodies == [*(b"%d" % i for i in range(2500)), b"new"]


async def test_no_local_does_not_outlive_its_connection(office: Office) -> None:
    post = await office.open()
    office.queue("sub", "topic", routing_type=RoutingType.MULTICAST, no_local_origin=3)
    await office.send(b"own", address="topic", origin=3)
    assert post.queue("sub").message_count == 0
    await office.reopen()
    await office.send(b"another client's", address="topic", origin=3)
    assert office.post.queue("sub").message_count == 1
