"""Members that vote, over real sockets in one loop: what they ask, promise, remember and refuse."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.ha.test_stream import End
from pollux.cluster import vote_log
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.discovery import Others
from pollux.cluster.electorate import Electorate
from pollux.cluster.link import CoreHub
from pollux.cluster.vote_channels import PURPOSE
from pollux.cluster.votes import OwnVote
from pollux.config.acceptors import Endpoint
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from pollux.cluster.votes import Answer

#: Generous: a machine under load.
TIMEOUT = 60.0
KEY = ClusterKey("cluster", "twins")
NODE, OTHER, THIRD = ("0a" * 16, "0b" * 16, "0c" * 16)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110  (sockets)
            await asyncio.sleep(0.01)


class One:
    """A member that votes, and its port."""

    def __init__(self, directory: Path, name: str, node: str, group: str) -> None:
        self.journal = directory / name
        self.journal.mkdir()
        self.name = name
        self.own_vote = OwnVote(node, serves=False, sequence=4)
        self.superseded: list[str] = []
        self.hub = CoreHub(KEY, name=name, node_id=b"", timeout=TIMEOUT)
        self.group = group
        self.server: asyncio.Server
        self.port = 0
        self.votes: Electorate

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: End(self.hub, initiator=False), "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def join(self, *ports: int) -> None:
        self.votes = Electorate(
            self.hub,
            Others(tuple(Endpoint("tcp", "127.0.0.1", port) for port in ports)),
            self.journal,
            member=self.name,
            group=self.group,
            connect_timeout=TIMEOUT,
            answer_timeout=TIMEOUT,
            own_vote=lambda: self.own_vote,
            coordinated=lambda: self.own_vote.sequence,
            superseded=self.superseded.append,
        )
        self.votes.register._young_until = 0.0
        self.votes.start()

    async def leave(self) -> None:
        await self.votes.stop()
        self.server.close()

    async def take(self, local: int = 4) -> dict[str, Answer]:
        found = await asyncio.to_thread(self.votes.take, NODE, local, lambda _: False)
        return {one.member: one for one in found}

    async def record(self, sequence: int) -> dict[str, bool]:
        found = await asyncio.to_thread(self.votes.record, NODE, sequence, lambda _: False)
        return {one.member: one.yes for one in found}

    def serve(self) -> None:
        self.own_vote = self.own_vote._replace(serves=True)

    def known(self) -> tuple[int, str, bool]:
        """Its knowledge of the pair: sequence, holder, and whether it serves."""
        one = self.votes.register.known[NODE]
        return one.sequence, one.holder, one.serves


class Three:
    """A pair, both looking at the lives `b` and `c` of two others."""

    def __init__(self, directory: Path) -> None:
        self.castor = One(directory, "castor", NODE, "twins")
        self.pollux = One(directory, "pollux", NODE, "twins")
        self.b = One(directory, "b", OTHER, "second")
        self.c = One(directory, "c", THIRD, "third")
        self.voters = (self.b, self.c)
        self.all = (self.castor, self.pollux, *self.voters)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    found = Three(tmp_path)
    for one in found.all:
        await one.listen()
    for one in found.voters:
        one.serve()
        one.join(*(other.port for other in found.voters if other is not one))
    for one in (found.castor, found.pollux):
        one.join(found.b.port, found.c.port)
    await until(lambda: all(one.votes.looked.is_set() for one in found.all))
    await until(lambda: all(len(one.votes._links) == len(one.votes._others.endpoints) for one in found.all))
    yield found
    for one in found.all:
        await one.leave()


async def test_a_live_is_known_by_its_connection_and_a_backup_sees_all_pairs(three: Three) -> None:
    castor, pollux = three.castor, three.pollux
    castor.serve()
    await castor.votes.announce()
    assert [one.known() for one in three.voters] == [(4, "castor", True)] * 2
    await until(lambda: pollux.votes.size == 3)
    answers = await pollux.take()
    assert {name: (one.yes, one.against, one.reason) for name, one in answers.items()} == {
        "b": (False, True, "castor serves"),
        "c": (False, True, "castor serves"),
    }
    assert {one.voter for one in answers.values()} == {OTHER, THIRD}
    # It is gone: what it promised to nobody is free.
    await castor.votes.stop()
    await until(lambda: all(one.known()[1] == "" for one in three.voters))
    assert all(one.yes for one in (await pollux.take()).values())
    assert await pollux.record(-5) == {"b": True, "c": True}
    assert await pollux.record(5) == {"b": True, "c": True}
    assert [one.known() for one in three.voters] == [(5, "pollux", False)] * 2
    assert [vote_log.read(one.journal).get(NODE) for one in three.voters] == [5, 5], "before it was answered"


async def test_a_promise_lasts_until_it_is_given_back(three: Three) -> None:
    assert all(one.yes for one in (await three.castor.take()).values())
    assert not any(one.yes for one in (await three.pollux.take()).values())
    three.pollux.votes.leave(NODE)
    three.castor.votes.leave(NODE)
    await until(lambda: all(one.known()[1] == "" for one in three.voters))
    assert all(one.yes for one in (await three.pollux.take()).values())


async def test_what_was_promised_stays_promised_when_the_holder_begins_to_serve(three: Three) -> None:
    castor = three.castor
    await castor.take()
    castor.serve()
    await castor.votes.announce()
    assert [one.known() for one in three.voters] == [(4, "castor", True)] * 2
    await until(lambda: not castor.votes._promises)
    assert not any(one.yes for one in (await three.pollux.take()).values())


async def test_a_live_that_a_majority_does_not_know_any_more_is_told(three: Three) -> None:
    """It was cut off, and another one took over with its votes."""
    await three.pollux.take()
    await three.pollux.record(-5)
    await three.pollux.record(5)
    three.castor.serve()
    await until(lambda: three.castor.superseded)
    assert "pollux holds the right to serve" in three.castor.superseded[0]


async def test_the_right_of_a_group_that_has_a_live_with_other_data_is_not_promised(three: Three) -> None:
    three.castor.votes._group = "second"
    answers = await three.castor.take()
    assert answers["c"].yes
    assert (answers["b"].yes, answers["b"].against) == (False, True)
    assert "b is the live of the group 'second' with other data" in answers["b"].reason
    assert "give it a group-name of its own" in answers["b"].reason


async def test_a_member_with_newer_data_of_the_same_node_is_believed(three: Three) -> None:
    three.b.own_vote = OwnVote(NODE, serves=False, sequence=9)
    answer = (await three.castor.take())["b"]
    assert (answer.against, answer.voter) == (True, "")
    assert "newer data (sequence 9, not 4)" in answer.reason


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"ask": "take", "node_id": "zz", "member": "x", "sequence": 1},
        {"ask": "take", "node_id": NODE, "member": "", "sequence": 1},
        {"ask": "take", "node_id": NODE, "member": "x", "sequence": "much"},
        {"ask": "take", "node_id": NODE, "member": "x", "sequence": 1 << 63},
    ],
    ids=["nothing", "node", "member", "sequence", "too large"],
)
async def test_a_question_that_cannot_be_read_is_refused(three: Three, content: dict[str, Any]) -> None:
    ended: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    handler: Any = SimpleNamespace(closed=lambda *said: None if ended.done() else ended.set_result(said))
    link = await ClusterConnector(three.castor.hub).connect(Endpoint("tcp", "127.0.0.1", three.b.port), TIMEOUT)
    link.conversation.open(handler, PURPOSE, **content)
    async with asyncio.timeout(TIMEOUT):
        code, text = await ended
    assert (code, "cannot be read" in text) == ("refused", True)
    assert NODE not in three.b.votes.register.known
    link.close("done")


async def test_a_disk_that_takes_nothing_makes_no_vote(three: Three) -> None:
    # What the voters remember of each other is written then, and nothing else writes.
    await until(lambda: all(one.votes._announced for one in three.voters))
    (three.b.journal / f".{vote_log.FILE}.{os.getpid()}.tmp").mkdir()
    assert await three.castor.record(-5) == {"b": False, "c": True}


async def test_members_that_come_and_go_by_discovery(three: Three) -> None:
    """Who is announced is connected to; who is not announced any more is given up once it does not answer."""
    votes = three.castor.votes
    there = votes._others.endpoints
    late = One(three.castor.journal, "late", OTHER, "fourth")
    await late.listen()
    late.join()
    late.serve()
    endpoint = Endpoint("tcp", "127.0.0.1", late.port)
    place = f"127.0.0.1:{late.port}"

    def announced(*endpoints: Endpoint) -> None:
        votes._others.endpoints = endpoints
        for function in votes._others.on_change:
            function()

    announced(*there, endpoint)
    await until(lambda: place in votes._links)
    answers = await three.castor.take()
    assert "late" in answers
    announced(*there)
    assert place in votes._links, "a connection that stands is worth more than an announcement"
    link = votes._links[place]
    await late.leave()
    link.close("cut")
    await until(lambda: endpoint not in votes._keeping)
    assert votes.view()["members"] == len(there)
    announced(*there, endpoint)
    assert endpoint in votes._keeping


async def test_who_says_nothing_at_all_is_silent(three: Three) -> None:
    """A machine that answers that nobody listens there is not: whoever is cut off does not hear it."""
    votes = three.castor.votes
    mute = socket.create_server(("127.0.0.1", 0))
    with mute:
        votes._others.endpoints += (Endpoint("tcp", "127.0.0.1", mute.getsockname()[1]),)
        assert votes.silent(2) == 1, "it was not tried yet"
        assert votes.silent(0) == 3, (
            "who is connected, and was not asked or does not answer, has not said that it has none"
        )
        votes._meet()
        await three.b.leave()
        votes._links[f"127.0.0.1:{three.b.port}"].close("cut")
        await until(lambda: len(votes._links) == 1)
        await until(lambda: votes.silent(1) == 1)
    await until(lambda: votes.silent(1) == 0)


async def test_a_member_that_falls_silent_is_connected_to_again(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its machine loses its power: a question is on its way when the connection is given up.

    uvloop refuses to write to a transport that is closed, asyncio does not.
    """
    votes = three.castor.votes
    place = f"127.0.0.1:{three.b.port}"
    link = votes._links[place]
    output = link.conversation._output
    write = output.write

    def strict(data: bytes) -> None:
        if link.conversation.ended and output.is_closing():  # type: ignore[attr-defined]
            raise RuntimeError("the handler is closed")
        write(data)

    monkeypatch.setattr(link.conversation, "_output", SimpleNamespace(write=strict, close=output.close))
    monkeypatch.setattr(link, "data_received", lambda _: None)
    asked = len(link.conversation.channels)
    await until(lambda: len(link.conversation.channels) > asked)
    link.conversation.end("timeout", "nothing was heard")
    await until(lambda: votes._links.get(place) not in (None, link))
