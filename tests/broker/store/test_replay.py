"""Whatever a message's record has, its replay and a checkpoint's history find it: fast ways mean what slow ones do."""

from __future__ import annotations

from typing import Any

import pytest

from pollux.formats import records
from pollux.formats.history import History
from pollux.formats.records import OUTCOME, RecordType
from pollux.formats.segments import HEADER_SIZE, Kind, SegmentHeader, frame
from pollux.message import Encoding, Message
from pollux.store.large import LargeMessage
from pollux.store.state import PADDING, State

SALT = 5
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "annotated": {"annotations": {"note": b"A", "other": 7}},
    "with a user": {"annotations": {"note": b"A"}, "user": "alice"},
    "scheduled": {"deliver_at": 99},
    "annotated and scheduled": {"annotations": {"note": b"A"}, "deliver_at": 99},
    "with an id": {"duplicate_id": b"given"},
    "large": {"large": LargeMessage(7, 900, 5)},
    "large without a checksum": {"annotations": {"note": b"A"}, "large": LargeMessage(8, 900, None)},
}


def message_like(message_id: int, annotations: dict[str, str | int | bytes] | None = None, **more: Any) -> Message:
    message = Message(Encoding.AMQP, "orders", b"data" * message_id, priority=message_id // 3, **more)
    message.id, message.annotations = message_id, annotations
    return message


def segment(*bodies: bytes) -> tuple[bytes, list[int]]:
    """Return a segment of these records, padded, and where they begin."""
    data, offsets = bytes(HEADER_SIZE), []
    for body in bodies:
        offsets.append(len(data))
        data += frame(body, SALT)
    return data, offsets


@pytest.mark.parametrize("tx", [0, 9], ids=["alone", "transaction"])
@pytest.mark.parametrize("queues", [(3,), (3, 4)], ids=["one queue", "two queues"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_replayed_with_all_it_has(kind: str, queues: tuple[int, ...], tx: int) -> None:
    own = KINDS[kind]
    messages = [message_like(1), message_like(2, **own), message_like(3), message_like(4, **own)]
    bodies = [records.message_head(one, queues, tx, b"orders") + one.data for one in messages]
    outcome = [OUTCOME.pack(RecordType.COMMIT, 0, tx, len(messages))] if tx else []
    data, offsets = segment(*bodies, *outcome)
    state = State(10)
    replay = state.replay(data + bytes(PADDING), SALT, 2, len(data))
    assert (replay.records, replay.damaged, state.incomplete, state.pending) == (len(bodies + outcome), [], [], {})
    assert list(state.ids) == [1, 2, 3, 4]
    assert [one >> 32 for one in state.locations] == [2] * 4
    assert [one & 0xFFFFFFFF for one in state.locations] == offsets[:4]
    assert list(state.lengths) == [12 + len(body) for body in bodies]
    assert state.references == ({} if len(queues) == 1 else dict.fromkeys((1, 2, 3, 4), 2))
    found = {queue: {priority: list(ids) for priority, ids in held.items()} for queue, held in state.finish().items()}
    assert found == {queue: {0: [1, 2], 1: [3, 4]} for queue in queues}
    scheduled = {(queue, number): 99 for queue in queues for number in (2, 4)} if "deliver_at" in own else {}
    assert state.schedules == scheduled
    assert state.duplicates == ({"orders": {b"given": None}} if "duplicate_id" in own else {})
    large = own.get("large")
    assert state.large == ({2: large.id, 4: large.id} if large else {})
    assert state.large_sizes == ({large.id: 900} if large else {})
    assert state.large_sums == ({7: 5} if kind == "large" else {})


def test_transactions_that_alternate_keep_their_messages_apart() -> None:
    """Breaks when a message is added to the transaction of the one before it, or to one that has ended."""
    tx_of = {1: 7, 2: 8, 3: 8, 4: 7, 5: 7}
    bodies = [records.message_head(message_like(number), (3,), tx, b"orders") for number, tx in tx_of.items()]
    again = [records.message_head(message_like(number), (3,), 7, b"orders") for number in (6, 7)]
    commit, rollback = OUTCOME.pack(RecordType.COMMIT, 0, 7, 3), OUTCOME.pack(RecordType.ROLLBACK, 0, 8, 0)
    data, _ = segment(*bodies, commit, rollback, *again)
    state = State(10)
    state.replay(data + bytes(PADDING), SALT, 0, len(data))
    assert {priority: list(ids) for priority, ids in state.finish()[3].items()} == {0: [1], 1: [4, 5]}
    assert {tx: [entry[0] for entry in pending.messages] for tx, pending in state.pending.items()} == {7: [6, 7]}


@pytest.mark.parametrize("tx", [0, 9], ids=["alone", "transaction"])
@pytest.mark.parametrize("queues", [(3,), (3, 4)], ids=["one queue", "two queues"])
def test_the_history_counts_bytes_of_messages_and_of_their_files(queues: tuple[int, ...], tx: int) -> None:
    messages = [message_like(number, **own) for number, own in enumerate(KINDS.values(), 1)]
    data, _ = segment(*[records.message_head(one, queues, tx, b"orders") + one.data for one in messages])
    state, history = State(10), History()
    state.replay(data + bytes(PADDING), SALT, 0, len(data))
    header = SegmentHeader(Kind.JOURNAL, SALT, bytes(16), 6, 2, 1000)
    for _ in range(2):  # segments of one life are counted together
        history.fold(header, len(data), data, state.ids, state.locations, large=state.large_size)
    sizes = [900 if one.large is not None else len(one.data) for one in messages]
    (life,) = history.lives.values()
    assert life.counted == {"orders": (2 * len(sizes), 2 * sum(sizes), 900)}
    assert (life.newest, life.end) == (len(messages), len(data))
