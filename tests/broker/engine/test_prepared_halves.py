"""Half of a prepared transaction of another node, whose writing a crash cut off, can be decided: that node may be lost.

All that it sends is here, and nothing of what it acknowledges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.engine.conftest import message
from broker.engine.test_prepared import ELSEWHERE, XID, bodies, files, large
from harness.prepared import append_half
from pollux.engine.prepared import Decided, Half
from pollux.errors import InvalidRequestError
from pollux.store.journal_reader import read_journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.engine.conftest import Office
    from pollux.message import Message

pytestmark = pytest.mark.asyncio

NODE = ELSEWHERE.partition("/")[0]


async def begun(office: Office) -> None:
    """Have a half here, after a restart: it sends two messages to two queues and acknowledges two of one."""
    await office.open()
    first, second = office.queue("first"), office.queue("second")
    await office.send(b"other", address="first")
    sends = [
        (message(b"sent", "first", duplicate_id=b"\xff1"), [first.id, second.id]),
        (large(office, b"sent large"), [second.id]),
    ]
    append_half(office.storage, XID, ELSEWHERE, sends, (first.id, 2))
    await office.stable()
    await office.reopen()


async def hand_over(office: Office) -> None:
    """Have its node hand over all of it."""
    first, second = office.post.queue("first"), office.post.queue("second")
    await office.post.prepared.take(
        XID,
        ELSEWHERE,
        [
            (message(b"sent", "first", duplicate_id=b"\xff1"), [first, second]),
            (large(office, b"sent large"), [second]),
        ],
        [(message(b"had", "first"), [first], 0), (message(b"had too", "first"), [first], 0)],
    )
    await office.stable()


async def everything(office: Office) -> list[list[bytes]]:
    return [sorted(await bodies(office, name)) for name in ("first", "second")]


async def test_a_half_is_listed_as_one_and_keeps_its_queues(office: Office) -> None:
    await begun(office)
    (view,) = office.post.prepared.views()
    assert (view["xid"], view["sends"], view["acknowledges"], view["half"]) == (XID.hex(), 2, 2, True)
    assert (view["queues"], view["from"]) == (["first", "second"], NODE)
    assert office.post.prepared.holds(office.post.queue("second"))
    assert len(office.post.prepared) == 0, "it is not handed to another node"
    await office.reopen()
    assert office.post.prepared.views() == [view]
    await hand_over(office)
    (view,) = office.post.prepared.views()
    assert not view["half"]


@pytest.mark.parametrize("restarted", [True, False])
async def test_what_a_half_sends_appears_when_it_is_committed_and_is_not_there_twice(
    office: Office, *, restarted: bool
) -> None:
    await begun(office)
    assert await office.post.prepared.resolve(XID, commit=True) == Decided(3, (Half(NODE, 2),))
    await office.stable()
    if restarted:
        await office.reopen()
    assert office.post.prepared.views() == []
    with pytest.raises(InvalidRequestError, match="no prepared transaction"):
        await office.post.prepared.resolve(XID, commit=True)
    # Its node was not lost after all: that node lets go of all of it, for it was taken here.
    assert office.post.prepared.has_taken(ELSEWHERE)
    await hand_over(office)
    assert office.post.prepared.views() == []
    await office.send(b"again", address="first", duplicate_id=b"\xff1")
    assert await everything(office) == [[b"other", b"sent"], [b"sent", b"sent large"]]
    await office.reopen()
    assert await everything(office) == [[], []]
    assert files(office) == 0
    await office.close()
    found = read_journal(office.directory / "journal", b"n" * 16)
    assert (found.state.pending, found.damage) == ({}, [])
    await office.open()


@pytest.mark.parametrize("restarted", [True, False])
async def test_of_a_half_that_is_rolled_back_nothing_is_left_and_it_may_come_again(
    office: Office, *, restarted: bool
) -> None:
    await begun(office)
    assert files(office) == 1
    assert await office.post.prepared.resolve(XID, commit=False) == Decided(0, (Half(NODE, 2),))
    await office.stable()
    if restarted:
        await office.reopen()
        assert files(office) == 0
    assert office.post.prepared.views() == []
    assert not office.post.prepared.has_taken(ELSEWHERE), "what it acknowledges is with its node, if that is there"
    await hand_over(office)
    assert await office.post.prepared.resolve(XID, commit=False) == Decided(2, ())
    await office.stable()
    assert await everything(office) == [[b"had", b"had too", b"other"], []]
    await office.reopen()
    assert files(office) == 0


async def test_a_half_that_becomes_whole_while_it_is_decided_is_decided_whole(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node comes back while its messages are read."""
    await begun(office)
    read = office.storage.read_messages

    async def read_late(ids: list[int]) -> Sequence[Message | None]:
        monkeypatch.setattr(office.storage, "read_messages", read)
        found = await read(ids)
        await hand_over(office)
        return found

    monkeypatch.setattr(office.storage, "read_messages", read_late)
    assert await office.post.prepared.resolve(XID, commit=False) == Decided(2, ())
    await office.stable()
    assert await everything(office) == [[b"had", b"had too", b"other"], []]


async def test_of_one_that_began_twice_the_half_is_there_once(office: Office) -> None:
    """A power cut took the record that the first beginning was dropped, and left the second."""
    await begun(office)
    first = office.post.queue("first")
    append_half(office.storage, XID, ELSEWHERE, [(message(b"sent", "first"), [first.id])], (first.id, 2))
    await office.stable()
    await office.reopen()
    assert len(office.post.prepared.views()) == 1
    assert await office.post.prepared.resolve(XID, commit=True) == Decided(1, (Half(NODE, 2),))
    await office.stable()
    assert await everything(office) == [[b"other", b"sent"], []]
    await office.reopen()
    assert (office.post.prepared.views(), files(office)) == ([], 0)
