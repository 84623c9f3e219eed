"""Pure decisions: duplicates, paging, what is created and deleted automatically, queue attributes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux.config.address_settings import AddressFullPolicy, AddressSettings, PageFullPolicy
from pollux.errors import InvalidRequestError, NoSuchAddressError, NoSuchQueueError
from pollux.message import RoutingType
from pollux.routing import lifecycle
from pollux.routing.duplicates import DuplicateCache
from pollux.routing.paging import Gauge, PageUsage, Verdict, admit, rejects, room_for_pages
from pollux.routing.queue import Queue
from pollux.routing.selector import SelectorError
from pollux.routing.space import Address, AddressSpace
from pollux.routing.spec import QueueSpec, resolve

from .bench import Recorder, make_message

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


# -- duplicate ids


def test_duplicates() -> None:
    cache = DuplicateCache(3)
    assert [cache.add(each) for each in (b"1", b"2", b"3", b"2")] == [True, True, True, False]
    assert cache.add(b"4")
    assert b"1" not in cache
    assert list(cache) == [b"2", b"3", b"4"]
    cache.remove(b"3")
    assert cache.add(b"3"), "rolled back, it may be sent again"
    assert set(cache) == {b"4", b"3"}, "the oldest made room"


def test_no_duplicates_are_kept_with_a_limit_of_zero() -> None:
    cache = DuplicateCache(0)
    assert cache.add(b"1")
    assert cache.add(b"1")
    assert len(cache) == 0


def test_restore_and_resize() -> None:
    cache = DuplicateCache(3)
    cache.restore([b"1", b"2", b"3", b"4"])
    assert list(cache) == [b"2", b"3", b"4"]
    cache.resize(2)
    assert list(cache) == [b"3", b"4"]
    cache.add(b"5")
    assert list(cache) == [b"4", b"5"]
    cache.resize(0)
    assert list(cache) == []


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["add", "add", "add", "remove"]), st.integers(0, 9)), max_size=60),
)
def test_the_cache_against_a_list(limit: int, operations: list[tuple[str, int]]) -> None:
    cache = DuplicateCache(limit)
    slots: list[bytes | None] = [None] * limit
    at = 0
    for what, number in operations:
        each = bytes([number])
        if what == "add":
            assert cache.add(each) is (each not in slots)
            if each not in slots:
                slots[at] = each
                at = (at + 1) % limit
        else:
            cache.remove(each)
            slots = [None if slot == each else slot for slot in slots]
        assert set(cache) == {slot for slot in slots if slot is not None}
        assert len(cache) == len(set(cache)) <= limit


# -- full addresses


def test_the_gauge_has_a_low_water_mark() -> None:
    gauge = Gauge(max_bytes=1000)
    gauge.add(999)
    assert not gauge.full
    gauge.add(1)
    assert gauge.full
    gauge.remove(50)
    assert gauge.full
    gauge.remove(50)
    assert not gauge.full
    gauge.add(99)
    assert not gauge.full
    assert (gauge.bytes, gauge.messages) == (999, 1)


def test_the_gauge_counts_messages_too() -> None:
    gauge = Gauge(max_messages=10)
    gauge.add(5, messages=10)
    assert gauge.full
    gauge.remove(1)
    assert not gauge.full
    gauge.limit(-1, 0)
    gauge.remove(4, 9)
    assert gauge.full, "a limit of zero is always reached"
    gauge.limit(-1, -1)
    assert not gauge.full


def full(size: int = 100) -> Gauge:
    gauge = Gauge(max_bytes=10)
    gauge.add(size)
    return gauge


def policy(name: str, **fields: Any) -> AddressSettings:
    return AddressSettings(address_full_policy=AddressFullPolicy(name), **fields)


@pytest.mark.parametrize(
    ("settings", "address", "broker", "pages", "verdict"),
    [
        (policy("PAGE"), Gauge(), Gauge(), PageUsage(), Verdict.ACCEPT),
        (policy("PAGE"), full(), Gauge(), PageUsage(), Verdict.PAGE),
        (policy("BLOCK"), full(), Gauge(), PageUsage(), Verdict.BLOCK),
        (policy("FAIL"), full(), Gauge(), PageUsage(), Verdict.FAIL),
        (policy("DROP"), full(), Gauge(), PageUsage(), Verdict.DROP),
        (policy("BLOCK"), Gauge(), full(), PageUsage(), Verdict.BLOCK),
        (policy("PAGE"), Gauge(), full(), PageUsage(), Verdict.PAGE),
        (policy("PAGE"), Gauge(), Gauge(), PageUsage(active=True), Verdict.PAGE),
        (policy("PAGE", page_limit_bytes=50), full(), Gauge(), PageUsage(True, 50, 1), Verdict.PAGE),
        (
            policy("PAGE", page_limit_bytes=50, page_full_policy=PageFullPolicy.FAIL),
            full(),
            Gauge(),
            PageUsage(True, 50, 1),
            Verdict.FAIL,
        ),
        (
            policy("PAGE", page_limit_messages=5, page_full_policy=PageFullPolicy.DROP),
            full(),
            Gauge(),
            PageUsage(True, 1, 5),
            Verdict.DROP,
        ),
        (
            policy("PAGE", page_limit_messages=5, page_full_policy=PageFullPolicy.DROP),
            full(),
            Gauge(),
            PageUsage(True, 1, 4),
            Verdict.PAGE,
        ),
        # What came from other nodes, or as dead letters, is in pages, and counts.
        (policy("DROP"), Gauge(max_bytes=10), Gauge(), PageUsage(True, 10, 1), Verdict.DROP),
        (policy("DROP"), Gauge(max_bytes=10), Gauge(), PageUsage(True, 9, 1), Verdict.PAGE),
        (policy("BLOCK"), Gauge(max_bytes=10), Gauge(), PageUsage(True, 10, 1), Verdict.BLOCK),
        (policy("FAIL"), Gauge(max_bytes=10), Gauge(), PageUsage(True, 10, 1), Verdict.FAIL),
        (policy("BLOCK"), Gauge(max_bytes=10), Gauge(), PageUsage(True, 9, 1), Verdict.PAGE),
        (policy("BLOCK"), Gauge(), full(), PageUsage(True, 9, 1), Verdict.BLOCK),
    ],
)
def test_admit(settings: AddressSettings, address: Gauge, broker: Gauge, pages: PageUsage, verdict: Verdict) -> None:
    assert admit(settings, address, broker, pages) is verdict


def test_the_reject_threshold() -> None:
    settings = policy("BLOCK", max_size_bytes_reject_threshold=200)
    assert not rejects(settings, full(199))
    assert rejects(settings, full(200))
    assert not rejects(policy("BLOCK"), full(10**9))
    assert not rejects(policy("PAGE", max_size_bytes_reject_threshold=1), full())


@pytest.mark.parametrize(
    ("fields", "used", "room"),
    [
        ({}, (0, 0, 0), (-1, 20 * 2**20)),
        ({"max_read_page_messages": 10}, (0, 4, 2), (6, 20 * 2**20)),
        ({"max_read_page_messages": 10, "prefetch_page_messages": 3}, (0, 4, 2), (1, 20 * 2**20)),
        ({"max_read_page_bytes": 100}, (150, 4, 2), (-1, 0)),
        ({"max_read_page_bytes": -1, "prefetch_page_bytes": 60}, (50, 4, 2), (-1, 10)),
        ({"max_read_page_bytes": -1}, (50, 4, 2), (-1, -1)),
    ],
)
def test_room_for_pages(fields: dict[str, Any], used: tuple[int, int, int], room: tuple[int, int]) -> None:
    assert room_for_pages(AddressSettings(**fields), *used) == room


# -- queue attributes


def test_attributes_come_from_the_request_then_from_the_settings() -> None:
    settings = AddressSettings(
        default_max_consumers=5, default_ring_size=7, default_exclusive_queue=True, auto_delete_queues_delay=30
    )
    attributes = resolve(QueueSpec("q", "a", max_consumers=1, exclusive=False), settings)
    assert (attributes.max_consumers, attributes.ring_size, attributes.exclusive) == (1, 7, False)
    assert attributes.routing_type is settings.default_queue_routing_type
    assert not attributes.auto_delete
    assert attributes.auto_delete_delay == 30
    assert resolve(QueueSpec("q", "a", auto_created=True), settings).auto_delete
    assert resolve(QueueSpec("q", "a"), replace(settings, auto_delete_created_queues=True)).auto_delete
    assert resolve(QueueSpec("q", "a"), replace(settings, default_last_value_key="k")).last_value


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "a::b"}, "must not contain '::'"),
        ({"temporary": True}, "cannot be both temporary and durable"),
        ({"max_consumers": -2}, "max-consumers is -2, least is -1"),
        ({"consumers_before_dispatch": -1}, "least is 0"),
    ],
)
def test_contradictory_requests(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        QueueSpec(**{"name": "q", "address": "a", **fields})


def test_a_bad_filter_is_refused() -> None:
    with pytest.raises(SelectorError):
        Queue.create(QueueSpec("q", "a", selector="a ="), AddressSettings(), 1)
    assert Queue.create(QueueSpec("q", "a", selector="  "), AddressSettings(), 1).selector is None


# -- created automatically


def space(settings: AddressSettings | None = None, **addresses: tuple[RoutingType, ...]) -> AddressSpace:
    made = AddressSpace(lambda _: settings or AddressSettings())
    for name, types in addresses.items():
        made.add_address(Address(name, types))
    return made


NO_QUEUES = AddressSettings(auto_create_queues=False)
NO_ADDRESSES = AddressSettings(auto_create_addresses=False)


def test_a_producer_of_anycast_creates_address_and_queue() -> None:
    plan = lifecycle.plan_producer(space(), "a", ANYCAST)
    assert plan.address
    assert plan.needed
    assert plan.queue == QueueSpec("a", "a", routing_type=ANYCAST, auto_created=True)


def test_a_producer_of_multicast_creates_the_address_only() -> None:
    plan = lifecycle.plan_producer(space(), "a", MULTICAST)
    assert (plan.address, plan.queue) == (True, None)
    assert not lifecycle.plan_producer(space(a=(MULTICAST,)), "a", MULTICAST).needed


def test_a_producer_that_does_not_say_gets_what_the_address_has() -> None:
    assert lifecycle.plan_producer(space(), "a", None).routing_type is MULTICAST
    plan = lifecycle.plan_producer(space(a=(ANYCAST,)), "a", None)
    assert plan.routing_type is ANYCAST
    assert plan.queue is not None


def test_another_routing_type_is_added() -> None:
    plan = lifecycle.plan_consumer(space(a=(ANYCAST,)), "a", MULTICAST)
    assert plan.add_routing_type
    assert not plan.address


def test_what_may_not_be_created() -> None:
    with pytest.raises(NoSuchAddressError, match="address 'a' does not exist"):
        lifecycle.plan_producer(space(NO_ADDRESSES), "a", ANYCAST)
    with pytest.raises(InvalidRequestError, match="does not allow MULTICAST"):
        lifecycle.plan_producer(space(NO_ADDRESSES, a=(ANYCAST,)), "a", MULTICAST)
    with pytest.raises(NoSuchQueueError, match="queue 'a' does not exist"):
        lifecycle.plan_consumer(space(NO_QUEUES), "a", ANYCAST)
    with pytest.raises(NoSuchQueueError, match="queue 'q' does not exist"):
        lifecycle.plan_producer(space(NO_QUEUES), "a::q", None)
    with pytest.raises(NoSuchQueueError, match="queue 'q' does not exist"):
        lifecycle.plan_producer(space(), "::q", None)
    with pytest.raises(NoSuchQueueError, match="queue 'a' does not exist and may not be created automatically"):
        lifecycle.plan_producer(space(NO_QUEUES), "a", ANYCAST)
    assert lifecycle.plan_producer(space(NO_QUEUES), "a", MULTICAST).queue is None
    to_dead_letters = AddressSettings(auto_create_queues=False, send_to_dla_on_no_route=True)
    assert lifecycle.plan_producer(space(to_dead_letters), "a", ANYCAST).queue is None
    among = space(NO_QUEUES, **{"#": (ANYCAST,)})
    among.add_queue(Queue.create(QueueSpec("all", "#", routing_type=ANYCAST), NO_QUEUES, 1))
    assert lifecycle.plan_producer(among, "a", ANYCAST).queue is None


def test_fully_qualified_names() -> None:
    world = space(a=(ANYCAST,))
    plan = lifecycle.plan_consumer(world, "a::q", None)
    assert plan.queue == QueueSpec("q", "a", routing_type=ANYCAST, auto_created=True)
    world.add_queue(Queue.create(plan.queue, AddressSettings(), 1))
    assert not lifecycle.plan_consumer(world, "a::q", None).needed
    assert not lifecycle.plan_consumer(world, "::q", ANYCAST).needed
    with pytest.raises(InvalidRequestError, match="belongs to address 'a'"):
        lifecycle.plan_consumer(world, "b::q", None)
    with pytest.raises(InvalidRequestError, match="is ANYCAST, not MULTICAST"):
        lifecycle.plan_consumer(world, "a::q", MULTICAST)
    assert not lifecycle.plan_producer(world, "a::q", MULTICAST).needed


def test_consumers_need_the_queue_of_that_name() -> None:
    world = space(a=(ANYCAST,))
    world.add_queue(Queue.create(QueueSpec("other", "a", routing_type=ANYCAST), AddressSettings(), 1))
    assert lifecycle.plan_producer(world, "a", ANYCAST).queue is None
    assert lifecycle.plan_consumer(world, "a", ANYCAST).queue is not None


# -- deleted automatically


def queue(settings: AddressSettings | None = None, **fields: Any) -> Queue:
    made = Queue.create(QueueSpec("q", "a", **{"auto_created": True, **fields}), settings or AddressSettings(), 1)
    made.used = True
    made.unused_since = 1000
    return made


@pytest.mark.parametrize(
    ("settings", "fields", "now", "expected"),
    [
        (AddressSettings(), {}, 1000, True),
        (AddressSettings(auto_delete_queues=False), {}, 1000, False),
        (AddressSettings(), {"auto_created": False}, 1000, False),
        (AddressSettings(auto_delete_created_queues=True), {"auto_created": False}, 1000, True),
        (AddressSettings(auto_delete_queues_delay=500), {}, 1499, False),
        (AddressSettings(auto_delete_queues_delay=500), {}, 1500, True),
        (AddressSettings(), {"temporary": True, "durable": False}, 1000, False),
        (AddressSettings(), {"internal": True}, 1000, False),
        (AddressSettings(), {"auto_delete": False}, 1000, False),
    ],
)
def test_queues_deleted(settings: AddressSettings, fields: dict[str, Any], now: int, expected: bool) -> None:
    assert lifecycle.queue_removable(queue(settings, **fields), settings, now) is expected


def test_queues_in_use_or_never_used_stay() -> None:
    from pollux.routing.reference import MessageReference

    settings = AddressSettings(auto_delete_queues_message_count=1)
    one = queue(settings)
    consumer = Recorder(credit=0)
    one.add_consumer(consumer)
    assert not lifecycle.queue_removable(one, settings, 5000)
    one.remove_consumer(consumer)
    one.add([MessageReference(make_message(1), one)])
    assert lifecycle.queue_removable(one, settings, 5000)
    one.add([MessageReference(make_message(2), one)])
    assert not lifecycle.queue_removable(one, settings, 5000)
    anything = AddressSettings(auto_delete_queues_message_count=-1)
    other = queue(anything)
    other.add([MessageReference(make_message(1), other)])
    assert lifecycle.queue_removable(other, anything, 5000)
    fresh = queue()
    fresh.used = False
    assert not lifecycle.queue_removable(fresh, AddressSettings(), 5000)
    assert lifecycle.queue_removable(fresh, AddressSettings(auto_delete_queues_skip_usage_check=True), 5000)


def test_addresses_deleted() -> None:
    address = Address("a", (ANYCAST,), auto_created=True)
    address.used = True
    address.unused_since = 1000
    assert lifecycle.address_removable(address, AddressSettings(), 1000)
    assert not lifecycle.address_removable(address, AddressSettings(auto_delete_addresses_delay=10), 1009)
    assert not lifecycle.address_removable(address, AddressSettings(auto_delete_addresses_delay=10), 1019, hold=20)
    assert lifecycle.address_removable(address, AddressSettings(auto_delete_addresses_delay=10), 1020, hold=20)
    assert not lifecycle.address_removable(address, AddressSettings(auto_delete_addresses=False), 1000)
    address.used = False
    assert not lifecycle.address_removable(address, AddressSettings(), 1000)
    assert lifecycle.address_removable(address, AddressSettings(auto_delete_addresses_skip_usage_check=True), 1000)
    address.auto_created = False
    assert not lifecycle.address_removable(address, AddressSettings(auto_delete_addresses_skip_usage_check=True), 1000)


# -- dead and expired


def test_resources_for_dead_and_expired_messages() -> None:
    settings = AddressSettings(
        dead_letter_address="DLA",
        auto_create_dead_letter_resources=True,
        expiry_address="EXP",
        auto_create_expiry_resources=True,
        expiry_queue_suffix=".x",
    )
    dead = lifecycle.dead_letter_queue(settings, "it's")
    assert dead is not None
    assert (dead.name, dead.address, dead.selector) == ("DLQ.it's", "DLA", "_AMQ_ORIG_ADDRESS = 'it''s'")
    made = Queue.create(dead, settings, 1)
    message = make_message(1)
    message.annotations = {"_AMQ_ORIG_ADDRESS": "it's"}
    assert made.selector is not None
    assert made.selector.matches(message)
    expired = lifecycle.expiry_queue(settings, "a")
    assert expired is not None
    assert (expired.name, expired.address) == ("EXP.a.x", "EXP")
    assert lifecycle.dead_letter_queue(AddressSettings(dead_letter_address="DLA"), "a") is None
    assert lifecycle.expiry_queue(AddressSettings(auto_create_expiry_resources=True), "a") is None


def test_a_duplicate_id_is_away_as_long_as_it_is_known() -> None:
    cache = DuplicateCache(3)
    long = b"x" * 100
    for each in (b"a", long, b"b"):
        cache.add(each)
    for each in (b"a", long, b"unknown"):
        cache.send_away(each, b"node")
    assert [cache.node_of(each) for each in (b"a", long, b"b", b"unknown")] == [b"node", b"node", None, None]
    cache.add(b"c")  # in the place of a
    cache.remove(long)
    for each in (b"a", long):
        cache.add(each)
        assert cache.node_of(each) is None
    cache.send_away(long, b"node")
    cache.resize(1)
    assert list(cache)
    assert cache.node_of(long) == b"node"
    cache.clear()
    cache.add(long)
    assert cache.node_of(long) is None


@pytest.mark.parametrize(
    ("fields", "asked", "result"),
    [
        ({}, 0, 0),
        ({}, 5000, 5000),
        ({"no_expiry": True}, 5000, 0),
        ({"expiry_delay": 10}, 0, 1010),
        ({"expiry_delay": 10}, 5000, 5000),
        ({"expiry_delay": 0}, 0, 1000),
        ({"min_expiry_delay": 100}, 0, 1100),
        ({"min_expiry_delay": 100}, 1050, 1100),
        ({"min_expiry_delay": 100}, 1200, 1200),
        ({"max_expiry_delay": 500}, 0, 1500),
        ({"max_expiry_delay": 500}, 9000, 1500),
        ({"min_expiry_delay": 100, "max_expiry_delay": 500}, 0, 1500),
        ({"min_expiry_delay": 100, "max_expiry_delay": 500}, 1001, 1100),
        ({"min_expiry_delay": 100, "max_expiry_delay": 500}, 1300, 1300),
    ],
)
def test_expiration(fields: dict[str, Any], asked: int, result: int) -> None:
    assert lifecycle.expiration(AddressSettings(**fields), asked, 1000) == result
