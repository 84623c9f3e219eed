"""A connection between members that vote breaks or falls silent at any call: the vote is won all the same.

The calls are a candidate's own on its sockets: to connect, and each piece that it sends or receives. What must not be
is a candidate that waits for ever for a member which is there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster import test_electorate as electorates
from broker.cluster.test_electorate import NODE, Three
from pollux.cluster import electorate as electorate_module
from pollux.config.acceptors import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.cluster.connector import ClusterConnector

#: Seconds: a member that says nothing for so long is connected to again; a silence is longer.
TIMEOUT, SILENCE = 0.5, 1.5
BOUND = 30.0
AT_A_TIME = 10
#: Calls that repeat themselves (looks, signs of life) are played for the first times.
MOST = 40
#: Before a vote that was lost is held again.
WAIT = 0.05


class Calls:
    """A candidate's calls on its sockets, while ``armed``; the ``first`` breaks its connection, or silences all."""

    def __init__(self, first: int | None, kind: str) -> None:
        self.first, self.kind = first, kind
        self.armed = False
        self.made: list[str] = []
        self.until = 0.0

    def fails(self, name: str) -> bool:
        """Count one. Whether it fails."""
        if not self.armed:
            return False
        number, now = len(self.made), asyncio.get_running_loop().time()
        self.made.append(name)
        if number == self.first and self.kind == "silent":
            self.until = now + SILENCE
        return number == self.first or now < self.until

    def watch(self, cluster_connector: ClusterConnector) -> None:
        """Look at what this one connects to."""
        connected = cluster_connector._connected

        async def connect(endpoint: Any, tls: Any) -> Any:
            if self.fails("connect"):
                if self.kind == "silent":
                    await asyncio.sleep(SILENCE)
                raise ConnectionResetError("as the test wants it")
            link = await connected(endpoint, tls)
            self._watch(link)
            return link

        cluster_connector._connected = connect  # type: ignore[method-assign]

    def _watch(self, link: Any) -> None:
        received, transport = link.data_received, link.transport
        written = link.conversation._output.write

        def arrive(data: bytes) -> None:
            if not self.fails("receive"):
                received(data)
            elif self.kind == "breaks":
                transport.abort()

        def leave(data: bytes) -> None:
            if not self.fails("send"):
                written(data)
            elif self.kind == "breaks":
                transport.abort()

        transport.set_protocol(_Arriving(link, arrive))
        link.conversation._output = _Leaving(link.conversation._output, leave)


class _Arriving(asyncio.Protocol):
    """A link, but what it receives."""

    def __init__(self, link: asyncio.Protocol, arrive: Callable[[bytes], None]) -> None:
        self._link = link
        self.data_received = arrive  # type: ignore[assignment, method-assign]

    def pause_writing(self) -> None:
        self._link.pause_writing()

    def resume_writing(self) -> None:
        self._link.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.connection_lost(exc)


class _Leaving:
    """An output, but what it sends."""

    def __init__(self, output: Any, leave: Callable[[bytes], None]) -> None:
        self.write = leave
        self.close = output.close


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(electorates, "TIMEOUT", TIMEOUT)
    monkeypatch.setattr(electorate_module, "RETRY", 0.05)
    monkeypatch.setattr(electorate_module, "CONNECT_LIMIT", TIMEOUT)
    monkeypatch.setattr(electorate_module, "LOOK_PERIOD", 0.1)


async def play(path: Path, first: int | None, kind: str) -> list[str]:
    """The live of a pair is gone, and its backup asks the others for the right to serve."""
    path.mkdir()  # noqa: ASYNC240  (a test)
    three, calls = Three(path), Calls(first, kind)
    candidate = three.pollux
    for one in three.all:
        await one.listen()
    for one in three.voters:
        one.serve()
        one.join(*(other.port for other in three.voters if other is not one))
    three.castor.join(three.b.port, three.c.port)
    candidate.join()
    candidate.votes._others.endpoints = tuple(Endpoint("tcp", "127.0.0.1", voter.port) for voter in three.voters)
    calls.watch(candidate.votes._connector)
    calls.armed = True
    try:
        async with asyncio.timeout(BOUND):
            candidate.votes._meet()
            while sum(one.yes for one in (await candidate.take()).values()) < 2:  # noqa: ASYNC110  (asked again)
                await asyncio.sleep(WAIT)
            while sum((await candidate.record(5)).values()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(WAIT)
            candidate.serve()
            candidate.own_vote = candidate.own_vote._replace(sequence=5)
            await candidate.votes.announce()
            while not all(one.known() == (5, "pollux", True) for one in three.voters):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        known = [one.votes.register.known.get(NODE) for one in three.voters]
        raise AssertionError(f"{kind} at call {first} of {calls.made[:MOST]}: {known}") from None
    finally:
        for one in three.all:
            await one.leave()
    assert not candidate.superseded
    return calls.made


@pytest.mark.parametrize("kind", ["breaks", "silent"])
async def test_a_call_between_voters_that_fails_loses_no_vote_for_good(kind: str, tmp_path: Path) -> None:
    made = await play(tmp_path / "none", None, kind)
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        async with room:
            await play(tmp_path / str(number), number, kind)

    numbers = range(min(MOST, len(made)))
    played = await asyncio.gather(*(one(number) for number in numbers), return_exceptions=True)
    problems = [error for error in played if error is not None]
    assert not problems, f"{len(problems)} of {len(numbers)}: {problems[:3]}"
