"""Random histories of a journal, and what they mean by plain dictionaries."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.store import ids_in, message_of, opened, settings_in, stable
from pollux.formats import records
from pollux.formats.records import RecordType
from pollux.formats.segments import HEADER_SIZE, frame
from pollux.store.pending import Pending
from pollux.store.state import PADDING, State

if TYPE_CHECKING:
    import pytest

QUEUES = st.integers(1, 3)


@dataclass
class Model:
    """The meaning of a journal, written the obvious way."""

    queues: dict[int, dict[int, int]] = field(default_factory=dict)
    pending: dict[int, list[tuple[str, int, int, int]]] = field(default_factory=dict)

    def apply(self, name: str, queue: int, message: int, priority: int) -> None:
        held = self.queues.setdefault(queue, {})
        if name == "add":
            held[message] = priority
        else:
            held.pop(message, None)

    def result(self) -> dict[int, dict[int, list[int]]]:
        found: dict[int, dict[int, list[int]]] = {}
        for queue, held in self.queues.items():
            for message, priority in held.items():
                found.setdefault(queue, {}).setdefault(priority, []).append(message)
        return found


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Messages added once, then acknowledged or moved, some in transactions."""
    steps: list[tuple[Any, ...]] = []
    held: set[tuple[int, int]] = set()
    #: Acknowledged in a transaction: while that is open nobody else can add the message to the queue again.
    undecided: set[tuple[int, int]] = set()
    priorities: dict[int, int] = {}
    next_message = 1
    open_tx: dict[int, int] = {}
    next_tx = 1000
    for _ in range(draw(st.integers(0, 30))):
        kind = draw(st.sampled_from(["message", "message", "ack", "acks", "reference", "begin", "end", "drop"]))
        tx = draw(st.sampled_from([0, *open_tx]))
        if kind == "message":
            queues = tuple(draw(st.sets(QUEUES, min_size=1, max_size=3)))
            priorities[next_message] = draw(st.sampled_from([4, 4, 4, 0, 9]))
            steps.append(("message", next_message, priorities[next_message], queues, tx))
            if not tx:
                held |= {(queue, next_message) for queue in queues}
            next_message += 1
        elif kind == "ack" and held:
            queue, message = draw(st.sampled_from(sorted(held)))
            steps.append(("acks", queue, (message,), tx))
            held.discard((queue, message))
            if tx:
                undecided.add((queue, message))
        elif kind == "acks" and held:
            queue = draw(st.sampled_from(sorted({queue for queue, _ in held})))
            ids = tuple(sorted(message for other, message in held if other == queue))
            steps.append(("acks", queue, ids, 0))
            held -= {(queue, message) for message in ids}
        elif kind == "reference" and held:
            _, message = draw(st.sampled_from(sorted(held)))
            free = sorted({1, 2, 3} - {queue for queue, other in held | undecided if other == message})
            if free:
                queue = draw(st.sampled_from(free))
                steps.append(("reference", message, priorities[message], queue))
                held.add((queue, message))
        elif kind == "begin":
            open_tx[next_tx] = 1
            next_tx += 1
        elif kind == "end" and open_tx:
            ended = draw(st.sampled_from(sorted(open_tx)))
            del open_tx[ended]
            steps.append((draw(st.sampled_from(["commit", "rollback"])), ended))
        elif kind == "drop":
            queue = draw(QUEUES)
            steps.append(("drop", queue))
            held = {(other, message) for other, message in held if other != queue}
    return steps


#: Annotations and user that messages have in turn: they mean nothing to their queues.
RARER: tuple[tuple[dict[str, str | int | bytes] | None, str | None], ...] = (
    (None, None),
    ({"note": b"A"}, None),
    ({"note": b"A"}, "alice"),
)


def encode(step: tuple[Any, ...], counts: dict[int, int]) -> bytes:
    """A step as a record's body."""
    match step:
        case ("message", message_id, priority, queues, tx):
            message = message_of(None, b"body", message_id=message_id, priority=priority)
            message.annotations, message.user = RARER[message_id % len(RARER)]
            counts[tx] = counts.get(tx, 0) + 1
            return records.message_head(message, queues, tx, b"an.address") + message.data
        case ("acks", queue, ids, tx):
            counts[tx] = counts.get(tx, 0) + 1
            return records.acks(queue, ids, tx)
        case ("reference", message_id, priority, queue):
            return records.references(message_id, priority, [queue], 0)
        case ("commit", tx):
            return records.OUTCOME.pack(RecordType.COMMIT, 0, tx, counts.get(tx, 0))
        case ("rollback", tx):
            return records.OUTCOME.pack(RecordType.ROLLBACK, 0, tx, 0)
        case ("drop", queue):
            return records.drop_queue(queue)
    raise AssertionError(step)


def model_of(steps: list[tuple[Any, ...]]) -> Model:
    """The same history by dictionaries."""
    model = Model()
    for step in steps:
        match step:
            case ("message", message_id, priority, queues, tx):
                for queue in queues:
                    todo = ("add", queue, message_id, priority)
                    model.pending.setdefault(tx, []).append(todo) if tx else model.apply(*todo)
            case ("acks", queue, ids, tx):
                for message_id in ids:
                    todo = ("ack", queue, message_id, 0)
                    model.pending.setdefault(tx, []).append(todo) if tx else model.apply(*todo)
            case ("reference", message_id, priority, queue):
                model.apply("add", queue, message_id, priority)
            case ("commit", tx):
                for todo in model.pending.pop(tx, []):
                    model.apply(*todo)
            case ("rollback", tx):
                model.pending.pop(tx, None)
            case ("drop", queue):
                model.queues.pop(queue, None)
    return model


def replayed(steps: list[tuple[Any, ...]], salt: int = 5) -> State:
    """The history written as a segment and folded."""
    counts: dict[int, int] = {}
    data = bytes(HEADER_SIZE) + b"".join(frame(encode(step, counts), salt) for step in steps)
    state = State(100)
    replay = state.replay(data + bytes(PADDING), salt, 0, len(data))
    assert replay.end == len(data)
    assert replay.records == len(steps)
    assert replay.damaged == []
    assert state.incomplete == []
    return state


@hypothesis_settings(deadline=None, max_examples=200)
@given(histories())
def test_any_history_means_what_the_model_says(steps: list[tuple[Any, ...]]) -> None:
    queues = replayed(steps).finish()
    found = {queue: {priority: list(ids) for priority, ids in held.items()} for queue, held in queues.items() if held}
    assert _sets(found) == _sets(model_of(steps).result())
    for queue, held in model_of(steps).result().items():
        for priority, ids in held.items():
            if ids == sorted(ids):
                assert found[queue][priority] == ids


def _sets(queues: dict[int, dict[int, list[int]]]) -> dict[int, dict[int, set[int]]]:
    for held in queues.values():
        for ids in held.values():
            assert len(ids) == len(set(ids))
    return {queue: {priority: set(ids) for priority, ids in held.items()} for queue, held in queues.items() if held}


def test_moved_back_and_forth_ends_at_the_tail() -> None:
    state = State(10)
    state._add(1, 4, 10)
    state._add(1, 4, 11)
    state.acknowledge(1, [10])
    state._add_references(10, 4, [1])
    assert {queue: {p: list(ids) for p, ids in held.items()} for queue, held in state.finish().items()} == {
        1: {4: [11, 10]}
    }
    state.acknowledge(1, [10])
    assert list(state.finish()[1][4]) == [11]


def test_a_count_is_kept_for_a_message_whose_commit_comes_later() -> None:
    """A checkpoint may end between the two."""
    state = State(10)
    state.delivery_counts |= {(1, 10): 3, (1, 11): 2}
    state.pending[7] = Pending(messages=[(10, 4, (1,), 0, "x", None)])
    state.prune(state.finish())
    assert state.delivery_counts == {(1, 10): 3}


def test_duplicate_ids_keep_the_newest() -> None:
    state = State(3)
    for value in (b"a", b"b", b"c", b"a", b"d"):
        state.add_duplicate("x", value)
    assert list(state.duplicates["x"]) == [b"c", b"a", b"d"]


@hypothesis_settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=histories(), lives=st.lists(st.booleans(), min_size=1, max_size=3))
def test_a_store_recovers_any_history_over_any_stops(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Any, ...]],
    lives: list[bool],
) -> None:
    """The same histories through the whole store, cut into lives that end cleanly (with a checkpoint) or not."""
    directory = tmp_path_factory.mktemp("history")
    # Transactions have their own tests: here every step stands for itself.
    done = [step for step in steps if step[0] not in ("commit", "rollback") and step[-1] not in range(1000, 2000)]

    async def live(part: list[tuple[Any, ...]], crash: bool) -> None:
        async with opened(settings_in(directory, journal_file_size=4096), crash=crash) as one:
            for step in part:
                match step:
                    case ("message", message_id, priority, queues, _):
                        message = message_of(None, b"x" * 100, message_id=message_id, priority=priority)
                        one.storage.append_message(message, queues)
                    case ("acks", queue, ids, _):
                        one.storage.append_acks(queue, ids)
                    case ("reference", message_id, priority, queue):
                        one.storage.append_references(message_id, [queue], priority=priority)
                    case ("drop", queue):
                        one.storage.append_drop_queue(queue)
                await stable(one.storage)

    async def main() -> None:
        size = len(done) // len(lives) + 1
        for number, crash in enumerate(lives):
            await live(done[number * size : (number + 1) * size], crash)
        async with opened(settings_in(directory), crash=True) as last:
            found = {
                queue: {priority: list(ids) for priority, ids in held.items()}
                for queue, held in last.recovered.queues.items()
            }
            assert _sets(found) == _sets(model_of(done).result())
            assert last.recovered.damage == []
            read = await last.storage.read_messages(sorted(ids_in(last.recovered)))
            assert [message.id for message in read if message] == sorted(ids_in(last.recovered))

    asyncio.run(main())
    shutil.rmtree(directory)
