"""Discovery over real multicast on the loopback interface: who is found, forgotten, and not listened to."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker import free_udp_port
from pollux.cluster.discovery import Announcer, Discovered, DiscoveryError, receiver, sender
from pollux.config import loads
from pollux.config.acceptors import ConnectorSettings, Endpoint
from pollux.config.clusters import BroadcastGroup, DiscoveryGroup
from pollux.node.policies import features
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

KEY, OTHER = ClusterKey("cluster", "twins"), ClusterKey("cluster", "strangers")
ADDRESS, LOCAL = "239.255.7.7", "127.0.0.1"
#: Between two announcements, milliseconds.
PERIOD = 50
#: Nothing here takes this long.
PATIENCE = 30.0
CASTOR = Endpoint("tcp", "castor", 61616)
SECURE = ConnectorSettings(ssl_enabled=True, trust_store_path=Path("ca.pem"))


class Group:
    """A group-port of this test's own, its listener and its announcers."""

    def __init__(self) -> None:
        self.port = free_udp_port()
        self.open: list[Discovered | Announcer] = []

    def listen(
        self,
        template: ConnectorSettings = ConnectorSettings(),  # noqa: B008  (frozen)
        period: float = PERIOD / 1000,
        **more: Any,
    ) -> Discovered:
        group = DiscoveryGroup("g", ADDRESS, self.port, local_bind_address=LOCAL, **more)
        found = Discovered(group, KEY, template, member="me", period=period)
        found.start()
        self.open.append(found)
        return found

    def announce(
        self, *connectors: Endpoint, key: ClusterKey = KEY, member: str = "castor", period: int = PERIOD
    ) -> Announcer:
        group = BroadcastGroup("b", LOCAL, group_address=ADDRESS, group_port=self.port, broadcast_period=period)
        made = Announcer(group, connectors or (CASTOR,), key, member=member)
        made.open()
        made.start()
        self.open.append(made)
        return made


@asynccontextmanager
async def made() -> AsyncIterator[Group]:
    group = Group()
    try:
        yield group
    finally:
        for one in group.open:
            one.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (sockets)
            await asyncio.sleep(0.005)


async def test_who_waits_for_news_ends_when_it_is_told_to_at_the_moment_in_which_they_come() -> None:
    """A bridge that was stopped went on for ever: asyncio.wait_for of Python 3.11 took its end for the news."""
    async with made() as group:
        found = group.listen(refresh_timeout=60_000)
        waits = asyncio.create_task(found.pause(60.0))
        await asyncio.sleep(0)
        found._changed.set()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(waits, PATIENCE)


async def test_a_member_is_found_and_gone_when_it_leaves() -> None:
    async with made() as group:
        found = group.listen(refresh_timeout=60_000)
        changes: list[tuple[Endpoint, ...]] = []
        found.on_change.append(lambda: changes.append(found.endpoints))
        castor = group.announce()
        await asyncio.wait_for(found.first(), PATIENCE)
        assert found.endpoints == (CASTOR,)
        group.announce(Endpoint("tcp", "::1", 7), Endpoint("tcp", "third", 8), member="third")
        await until(lambda: len(found.endpoints) == 3)
        castor.stop()
        await until(lambda: CASTOR not in found.endpoints)
        both = (Endpoint("tcp", "::1", 7), Endpoint("tcp", "third", 8))
        assert changes == [(CASTOR,), (CASTOR, *both), both]
        assert found.dropped.total == 0


async def test_one_that_is_silent_is_forgotten() -> None:
    """It was killed: the socket is closed without a word."""
    async with made() as group:
        found = group.listen(refresh_timeout=300)
        castor = group.announce()
        await until(lambda: found.endpoints)
        assert castor._timer is not None
        castor._timer.cancel()
        await until(lambda: not found.endpoints)
        castor._again()
        await until(lambda: found.endpoints)


async def test_the_first_one_heard_need_not_be_the_one_that_matters() -> None:
    """A start waits until all have had time to say that they are there."""
    async with made() as group:
        found = group.listen(period=3600.0)
        began = asyncio.ensure_future(found.first())
        group.announce(Endpoint("tcp", "another", 1), member="live of another pair")
        await until(lambda: found.endpoints)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not began.done()
        began.cancel()


async def test_whoever_waits_is_woken_by_a_new_member() -> None:
    async with made() as group:
        found = group.listen()
        pause = asyncio.ensure_future(found.pause(10 * PATIENCE))
        group.announce()
        await asyncio.wait_for(pause, PATIENCE)
        group.announce(Endpoint("tcp", "pollux", 1), member="pollux")
        await until(lambda: len(found.endpoints) == 2)
        await asyncio.wait_for(found.pause(10 * PATIENCE), PATIENCE)  # it came before anybody waited


async def test_the_first_announcement_is_waited_for_only_so_long() -> None:
    async with made() as group:
        found = group.listen(initial_wait_timeout=20)
        await asyncio.wait_for(found.first(), PATIENCE)
        assert found.endpoints == ()


async def test_strangers_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each reason, with its source and what to do; none for each datagram."""
    async with made() as group:
        found = group.listen()
        group.announce(Endpoint("tcp", "evil", 1), key=OTHER, member="stranger")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOCAL))
            stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
            for size in (0, 1, 40, 1400, 9000):
                for _ in range(20):
                    stranger.sendto(b"x" * size, (ADDRESS, group.port))
        await until(lambda: found.dropped.total >= 103)
        group.announce()
        await until(lambda: found.endpoints)
        assert found.endpoints == (CASTOR,)
    lines = [one.__dict__["fields"] for one in caplog.records if one.getMessage() == "announcements dropped"]
    # At this period a wrong password may be taken for guesses as well.
    told = [line["reason"] for line in lines if line["reason"] != "guesses"]
    assert sorted(told) == ["foreign", "password", "size"]
    assert all(line["source"] == LOCAL and line["remedy"] for line in lines)
    assert "twins" not in caplog.text


async def test_with_tls_a_plain_connector_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    async with made() as group:
        found = group.listen(SECURE)
        group.announce(CASTOR, Endpoint("tcp", "castor", 61617, ConnectorSettings(ssl_enabled=True)))
        await until(lambda: found.endpoints)
        assert found.endpoints == (Endpoint("tcp", "castor", 61617, SECURE),)
    (line,) = [one.__dict__["fields"] for one in caplog.records if one.getMessage() == "announcements dropped"]
    assert line["reason"] == "plain"
    assert "sslEnabled=true" in line["remedy"]


async def test_a_network_that_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    """An announcement that cannot be sent is told once, and tried again."""
    caplog.set_level(logging.WARNING)
    async with made() as group:
        found = group.listen()
        castor = group.announce(period=10)
        await until(lambda: found.endpoints)
        assert castor._socket is not None
        good, castor._socket = castor._socket, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        before = castor._number
        await until(lambda: castor._number > before + 3)
        castor._socket.close()
        castor._socket = good
        assert caplog.text.count("this broker cannot be announced") == 1


def test_a_group_that_cannot_be_used_is_named() -> None:
    nowhere = "192.0.2.1"
    with pytest.raises(DiscoveryError, match=r"-group 'g': 239\.255\.7\.7:9 cannot be used on 192\.0\.2\.1: .*set"):
        receiver(DiscoveryGroup("g", ADDRESS, 9, local_bind_address=nowhere))
    with pytest.raises(DiscoveryError, match=r"broadcast-group 'b': .* set local-bind-address"):
        sender(BroadcastGroup("b", nowhere, group_address=ADDRESS, group_port=9))
    many = [Endpoint("tcp", "h" * 250, port) for port in range(1, 9)]
    with pytest.raises(DiscoveryError, match="announce fewer connectors"):
        Announcer(BroadcastGroup("b", group_address=ADDRESS, group_port=9), many, KEY, member="m")


GROUPS = (
    '<connectors><connector name="a">tcp://a:1</connector></connectors><cluster-password>p</cluster-password>'
    '<broadcast-groups><broadcast-group name="b">{group}<connector-ref>a</connector-ref></broadcast-group>'
    '</broadcast-groups><discovery-groups><discovery-group name="g">{group}</discovery-group></discovery-groups>'
)
CLUSTER = (
    '<cluster-connections><cluster-connection name="c"><connector-ref>a</connector-ref>'
    '<discovery-group-ref discovery-group-name="g"/></cluster-connection></cluster-connections>'
)
REPLICATION = "<ha-policy><replication><primary/></replication></ha-policy>"
SHARED = "<ha-policy><shared-store><primary/></shared-store></ha-policy>"


@pytest.mark.parametrize(
    "group",
    [
        "<group-address>231.7.7.7</group-address><group-port>9876</group-port>",
        "<jgroups-channel>x</jgroups-channel><jgroups-file>y</jgroups-file>",
    ],
    ids=["UDP", "JGroups"],
)
@pytest.mark.parametrize("more", [CLUSTER + REPLICATION, CLUSTER + SHARED, CLUSTER, SHARED, ""])
def test_groups_are_provided_whoever_uses_them(group: str, more: str) -> None:
    """Also where nobody does: a broker alone is found by clients, and by the bridges and routers of others."""
    core = f'<core xmlns="urn:activemq:core">{GROUPS.format(group=group)}{more}</core>'
    found = loads(f'<configuration xmlns="urn:activemq">{core}</configuration>', {})
    assert found.unsupported_features(features(found)) == []


def test_what_is_said_on_the_loopback_stays_there() -> None:
    for local, hops in ((LOCAL, 0), (None, 1)):
        with sender(BroadcastGroup("b", local, group_address=ADDRESS, group_port=9)) as used:
            assert used.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == hops
