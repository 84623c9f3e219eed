"""Prepared transactions when their node is scaled down: each is on one node, whole, once, whatever breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.scaled import contents, count, scaled
from broker.engine.conftest import message
from harness.prepared import append_half
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.scale_down import prepared as moving
from pollux.cluster.scale_down.prepared import TRANSACTION
from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node

__all__ = ["scaled"]

pytestmark = pytest.mark.asyncio

XID = b"\x00\xfegtrid\xffbqual"


async def prepare(node: Node, xid: bytes = XID) -> None:
    """Have one that sends to two queues, and acknowledges one message whose delivery failed twice before."""
    queues = [node.post.space.queue(name) or node.office.queue(name) for name in ("first", "second")]
    writer = node.post.storage.large.create()
    writer.write(b"x" * 300_000)
    large = message(b"sent large", "second", user="bob")
    large.large = writer.finish()
    sends = [(message(b"sent", "first", priority=7, duplicate_id=b"\xff\x00"), queues), (large, queues[1:])]
    acknowledged = [(message(b"had", "first", group="g"), queues[:1], 2)]
    await node.post.prepared.take(xid, f"{node.id.hex()}/{xid.hex()}", sends, acknowledged)
    await node.office.stable()


def there(node: Node) -> list[str]:
    return [view["xid"] for view in node.post.prepared.views()]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
async def test_one_goes_as_it_is_and_is_decided_there(scaled: Any, *, commit: bool, restarted: bool) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    await prepare(one)
    one.post.send(message(b"waits", "first"))
    await one.office.stable()
    if restarted:
        await found.reopen()
        await found.linked()
    assert not found.drain.nothing
    found.drain.begin()
    await found.done()
    assert (there(one), there(two)) == ([], [XID.hex()])
    assert (count(two, "first"), count(two, "second")) == (1, 0)
    await found.reopen()
    assert (there(one), count(one, "first")) == ([], 0)
    await found.reopen_other(two)
    await two.post.prepared.resolve(XID, commit=commit)
    await two.office.stable()
    got = {each.data: each for each in await contents(two, "first")}
    if commit:
        assert list(got) == [b"sent", b"waits"]
        assert (got[b"sent"].priority, got[b"sent"].address) == (7, "first")
        second = await contents(two, "second")
        assert [each.data for each in second] == [b"sent", b"sent large"]
        assert (second[1].large.size, second[1].user) == (300_000, "bob")
        two.post.send(message(b"again", "first", duplicate_id=b"\xff\x00"))
        await two.office.stable()
        assert count(two, "first") == 2
    else:
        assert list(got) == [b"waits", b"had"]
        assert got[b"had"].group == "g"
        (failures,) = {each.delivery_count for _, each in two.post.queue("first").in_delivery() if each.message.group}
        assert failures == 2
        assert count(two, "second") == 0


@pytest.mark.parametrize("victim", ["link", "source", "target"])
@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("lost", ["question", "answer"])
async def test_whatever_ends_in_between_it_is_there_once(
    scaled: Any, monkeypatch: pytest.MonkeyPatch, victim: str, lost: str, *, decided: bool
) -> None:
    """``decided``: an operator commits it at the target before it comes again."""
    found = await scaled()
    one, (two,) = found.one, found.others
    await prepare(one)
    reached, real = asyncio.Event(), OutgoingLink.ask

    async def broken(self: OutgoingLink, what: str, content: bytes) -> str:
        if what != TRANSACTION or reached.is_set():
            return await real(self, what, content)
        if lost == "answer":
            await real(self, what, content)
        reached.set()
        one.connectors[two.id].allowed.clear()
        self.close("cut")
        raise ConnectionError("it is gone")

    monkeypatch.setattr(OutgoingLink, "ask", broken)
    found.drain.begin()
    await reached.wait()
    await until(lambda: "may have it already" in found.drain.look().reason)
    with pytest.raises(InvalidRequestError, match="may be on node"):
        await one.post.prepared.resolve(XID, commit=True)
    here = lost == "answer"
    assert (there(one), there(two)) == ([XID.hex()], [XID.hex()] if here else [])
    if victim == "target":
        await found.reopen_other(two)
    if here and decided:
        await two.post.prepared.resolve(XID, commit=True)
        await two.office.stable()
    one.connectors[two.id].allowed.set()
    if victim == "source":
        await found.reopen()
    assert found.drain.running
    await found.done()
    assert there(one) == []
    assert there(two) == ([] if here and decided else [XID.hex()])
    if there(two):
        await two.post.prepared.resolve(XID, commit=True)
        await two.office.stable()
    assert [each.data for each in await contents(two, "first")] == [b"sent"]
    assert [each.data for each in await contents(two, "second")] == [b"sent", b"sent large"]


async def test_one_that_comes_again_when_it_was_decided_and_its_queue_is_gone_is_not_refused(
    scaled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is refused may decide it: it would be decided twice."""
    found = await scaled()
    one, (two,) = found.one, found.others
    await prepare(one)
    asked: list[bytes] = []
    real = OutgoingLink.ask

    async def ask(self: OutgoingLink, what: str, content: bytes) -> str:
        if what == TRANSACTION:
            asked.append(content)
        return await real(self, what, content)

    monkeypatch.setattr(OutgoingLink, "ask", ask)
    found.drain.begin()
    await found.done()
    await two.post.prepared.resolve(XID, commit=False)
    await two.office.stable()
    two.post.delete_queue("second")
    await two.office.stable()
    (content,) = asked
    assert await one.cluster.peers.links[0].ask(TRANSACTION, content) == ""
    assert there(two) == []


async def test_one_that_is_decided_just_before_it_goes_stays_decided(
    scaled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when it goes all the same: it would be on both."""
    found = await scaled()
    one, (two,) = found.one, found.others
    await prepare(one)
    decided, real = asyncio.Event(), moving.Transactions._moved

    async def moved(self: moving.Transactions, *arguments: Any) -> moving.Moved:
        await one.post.prepared.resolve(XID, commit=False)
        decided.set()
        return await real(self, *arguments)

    monkeypatch.setattr(moving.Transactions, "_moved", moved)
    found.drain.begin()
    await found.done()
    assert decided.is_set()
    assert (there(one), there(two)) == ([], [])
    assert [each.data for each in await contents(two, "first")] == [b"had"]


async def test_whom_one_was_asked_of_is_waited_for_and_nobody_else_is_asked(
    scaled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux.cluster.scale_down.assignment.PATIENCE", 0.05)
    found = await scaled(2)
    one, others = found.one, found.others
    await prepare(one)
    (waiting,) = one.post.prepared
    asked, other = others
    one.post.prepared.ask(waiting, asked.cluster.node)
    one.connectors[asked.id].allowed.clear()
    one.connectors[asked.id].links[-1].cut()
    found.drain.begin()
    await until(lambda: found.drain.look().state == "waiting")
    assert f"node {asked.cluster.node.hex()} may have it already" in found.drain.look().reason
    assert (there(one), there(other)) == ([XID.hex()], [])
    one.connectors[asked.id].allowed.set()
    await found.done()
    assert [there(node) for node in (one, asked, other)] == [[], [XID.hex()], []]


async def test_a_node_of_a_version_that_takes_none_leaves_it_here_and_is_named(scaled: Any) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    await prepare(one)
    del two.cluster.requests[TRANSACTION]
    one.post.send(message(b"waits", "first"))
    await one.office.stable()
    found.drain.begin()
    await until(lambda: found.drain.look().state == "waiting")
    reason = found.drain.look().reason
    assert reason == (
        f"prepared-transaction '{XID.hex()}': this broker does not know how to take 'prepared-transaction'"
    )
    assert count(two, "first") == 1, "what is no part of it goes"
    (shown,) = found.drain.describe()["queues"]
    assert (shown["name"], shown["messages"]) == (f"prepared-transaction {XID.hex()}", 3)
    found.drain.cancel()
    assert (await one.post.prepared.resolve(XID, commit=False)).appeared == 1, "nobody has it, so it is decided here"


async def test_half_of_one_is_decided_before_its_node_is_drained(scaled: Any) -> None:
    """Breaks when a broker is called drained that has messages which only an operator can have appear."""
    found = await scaled()
    one, (two,) = found.one, found.others
    first, node = one.office.queue("first"), "ab" * 16
    append_half(one.post.storage, XID, f"{node}/7", [(message(b"sent", "first"), [first.id])], (first.id, 1))
    await one.office.stable()
    await found.reopen()
    await found.linked()
    assert not found.drain.nothing
    found.drain.begin()
    await until(lambda: found.drain.look().state == "waiting")
    assert f"half of it came from node {node}: " in found.drain.look().reason
    await one.post.prepared.resolve(XID, commit=True)
    await one.office.stable()
    await found.done()
    assert [each.data for each in await contents(two, "first")] == [b"sent"]


async def test_one_that_is_too_large_stays_and_is_named(scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LARGEST", 300_000)
    found = await scaled()
    await prepare(found.one)
    found.drain.begin()
    await until(lambda: found.drain.look().state == "waiting")
    assert "more than the 300000 that can be handed over: decide it here" in found.drain.look().reason
    assert there(found.one) == [XID.hex()]


@pytest.mark.parametrize("change", ["nonsense", "queue"])
async def test_what_cannot_be_taken_is_refused_and_leaves_no_file(
    scaled: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await scaled()
    one, (two,) = found.one, found.others
    await prepare(one)
    if change == "nonsense":
        link = one.cluster.peers.links[0]
        for content in (b"", b"\xc1", b"\x94\x01\x02\x03\x04"):
            assert "cannot be read" in await link.ask(TRANSACTION, content)
        return
    monkeypatch.setattr(moving, "_queues", lambda *_: [])
    found.drain.begin()
    await until(lambda: found.drain.look().state == "waiting")
    assert "of a prepared transaction is not here" in found.drain.look().reason
    assert not [path for path in (two.office.directory / "large").rglob("*") if path.is_file()]
