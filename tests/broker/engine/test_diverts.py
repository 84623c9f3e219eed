"""Diverts on a real store: copies and exclusive ones, filters, chains, and how durable copies are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.engine.conftest import Office, Receiver, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.addresses import Divert, DivertRouting
from pollux.engine.copies import ORIGINAL_ADDRESS
from pollux.errors import AddressFullError, NoSuchAddressError
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice


def diverts(office: Office, *found: Divert) -> None:
    """Give diverts; before ``open``."""
    office.configuration = replace(office.configuration, diverts=found)


def counts(post: PostOffice, *queues: str) -> list[int]:
    return [post.queue(queue).message_count for queue in queues]


async def received(office: Office, queue: str, count: int) -> Receiver:
    receiver = Receiver()
    office.post.attach(office.post.queue(queue), receiver)
    await receiver.wait(count)
    return receiver


async def test_a_copy_goes_elsewhere_and_is_as_durable(office: Office) -> None:
    diverts(office, Divert("d", "orders", "audit"))
    await office.open()
    office.queue()
    office.queue("audit")
    await office.send(b"kept", priority=7, group="g")
    await office.send(b"gone", durable=False)
    assert counts(office.post, "orders", "audit") == [2, 2]
    post = await office.reopen()
    assert counts(post, "orders", "audit") == [1, 1]
    (copy,) = (await received(office, "audit", 1)).got
    found = copy.message
    assert (found.data, found.priority, found.group, found.address) == (b"kept", 7, "g", "audit")
    assert (found.annotations or {})[ORIGINAL_ADDRESS] == "orders"


async def test_a_message_and_its_copies_are_there_together_or_not_at_all(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last record before a crash is one of a copy: without the commit behind it nothing was sent."""
    diverts(office, Divert("a", "orders", "audit"), Divert("b", "orders", "backup"))
    await office.open()
    for name in ("orders", "audit", "backup"):
        office.queue(name)
    await office.send(b"whole")
    monkeypatch.setattr(office.storage, "append_commit", lambda _tx: None)
    await office.send(b"cut")
    post = await office.reopen()
    assert counts(post, "orders", "audit", "backup") == [1, 1, 1]


async def test_an_exclusive_divert_takes_what_its_filter_accepts(office: Office) -> None:
    diverts(office, Divert("d", "orders", "urgent", exclusive=True, filter="JMSPriority > 5"))
    await office.open()
    office.queue()
    office.queue("urgent")
    await office.send(b"soon", priority=9)
    await office.send(b"later", priority=1)
    assert (await received(office, "urgent", 1)).bodies == [b"soon"]
    assert (await received(office, "orders", 1)).bodies == [b"later"]


async def test_an_exclusive_divert_remembers_duplicates_over_a_restart(office: Office) -> None:
    diverts(office, Divert("d", "orders", "audit", exclusive=True))
    await office.open()
    office.queue()
    office.queue("audit")
    await office.send(b"one", b"again", duplicate_id=b"id")
    post = await office.reopen()
    await office.send(b"once more", duplicate_id=b"id")
    assert counts(post, "orders", "audit") == [0, 1]


async def test_a_transaction_diverts_when_it_is_committed(office: Office) -> None:
    diverts(office, Divert("d", "orders", "audit"))
    post = await office.open()
    office.queue()
    office.queue("audit")
    tx = post.begin()
    post.send(message(b"x"), tx)
    await office.stable()
    assert counts(post, "orders", "audit") == [0, 0]
    post.commit(tx)
    await office.stable()
    post = await office.reopen()
    assert counts(post, "orders", "audit") == [1, 1]


async def test_patterns_chains_and_circles_end(office: Office) -> None:
    diverts(office, Divert("a", "orders.#", "all"), Divert("b", "all", "archive"), Divert("c", "archive", "orders.eu"))
    post = await office.open()
    for name in ("orders.eu", "all", "archive"):
        office.queue(name)
    await office.send(b"x", address="orders.eu")
    # Around once: the copy that came back is not diverted again.
    assert counts(post, "orders.eu", "all", "archive") == [2, 1, 1]
    await office.send(b"y", address="orders.eu::orders.eu")
    assert counts(post, "orders.eu", "all", "archive") == [3, 1, 1]


@pytest.mark.parametrize(
    ("routing", "taken"),
    [
        (DivertRouting.STRIP, [1, 1]),
        (DivertRouting.PASS, [1, 0]),
        (DivertRouting.ANYCAST, [1, 0]),
        (DivertRouting.MULTICAST, [0, 1]),
    ],
)
async def test_the_routing_type_of_a_copy(office: Office, routing: DivertRouting, taken: list[int]) -> None:
    diverts(office, Divert("d", "orders", "both", routing_type=routing))
    post = await office.open()
    office.queue()
    office.queue("any", "both")
    office.queue("all", "both", routing_type=RoutingType.MULTICAST)
    await office.send(b"x", routing_type=RoutingType.ANYCAST)
    assert counts(post, "any", "all") == taken


async def test_what_cannot_go_there_is_refused_whole(office: Office) -> None:
    diverts(office, Divert("full", "orders", "audit"), Divert("nowhere", "other", "nobody"))
    office.settings("audit", address_full_policy=AddressFullPolicy.FAIL, max_size_messages=1)
    office.settings("nobody", auto_create_addresses=False, auto_create_queues=False)
    post = await office.open()
    office.queue()
    office.queue("audit")
    office.queue("other")
    await office.send(b"first")
    with pytest.raises(AddressFullError):
        await office.send(b"second", duplicate_id=b"id")
    with pytest.raises(NoSuchAddressError):
        await office.send(b"x", address="other")
    assert counts(post, "orders", "audit", "other") == [1, 1, 0]
    post.acknowledge((await received(office, "audit", 1)).got)
    await office.send(b"second", duplicate_id=b"id")
    assert counts(post, "orders") == [2], "the id of a refused message may be used again"


async def test_a_copy_that_nobody_takes_changes_nothing(office: Office) -> None:
    diverts(office, Divert("d", "orders", "topic", routing_type=DivertRouting.MULTICAST))
    post = await office.open()
    office.queue()
    await office.send(b"x")
    assert counts(post, "orders") == [1]


async def test_large_bodies_are_shared_until_the_last_copy_is_gone(office: Office) -> None:
    nobody = Divert("a", "orders", "nobody", routing_type=DivertRouting.MULTICAST)
    diverts(office, nobody, Divert("b", "orders", "audit"))
    office.settings("#", max_size_messages=1, page_size_bytes=1024)  # pages, but no body that is shared
    post = await office.open()
    office.queue()
    office.queue("audit")
    await office.send(b"fills it")
    writer = post.storage.large.create()
    writer.write(b"y" * 10_000)
    body = writer.finish()
    await office.send(b"head", large=body)
    file = post.storage.large.path(body.id)
    assert counts(post, "orders", "audit") == [2, 2]
    post.acknowledge((await received(office, "orders", 2)).got)
    await office.stable()
    assert file.exists()
    post.acknowledge((await received(office, "audit", 2)).got)
    await office.stable()
    await office.close()
    assert not file.exists()
    await office.open()
