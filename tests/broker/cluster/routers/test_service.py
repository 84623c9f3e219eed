"""The routers of a broker as broker.xml has them: deployed, changed and removed by a reload, and what they remember.

The cases of the reference's ConnectionRouterManagerTest, LocalCacheTest, ElasticQueueTest and DiscoveryPoolTest.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.routers.test_decisions import client
from broker.engine.conftest import Office
from harness.broker import free_udp_port
from harness.ports import free_port
from pollux.cluster.discovery import Announcer
from pollux.cluster.link import CoreHub
from pollux.cluster.routers.listeners import Announced
from pollux.cluster.routers.pool import TargetPool
from pollux.cluster.routers.service import KIND, Routers
from pollux.config.acceptors import Connector, ConnectorSettings, Endpoint
from pollux.config.clusters import (
    BroadcastGroup,
    ClusterConnection,
    ConnectionRouter,
    DiscoveryGroup,
    DiscoveryGroupRef,
    RouterCache,
    RouterKeyType,
    RouterPolicy,
    RouterPool,
    StaticConnectors,
)
from pollux.protocols.redirects import Refused
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pollux.cluster.discovery import Discovered
    from pollux.cluster.exchange import ExchangeDiscovered

pytestmark = pytest.mark.asyncio
NODE = b"N" * 16
HUB = CoreHub(ClusterKey("nodes", "castor and pollux"), name="me", node_id=NODE, timeout=60.0)
#: This broker alone is a target, and it is asked nothing.
HERE = RouterPool(local_target_enabled=True, check_period=60_000)
PLAIN = ConnectionRouter("r", RouterKeyType.USER_NAME, local_target_filter="alice")
REMEMBERS = ConnectionRouter(
    "kept", RouterKeyType.USER_NAME, policy=RouterPolicy("FIRST_ELEMENT"), pool=HERE, cache=RouterCache(persisted=True)
)


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    made = Office(tmp_path)
    await made.open()
    yield made
    await made.close()


async def started(office: Office, *routers: ConnectionRouter) -> Routers:
    configuration = replace(office.configuration, connection_routers=routers)
    made = Routers(configuration, HUB, office.post, node=NODE, clients=lambda: 0)
    await made.start()
    return made


async def reload(office: Office, routers: Routers, *wanted: ConnectionRouter) -> list[str]:
    return await routers.reload(replace(office.configuration, connection_routers=wanted))


def served(routers: Routers, name: str, user: str) -> bool:
    router = routers.get(name)
    assert router is not None
    return router.decide(client(user=user)) is None


async def test_a_reload_adds_changes_and_removes_routers(office: Office) -> None:
    """ConnectionRouterManagerTest: deploy, update, remove. One that did not change is the same one."""
    routers = await started(office, PLAIN)
    before = routers.get("r")
    assert [served(routers, "r", user) for user in ("alice", "bob")] == [True, False]
    await reload(office, routers, replace(PLAIN, line=7), replace(PLAIN, name="new"))
    assert routers.get("r") is before, "where it stands in the file is no change"
    assert routers.get("new") is not None
    await reload(office, routers, replace(PLAIN, local_target_filter="bob"))
    assert routers.get("r") is not before
    assert [served(routers, "r", user) for user in ("alice", "bob")] == [False, True]
    await reload(office, routers)
    assert routers.get("r") is None
    assert routers.get(None) is None
    await routers.stop()


async def test_clients_are_steered_by_a_filter_that_is_changed_meanwhile(office: Office) -> None:
    """ElasticQueueTest: producers are sent away from a full head of a chain, consumers still come to drain it."""
    head = ConnectionRouter("r", RouterKeyType.ROLE_NAME, local_target_filter="producers|consumers")
    routers = await started(office, head)

    def answers() -> list[object]:
        router = routers.get("r")
        assert router is not None
        return [router.decide(client(roles=[role])) for role in ("producers", "consumers")]

    assert answers() == [None, None]
    await reload(office, routers, replace(head, local_target_filter="consumers"))
    sent_away, here = answers()
    assert isinstance(sent_away, Refused)
    assert here is None
    await routers.stop()


@pytest.mark.parametrize("persisted", [True, False])
@pytest.mark.parametrize("name", ["kept", "kept/for/long"])
async def test_what_was_decided_is_known_after_a_restart_if_it_is_to_be(
    office: Office, name: str, persisted: bool
) -> None:
    """LocalCacheTest: persisted and not."""
    settings = replace(REMEMBERS, name=name, cache=RouterCache(persisted=persisted))
    routers = await started(office, settings)
    assert served(routers, name, "a/lice")
    await routers.stop()
    await office.reopen()
    routers = await started(office, settings)
    router = routers.get(name)
    assert router is not None
    assert router.cache is not None
    assert router.cache.entries() == ([("a/lice", NODE.hex())] if persisted else [])
    await routers.stop()


async def test_a_changed_router_keeps_what_it_remembers_and_a_removed_one_does_not(office: Office) -> None:
    routers = await started(office, REMEMBERS)
    served(routers, "kept", "alice")
    await reload(office, routers, replace(REMEMBERS, policy=RouterPolicy("ROUND_ROBIN")))
    router = routers.get("kept")
    assert router is not None
    assert router.cache is not None
    assert router.cache.entries() == [("alice", NODE.hex())]
    await reload(office, routers)
    await routers.stop()
    await office.reopen()
    assert not [key for kind, key in office.post.recovered if kind == KIND], "nothing is left in the bindings"


def choosing(pool: RouterPool) -> ConnectionRouter:
    return ConnectionRouter("r", RouterKeyType.USER_NAME, policy=RouterPolicy("FIRST_ELEMENT"), pool=pool)


def pool_of(routers: Routers) -> TargetPool:
    router = routers.get("r")
    assert router is not None
    assert isinstance(router.pool, TargetPool)
    return router.pool


def members(routers: Routers) -> list[Endpoint]:
    """Where the brokers of its pool are."""
    return [endpoint for member in pool_of(routers)._remotes for endpoint in member.endpoints]


A, B, C = (Endpoint("tcp", "127.0.0.1", port) for port in (1, 2, 3))


@pytest.mark.parametrize("case", ["static-connectors", "cluster-connection"])
async def test_a_pool_has_the_brokers_that_connectors_name(office: Office, case: str) -> None:
    """StaticPoolTest, and a cluster connection that links to nobody: in their order, a pair with both its brokers."""
    named = StaticConnectors(("pair", "c"))
    pool = {
        "static-connectors": RouterPool(static_connectors=named, check_period=60_000),
        "cluster-connection": RouterPool(cluster_connection="cc", check_period=60_000),
    }[case]
    given = ClusterConnection("cc", "me", static_connectors=StaticConnectors(("pair", "me", "c")), max_hops=0)
    office.configuration = replace(
        office.configuration,
        connectors=(Connector("me", (Endpoint("tcp", "me", 9),)), Connector("pair", (B, A)), Connector("c", (C,))),
        cluster_connections=(given,),
    )
    routers = await started(office, choosing(pool))
    assert members(routers) == [B, A, C]
    await routers.stop()


ADDRESS, LOCAL = "239.255.7.11", "127.0.0.1"


@asynccontextmanager
async def announced(port: int, key: ClusterKey, endpoint: Endpoint) -> AsyncIterator[None]:
    """A broker that says in a group, over real multicast on the loopback interface, where it is."""
    group = BroadcastGroup("b", LOCAL, group_address=ADDRESS, group_port=port, broadcast_period=20)
    announcer = Announcer(group, (endpoint,), key, member="another")
    announcer.open()
    announcer.start()
    try:
        yield
    finally:
        announcer.stop()


def discovering(office: Office, port: int, own: ConnectorSettings, local: str = LOCAL) -> None:
    """Give a broker a discovery group, and a connector of its own."""
    group = DiscoveryGroup("g", ADDRESS, port, local_bind_address=local, refresh_timeout=60_000)
    connector = Connector("me", (Endpoint("tcp", "me", 9, own),))
    office.configuration = replace(office.configuration, discovery_groups=(group,), connectors=(connector,))


async def test_a_pool_has_the_brokers_that_announce_themselves_while_they_do(office: Office) -> None:
    """DiscoveryPoolTest: as soon as one is heard of, and until it says that it goes."""
    port = free_udp_port()
    discovering(office, port, ConnectorSettings())
    pool = RouterPool(discovery_group_ref=DiscoveryGroupRef("g"), check_period=60_000)
    routers = await started(office, choosing(pool))
    async with announced(port, HUB.key, A):
        await until(lambda: members(routers) == [A])
    await until(lambda: members(routers) == [])
    await routers.stop()


@pytest.mark.parametrize("hub", [HUB, None], ids=["with a password of our own", "without"])
async def test_brokers_of_another_password_are_found_by_what_they_announce(office: Office, hub: CoreHub | None) -> None:
    """Breaks when their announcements are held against this broker's own cluster-password, which may be none."""
    port = free_udp_port()
    discovering(office, port, ConnectorSettings())
    pool = RouterPool("them", "theirs", discovery_group_ref=DiscoveryGroupRef("g"), check_period=60_000)
    configuration = replace(office.configuration, connection_routers=(choosing(pool),))
    routers = Routers(configuration, hub, office.post, node=NODE, clients=lambda: 0)
    await routers.start()
    async with announced(port, ClusterKey("them", "theirs"), A):
        await until(lambda: members(routers) == [A])
    await routers.stop()


async def test_brokers_that_announce_tls_are_reached_as_our_own_connector_says(office: Office) -> None:
    """Breaks when there is no trust store for them: no authority of one's own would be known."""
    port = free_udp_port()
    own = ConnectorSettings(ssl_enabled=True, trust_store_path=Path("ca.pem"))
    discovering(office, port, own)
    pool = RouterPool(discovery_group_ref=DiscoveryGroupRef("g"), check_period=60_000)
    routers = await started(office, choosing(pool))
    async with announced(port, HUB.key, Endpoint("tcp", LOCAL, 1, ConnectorSettings(ssl_enabled=True))):
        await until(lambda: members(routers) == [Endpoint("tcp", LOCAL, 1, own)])
    await routers.stop()


async def test_a_router_whose_pool_cannot_be_stays_as_it_was_and_others_are_changed(office: Office) -> None:
    """Breaks when the router is gone, and its acceptor serves whoever comes; the group was in no use before."""
    discovering(office, free_udp_port(), ConnectorSettings(), local="192.0.2.1")
    routers = await started(office, PLAIN, replace(PLAIN, name="other"))
    before = routers.get("r")
    pool = RouterPool(discovery_group_ref=DiscoveryGroupRef("g"), check_period=60_000)
    other = replace(PLAIN, name="other", local_target_filter="bob")
    (line,) = await reload(office, routers, choosing(pool), other)
    assert line.startswith("connection-router 'r' cannot be as broker.xml has it: discovery-group 'g'")
    assert "set local-bind-address to an address that this machine has" in line
    assert routers.get("r") is before
    assert [served(routers, "other", user) for user in ("alice", "bob")] == [False, True]
    assert await reload(office, routers, PLAIN, other) == []
    await routers.stop()


def listened(port: int) -> bool:
    """Whether somebody has the group's socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
        try:
            another.bind((ADDRESS, port))
        except OSError:
            return True
    return False


IN_GROUP = choosing(RouterPool(discovery_group_ref=DiscoveryGroupRef("g"), check_period=60_000))


async def test_a_group_is_listened_to_as_long_as_a_router_needs_it(office: Office) -> None:
    """Breaks when a reload leaves the socket of a group open that no router has any more, or closes another one's."""
    port = free_udp_port()
    discovering(office, port, ConnectorSettings())
    routers = await started(office, IN_GROUP, replace(IN_GROUP, name="another"))
    await reload(office, routers, replace(IN_GROUP, policy=RouterPolicy("ROUND_ROBIN")))
    async with announced(port, HUB.key, A):
        await until(lambda: members(routers) == [A])
    await reload(office, routers, choosing(HERE))
    await until(lambda: not listened(port))
    await reload(office, routers, IN_GROUP)
    async with announced(port, HUB.key, A):
        await until(lambda: members(routers) == [A])
    await reload(office, routers)
    await until(lambda: not listened(port))
    await routers.stop()


async def test_a_router_that_stays_as_it_was_keeps_its_group(office: Office) -> None:
    port = free_udp_port()
    discovering(office, port, ConnectorSettings())
    (group,) = office.configuration.discovery_groups
    nowhere = replace(group, name="nowhere", group_port=free_udp_port(), local_bind_address="192.0.2.1")
    office.configuration = replace(office.configuration, discovery_groups=(group, nowhere))
    routers = await started(office, IN_GROUP)
    there = RouterPool(discovery_group_ref=DiscoveryGroupRef("nowhere"), check_period=60_000)
    (line,) = await reload(office, routers, choosing(there))
    assert "discovery-group 'nowhere'" in line
    async with announced(port, HUB.key, A):
        await until(lambda: members(routers) == [A])
    await routers.stop()
    await until(lambda: not listened(port))


def listener(routers: Routers) -> Discovered:
    found = pool_of(routers).members
    assert isinstance(found, Announced)
    return found.listener


@pytest.mark.parametrize("kind", ["FILE_PING", "JDBC_PING", "TCPPING"])
async def test_a_place_where_members_meet_is_looked_at_no_longer_than_a_router_needs_it(
    office: Office, tmp_path: Path, kind: str
) -> None:
    """Breaks when the directory, the table or the ports of a JGroups file are asked for ever."""
    jgroups = {
        "FILE_PING": f"<TCP/><FILE_PING location='{tmp_path}/ping'/>",
        "JDBC_PING": f"<TCP/><JDBC_PING connection_url='jdbc:sqlite:{tmp_path}/ping.db'/>",
        "TCPPING": f"<TCP/><TCPPING initial_hosts='127.0.0.1[{free_port()}]' port_range='0'/>",
    }[kind]
    (tmp_path / "jgroups.xml").write_text(f"<config>{jgroups}</config>")
    group = DiscoveryGroup("g", jgroups_file="jgroups.xml", jgroups_channel="the channel")
    office.configuration = replace(
        office.configuration,
        path=tmp_path / "broker.xml",
        discovery_groups=(group,),
        connectors=(Connector("me", (Endpoint("tcp", "me", 9),)),),
    )
    routers = await started(office, IN_GROUP)
    found = cast("ExchangeDiscovered", listener(routers))
    looked, closed = asyncio.Event(), asyncio.Event()
    get, close = found.exchange.get, found.exchange.close

    async def getting() -> list[bytes]:
        looked.set()
        return await get()

    async def closing() -> None:
        await close()
        closed.set()

    found.exchange.get, found.exchange.close = getting, closing  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await looked.wait()
        await reload(office, routers)
        await closed.wait()
    assert found._reading is not None
    await asyncio.wait([found._reading])
    assert found._reading.cancelled()
    await routers.stop()
