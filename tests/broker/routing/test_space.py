"""Where messages go: addresses, queues, wildcards, FQQN."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from pollux.config.address_settings import AddressSettings
from pollux.errors import InvalidRequestError, NoSuchAddressError, NoSuchQueueError
from pollux.message import Message, RoutingType
from pollux.routing.address import WildcardSyntax
from pollux.routing.queue import Queue
from pollux.routing.space import Address, AddressSpace
from pollux.routing.spec import QueueSpec

from .bench import Recorder, make_message

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


class World:
    def __init__(self, **wildcards: Any) -> None:
        self.space = AddressSpace(lambda _: AddressSettings(), WildcardSyntax(**wildcards))
        self._ids = 0

    def queue(self, address: str, name: str | None = None, kind: RoutingType = ANYCAST, **fields: Any) -> Queue:
        if self.space.address(address) is None:
            self.space.add_address(Address(address, (ANYCAST, MULTICAST)))
        self._ids += 1
        spec = QueueSpec(name or address, address, routing_type=kind, **fields)
        queue = Queue.create(spec, AddressSettings(), self._ids)
        self.space.add_queue(queue)
        return queue

    def route(self, address: str, kind: RoutingType | None = None, **fields: Any) -> list[str]:
        message: Message = make_message(1, fields.pop("properties", None), address=address, routing_type=kind, **fields)
        return [queue.name for queue in self.space.route(message)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_remembered_of_a_name_is_what_is_there(seed: int) -> None:
    """Queues and addresses come and go; only what that changes is forgotten, and all of that."""
    chance = random.Random(seed)  # noqa: S311
    world = World(routing=True)
    space = world.space
    addresses, queues = ("a.x", "a.y", "b", "a.*", "#"), ("q", "r", "s")
    names = (*addresses, *(f"{address}::{queue}" for address in (*addresses, "") for queue in queues))
    for _ in range(100):
        address, queue = chance.choice(addresses), chance.choice(queues)
        if space.queue(queue) is not None:
            space.remove_queue(queue)
        elif space.address(address) is not None and not space.address(address).queues and chance.random() < 0.5:  # type: ignore[union-attr]
            space.remove_address(address)
        else:
            world.queue(address, queue, chance.choice((ANYCAST, MULTICAST)))
        remembered = {name: sorted(each.name for each in space.queues_of(name)) for name in names}
        space.changed()
        assert remembered == {name: sorted(each.name for each in space.queues_of(name)) for name in names}


def test_a_creation_forgets_nothing_of_others() -> None:
    world = World()
    world.queue("a", "q")
    route = world.space._route("a")
    world.queue("b", "r")
    world.space.remove_queue("r")
    world.space.remove_address("b")
    assert world.space._route("a") is route
    world.queue("#", "s")
    assert world.space._route("a") is not route


def test_anycast_in_turn_multicast_to_all() -> None:
    world = World()
    for name in ("q1", "q2"):
        world.queue("a", name)
    for name in ("s1", "s2"):
        world.queue("a", name, MULTICAST)
    assert world.route("a") == ["q1", "s1", "s2"]
    assert world.route("a") == ["q2", "s1", "s2"]
    assert world.route("a") == ["q1", "s1", "s2"]


def test_a_message_may_ask_for_one_kind() -> None:
    world = World()
    world.queue("a", "q")
    world.queue("a", "s", MULTICAST)
    assert world.route("a", ANYCAST) == ["q"]
    assert world.route("a", MULTICAST) == ["s"]
    assert world.route("a") == ["q", "s"]


def test_no_queue_no_route() -> None:
    world = World()
    world.space.add_address(Address("empty", (MULTICAST,)))
    assert world.route("empty") == []
    assert world.route("nowhere") == []


def test_filters_and_the_turn() -> None:
    world = World()
    world.queue("a", "red", selector="color = 'red'")
    world.queue("a", "all")
    world.queue("a", "blue", MULTICAST, selector="color = 'blue'")
    routes = [world.route("a", properties={"color": "red"}) for _ in range(3)]
    assert routes == [["red"], ["all"], ["red"]]
    assert [world.route("a", properties={"color": "blue"}) for _ in range(2)] == [["all", "blue"]] * 2


def test_fqqn() -> None:
    world = World()
    world.queue("a", "q1")
    world.queue("a", "q2")
    world.queue("b", "s", MULTICAST, selector="n = 1")
    assert world.route("a::q2") == ["q2"]
    assert world.route("a::q2", MULTICAST) == ["q2"], "a queue's own name is enough"
    assert world.route("b::q2") == []
    assert world.route("b::s", properties={"n": 1}) == ["s"]
    assert world.route("b::s", properties={"n": 2}) == []
    assert world.route("::q1") == ["q1"]
    found = world.space.queue("a::q1")
    assert found is not None
    assert found.name == "q1"
    assert world.space.queue("b::q1") is None
    assert world.space.queue("q1") is found
    assert world.space.queue_by_id(found.id) is found


def test_wildcard_bindings() -> None:
    world = World()
    world.queue("a.b")
    world.queue("a.*")
    world.queue("a.#", "deep", MULTICAST)
    assert sorted(world.route("a.b")) == ["a.*", "a.b", "deep"]
    assert sorted(world.route("a.c")) == ["a.*", "deep"]
    assert world.route("a.b.c") == ["deep"]
    assert world.route("b") == []
    world.space.remove_queue("a.*")
    world.space.remove_address("a.*")
    assert world.route("a.c") == ["deep"]


def test_each_matching_address_has_its_own_turn() -> None:
    world = World()
    for name in ("w1", "w2"):
        world.queue("a.*", name)
    world.queue("a.b", "own")
    assert [sorted(world.route("a.b")) for _ in range(3)] == [["own", "w1"], ["own", "w2"], ["own", "w1"]]


def test_the_turn_survives_changes_elsewhere() -> None:
    world = World()
    for name in ("q1", "q2"):
        world.queue("a", name)
    routes = []
    for i in range(4):
        routes += world.route("a")
        world.queue(f"other.{i}")
    assert routes == ["q1", "q2", "q1", "q2"]


def test_wildcard_routing_switched_off() -> None:
    world = World(routing=False)
    world.queue("a.*")
    assert world.route("a.b") == []
    assert world.route("a.*") == ["a.*"]


def test_a_pattern_is_an_address_too() -> None:
    world = World()
    world.queue("a.*")
    assert world.route("a.*") == ["a.*"]


def test_disabled_and_purging_queues() -> None:
    world = World()
    world.queue("a", "off", MULTICAST, enabled=False)
    purging = world.queue("a", "purging", MULTICAST, purge_on_no_consumers=True)
    assert world.route("a") == []
    consumer = Recorder()
    purging.add_consumer(consumer)
    assert world.route("a") == ["purging"]
    purging.remove_consumer(consumer)
    assert world.route("a") == []


def test_queues_that_do_not_take_their_own_clients_messages() -> None:
    world = World()
    world.queue("a", "s", MULTICAST, no_local_origin=5)
    assert world.route("a", origin=5) == []
    assert world.route("a", origin=6) == ["s"]


def test_changes_are_seen_at_once() -> None:
    world = World()
    queue = world.queue("a", "q")
    assert world.route("a") == ["q"]
    queue.attributes.enabled = False
    world.space.changed()
    assert world.route("a") == []
    world.space.remove_queue("q")
    assert world.route("a::q") == []
    assert world.space.queue_by_id(queue.id) is None
    world.queue("a", "q")
    assert world.route("a::q") == ["q"]


def test_what_is_refused() -> None:
    world = World()
    world.queue("a", "q")
    space = world.space
    with pytest.raises(InvalidRequestError, match="exists already"):
        space.add_address(Address("a", (ANYCAST,)))
    for name in ("", "a::b"):
        with pytest.raises(InvalidRequestError, match="is not the name of an address"):
            space.add_address(Address(name, (ANYCAST,)))
    with pytest.raises(InvalidRequestError, match="queue 'q' exists already"):
        world.queue("a", "q")
    with pytest.raises(InvalidRequestError, match="still has 1 queues"):
        space.remove_address("a")
    with pytest.raises(NoSuchAddressError, match="address 'x' does not exist"):
        space.remove_address("x")
    with pytest.raises(NoSuchQueueError, match="queue 'x' does not exist"):
        space.remove_queue("x")
    space.add_address(Address("m", (MULTICAST,)))
    with pytest.raises(InvalidRequestError, match="does not allow ANYCAST"):
        world.queue("m")
    stray = Queue.create(QueueSpec("s", "gone"), AddressSettings(), 99)
    with pytest.raises(NoSuchAddressError, match="of queue 's' does not exist"):
        space.add_queue(stray)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollux.routing.space._CACHE_LIMIT", 10)
    world = World()
    world.queue("#", "all", MULTICAST)
    for i in range(100):
        assert world.route(f"x.{i}") == ["all"]
        world.space.settings(f"x.{i}")
    assert len(world.space._routes) <= 10
    assert len(world.space._settings) <= 10


def test_settings_are_cached_until_reloaded() -> None:
    calls = []

    def resolve(name: str) -> AddressSettings:
        calls.append(name)
        return AddressSettings()

    space = AddressSpace(resolve)
    space.settings("a")
    space.settings("a")
    assert calls == ["a"]
    changed = replace(AddressSettings(), max_delivery_attempts=3)
    space.reload_settings(lambda _: changed)
    assert space.settings("a").max_delivery_attempts == 3


def test_listing() -> None:
    world = World()
    world.queue("a.b", "q")
    world.queue("a.*", "w", MULTICAST)
    assert [queue.name for queue in world.space.queues_of("a.b")] == ["q", "w"]
    assert [queue.name for queue in world.space.queues] == ["q", "w"]
    assert [address.name for address in world.space.addresses] == ["a.b", "a.*"]
