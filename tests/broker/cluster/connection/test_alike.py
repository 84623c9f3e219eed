"""Messages that are like each other go over a link with what they have in common said once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.test_links import consumer, pair
from broker.engine.conftest import Receiver, message
from pollux.cluster.connection import payloads
from pollux.cluster.connection.forwarded import (
    Forwarded,
    change,
    known,
    mark_moved,
    plainly_taken,
    stored,
    taken,
    to_send,
)
from pollux.cluster.connection.payloads import Kind, Payloads
from pollux.cluster.connection.send_batch import Packing
from pollux.cluster.connection.sent import Fate, Sent
from pollux.cluster.routes.numbers import Number, Numbering
from pollux.errors import LimitError
from pollux.formats.forwards import ROUTE_TO, Note, decode, encode
from pollux.message import Message, RoutingType
from pollux.routing.reference import MessageReference
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from broker.cluster.connection.nodes import Make

LIFE, NODE = b"lifelife", b"A" * 16


def waiting(number: int, sent: Message, queues: tuple[str, ...] = ("orders",), **more: Any) -> Message:
    return stored(sent, "sf", Number(LIFE, number), queues, (NODE,), **more)


def packed(copies: list[Message]) -> Packing:
    batch = Packing()
    for copy in copies:
        one = known(copy) or to_send(copy)
        assert one is not None
        batch.add(one, copy)
    return batch


def received(batch: Packing, room: int = 1 << 20) -> tuple[Kind, tuple[Forwarded, ...]]:
    reader = Payloads()
    (found,) = filter(None, map(reader.decode, batch.payloads(room)))
    kind, content = found
    return kind, payloads.each_of(*content) if kind is Kind.ALIKE else content  # type: ignore[misc,return-value]


def moved(sent: Message, *, failures: int = 0) -> MessageReference:
    reference = MessageReference(sent, None)  # type: ignore[arg-type]  # nobody asks for its queue
    reference.redelivered, reference.delivery_count = True, failures
    return reference


def begun(taken: dict[bytes, int] | None = None) -> Sent:
    sent = Sent()
    sent.begin(NODE, taken or {})
    return sent


def in_queue(*copies: Message) -> deque[MessageReference]:
    return deque(MessageReference(copy, None) for copy in copies)  # type: ignore[arg-type]  # nobody asks for its queue


def test_what_is_plain_and_new_is_taken_as_far_as_a_payload_goes() -> None:
    many = in_queue(*(waiting(number, message(b"x")) for number in range(1, 1002)))
    batch, sent = Packing(), begun()
    batch.take(many, sent)
    assert (len(batch), len(many), sent.in_flight, batch.life) == (500, 501, 500, LIFE)
    large = in_queue(*(waiting(number, message(bytes(60 << 10))) for number in range(1, 6)))
    batch = Packing()
    batch.take(large, begun())
    assert (len(batch), len(large)) == (3, 2), "the one that goes beyond 128 KiB is the last"


def test_plain_messages_wait_behind_another_kind_and_behind_what_was_sent() -> None:
    """Breaks when one of them overtakes what is before it, or goes twice."""
    queue = in_queue(waiting(1, message(b"x")), waiting(2, message(b"y", group="g")), waiting(3, message(b"z")))
    batch, sent = Packing(), begun()
    batch.take(queue, sent)
    assert (len(batch), len(queue)) == (1, 2)
    other = Packing()
    (whole,) = [to_send(queue[0].message)]
    assert whole is not None
    other.add(whole, queue.popleft().message)
    other.take(queue, sent)
    assert (len(other), len(queue)) == (1, 1)
    again = in_queue(waiting(7, message(b"x")), waiting(8, message(b"y")))
    batch = Packing()
    batch.take(again, begun({LIFE: 7}))
    assert (len(batch), len(again)) == (0, 2), "what the peer has is for whoever decides what becomes of it"


def test_what_is_of_another_kind_or_not_in_order_begins_another_run() -> None:
    """Breaks when a message is said to be like one that it is not like, or goes with a number below one that went."""
    mixed = in_queue(
        waiting(1, message(b"a")),
        waiting(2, message(b"b"), ("another",)),
        waiting(4, message(b"c")),
        waiting(3, message(b"d")),
    )
    batch, sent = Packing(), begun()
    batch.take(mixed, sent)
    kind, arrived = received(batch)
    assert (kind, [(one.number, one.data, one.queues) for one in arrived]) == (
        Kind.ALIKE,
        [(1, b"a", ("orders",)), (2, b"b", ("another",)), (4, b"c", ("orders",))],
    )
    assert [known(reference.message).number for reference in mixed] == [3]  # type: ignore[union-attr]
    assert (sent.last(LIFE), sent.in_flight) == (4, 3)


def test_a_part_of_what_went_together_is_confirmed() -> None:
    """Breaks when more or less is done than the peer has, or what is on its way is counted with other bytes."""
    queue = in_queue(*(waiting(number, message(b"x" * number)) for number in (2, 3, 5, 6, 7, 8, 9)))
    references = list(queue)
    sent = begun()
    Packing().take(queue, sent)
    sizes = [reference.message.size for reference in references]
    assert (sent.in_flight, sent.size) == (7, sum(sizes))
    assert sent.confirmed(LIFE, 1) == []
    assert sent.confirmed(LIFE, 4) == references[:2]
    assert (sent.in_flight, sent.size) == (5, sum(sizes[2:]))
    assert sent.confirmed(LIFE, 7) == references[2:5]
    assert (sent.in_flight, sent.size) == (2, sum(sizes[5:]))
    sent.end()
    assert (sent.in_flight, sent.size, sent.holds) == (0, 0, True)
    # The peer had one more of them: that is done, and the last one goes again.
    sent.begin(NODE, {LIFE: 8})
    fates = [sent.next(known(one.message), one) for one in references[5:]]  # type: ignore[arg-type]
    assert fates == [Fate.DONE, Fate.SEND]


def test_messages_of_another_time_or_behind_a_gap_keep_their_own_times_and_numbers() -> None:
    """Breaks when one gets the time or the number of the run before it."""
    numbers_and_times = [(1, 7), (2, 7), (3, 8), (5, 8), (6, 8)]
    queue = in_queue(*(waiting(number, message(b"x", timestamp=time)) for number, time in numbers_and_times))
    batch = Packing()
    batch.take(queue, begun())
    assert [(one.number, one.timestamp) for one in received(batch)[1]] == numbers_and_times
    assert (len(batch), len(queue)) == (5, 0)


@pytest.mark.parametrize("more", [{}, {"priority": 7, "durable": False}, {"routing_type": RoutingType.MULTICAST}])
def test_a_run_is_taken_as_each_of_its_messages(more: dict[str, Any]) -> None:
    """Breaks when something of a message is not as its producer's node had it, or is shared with the one before it."""
    one = to_send(waiting(4, message(b"first", user="alice", **more)))
    assert one is not None
    data = [b"a", b"", b"ccc"]
    run = plainly_taken(one, 77, data)
    for each, expected in zip(run, [taken(replace(one, timestamp=77, data=part)) for part in data], strict=True):
        for name in Message.__slots__:
            assert getattr(each, name) == getattr(expected, name), name
    assert plainly_taken(one, 77, []) == []


def test_each_is_looked_at_while_one_is_to_be_given_up() -> None:
    """Breaks when what an operator wants given up goes with the others."""
    queue = in_queue(waiting(1, message(b"x")), waiting(2, message(b"y")))
    sent = begun()
    Packing().take(deque(queue), sent)
    sent.end()
    sent.begin(NODE, {})
    sent.gives_up = True
    batch = Packing()
    batch.take(queue, sent)
    assert (len(batch), len(queue)) == (0, 2)
    assert sent.next(known(queue[0].message), queue[0]) is Fate.GIVE_UP  # type: ignore[arg-type]
    batch.take(queue, sent)
    assert len(batch) == 2


def test_what_goes_again_over_a_new_connection_is_open_no_more() -> None:
    """Breaks when what an earlier connection left open stays so after it was confirmed, to be given up later."""
    sent = begun()
    reference = in_queue(waiting(5, message(b"x")))[0]
    assert sent.begins(LIFE, 5, reference)
    sent.end()
    assert sent.holds
    sent.begin(NODE, {})
    assert sent.begins(LIFE, 5, reference)
    assert sent.confirmed(LIFE, 5) == [reference]
    assert not sent.holds
    # What was sent by this process and taken by nobody before another process's number is not done.
    sent.begin(NODE, {LIFE: 5})
    assert sent.next(known(reference.message), reference) is Fate.RENUMBER


@pytest.mark.parametrize("room", [1 << 20, 100])
def test_alike_messages_arrive_as_they_would_one_by_one(room: int) -> None:
    """Of three kinds, in turns: each kind is named once, the order is kept."""
    kinds: list[dict[str, Any]] = [
        {"address": "orders"},
        {"address": "news", "priority": 7, "durable": False, "routing_type": RoutingType.MULTICAST},
        {"address": "orders", "user": "alice"},
    ]
    copies = [
        waiting(number, message(str(number).encode(), timestamp=number, **kinds[number % 3]), topic=number % 3 == 1)
        for number in range(1, 31)
    ]
    kind, found = received(packed(copies), room)
    assert kind is Kind.ALIKE
    assert list(found) == [to_send(copy) for copy in copies]
    assert len(b"".join(packed(copies).payloads(1 << 20))) < len(b"".join(payloads.messages(found, 1 << 20))) / 2


@pytest.mark.parametrize(
    "more",
    [
        {"expiration": 5},
        {"deliver_at": 5},
        {"group": "g"},
        {"group_sequence": 5},
        {"last_value": "v"},
        {"duplicate_id": b"d"},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_message_with_something_of_its_own_is_sent_as_it_was_before(more: dict[str, Any]) -> None:
    copy = waiting(3, message(**more))
    assert known(copy) is None
    kind, (one,) = received(packed([copy]))
    assert kind is Kind.MESSAGES
    assert one == to_send(copy)
    assert [getattr(one, name) for name in more] == list(more.values())


def test_a_message_with_annotations_is_sent_as_it_was_before() -> None:
    sent = message()
    sent.annotations = {"a": 1}
    assert known(waiting(3, sent)) is None


def test_moved_messages_are_alike_unless_their_delivery_failed() -> None:
    sent = message()
    plain = waiting(3, sent, reference=moved(sent))
    _, (one,) = received(packed([plain]))
    assert (one.moved, one.redelivered, one.failures) == (True, True, 0)
    failed = waiting(4, sent, reference=moved(sent, failures=2))
    assert known(failed) is None
    _, (one,) = received(packed([failed]))
    assert (one.moved, one.failures) == (True, 2)


def test_a_copy_that_is_marked_as_moved_is_sent_as_one() -> None:
    copy = waiting(3, message())
    mark_moved(copy)
    _, (one,) = received(packed([copy]))
    assert one.moved


def test_the_stored_note_is_that_of_any_message() -> None:
    """Whoever reads the store knows nothing of what messages have in common."""
    for number in (1, 127, 1 << 40, (1 << 64) - 1):
        copy = waiting(number, message(), owner=b"C" * 16)
        note = decode((copy.annotations or {})[ROUTE_TO])  # type: ignore[arg-type]
        expected = Note(LIFE, number, ("orders",), (NODE,), "orders", 4, 0, 0, None, 0, None, None, None, b"C" * 16)
        assert note == decode(encode(expected))


@pytest.mark.parametrize("more", [{}, {"priority": 7, "durable": False}, {"routing_type": RoutingType.MULTICAST}])
@pytest.mark.parametrize("way", [{}, {"owner": b"C" * 16, "topic": True}])
def test_messages_that_become_copies_are_the_copies_that_are_made_of_them(
    more: dict[str, Any], way: dict[str, Any]
) -> None:
    numbering = Numbering(LIFE)
    numbering.next()
    sent = [message(b"%d" % number, timestamp=number, origin=3, **more) for number in range(3)]
    copies = [waiting(number + 2, each, **way) for number, each in enumerate(sent)]
    change(sent, "sf", numbering, ("orders",), (NODE,), **{"owner": b"", "topic": False, **way})
    assert numbering.next().value == 5
    for each, copy in zip(sent, copies, strict=True):
        for name in Message.__slots__:
            assert getattr(each, name) == getattr(copy, name), name


@pytest.mark.asyncio
async def test_messages_sent_at_once_go_over_the_link_between_others(nodes: Make) -> None:
    one, two = await pair(nodes)
    assert not one.post.send_alike([message(b"%d" % number) for number in range(2)]), "it is made for the first one"
    receiver = await consumer(one, two)
    one.post.send(message(b"0"))
    assert one.post.send_alike([message(b"%d" % number) for number in range(1, 5)])
    one.post.send(message(b"5"))
    await receiver.wait(6)
    assert receiver.bodies == [b"%d" % number for number in range(6)]
    assert one.post.routed_total == 6
    (sent,) = one.cluster.spreading._sent.values()
    assert sent[1] in range(1, 7), "they count against the credit that was told"
    two.post.acknowledge(receiver.got)
    await two.office.stable()
    two.office.check_accounts()


@pytest.mark.asyncio
async def test_messages_that_somebody_here_takes_too_are_not_sent_at_once(nodes: Make) -> None:
    one, two = await pair(nodes)
    there = await consumer(one, two)
    here = Receiver()
    one.post.attach(one.post.queue("orders"), here)
    one.post.send(message(b"0"))
    assert not one.post.send_alike([message(b"1"), message(b"2")])
    await until(lambda: len(there.got) + len(here.got) == 1)


@pytest.mark.parametrize("which", [-1, 1])
def test_a_message_that_is_like_none_is_refused(which: int) -> None:
    copy = to_send(waiting(3, message()))
    payload = bytes((Kind.ALIKE,)) + msgspec.msgpack.encode(([copy], [(which, 1, 0, [b""])]))
    with pytest.raises(CoreError, match="like none"):
        Payloads().decode(payload)


@pytest.mark.asyncio
@pytest.mark.parametrize("knows", [True, False], ids=["this version", "the version before"])
async def test_a_peer_of_the_version_before_is_sent_each_message_whole(
    nodes: Make, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    link = one.cluster.peers.links[0]
    accepted, kinds = link.accepted, set()
    decode_ = Payloads.decode

    def noted(self: Payloads, payload: bytes) -> tuple[Kind, object] | None:
        kinds.add(Kind(payload[0]))
        return decode_(self, payload)

    def as_before(content: dict[str, Any]) -> None:
        assert content["alike"] is True
        accepted({key: value for key, value in content.items() if knows or key != "alike"})

    monkeypatch.setattr(link, "accepted", as_before)
    monkeypatch.setattr(Payloads, "decode", noted)
    one.connectors[two.id].links[-1].cut()
    await until(lambda: link.connected and len(one.connectors[two.id].links) == 2)
    await until(lambda: one.cluster.table.path((two.id, "orders")).connected)  # type: ignore[union-attr]
    for number in range(700):
        one.post.send(message(b"%d" % number))
    await receiver.wait(700)
    assert receiver.bodies == [b"%d" % number for number in range(700)]
    assert (Kind.ALIKE in kinds, Kind.MESSAGES in kinds) == (knows, not knows)
    await until(lambda: link.confirmed == 700)


@pytest.mark.asyncio
async def test_alike_messages_of_a_queue_that_is_gone_are_routed_anew(nodes: Make) -> None:
    """One kind has its queue, the other one has not: both arrive, once, and in order."""
    one, two = await pair(nodes)
    two.office.queue("other")
    await until(lambda: (two.id, "other") in one.cluster.table.queues)
    link = one.cluster.peers.links[0]
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].cut()
    for number in range(20):
        name = ("orders", "other")[number % 2]
        sent = message(b"%d" % number, name)
        one.post.forward(one.cluster.spreading.forward(sent, two.id, (name,)), 0)
    await one.office.stable()
    two.post.delete_queue("other")
    connector.allowed.set()
    await until(lambda: link.confirmed == 20)
    for odd, name in enumerate(("orders", "other")):
        bodies = [each.message.data for each in two.post.queue(name).iterate()]
        assert bodies == [b"%d" % number for number in range(odd, 20, 2)]


@pytest.mark.asyncio
async def test_alike_messages_one_of_which_fails_are_taken_once(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was stored of them is undone, and they are taken one by one."""
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    append, calls = two.post.storage.append_messages, []

    def failing(messages: list[Message], *given: Any) -> None:
        calls.append(len(messages))
        append(messages[:2], *given)
        raise LimitError("not now")

    monkeypatch.setattr(two.post.storage, "append_messages", failing)
    for number in range(5):
        one.post.send(message(b"%d" % number))
    await receiver.wait(5)
    assert receiver.bodies == [b"%d" % number for number in range(5)]
    assert calls == [5]
    assert two.cluster.incoming[one.id].taken == 5
    two.post.acknowledge(receiver.got)
    await two.office.stable()
    two.office.check_accounts()


@pytest.mark.asyncio
async def test_alike_messages_that_were_taken_are_left_out(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = await consumer(one, two)
    for number in range(4):
        one.post.send(message(b"%d" % number))
    await receiver.wait(4)
    link = two.cluster.incoming[one.id]
    life = one.cluster.spreading.outlets[two.id].numbering.of("orders").life
    copies = [
        stored(message(b"%d" % number), "sf", Number(life, number + 1), ("orders",), (one.id,))
        for number in range(2, 6)
    ]
    for payload in packed(copies).payloads(1 << 20):
        link.data(payload)
    await receiver.wait(6)
    assert receiver.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
