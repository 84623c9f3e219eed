"""A name means the same whoever listens to patterns: wildcards add copies and change nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.engine.conftest import Office, Receiver, message
from pollux.config.addresses import WildcardAddresses
from pollux.config.model import Configuration
from pollux.errors import InvalidRequestError, NoSuchQueueError, PolluxError
from pollux.message import RoutingType
from pollux.routing.address import WildcardSyntax
from pollux.routing.spec import QueueSpec
from pollux.store.recovered import Recovered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST
ROUTING = st.sampled_from([None, ANYCAST, MULTICAST])
WORDS = st.sampled_from(["a", "b"])


class Nowhere:
    """A store that keeps nothing: what is created and who gets what is seen in the address space."""

    full = False

    def __init__(self) -> None:
        self.ids = iter(range(1, 1 << 30))
        self.pages = SimpleNamespace(addresses=dict)

    def next_id(self) -> int:
        return next(self.ids)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


class World:
    """Addresses and queues as sends make them, on no store."""

    def __init__(self, syntax: WildcardSyntax, settings: dict[str, object]) -> None:
        words = WildcardAddresses(
            delimiter=syntax.delimiter, any_words=syntax.any_words, single_word=syntax.single_word
        )
        office = Office(Path(), Configuration(wildcard_addresses=words))
        office.settings("#", **settings)
        office.wall = 0
        office.storage = cast("Any", Nowhere())
        self.post = office.attach(Recovered())
        self.space = self.post.space
        #: Names of queues -> bodies of the messages they got.
        self.got: dict[str, list[bytes]] = {}
        store = self.post._intake._keep  # what was decided, before the disk

        def noted(account: Any, sent: Any, queues: Any, *rest: Any, **named: Any) -> None:
            for queue in queues:
                self.got.setdefault(queue.name, []).append(sent.data)
            store(account, sent, queues, *rest, **named)

        self.post._intake._keep = noted

    def bind(self, name: str, queue: str, kind: RoutingType) -> None:
        self.post.create_queue(QueueSpec(queue, name, routing_type=kind, durable=False, temporary=True))

    def send(self, name: str, kind: RoutingType | None, body: bytes, *, in_transaction: bool) -> str | None:
        """Return None when it was accepted, else what the sender was told."""
        sent = message(body, name, routing_type=kind, durable=True)
        try:
            if in_transaction:
                tx = self.post.begin()
                self.post.send(sent, tx)
                self.post.commit(tx)
            else:
                self.post.send(sent)
        except PolluxError as error:
            return str(error)
        return None

    def made(self) -> tuple[dict[str, set[RoutingType]], dict[str, tuple[str, RoutingType]]]:
        """Return the addresses and queues that are no patterns."""
        plain = [each for each in self.space.addresses if not each.wildcard]
        return (
            {each.name: set(each.routing_types) for each in plain},
            {queue.name: (queue.address, queue.routing_type) for each in plain for queue in each.queues},
        )


@st.composite
def histories(draw: st.DrawFn) -> Any:
    syntax = draw(st.sampled_from([WildcardSyntax(), WildcardSyntax("/", "#", "+"), WildcardSyntax("_", "~", "!")]))
    join = syntax.delimiter.join
    pattern = st.lists(
        st.one_of(WORDS, st.sampled_from([syntax.any_words, syntax.single_word])), min_size=1, max_size=3
    )
    patterns = draw(
        st.lists(
            st.tuples(pattern.map(join).filter(syntax.is_wildcard), st.sampled_from(RoutingType)),
            min_size=1,
            max_size=4,
        )
    )
    name = st.lists(WORDS, min_size=1, max_size=2).map(join)
    target = st.one_of(name, st.tuples(name, st.sampled_from(["q", "r"])).map("::".join))
    sends = draw(st.lists(st.tuples(target, ROUTING, st.booleans()), min_size=1, max_size=6))
    settings = {
        "default_address_routing_type": draw(st.sampled_from(RoutingType)),
        "auto_create_addresses": draw(st.sampled_from([True, True, False])),
        "auto_create_queues": draw(st.sampled_from([True, True, True, False])),
    }
    return syntax, patterns, sends, settings


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


AS_ARTEMIS = {
    "default_address_routing_type": MULTICAST,
    "auto_create_addresses": True,
    "auto_create_queues": True,
}


@given(histories())
@example(
    (
        WildcardSyntax(),
        [("#", MULTICAST)],
        [("a.b", None, False)],
        {**AS_ARTEMIS, "default_address_routing_type": ANYCAST},
    )
)
@example((WildcardSyntax(), [("#", MULTICAST)], [("a::q", None, False)], AS_ARTEMIS))
@example((WildcardSyntax(), [("#", ANYCAST)], [("a", MULTICAST, False), ("a", ANYCAST, False)], AS_ARTEMIS))
def test_a_wildcard_changes_nothing_of_what_a_name_creates(loop: asyncio.AbstractEventLoop, history: Any) -> None:
    loop.run_until_complete(_changes_nothing(*history))


async def _changes_nothing(syntax: WildcardSyntax, patterns: Any, sends: Any, settings: dict[str, object]) -> None:
    without, among = World(syntax, settings), World(syntax, settings)
    listening: dict[str, tuple[str, RoutingType]] = {}
    for number, (pattern, kind) in enumerate(patterns):
        try:
            among.bind(pattern, f"w{number}", kind)
        except PolluxError:
            continue  # an address may not be made: nobody listens there
        listening[f"w{number}"] = (pattern, kind)
    for number, (name, kind, in_transaction) in enumerate(sends):
        body = b"%d" % number
        told = without.send(name, kind, body, in_transaction=in_transaction)
        answer = among.send(name, kind, body, in_transaction=in_transaction)
        takers = {queue for queue, bodies in without.got.items() if body in bodies}
        copies = {queue for queue, bodies in among.got.items() if body in bodies}
        matching = {
            queue: way
            for queue, (pattern, way) in listening.items()
            if "::" not in name and syntax.matches(pattern, name) and kind in (None, way)
        }
        if told is not None and answer is None:
            # Nothing may be created here, and a pattern's queue that there is has it: nobody was told otherwise.
            assert not settings["auto_create_queues"]
            assert any(way is ANYCAST for way in matching.values())
            assert copies & matching.keys()
            return
        assert answer == told
        assert copies - listening.keys() == takers, "who else gets it"
        if told is None:
            shared = {pattern for pattern, way in listening.values() if way is ANYCAST}
            assert {queue for queue in copies if listening.get(queue, ("", None))[1] is MULTICAST} == {
                queue for queue, way in matching.items() if way is MULTICAST
            }
            for pattern in shared:
                of_it = {queue for queue, (where, way) in listening.items() if where == pattern and way is ANYCAST}
                assert len(copies & of_it) == bool(of_it & matching.keys()), "one ANYCAST queue of each pattern"
            wanted = kind if kind is not None or "::" in name else _usual(without, name)
            assert takers or (wanted is MULTICAST and "::" not in name), "confirmed, and nowhere"
    assert among.made() == without.made()


def _usual(world: World, name: str) -> RoutingType:
    address = world.space.address(name)
    assert address is not None
    default = world.space.settings(name).default_address_routing_type
    return default if default in address.routing_types else next(iter(address.routing_types))


async def test_messages_are_in_their_queue_when_only_a_monitor_listens(office: Office) -> None:
    office.settings("#", default_address_routing_type=ANYCAST)
    post = await office.open()
    monitor = post.create_queue(QueueSpec("monitor", "#", routing_type=MULTICAST, durable=False, temporary=True))
    watching = Receiver()
    post.attach(monitor, watching)
    await office.send(b"one", address="orders.b")
    await office.send(b"two", address="x::q")
    await watching.wait(1)
    assert watching.bodies == [b"one"]
    post = await office.reopen()
    assert post.queue("orders.b").message_count == 1
    assert post.queue("x::q").message_count == 1


async def test_who_sends_to_a_queue_that_there_cannot_be_is_told(office: Office) -> None:
    office.settings("shut", auto_create_queues=False)
    post = await office.open()
    post.ensure_address("shut", ANYCAST)
    with pytest.raises(NoSuchQueueError, match="queue 'shut' does not exist and may not be created"):
        post.send(message(b"x", "shut", routing_type=ANYCAST))
    with pytest.raises(InvalidRequestError, match=r"'orders\.\*' is a pattern of addresses without an ANYCAST queue"):
        post.send(message(b"x", "orders.*", routing_type=ANYCAST))


async def test_addresses_that_nobody_sends_to_any_more_go_and_the_others_stay(office: Office) -> None:
    """One for each topic ever sent to, with nobody listening to it by its name: they must not grow for ever."""
    post = await office.open()
    period = office.configuration.address_queue_scan_period
    monitor = post.create_queue(QueueSpec("monitor", "#", routing_type=MULTICAST, durable=False, temporary=True))
    post.create_queue(QueueSpec("kept", "kept", routing_type=MULTICAST))
    for number in range(1000):
        post.send(message(b"x", f"topic.{number}"))
    for _ in range(3):
        office.now += period
        post.address_manager.reap()
        post.send(message(b"y", "topic.7"))
        await office.stable()
    gone = asyncio.get_running_loop().time() + 20
    while len(post.space.addresses) > 3:
        assert asyncio.get_running_loop().time() < gone
        await asyncio.sleep(0)
    assert {address.name for address in post.space.addresses} == {"#", "kept", "topic.7"}
    assert monitor.message_count == 1003
    office.now += 3 * period
    post.address_manager.reap()
    post.send(message(b"z", "topic.8"))
    await office.stable()
    assert {address.name for address in post.space.addresses} == {"#", "kept", "topic.8"}
