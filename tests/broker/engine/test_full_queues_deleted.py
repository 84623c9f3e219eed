"""A queue that is deleted while it is full is gone at once, and what it held bit by bit: others are served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.engine.conftest import files_under
from harness.sessions.office import Office, Receiver, becomes, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.engine import departures

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice

#: Messages in a queue, and those that leave it in one piece: more than all pieces that are done at once.
MANY, BIT = 1000, 10
LATER = 1 << 42


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "BIT", BIT)


def fill(post: PostOffice, deliver_at: int = 0) -> None:
    for number in range(MANY):
        post.send(message(b"%d" % number, deliver_at=deliver_at))


@pytest.mark.parametrize("deliver_at", [0, LATER], ids=["waiting", "scheduled"])
@pytest.mark.parametrize("durable", [True, False])
async def test_what_was_in_memory_is_given_back_in_pieces(office: Office, durable: bool, deliver_at: int) -> None:
    """Breaks when all of it is let go in one turn of the loop, in which nobody else is served."""
    post = await office.open()
    office.queue(durable=durable)
    fill(post, deliver_at=deliver_at)
    await office.stable()
    assert post.accounts.total.messages == MANY
    before = post.share.turns
    post.delete_queue("orders")
    assert post.space.queue("orders") is None
    assert 0 < post.accounts.total.messages < MANY
    # A new queue of that name has nothing to do with what the old one held.
    office.queue(durable=durable)
    await office.send(b"new")
    receiver = Receiver()
    post.attach(post.queue("orders"), receiver)
    post.acknowledge(await receiver.wait(1))
    await becomes(lambda: not post.accounts.total.messages)
    assert post.share.turns > before
    assert receiver.bodies == [b"new"]
    post = await office.reopen()
    assert post.problems == []
    assert not durable or office.count("orders") == 0


async def test_what_was_on_disk_only_goes_in_pieces_with_its_files(office: Office) -> None:
    post = await office.open()
    office.queue()
    writer = post.storage.large.create()
    writer.write(b"L" * 1000)
    body = writer.finish()
    await office.send(b"head", large=body)
    fill(post)
    fill(post, deliver_at=LATER)
    await office.stable()
    post = await office.reopen()
    queue = post.queue("orders")
    assert queue.cold == 2 * MANY + 1
    await office.send(b"behind it")
    post.delete_queue("orders")
    assert 0 < queue.message_count < 2 * MANY
    await becomes(lambda: not queue.message_count and not post.accounts.total.messages)
    await office.stable()
    await becomes(lambda: not post.storage.large.path(body.id).exists())
    post = await office.reopen()
    assert post.problems == []


async def test_nothing_is_left_of_pages_that_were_read(office: Office) -> None:
    """Breaks when pages wait for acknowledgements of a queue that is gone: their files would stay for ever."""
    office.settings("#", max_size_bytes=20_000, page_size_bytes=10_000, address_full_policy=AddressFullPolicy.PAGE)
    post = await office.open()
    queue = office.queue()
    fill(post)
    await office.stable()
    await post.pages.bring(queue)
    post.pages.feed(queue)
    assert not post.pages.active
    pages = office.configuration.paging_directory
    assert files_under(pages, ".page")
    post.delete_queue("orders")
    await becomes(lambda: not post.accounts.total.messages)
    await office.stable()
    await becomes(lambda: not files_under(pages, ".page"))
    post = await office.reopen()
    assert post.problems == []


async def test_the_account_of_an_address_goes_when_its_last_message_has(office: Office) -> None:
    post = await office.open()
    office.queue()
    fill(post)
    await office.stable()
    post.delete_queue("orders")
    if post.address("orders") is not None:
        post.address_manager.delete_address("orders")
    assert [account.name for account in post.accounts] == ["orders"]
    await becomes(lambda: not list(post.accounts))


async def test_an_address_that_is_made_again_at_once_knows_no_ids_of_before(office: Office) -> None:
    """Breaks when ids go with the last message of an address: what is sent again would be confirmed and nowhere."""
    post = await office.open()
    office.queue()
    await office.send(b"one", duplicate_id=b"id")
    fill(post)
    await office.stable()
    post.delete_queue("orders")
    if post.address("orders") is not None:
        post.address_manager.delete_address("orders")
    assert post.accounts.total.messages
    office.queue()
    await office.send(b"one again", duplicate_id=b"id")
    assert office.count("orders") == 1
