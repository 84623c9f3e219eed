"""Six brokers of which some are of a later version, as in a rolling upgrade (the reference's MultiVersionClusterTest).

A later version says more than an earlier one knows of, behind what that knows, in records, tellings, messages and in
what it says of itself; an earlier one says less. Each has to understand the other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.cluster_model import Cluster
from pollux.cluster.connection.forwarded import Forwarded, stored, taken, to_send
from pollux.cluster.connection.payloads import Kind, Payloads
from pollux.cluster.membership import Member
from pollux.cluster.routes.numbers import Number
from pollux.cluster.routes.records import Telling
from pollux.cluster.scale_down.plan import About
from pollux.formats.forwards import ROUTE_TO, decode
from pollux.message import Encoding, Message, RoutingType

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.cluster_model import Link, Node

SEEDS = range(400)
#: What the first version with clusters had of a message: everything that came later has a default.
FIRST = 20


class Upgraded(Cluster):
    """A history in which a node is of a later version from its second start on: they change one after the other."""

    #: Tellings that an earlier version heard of a later one, and the other way.
    mixed = 0

    def send(self, link: Link, way: int, what: Callable[[], object]) -> None:
        if isinstance(what, partial) and isinstance(what.args[-1], Telling):
            what = partial(what.func, link, self._heard(link.sink, link.source, what.args[-1]))
        super().send(link, way, what)

    def _heard(self, teller: Node, listener: Node, telling: Telling) -> Telling:
        """Return what arrives of a telling: it goes over the wire, and a later version adds to it."""
        self.mixed += (teller.epoch > 1) != (listener.epoch > 1)
        raw: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(telling))
        if teller.epoch > 1:
            raw.append({"later": 1})
            for record in raw[2]:
                record.append("later")
        payload = bytes((Kind.TELLING,)) + msgspec.msgpack.encode(raw)
        found = Payloads().decode(payload)
        assert found is not None
        assert isinstance(found[1], Telling)
        return found[1]


def test_histories_of_six_brokers_that_are_upgraded_one_after_the_other_end_well() -> None:
    ran = mixed = 0
    for seed in SEEDS:
        history = Upgraded(seed)
        if len(history.nodes) == 6:
            assert not history.run(), f"history {seed}"
            ran += 1
            mixed += history.mixed
    assert ran > 20
    assert mixed > 1000


def message() -> Message:
    made = Message(Encoding.AMQP, "orders", b"data", durable=True, priority=7, duplicate_id=b"d", group="g")
    made.routing_type = RoutingType.ANYCAST
    return made


def sent() -> Forwarded:
    found = to_send(stored(message(), "sf", Number(b"lifelife", 3), ("orders",), (b"A" * 16,), owner=b"C" * 16))
    assert found is not None
    return found


def over(raw: list[Any]) -> Forwarded:
    found = Payloads().decode(bytes((Kind.MESSAGES,)) + msgspec.msgpack.encode([raw]))
    assert found is not None
    messages: Any = found[1]
    (one,) = messages
    assert isinstance(one, Forwarded)
    return one


def test_a_message_of_a_later_version_arrives_as_it_was() -> None:
    raw = [*msgspec.msgpack.decode(msgspec.msgpack.encode(sent())), "later", {"and": "more"}]
    assert over(raw) == sent()
    assert taken(over(raw)).duplicate_id == b"d"


@pytest.mark.parametrize("fields", range(FIRST - 1, len(Forwarded.__struct_fields__) + 1))
def test_a_message_of_an_earlier_version_arrives_with_what_that_knew(fields: int) -> None:
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(sent()))[:fields]
    found = over(raw)
    assert (found.address, found.data, found.duplicate_id, found.home) == ("orders", b"data", b"d", False)
    assert found.moved == found.redelivered == found.topic is False


def test_what_waits_over_an_upgrade_is_sent_by_the_later_version_and_back_by_the_earlier_one() -> None:
    copy = stored(message(), "sf", Number(b"lifelife", 3), ("orders",), (b"A" * 16,))
    raw = msgspec.msgpack.decode((copy.annotations or {})[ROUTE_TO])  # type: ignore[arg-type]
    before = to_send(copy)
    for note in (raw[:13], [*raw, "later"]):
        assert decode(msgspec.msgpack.encode(note)).queues == ("orders",)
        copy.annotations = {ROUTE_TO: msgspec.msgpack.encode(note)}
        assert to_send(copy) == before


@pytest.mark.parametrize("what", [Member(b"A" * 16, 1, 2, "node"), About()], ids=lambda one: type(one).__name__)
def test_what_a_later_version_says_of_itself_and_of_others_is_understood(what: Member | About) -> None:
    raw = [*msgspec.msgpack.decode(msgspec.msgpack.encode(what)), "later"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=type(what)) == what
