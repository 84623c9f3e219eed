"""Clients that hear by real multicast on the loopback interface which brokers there are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from harness.broker import free_udp_port
from pollux.client.dialer import Dialer
from pollux.client.errors import ConnectionLostError
from pollux.client.url import Endpoint, parse_url
from pollux.cluster.discovery import Announcer
from pollux.config import acceptors
from pollux.config.clusters import BroadcastGroup
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = ClusterKey("cluster", "twins")
ADDRESS, LOCAL = "239.255.7.9", "127.0.0.1"
#: Between two announcements, milliseconds.
PERIOD = 20
#: Nothing here takes this long.
PATIENCE = 30.0


@pytest.fixture
def port() -> int:
    return free_udp_port()


@pytest.fixture
def announce(port: int) -> Iterator[Callable[..., Announcer]]:
    """A broker that says where it is."""
    made: list[Announcer] = []

    def one(host: str, *, tls: bool = False, member: str = "") -> Announcer:
        group = BroadcastGroup("b", LOCAL, group_address=ADDRESS, group_port=port, broadcast_period=PERIOD)
        connector = acceptors.Endpoint("tcp", host, 61616, acceptors.ConnectorSettings(ssl_enabled=tls))
        made.append(Announcer(group, [connector], KEY, member=member or host))
        made[-1].open()
        made[-1].start()
        return made[-1]

    yield one
    for each in made:
        each.stop()


def dialer(port: int, *words: str) -> Dialer:
    parameters = (f"localBindAddress={LOCAL}", "retryInterval=1", *words)
    return Dialer(parse_url(f"udp://{ADDRESS}:{port}?{'&'.join(parameters)}"))


def discard(host: str) -> None:
    raise AssertionError(f"{host} was not needed, and opened all the same")


class Brokers:
    """Holds who lets us in, and who was tried."""

    def __init__(self, *serving: str) -> None:
        self.serving = set(serving)
        self.tried: list[str] = []

    async def open(self, endpoint: Endpoint) -> str:
        self.tried.append(endpoint.host)
        if endpoint.host not in self.serving:
            raise ConnectionRefusedError
        return endpoint.host


async def test_a_broker_that_announces_itself_later_is_reached(port: int, announce: Callable[..., Announcer]) -> None:
    """The client waits for the first one, and then tries whoever has come meanwhile."""
    brokers = Brokers("castor")
    found = dialer(port, "initialConnectAttempts=-1")
    dialing = asyncio.ensure_future(found.first(brokers.open, discard))
    announce("pollux")  # a backup: it does not let clients in
    async with asyncio.timeout(PATIENCE):
        while not brokers.tried:  # noqa: ASYNC110  (sockets)
            await asyncio.sleep(0.005)
        announce("castor")
        assert await dialing == "castor"
    assert set(brokers.tried) == {"castor", "pollux"}


async def test_brokers_that_were_named_are_tried_without_waiting(port: int, announce: Callable[..., Announcer]) -> None:
    brokers = Brokers("castor", "pollux")
    castor = announce("castor")
    found = dialer(port, "reconnectAttempts=1", "discoveryInitialWaitTimeout=30000")
    async with asyncio.timeout(PATIENCE):
        assert await found.first(brokers.open, discard) == "castor"
    found.learn([Endpoint("pollux", 61616)], Endpoint("castor", 61616))
    castor.stop()
    brokers.serving = {"pollux"}
    async with asyncio.timeout(PATIENCE / 2):
        assert await found.again(brokers.open, discard) == "pollux"


async def test_with_tls_only_brokers_that_announce_it_are_tried(port: int, announce: Callable[..., Announcer]) -> None:
    brokers = Brokers("plain", "secure")
    announce("plain")
    announce("secure", tls=True)
    async with asyncio.timeout(PATIENCE):
        assert await dialer(port, "sslEnabled=true").first(brokers.open, discard) == "secure"
        assert await dialer(port).first(brokers.open, discard) == "plain"
    assert brokers.tried == ["secure", "plain"]


async def test_where_nobody_announces_itself_the_wait_ends(port: int) -> None:
    found = dialer(port, "discoveryInitialWaitTimeout=20", "initialConnectAttempts=2")
    with pytest.raises(ConnectionLostError, match=rf"in 2 attempt\(s\): nobody announced itself in {ADDRESS}:{port}"):
        await asyncio.wait_for(found.first(Brokers().open, discard), PATIENCE)


async def test_an_address_that_this_machine_does_not_have(port: int) -> None:
    found = Dialer(parse_url(f"udp://{ADDRESS}:{port}?localBindAddress=192.0.2.1"))
    with pytest.raises(ConnectionLostError, match=r"cannot be listened to on 192\.0\.2\.1: .* set localBindAddress"):
        await found.first(Brokers().open, discard)
