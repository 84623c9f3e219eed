"""Links between nodes: what goes over them arrives once, in order, as it was, whatever breaks meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.engine.conftest import Receiver, message
from pollux.config.address_settings import AddressFullPolicy
from pollux.errors import InvalidRequestError, LimitError
from pollux.formats.forwards import ROUTE_TO
from pollux.management import metrics
from pollux.message import RoutingType
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio


async def pair(nodes: Make, **more: Any) -> tuple[Node, Node]:
    """Two nodes with a queue `orders` each, the first one linked to the second."""
    one, two = await nodes(**more)
    for node in (one, two):
        node.office.queue("orders")
    one.reach(two)
    await until(lambda: (two.id, "orders") in one.cluster.table.queues)
    return one, two


def known(one: Node, two: Node, name: str = "orders") -> bool:
    path = one.cluster.table.path((two.id, name))
    return path is not None and path.connected and path.record.has_consumers


async def consumer(one: Node, two: Node, **attributes: Any) -> Receiver:
    """A consumer at the second node, of which the first one knows."""
    receiver = Receiver(**attributes)
    two.post.attach(two.office.post.queue("orders"), receiver)
    await until(lambda: known(one, two))
    return receiver


async def test_a_node_is_not_taken_for_gone_when_one_of_two_links_to_it_ends(nodes: Make) -> None:
    """As when both brokers of a pair are tried while it changes over: one link ends when the other one is up."""
    one, two = await pair(nodes)
    await consumer(one, two)
    one.cluster.lost(two.id)
    assert known(one, two)
    one.connector_to(two).failing = True
    one.connector_to(two).links[-1].cut()
    await until(lambda: not known(one, two))


async def test_metrics_of_links_and_of_what_is_known(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    one.post.send(message())
    await receiver.wait(1)
    await until(lambda: one.cluster.peers.links[0].confirmed == 1)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics._clusters(one.connections)
        for sample in family.samples
    }
    link = ("c", "node2")
    assert found["pollux_cluster_link_up", *link] == 1
    assert found["pollux_cluster_link_messages", *link] == 0
    assert found["pollux_cluster_link_in_flight", *link] == 0
    assert found["pollux_cluster_link_full_addresses", *link] == 0
    assert found["pollux_cluster_link_messages_sent_total", *link] == 1
    assert found["pollux_cluster_link_messages_confirmed_total", *link] == 1
    assert (found["pollux_cluster_nodes", "c"], found["pollux_cluster_routes", "c"]) == (2, 1)
    assert found["pollux_cluster_messages_moved_total", "c"] == 0


async def test_a_message_arrives_as_it_was(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    sent = message(b"body", priority=7, timestamp=5, duplicate_id=b"dup", group="g", last_value="v", user="alice")
    sent.annotations = {"a": 1}
    one.post.send(sent)
    (got,) = await receiver.wait(1)
    names = ("encoding", "address", "data", "durable", "priority", "timestamp", "duplicate_id", "group", "last_value")
    assert [getattr(got.message, name) for name in names] == [getattr(sent, name) for name in names]
    assert ROUTE_TO not in (got.message.annotations or {})
    assert got.message.annotations == sent.annotations
    two.post.acknowledge([got])
    await until(lambda: one.cluster.peers.links[0].confirmed == 1)
    assert not one.post.message_count(one.cluster.spreading.outlets[two.id].queue)


async def test_a_producers_duplicate_is_known_where_it_arrived_and_where_it_was_sent(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    one.post.send(message(b"1", duplicate_id=b"d"))
    await receiver.wait(1)
    one.post.send(message(b"again", duplicate_id=b"d"))
    two.post.send(message(b"and again", duplicate_id=b"d"))
    one.post.send(message(b"2"))
    await receiver.wait(2)
    assert receiver.bodies == [b"1", b"2"]
    await one.reopen()
    one.post.send(message(b"after a restart", duplicate_id=b"d"))
    await one.office.stable()
    assert one.post.message_count(one.post.queue("orders")) == 0


def _half(receiver: Receiver, number: int) -> bool:
    return len(receiver.got) > number // 2


async def test_a_link_that_breaks_again_and_again_loses_and_doubles_nothing(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    connector = one.connectors[two.id]
    for number in range(300):
        one.post.send(message(str(number).encode()))
        if number % 25 == 0:
            one.post.when_stable(None)
            await until(partial(_half, receiver, number))
            connector.links[-1].cut()
            await until(lambda: known(one, two))
    await receiver.wait(300)
    bodies = [int(body) for body in receiver.bodies]
    assert sorted(bodies) == list(range(300))
    assert len(connector.links) > 5


async def test_what_was_taken_in_is_known_after_a_restart_of_the_receiver(nodes: Make) -> None:
    """The confirm is lost, and the receiver killed: the sender sends it again, and it is left out."""
    one, two = await pair(nodes)
    await consumer(one, two, credit=0)
    link = one.connectors[two.id].links[-1]
    link.ends[1].cut = True  # nothing comes back any more
    one.connectors[two.id].allowed.clear()
    one.post.send(message(b"once"))
    await until(lambda: two.post.message_count(two.post.queue("orders")) == 1)
    link.cut()
    await two.reopen()
    one.connectors[two.id].allowed.set()
    await until(lambda: not one.post.message_count(one.cluster.spreading.outlets[two.id].queue))
    await two.office.stable()
    assert two.post.message_count(two.post.queue("orders")) == 1
    assert two.cluster.incoming[one.id].taken == 0


async def test_what_waits_outlives_a_restart_of_the_sender_which_knows_the_queues_again(nodes: Make) -> None:
    one, two = await pair(nodes)
    two.post.create_queue(QueueSpec("kept", "news", routing_type=RoutingType.MULTICAST))
    await until(lambda: (two.id, "kept") in one.cluster.table.queues)
    await one.reopen()
    path = one.cluster.table.path((two.id, "kept"))
    assert path is not None
    assert not path.connected
    one.post.send(message(b"waits", "news", routing_type=RoutingType.MULTICAST))
    await one.reopen()
    one.reach(two)
    await until(lambda: two.post.message_count(two.post.queue("kept")) == 1)


async def test_a_large_message_goes_in_pieces_and_others_keep_their_place(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    writer = one.post.storage.large.create()
    for _ in range(40):
        writer.write(b"x" * 100_000)
    large = message(b"head")
    large.large = writer.finish()
    one.post.send(message(b"before"))
    one.post.send(large)
    one.post.send(message(b"after"))
    got = await receiver.wait(3)
    assert receiver.bodies == [b"before", b"head", b"after"]
    body = got[1].message.large
    assert body is not None
    assert body.size == 4_000_000
    reader = two.post.storage.large.open(body)
    assert b"".join([piece async for piece in reader]) == b"x" * 4_000_000
    reader.close()
    await until(lambda: one.cluster.peers.links[0].confirmed == 3)
    await one.office.stable()
    await until(lambda: not list((one.office.configuration.large_messages_directory).glob("*.msg")))


async def test_a_message_larger_than_a_frame(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    one.post.send(message(b"y" * 3_000_000))
    one.post.send(message(b"small"))
    await receiver.wait(2)
    assert list(map(len, receiver.bodies)) == [3_000_000, 5]


async def sent_and_not_arrived(nodes: Make) -> tuple[Node, Node]:
    """Two nodes, of which the first has sent a message whose queue is gone before the link is made again."""
    one, two = await pair(nodes)
    await consumer(one, two)
    one.connectors[two.id].allowed.clear()
    one.connectors[two.id].links[-1].ends[0].cut = True  # it is sent, and does not arrive
    one.post.delete_queue("orders")
    one.post.send(message(b"anycast"))
    await one.office.stable()
    one.connectors[two.id].links[-1].cut()
    two.post.delete_queue("orders")
    return one, two


async def test_a_queue_that_is_gone_when_a_message_arrives(nodes: Make) -> None:
    """ANYCAST: it goes to another queue of the address, else one is made for it."""
    one, two = await sent_and_not_arrived(nodes)
    one.connectors[two.id].allowed.set()
    await until(lambda: not one.post.message_count(one.cluster.spreading.outlets[two.id].queue))
    assert two.post.message_count(two.post.queue("orders")) == 1


async def test_a_message_that_has_no_place_yet_stays_with_its_sender(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when what cannot be placed is logged and confirmed: it is on no disk then."""
    one, two = await sent_and_not_arrived(nodes)
    place = two.cluster.place_again
    refused: list[tuple[Any, ...]] = []

    def place_again(*given: Any) -> bool:
        assert given[1].moved is False
        if len(refused) < 2:
            refused.append(given)
            raise LimitError("too many queues")
        return place(*given)

    monkeypatch.setattr(two.cluster, "place_again", place_again)
    one.connectors[two.id].allowed.set()
    await until(lambda: not one.post.message_count(one.cluster.spreading.outlets[two.id].queue))
    assert len(refused) == 2
    assert two.post.message_count(two.post.queue("orders")) == 1


@pytest.mark.parametrize("policy", [AddressFullPolicy.BLOCK, AddressFullPolicy.FAIL])
async def test_a_full_address_holds_its_link_and_goes_on(nodes: Make, policy: AddressFullPolicy) -> None:
    """With FAIL, too: who sent it was told that it is stored."""
    one, two = await nodes(producer_window_size=2000)
    two.office.settings("orders", max_size_bytes=30_000, address_full_policy=policy)
    await two.reopen()
    two.office.queue("orders")
    one.office.queue("orders")
    one.reach(two)
    await until(lambda: (two.id, "orders") in one.cluster.table.queues)
    receiver = await consumer(one, two, credit=0)
    for number in range(40):
        one.post.send(message(b"z" * 20_000 + str(number).encode()))
    await until(lambda: not two.post.accounts.has_room("orders"))
    await one.office.stable()
    assert two.post.message_count(two.post.queue("orders")) < 20
    receiver.credit = 1000
    two.post.wake(two.post.queue("orders"))
    taken = 0
    while taken < 40:
        got = await receiver.wait(taken + 1)
        two.post.acknowledge(got[taken:])
        taken = len(got)
    assert taken == 40


async def test_somebody_who_sends_to_the_links_queue_gets_a_dead_letter(nodes: Make) -> None:
    one, two = await pair(nodes)
    outlet = one.cluster.spreading.outlets[two.id].queue
    one.post.send(message(b"not of a link", outlet.name))
    await until(lambda: one.post.dead_letters.dropped == 1)
    receiver = await consumer(one, two)
    one.post.send(message(b"goes on"))
    await receiver.wait(1)


async def test_a_copied_data_directory_and_another_name_are_refused(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await nodes()
    two.cluster.node = one.id
    two.cluster.hub.process = b"another"
    link = one.reach(two)
    await until(lambda: "is a copy" in link.reason)
    two.cluster.node = two.id
    await until(lambda: link.connected)
    one.connectors[two.id].links[-1].cut()
    two.cluster.settings = type(two.cluster.settings)(*["other", *list(_values(two.cluster.settings))[1:]])
    await until(lambda: "give both one name" in link.reason)
    said = caplog.text.count("cluster link refused")
    assert said
    tries = len(one.connectors[two.id].links)
    await until(lambda: len(one.connectors[two.id].links) > tries + 1)
    assert caplog.text.count("cluster link refused") == said, "it comes again and again, and is told of once"


@pytest.mark.parametrize(
    ("name", "said"), [("node1", "another broker of that name has"), ("other", "broker 'other' has")]
)
@pytest.mark.parametrize("older", [0, 1])
async def test_a_copy_is_no_link_to_oneself_whatever_its_name_and_epoch(
    nodes: Make, name: str, said: str, older: int
) -> None:
    one, two = await nodes()
    assert one.cluster.name == "node1"
    assert one.cluster.hub.epoch == two.cluster.hub.epoch > 0
    link = one.reach(two)
    two.cluster.hub.node_id = two.cluster.node = one.id
    two.cluster.hub.name = two.cluster.name = name
    two.cluster.hub.process = b"another"
    one.cluster.hub.epoch += older
    await until(lambda: said in link.reason)
    assert "its data directory is a copy; stop one of them, and give it an empty one" in link.reason
    assert ("of a pair the later one is right" in link.reason) == bool(older)
    assert not link.useless, "it goes on when the copy was given another id"
    assert not link.connected
    two.cluster.hub.node_id = two.cluster.node = two.id
    await until(lambda: link.connected)


async def test_a_copy_of_a_node_does_not_take_turns_with_it(nodes: Make) -> None:
    one, two, copy = await nodes(3)
    copy.cluster.hub.node_id = copy.cluster.node = two.id
    copy.cluster.hub.name = copy.cluster.name = two.cluster.name
    copy.cluster.hub.process = b"another"
    assert copy.cluster.hub.epoch == two.cluster.hub.epoch
    first = two.reach(one)
    await until(lambda: first.connected)
    second = copy.reach(one)
    await until(lambda: "another broker of that name has the node id of broker 'node2'" in second.reason)
    tries = len(copy.connectors[one.id].links)
    await until(lambda: len(copy.connectors[one.id].links) > tries + 2)
    assert len(two.connectors[one.id].links) == 1, "it has the link that it had"
    two.connectors[one.id].links[-1].cut()
    await until(lambda: first.connected or second.connected)


def _values(settings: Any) -> list[Any]:
    return [getattr(settings, name) for name in settings.__struct_fields__]


async def test_a_link_to_oneself_ends_and_a_second_one_to_a_node_too(nodes: Make) -> None:
    one, two = await nodes()
    first = one.reach(two)
    await until(lambda: first.connected)
    second = one.reach(two)
    await until(lambda: second.reason == "it leads where node2 does")
    own = one.reach(one)
    await until(lambda: own.reason == "it leads to this broker itself")
    assert first.connected


async def test_by_filter_and_only_what_a_filter_lets_through(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two, selector=parse("JMSPriority > 5"))
    one.post.send(message(b"low"))
    one.post.send(message(b"high", priority=9))
    await receiver.wait(1)
    await one.office.stable()
    assert receiver.bodies == [b"high"]
    assert one.post.message_count(one.post.queue("orders")) == 1


async def test_a_topic_goes_to_each_subscription_once(nodes: Make) -> None:
    one, two = await nodes()
    for node, names in ((one, ("a", "shared")), (two, ("b", "c", "shared"))):
        for name in names:
            node.post.create_queue(QueueSpec(name, "news.#", routing_type=RoutingType.MULTICAST))
    one.reach(two)
    await until(lambda: len(one.cluster.table.queues) == 3)
    for number in range(4):
        one.post.send(message(str(number).encode(), "news.today", routing_type=RoutingType.MULTICAST))
    await until(lambda: two.post.message_count(two.post.queue("c")) == 4)
    counts = {name: node.post.message_count(node.post.queue(name)) for node, name in ((one, "a"), (two, "b"))}
    assert counts == {"a": 4, "b": 4}
    shared = [node.post.message_count(node.post.queue("shared")) for node in (one, two)]
    assert sum(shared) == 4
    assert one.cluster.peers.links[0].sent == 4


async def test_an_address_that_is_excluded_is_not_told_of(nodes: Make) -> None:
    one, two = await nodes(address="orders,!orders.private")
    for name in ("orders.public", "orders.private", "news"):
        two.office.queue(name)
    one.reach(two)
    await until(lambda: (two.id, "orders.public") in one.cluster.table.queues)
    assert set(one.cluster.table.queues) == {(two.id, "orders.public")}


async def test_a_queue_that_comes_and_goes_is_told_of(nodes: Make) -> None:
    one, two = await pair(nodes)
    two.office.queue("later")
    await until(lambda: (two.id, "later") in one.cluster.table.queues)
    two.post.delete_queue("later")
    await until(lambda: (two.id, "later") not in one.cluster.table.queues)


async def test_a_message_out_of_its_place_gets_a_new_number(nodes: Make) -> None:
    """However it came about: what comes after a later one was sent is not taken for what the peer has."""
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    link = one.cluster.peers.links[0]
    outlet = one.cluster.spreading.outlets[two.id].queue
    one.connectors[two.id].allowed.clear()
    one.post.delete_queue("orders")
    one.connectors[two.id].links[-1].cut()
    for body in (b"1", b"2"):
        one.post.forward(one.cluster.spreading.forward(message(body), two.id, ("orders",)), 0)
    await one.office.stable()
    first, second = outlet.iterate()
    first.message.annotations, second.message.annotations = second.message.annotations, first.message.annotations
    one.connectors[two.id].allowed.set()
    await receiver.wait(2)
    await until(lambda: not one.post.message_count(outlet))
    assert sorted(receiver.bodies) == [b"1", b"2"]
    assert link.connected


async def test_a_message_that_can_never_be_placed_is_given_up_on_request(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up those behind it until then; it is a dead letter of its own address."""
    one, two = await nodes()
    one.office.settings("orders", dead_letter_address="dead")
    await one.reopen()
    two.office.queue("orders")
    one.office.queue("dead")
    one.reach(two)
    await until(lambda: (two.id, "orders") in one.cluster.table.queues)
    await consumer(one, two)
    with pytest.raises(InvalidRequestError, match="nothing is given up"):
        one.connections.forget("node2", first=True)
    one.connectors[two.id].allowed.clear()
    one.connectors[two.id].links[-1].ends[0].cut = True
    place = two.cluster.place_again

    def place_again(message: Any, *given: Any, **more: Any) -> bool:
        if message.data == b"never":
            raise LimitError("too many queues")
        return place(message, *given, **more)

    monkeypatch.setattr(two.cluster, "place_again", place_again)
    for body in (b"never", b"behind it"):
        one.post.send(message(body))
    await one.office.stable()
    one.connectors[two.id].links[-1].cut()
    two.post.delete_queue("orders")
    one.connectors[two.id].allowed.set()
    await until(lambda: len(one.connectors[two.id].links) > 4)
    assert one.post.message_count(one.cluster.spreading.outlets[two.id].queue) == 2
    one.connections.forget("node2", first=True)
    await until(lambda: not one.post.message_count(one.cluster.spreading.outlets[two.id].queue))
    assert [reference.message.data for reference in two.post.queue("orders").iterate()] == [b"behind it"]
    await until(lambda: one.post.message_count(one.post.queue("dead")) == 1)


async def test_other_subscriptions_do_not_get_it_a_second_time(nodes: Make) -> None:
    one, two, three = await nodes(3)
    for node in (two, three):
        node.post.create_queue(QueueSpec(f"of{node.id[0]}", "news", routing_type=RoutingType.MULTICAST))
    for source, sink in ((one, two), (one, three), (two, three)):
        link = source.reach(sink)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(lambda: len(one.cluster.table.queues) == 2)
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].cut()
    one.post.send(message(b"x", "news"))
    last = three.post.queue(f"of{three.id[0]}")
    await until(lambda: three.post.message_count(last) == 1)
    two.post.delete_queue(f"of{two.id[0]}")
    connector.allowed.set()
    await until(lambda: not one.post.message_count(one.cluster.spreading.outlets[two.id].queue))
    await two.office.stable()
    await until(lambda: not any(link.in_flight for link in two.cluster.peers.links))
    await three.office.stable()
    assert three.post.message_count(last) == 1


async def test_a_queue_that_comes_between_two_messages_gets_the_second(nodes: Make) -> None:
    """A name that is remembered is true until a queue changes, at this node or elsewhere."""
    one, two = await nodes()
    two.post.create_queue(QueueSpec("there", "news", routing_type=RoutingType.MULTICAST))
    one.reach(two)
    await until(lambda: (two.id, "there") in one.cluster.table.queues)
    one.post.send(message(b"1", "news"))
    one.post.create_queue(QueueSpec("here", "news", routing_type=RoutingType.MULTICAST))
    one.post.send(message(b"2", "news"))
    two.post.create_queue(QueueSpec("later", "news", routing_type=RoutingType.MULTICAST))
    await until(lambda: (two.id, "later") in one.cluster.table.queues)
    one.post.send(message(b"3", "news"))
    one.post.delete_queue("here")
    one.post.send(message(b"4", "news"))
    for name, bodies in (("there", [b"1", b"2", b"3", b"4"]), ("later", [b"3", b"4"])):
        await until(lambda name=name, bodies=bodies: two.post.message_count(two.post.queue(name)) == len(bodies))  # type: ignore[misc]
        assert [each.message.data for each in two.post.queue(name).iterate()] == bodies
