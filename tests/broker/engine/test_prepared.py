"""Prepared transactions wait through restarts; nobody has what they acknowledge; each is decided once, and whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.engine.conftest import Receiver, message
from pollux.engine.prepared import ORIGIN
from pollux.errors import DiskFullError, InvalidRequestError
from pollux.store.journal_reader import read_journal

if TYPE_CHECKING:
    from broker.engine.conftest import Office
    from pollux.engine.prepared import Waiting
    from pollux.message import Message
    from pollux.routing.queue import Queue

pytestmark = pytest.mark.asyncio

XID, ELSEWHERE = b"\x00\xffxid", f"{'ab' * 16}/7"


def large(office: Office, body: bytes, size: int = 300_000) -> Message:
    """A message whose body is in a file."""
    writer = office.post.storage.large.create()
    writer.write(b"x" * size)
    found = message(body)
    found.large = writer.finish()
    return found


def files(office: Office) -> int:
    return sum(1 for path in (office.directory / "large").rglob("*") if path.is_file())


async def bodies(office: Office, name: str) -> list[bytes]:
    """Take everything out of a queue."""
    receiver = Receiver()
    queue = office.post.queue(name)
    office.post.attach(queue, receiver)
    await receiver.wait(office.post.message_count(queue))
    found = receiver.bodies
    office.post.acknowledge(receiver.got)
    office.post.detach(queue, receiver)
    await office.stable()
    return found


async def taken(office: Office) -> tuple[Queue, Queue]:
    """Have one of another node here: it sends two messages to two queues and acknowledges two of one."""
    await office.open()
    first, second = office.queue("first"), office.queue("second")
    await office.send(b"other", address="first")
    sends = [
        (message(b"sent", "first", duplicate_id=b"\xff1"), [first, second]),
        (large(office, b"sent large"), [second]),
    ]
    acknowledged = [(message(b"had", "first"), [first], 3), (large(office, b"had large"), [first], 0)]
    await office.post.prepared.take(XID, ELSEWHERE, sends, acknowledged)
    await office.stable()
    return first, second


@pytest.mark.parametrize("restarts", ["none", "before", "twice"])
@pytest.mark.parametrize("commit", [True, False])
async def test_what_was_prepared_happens_or_not_whenever_it_is_decided(
    office: Office, restarts: str, *, commit: bool
) -> None:
    await taken(office)
    for _ in range({"none": 0, "before": 1, "twice": 2}[restarts]):
        await office.reopen()
        assert (office.count("first"), office.count("second")) == (1, 0)
    (view,) = office.post.prepared.views()
    assert (view["xid"], view["sends"], view["acknowledges"]) == (XID.hex(), 2, 2)
    assert (view["queues"], view["from"]) == (["first", "second"], "ab" * 16)
    decided = await office.post.prepared.resolve(XID, commit=commit)
    await office.stable()
    assert decided == (3 if commit else 2, ())
    assert len(office.post.prepared) == 0
    with pytest.raises(InvalidRequestError, match="no prepared transaction"):
        await office.post.prepared.resolve(XID, commit=commit)
    if restarts == "twice":
        await office.reopen()
        assert len(office.post.prepared) == 0
    if commit:
        office.post.send(message(b"again", "first", duplicate_id=b"\xff1"))
        await office.stable()
        assert await bodies(office, "first") == [b"other", b"sent"]
        assert await bodies(office, "second") == [b"sent", b"sent large"]
    else:
        queue = office.post.queue("first")
        got = Receiver()
        office.post.attach(queue, got)
        found = {each.message.data: each for each in await got.wait(3)}
        assert list(found) == [b"other", b"had", b"had large"]
        if restarts != "twice":
            assert found[b"had"].redelivered
        assert found[b"had"].delivery_count == 3
        office.post.acknowledge(got.got)
        await office.stable()
        assert await bodies(office, "second") == []
    await office.reopen()
    assert (office.count("first"), office.count("second")) == (0, 0)
    assert files(office) == 0


async def test_what_one_of_this_store_acknowledges_is_nobodys_until_it_is_decided(office: Office) -> None:
    """As a store has it that a two-phase client wrote to; a consumer that got it would have it twice."""
    await office.open()
    queue = office.queue()
    await office.send(b"1", b"2", b"3")
    ids = [reference.message.id for reference in queue.iterate()]
    tx = office.storage.next_id()
    office.storage.append_acks(queue.id, ids[:2], tx)
    sent = message(b"4")
    sent.id = office.storage.next_id()
    office.storage.append_message(sent, [queue.id], tx)
    office.storage.append_prepare(tx, XID)
    await office.close()
    await office.open()
    assert await bodies(office, "orders") == [b"3"]
    assert (await office.post.prepared.resolve(XID, commit=False)).appeared == 2
    await office.stable()
    await office.reopen()
    assert await bodies(office, "orders") == [b"1", b"2"]


async def test_one_that_comes_again_is_there_once_also_when_it_was_decided(office: Office) -> None:
    first, _ = await taken(office)
    for decided in (False, True):
        if decided:
            await office.post.prepared.resolve(XID, commit=True)
            await office.reopen()
        first = office.post.queue("first")
        await office.post.prepared.take(
            XID, ELSEWHERE, [(large(office, b"sent"), [first])], [(message(b"had"), [first], 0)]
        )
        await office.stable()
        assert len(office.post.prepared) == (0 if decided else 1)
    assert await bodies(office, "first") == [b"other", b"sent"]
    await bodies(office, "second")
    await office.stable()
    await office.reopen()
    assert files(office) == 0


async def test_one_whose_writing_a_crash_cut_off_is_taken_anew(office: Office) -> None:
    """The record that it was prepared is there, what says that all of it is there is not."""
    await office.open()
    queue = office.queue("first")
    tx = office.storage.next_id()
    sent = message(b"sent", "first")
    sent.id = office.storage.next_id()
    office.storage.append_message(sent, [queue.id], tx)
    office.storage.append_link(ORIGIN + ELSEWHERE, bytes(8), 1, tx)
    office.storage.append_prepare(tx, XID)
    await office.reopen()
    assert len(office.post.prepared) == 0, "the other node has all of it"
    queue = office.post.queue("first")
    await office.post.prepared.take(XID, ELSEWHERE, [(message(b"sent", "first"), [queue])], [])
    await office.stable()
    assert len(office.post.prepared) == 1
    await office.post.prepared.resolve(XID, commit=True)
    await office.stable()
    await office.reopen()
    assert await bodies(office, "first") == [b"sent"]


async def test_one_that_comes_twice_at_once_is_there_once(office: Office) -> None:
    """A link broke while it was being written, and the other node asks again by a new one."""
    await office.open()
    queue = office.queue("first")

    async def take() -> None:
        sends = [(large(office, b"sent"), [queue])]
        await office.post.prepared.take(XID, ELSEWHERE, sends, [(message(b"had", "first"), [queue], 0)])

    await asyncio.gather(take(), take())
    await office.reopen()
    assert (len(office.post.prepared), files(office)) == (1, 1)
    assert (await office.post.prepared.resolve(XID, commit=False)).appeared == 1
    assert await bodies(office, "first") == [b"had"]


@pytest.mark.parametrize("ends", [DiskFullError("no room"), asyncio.CancelledError()])
async def test_of_one_whose_writing_ends_in_between_nothing_is_left(
    office: Office, monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    """The disk is full when the messages that it acknowledges are to be written, or the broker stops."""
    await office.open()
    queue = office.queue("first")
    prepared = office.post.prepared
    real, append = prepared.stable, office.storage.append_message

    def refuse(*_: object) -> None:
        raise ends

    async def stable() -> None:
        await real()
        monkeypatch.setattr(office.storage, "append_message", refuse)

    monkeypatch.setattr(prepared, "stable", stable)
    with pytest.raises(type(ends)):
        await prepared.take(XID, ELSEWHERE, [(message(b"sent", "first"), [queue])], [(message(b"had"), [queue], 0)])
    monkeypatch.setattr(office.storage, "append_message", append)
    monkeypatch.setattr(prepared, "stable", real)
    await office.stable()
    assert (len(prepared), office.post.accounts.total.messages) == (0, 0)
    await office.close()
    assert read_journal(office.directory / "journal", b"n" * 16).state.pending == {}
    await office.open()
    queue = office.post.queue("first")
    await office.post.prepared.take(XID, ELSEWHERE, [], [(message(b"had", "first"), [queue], 0)])
    assert (await office.post.prepared.resolve(XID, commit=False)).appeared == 1
    assert await bodies(office, "first") == [b"had"]


async def test_a_queue_that_is_deleted_while_one_is_written_gets_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in no queue that anybody knows: an orphan. None is deleted by itself meanwhile."""
    await office.open()
    queue = office.queue("first")
    prepared = office.post.prepared
    real = prepared.stable

    async def stable() -> None:
        await real()
        assert prepared.holds(queue)
        office.post.delete_queue("first")

    monkeypatch.setattr(prepared, "stable", stable)
    with pytest.raises(InvalidRequestError, match="was deleted while"):
        await prepared.take(XID, ELSEWHERE, [], [(message(b"had", "first"), [queue], 0)])
    assert not prepared.holds(queue)
    await office.reopen()
    assert (len(office.post.prepared), len(office.post.orphans)) == (0, 0)


async def test_the_parts_of_one_identifier_are_decided_together(office: Office) -> None:
    await taken(office)
    first = office.post.queue("first")
    await office.post.prepared.take(XID, f"{'cd' * 16}/7", [(message(b"other part", "first"), [first])], [])
    assert (await office.post.prepared.resolve(XID, commit=True)).appeared == 4
    await office.stable()
    assert sorted(await bodies(office, "first")) == [b"other", b"other part", b"sent"]


async def test_a_part_that_comes_while_the_others_are_read_is_decided_with_them(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await taken(office)
    prepared, first = office.post.prepared, office.post.queue("first")
    read = prepared.messages

    async def slowly(one: Waiting) -> dict[int, Message]:
        if len(prepared) == 1:
            await prepared.take(XID, f"{'cd' * 16}/7", [(message(b"other part", "first"), [first])], [])
        return await read(one)

    monkeypatch.setattr(prepared, "messages", slowly)
    assert (await prepared.resolve(XID, commit=True)).appeared == 4
    await office.stable()
    assert len(prepared) == 0
    assert sorted(await bodies(office, "first")) == [b"other", b"other part", b"sent"]


async def test_a_queue_is_not_deleted_while_something_may_come_back_to_it(office: Office) -> None:
    office.settings("#", auto_delete_queues=True, auto_delete_created_queues=True)
    await office.open()
    queue = office.queue("first", auto_delete=True)
    await office.post.prepared.take(XID, ELSEWHERE, [], [(message(b"had", "first"), [queue], 0)])
    await office.stable()
    receiver = Receiver()
    office.post.attach(queue, receiver)
    office.post.detach(queue, receiver)
    assert office.post.space.queue("first") is queue
    await office.post.prepared.resolve(XID, commit=False)
    assert await bodies(office, "first") == [b"had"]
    assert office.post.space.queue("first") is None


async def test_what_is_for_a_queue_that_was_deleted_leaves_nothing(office: Office) -> None:
    await taken(office)
    office.post.delete_queue("second")
    await office.reopen()
    assert (await office.post.prepared.resolve(XID, commit=True)).appeared == 1
    await office.stable()
    await office.reopen()
    assert len(office.post.orphans) == 0
    assert await bodies(office, "first") == [b"other", b"sent"]
    await office.reopen()
    assert files(office) == 0


async def test_one_that_another_node_may_have_is_not_decided_here(office: Office) -> None:
    await taken(office)
    (one,) = office.post.prepared
    office.post.prepared.ask(one, b"n" * 16)
    await office.reopen()
    with pytest.raises(InvalidRequestError, match=f"may be on node {(b'n' * 16).hex()} already"):
        await office.post.prepared.resolve(XID, commit=True)
    (one,) = office.post.prepared
    office.post.prepared.ask(one, b"")
    assert (await office.post.prepared.resolve(XID, commit=True)).appeared == 3
    await office.stable()
