"""Announcements by a directory, a database or TCP, as JGroups files name them: who is found, and who is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from harness.ports import free_port
from pollux.cluster.meeting import Meeting
from pollux.config.acceptors import Connector, ConnectorSettings, Endpoint
from pollux.config.clustering import BroadcastGroup, DiscoveryGroup
from pollux.config.model import Configuration
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.cluster.discovery import Announcer, Discovered

KEY, OTHER = ClusterKey("cluster", "twins"), ClusterKey("cluster", "strangers")
PATIENCE = 30.0


class Member:
    """A broker that announces itself, and looks for others. ``jgroups`` stands in its JGroups file."""

    def __init__(self, directory: Path, number: int, jgroups: str, key: ClusterKey = KEY) -> None:
        home = directory / f"m{number}"
        home.mkdir()
        (home / "jgroups.xml").write_text(f"<config>{jgroups}</config>")
        self.endpoint = Endpoint("tcp", f"host{number}", 61616)
        named = {"jgroups_file": "jgroups.xml", "jgroups_channel": "the channel"}
        group = DiscoveryGroup("g", refresh_timeout=60_000, **named)  # type: ignore[arg-type]
        configuration = replace(
            Configuration(),
            path=home / "broker.xml",
            connectors=(Connector("me", (self.endpoint,)),),
            broadcast_groups=(
                BroadcastGroup("b", broadcast_period=50, connector_refs=("me",), **named),  # type: ignore[arg-type]
            ),
            discovery_groups=(group,),
        )
        meeting = Meeting(configuration, key, f"member{number}")
        self.announcer: Announcer = meeting.announcers()[0]
        self.found: Discovered = meeting.others(group, ConnectorSettings())
        self.announcer.open()

    def start(self) -> None:
        self.announcer.start()
        self.found.start()

    def stop(self) -> None:
        self.announcer.stop()
        self.found.stop()


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
