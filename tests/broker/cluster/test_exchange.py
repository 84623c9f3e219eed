"""Announcements by a directory, a database or TCP, as JGroups files name them: who is found, and who is not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from harness.ports import free_port
from pollux.cluster.meeting import Meeting
from pollux.config.acceptors import Connector, ConnectorSettings, Endpoint
from pollux.config.clusters import BroadcastGroup, DiscoveryGroup
from pollux.config.model import Configuration
from pollux.wire.core import ClusterKey, datagram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pollux.cluster.exchange import ExchangeAnnouncer, ExchangeDiscovered

KEY, OTHER = ClusterKey("cluster", "twins"), ClusterKey("cluster", "strangers")
PATIENCE = 30.0
#: Between two announcements, and until who is silent is forgotten, where the test sets the clock; seconds.
PERIOD, REFRESH = 1, 5


class Member:
    """A broker that announces itself, and looks for others. ``jgroups`` stands in its JGroups file."""

    def __init__(
        self,
        directory: Path,
        number: int,
        jgroups: str,
        key: ClusterKey = KEY,
        *,
        period: float = 0.05,
        refresh: float = 60,
        channel: str = "the channel",
    ) -> None:
        """``period``: between two announcements; ``refresh``: until a silent one is forgotten; seconds."""
        home = directory / f"m{number}"
        home.mkdir()
        (home / "jgroups.xml").write_text(f"<config>{jgroups}</config>")
        self.endpoint = Endpoint("tcp", f"host{number}", 61616)
        named = {"jgroups_file": "jgroups.xml", "jgroups_channel": channel}
        group = DiscoveryGroup("g", refresh_timeout=round(refresh * 1000), **named)  # type: ignore[arg-type]
        configuration = replace(
            Configuration(),
            path=home / "broker.xml",
            connectors=(Connector("me", (self.endpoint,)),),
            broadcast_groups=(
                BroadcastGroup(
                    "b",
                    broadcast_period=round(period * 1000),
                    connector_refs=("me",),
                    **named,  # type: ignore[arg-type]
                ),
            ),
            discovery_groups=(group,),
        )
        meeting = Meeting(configuration, key, f"member{number}")
        self.announcer = cast("ExchangeAnnouncer", meeting.announcers()[0])
        self.found = cast("ExchangeDiscovered", meeting.others(group, ConnectorSettings()))
        self.announcer.open()

    def start(self) -> None:
        self.announcer.start()
        self.found.start()

    def stop(self) -> None:
        self.announcer.stop()
        self.found.stop()


class Rounds:
    """Time in steps of a period: in each everybody announces itself, and then looks, one after the other."""

    def __init__(self) -> None:
        """To be made before the members: they keep the clock."""
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()
        self._loop.time = lambda: self._now  # type: ignore[method-assign]
        self._puts: dict[Member, int] = {}
        self._gets: dict[Member, int] = {}
        self._changed = asyncio.Condition()

    def _watch(self, member: Member) -> None:
        self._puts[member] = self._gets[member] = 0
        exchange = member.announcer.exchange
        put, get = exchange.put, exchange.get

        async def putting(name: str, data: bytes) -> None:
            async with self._changed:
                await put(name, data)
                self._puts[member] += 1
                self._changed.notify_all()

        async def getting() -> list[bytes]:
            async with self._changed:
                await self._changed.wait_for(lambda: min(self._puts.values()) > self._gets[member])
                found = await get()
            # When what was found has been read.
            self._loop.call_soon(self._looked, member)
            return found

        exchange.put, exchange.get = putting, getting  # type: ignore[assignment,method-assign]

    def _looked(self, member: Member) -> None:
        self._gets[member] += 1
        self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _all_looked(self, times: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: min(self._gets.values()) >= times)

    async def start(self, members: Sequence[Member]) -> None:
        """Start all of them, and have each look once."""
        for member in members:
            self._watch(member)
        for member in members:
            member.start()
        await self._all_looked(1)

    async def step(self) -> None:
        """Let a period pass."""
        looked = min(self._gets.values())
        self._now += PERIOD
        await self._all_looked(looked + 1)

    async def kill(self, member: Member) -> None:
        """End one without a farewell; what it left is still there, and its port is closed."""
        del self._puts[member], self._gets[member]
        assert member.announcer._timer is not None
        member.announcer._timer.cancel()
        member.announcer._timer = None
        member.found.stop()
        assert member.found._reading is not None
        await asyncio.wait([member.found._reading])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (sockets and files)
            await asyncio.sleep(0.01)


def tcp(number: int, ports: list[int]) -> str:
    hosts = ",".join(f"127.0.0.1[{port}]" for port in ports)
    return f"<TCP bind_addr='127.0.0.1' bind_port='{ports[number]}'/><TCPPING initial_hosts='{hosts}' port_range='0'/>"


@pytest.mark.parametrize("kind", ["FILE_PING", "JDBC_PING", "TCPPING"])
async def test_members_find_each_other_and_not_those_of_another_cluster(tmp_path: Path, kind: str) -> None:
    ports = [free_port() for _ in range(3)]
    files = {
        "FILE_PING": [f"<TCP/><FILE_PING location='{tmp_path}/ping'/>"] * 3,
        "JDBC_PING": [f"<TCP/><JDBC_PING connection_url='jdbc:sqlite:{tmp_path}/ping.db'/>"] * 3,
        "TCPPING": [tcp(number, ports) for number in range(3)],
    }[kind]
    members = [Member(tmp_path, number, files[number], OTHER if number == 2 else KEY) for number in range(3)]
    try:
        for member in members:
            member.start()
        one, two, stranger = members
        await until(lambda: one.found.endpoints == (two.endpoint,) and two.found.endpoints == (one.endpoint,))
        await until(lambda: one.found.dropped.total > 0)
        assert not stranger.found.endpoints
    finally:
        for member in members:
            member.stop()
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["FILE_PING", "JDBC_PING", "TCPPING"])
async def test_who_stops_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """Breaks when others hear nothing of it, and list it until it was silent for too long; a port closes with it."""
    ports = [free_port() for _ in range(2)]
    files = {
        "FILE_PING": [f"<TCP/><FILE_PING location='{tmp_path}/ping'/>"] * 2,
        "JDBC_PING": [f"<TCP/><JDBC_PING connection_url='jdbc:sqlite:{tmp_path}/ping.db'/>"] * 2,
        "TCPPING": [tcp(number, ports) for number in range(2)],
    }[kind]
    one, two = (Member(tmp_path, number, files[number]) for number in range(2))
    try:
        one.start()
        two.start()
        await until(lambda: one.found.endpoints == (two.endpoint,))
        two.stop()
        await until(lambda: not one.found.endpoints)
    finally:
        one.stop()
        await asyncio.wait([one.announcer._ending, two.announcer._ending])


async def test_a_farewell_comes_after_what_was_said_before_however_long_that_takes(tmp_path: Path) -> None:
    """Breaks when a slow disk or database has the last announcement replace the farewell, or more and more wait."""
    one = Member(tmp_path, 0, f"<TCP/><FILE_PING location='{tmp_path}/ping'/>")
    exchange = one.announcer.exchange
    put, begun, slow = exchange.put, asyncio.Queue[bytes](), asyncio.Event()

    async def putting(member: str, data: bytes) -> None:
        begun.put_nowait(data)
        await slow.wait()
        await put(member, data)

    exchange.put = putting  # type: ignore[method-assign]
    one.announcer.start()
    async with asyncio.timeout(PATIENCE):
        await begun.get()
        for _ in range(10):
            one.announcer._send(b"said while the first one hangs")
        one.announcer.stop()
        assert len(one.announcer._putting) == 2
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun.empty()
        slow.set()
        await one.announcer._ending
    (left,) = await exchange.get()
    assert datagram.decode(left, KEY).leaving


async def test_what_is_no_announcement_and_who_is_gone(tmp_path: Path) -> None:
    """A file of a member that was killed is heard once: it is forgotten although the file is still there."""
    file = f"<TCP/><FILE_PING location='{tmp_path}/ping'/>"
    one, two = (Member(tmp_path, number, file) for number in range(2))
    directory = tmp_path / "ping" / "the_channel"
    directory.mkdir(parents=True)
    (directory / "forged.pollux").write_bytes(b"x" * 5000)
    try:
        two.start()
        await until((directory / "member1.pollux").exists)
        assert two.announcer._timer is not None
        two.announcer._timer.cancel()
        one.found._table._silence = 0.3
        one.start()
        await until(lambda: one.found.endpoints == (two.endpoint,))
        assert one.found.dropped.total == 1
        await until(lambda: not one.found.endpoints)
        await asyncio.sleep(0.2)  # some rounds more
        assert not one.found.endpoints
    finally:
        one.stop()
        two.stop()
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["FILE_PING", "JDBC_PING", "TCPPING"])
async def test_five_are_listed_within_three_periods_and_who_was_killed_is_gone_one_after_its_time(
    tmp_path: Path, kind: str
) -> None:
    """Nobody of another channel, or with another password, is listed at any time."""
    rounds = Rounds()
    ports = [free_port() for _ in range(7)]
    made = partial(Member, tmp_path, period=PERIOD, refresh=REFRESH)
    files = {
        "FILE_PING": [f"<TCP/><FILE_PING location='{tmp_path}/ping'/>"] * 7,
        "JDBC_PING": [f"<TCP/><JDBC_PING connection_url='jdbc:sqlite:{tmp_path}/ping.db'/>"] * 7,
        "TCPPING": [tcp(number, ports) for number in range(7)],
    }[kind]
    five = [made(number, files[number]) for number in range(5)]
    foreign = made(5, files[5], channel="another channel")
    stranger = made(6, files[6], OTHER)
    everybody = [*five, foreign, stranger]

    def list_each_other(members: Sequence[Member]) -> bool:
        wanted = {member: {other.endpoint for other in members if other is not member} for member in members}
        return all(set(member.found.endpoints) == wanted[member] for member in members)

    try:
        await rounds.start(everybody)
        periods = 1
        while not list_each_other(five):
            assert periods < 3, [member.found.endpoints for member in everybody]
            await rounds.step()
            periods += 1
        *living, killed = five
        await rounds.kill(killed)
        for _ in range(REFRESH - 1):
            await rounds.step()
        assert all(killed.endpoint in member.found.endpoints for member in living)
        await rounds.step()
        await rounds.step()
        assert list_each_other(living)
        assert not foreign.found.endpoints
        assert not stranger.found.endpoints
    finally:
        for member in everybody:
            member.stop()
        await asyncio.sleep(0)
