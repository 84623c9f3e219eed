"""A node without sockets: its life step by step, alone and beside another one in the same process."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from harness.broker import free_udp_port
from harness.ports import free_port
from pollux.audit import Trail
from pollux.cluster.exchange import ExchangeAnnouncer
from pollux.config import loads
from pollux.config.acceptors import AcceptorSettings
from pollux.config.users import Users
from pollux.engine.peer import Peer
from pollux.engine.security import Identity
from pollux.engine.share import Share
from pollux.node.around import Ending
from pollux.node.node import Node
from pollux.protocols.redirects import Client, route

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.config.model import Configuration
    from pollux.protocols.services import Services

XML = """
<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
  <core xmlns="urn:activemq:core">
    <name>castor</name>
    <journal-directory>data/journal</journal-directory>
    <bindings-directory>data/bindings</bindings-directory>
    <large-messages-directory>data/large</large-messages-directory>
    <paging-directory>data/paging</paging-directory>
    <journal-file-size>100K</journal-file-size>
    <journal-min-files>2</journal-min-files>
    <addresses>{addresses}</addresses>
  </core>
</configuration>
"""


class Around:
    """The process and the acceptors of a node: notes what it is told."""

    def __init__(self) -> None:
        self.share = Share(asyncio.get_running_loop())
        self.said: list[object] = []
        self.services: Callable[[AcceptorSettings], Services]

    def waits(self, why: str, *, ready: bool) -> None:
        self.said.append((why, ready))

    def request_stop(self, reason: str) -> None:
        self.said.append(reason)

    def failed(self, ending: Ending, reason: object) -> None:
        self.said.append((ending, reason))

    def memory_limit(self) -> int:
        return 1 << 30

    async def open(self, services: Callable[[AcceptorSettings], Services], *_: object) -> None:
        self.services = services
        self.said.append("open")

    def logged_in(self, connection_id: int, user: str) -> None:
        self.said.append((connection_id, user))

    def clients(self) -> int:
        return 0

    def hold(self, _connection_id: int) -> None:
        return None

    def slow_consumers(self, *_: object) -> Callable[[], None]:
        return lambda: None

    async def reload(self, _configuration: Configuration) -> list[str]:
        return ["refused"]

    def disconnect(self, users: object) -> None:
        self.said.append(users)

    def stop_accepting(self) -> None:
        self.said.append("stop accepting")

    def cut_off(self, reason: str) -> None:
        self.said.append(reason)

    async def leave(self, *, graceful: bool, fast_stop: bool, forced: asyncio.Event) -> None:
        self.said.append((graceful, fast_stop, forced.is_set()))

    async def leave_brokers(self) -> None:
        self.said.append("leave brokers")

    def close(self) -> None:
        self.said.append("close")


def configured(directory: Path, *queues: str) -> Configuration:
    addresses = "".join(
        f'<address name="{each}"><anycast><queue name="{each}"/></anycast></address>' for each in queues
    )
    return loads(XML.format(addresses=addresses), file=str(directory / "broker.xml"))


def make(directory: Path, *queues: str) -> tuple[Node, Around]:
    around = Around()
    return Node(configured(directory, *queues), Users(), Trail.off(), process=around, acceptors=around), around


async def serve(node: Node) -> None:
    node.enter()
    await node.serve(await node.open(0))


async def stop(node: Node) -> bool:
    node.stopping("the test says so")
    await node.leave_clients(graceful=True, forced=asyncio.Event())
    closed = await node.close_store()
    node.close()
    node.unlock()
    return closed


def queues_of(node: Node) -> set[str]:
    assert node.engine is not None
    return {queue.name for queue in node.engine.space.queues}


async def test_two_nodes_in_one_process_know_nothing_of_each_other(tmp_path: Path) -> None:
    one, around_one = make(tmp_path / "one", "orders")
    other, around_other = make(tmp_path / "other", "news")
    await serve(one)
    await serve(other)
    assert (queues_of(one), queues_of(other)) == ({"orders"}, {"news"})
    assert one.node_id != other.node_id
    one.fenced("it stood still")
    one.fenced("it is said once")
    assert around_one.said == ["open", (Ending.FENCED, "it stood still"), "the right to serve is lost"]
    assert around_other.said == ["open"]
    assert (one.state, other.state, other.not_ready()) == ("failed", "live", [])
    assert other.engine is not None
    other.engine.storage.put("test", "0", b"x")
    await other.engine.stable()
    assert await stop(one)
    assert await stop(other)
    again, _ = make(tmp_path / "other")
    await serve(again)
    assert again.node_id == other.node_id
    assert again.engine is not None
    assert again.engine.post.recovered["test", "0"] == b"x"
    await stop(again)


async def test_a_life_that_did_not_come_far_is_taken_down_like_any_other(tmp_path: Path) -> None:
    node, around = make(tmp_path)
    assert (node.damage, node.not_ready(), node.engine) == ([], ["the broker is starting"], None)
    assert not node.owns_directory
    assert await stop(node)
    assert around.said == ["stop accepting", (True, False, False), "close"]


async def test_a_reload_before_clients_are_let_in_counts_for_them(tmp_path: Path) -> None:
    """Breaks when what was read before the store was open, or while it was recovered, is what is served."""
    node, _ = make(tmp_path, "orders")
    node.enter()
    assert await node.reload(configured(tmp_path, "orders", "news"), Users()) == ["refused"]
    engine = await node.open(0)
    assert await node.reload(configured(tmp_path, "orders", "news", "late"), Users()) == ["refused"]
    await node.serve(engine)
    assert queues_of(node) == {"orders", "news", "late"}
    assert await stop(node)


def routed(directory: Path, router: str) -> Configuration:
    text = XML.replace(
        "<addresses>",
        f"<connection-routers>{router}</connection-routers><addresses>",
    )
    return loads(text.format(addresses=""), file=str(directory / "broker.xml"))


async def test_an_acceptors_router_decides_about_its_clients(tmp_path: Path) -> None:
    shard = (
        '<connection-router name="{}"><key-type>USER_NAME</key-type><local-target-filter>{}</local-target-filter>'
        "</connection-router>"
    )
    around = Around()
    configuration = routed(tmp_path, shard.format("r", "a.*"))
    node = Node(configuration, Users(), Trail.off(), process=around, acceptors=around)
    await serve(node)
    assert around.services(AcceptorSettings()).router() is None
    services = around.services(AcceptorSettings(router="r"))

    def served(user: str) -> bool:
        return route(services, Client("STOMP", Peer(1, "::1", 5), Identity(user), None)) is None

    assert (served("ann"), served("bob")) == (True, False)
    await node.reload(routed(tmp_path, shard.format("r", "b.*") + shard.format("s", "x")), Users())
    assert (served("ann"), served("bob")) == (False, True)
    assert node.links.routers is not None
    assert [one["name"] for one in node.links.routers.describe()] == ["r", "s"]
    await node.reload(routed(tmp_path, shard.format("s", "x")), Users())
    assert [one["name"] for one in node.links.routers.describe()] == ["s"]
    assert await stop(node)


async def test_what_a_router_remembers_outlives_a_restart_where_it_is_told_to(tmp_path: Path) -> None:
    router = (
        '<connection-router name="{}"><key-type>USER_NAME</key-type><cache><persisted>true</persisted></cache>'
        '<policy name="FIRST_ELEMENT"/><pool><password>secret</password>'
        "<local-target-enabled>true</local-target-enabled><quorum-size>1</quorum-size><static-connectors><connector-ref>x</connector-ref></static-connectors></pool>"
        "</connection-router></connection-routers>"
    )
    connectors = '<connectors><connector name="x">tcp://127.0.0.1:1</connector></connectors><connection-routers>'
    remembered = []
    for name in ("r", "r", "other", "r"):
        text = XML.replace("<addresses>", connectors + router.format(name) + "<addresses>").format(addresses="")
        around = Around()
        node = Node(
            loads(text, file=str(tmp_path / "broker.xml")), Users(), Trail.off(), process=around, acceptors=around
        )
        await serve(node)
        assert node.links.routers is not None
        (shown,) = node.links.routers.describe()
        remembered.append(shown["remembered"])
        found = node.links.routers.get(name)
        assert found is not None
        assert found.decide(Client("AMQP", Peer(1, "::1", 5), Identity("ann"), "c")) is None
        await node.engine.stable()  # type: ignore[union-attr]  # it serves
        assert await stop(node)
    assert remembered == [0, 1, 0, 0], "what a router that is gone remembered is forgotten"


#: A router that serves nobody here, and looks for others in a group; a group of both kinds, and what needs them.
IN_GROUP = (
    '<connection-router name="r"><key-type>USER_NAME</key-type><policy name="FIRST_ELEMENT"/><pool>'
    '<discovery-group-ref discovery-group-name="g"/></pool></connection-router>'
)
GROUPS = (
    '<connectors><connector name="me">tcp://127.0.0.1:1</connector></connectors>'
    "<cluster-user>nodes</cluster-user><cluster-password>twins</cluster-password>"
    '<broadcast-groups><broadcast-group name="b">{0}<connector-ref>me</connector-ref></broadcast-group>'
    '</broadcast-groups><discovery-groups><discovery-group name="g">{0}</discovery-group></discovery-groups>'
    "<connection-routers>"
)


def grouped(directory: Path, group: str, router: str) -> Configuration:
    text = XML.replace("<addresses>", f"{GROUPS.format(group)}{router}</connection-routers><addresses>")
    return loads(text.format(addresses=""), file=str(directory / "broker.xml"))


async def test_a_reload_without_the_router_lets_go_of_its_group(tmp_path: Path) -> None:
    """Breaks when the socket of a discovery group stays for a router that is gone."""
    address, port = "239.255.7.12", free_udp_port()
    group = (
        f"<local-bind-address>127.0.0.1</local-bind-address><group-address>{address}</group-address>"
        f"<group-port>{port}</group-port>"
    )
    around = Around()
    node = Node(grouped(tmp_path, group, IN_GROUP), Users(), Trail.off(), process=around, acceptors=around)
    await serve(node)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
        with pytest.raises(OSError, match="in use"):
            another.bind((address, port))
        assert await node.reload(grouped(tmp_path, group, ""), Users()) == ["refused"]
        await asyncio.sleep(0)  # a socket is closed in the loop's next turn
        another.bind((address, port))
    assert await stop(node)


async def test_a_broker_is_found_by_others_also_without_its_router(tmp_path: Path) -> None:
    """Breaks when a router that goes takes the port along by which this broker announces itself (TCPPING).

    And when that port stays although the broker has stopped.
    """
    port = free_port()
    (tmp_path / "jgroups.xml").write_text(
        f"<config><TCP bind_addr='127.0.0.1' bind_port='{port}'/>"
        f"<TCPPING initial_hosts='127.0.0.1[{port}]' port_range='0'/></config>"
    )
    group = "<jgroups-file>jgroups.xml</jgroups-file><jgroups-channel>c</jgroups-channel>"
    around = Around()
    node = Node(grouped(tmp_path, group, IN_GROUP), Users(), Trail.off(), process=around, acceptors=around)
    await serve(node)

    async def said() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        size = int.from_bytes(await reader.readexactly(2), "little")
        found = await reader.readexactly(size)
        writer.close()
        return found

    (announcer,) = node.links._announcers
    assert isinstance(announcer, ExchangeAnnouncer)
    async with asyncio.timeout(30):
        await asyncio.gather(*announcer._putting)  # the first announcement
        assert await said()
        assert await node.reload(grouped(tmp_path, group, ""), Users()) == ["refused"]
        assert await said()
        assert await stop(node)
        await announcer._ending
        with pytest.raises(ConnectionRefusedError):
            await said()
