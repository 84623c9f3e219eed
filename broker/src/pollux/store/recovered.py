"""The results of recovery: plain values for the post office and for reports."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pollux.store.state import State


#: Kinds of damage that are normal after a crash or a takeover.
NORMAL_DAMAGE = ("torn-tail", "late-writes")


class Damage(Struct):
    """A range of a file that holds no valid record where one was expected.

    ``kind``: "torn-tail" (the last, unconfirmed write; normal after a crash), "corrupt" (bytes that changed
    after they were confirmed), "missing-segment", "late-writes" (bytes a fenced predecessor added),
    "lost-body" (a live message whose record or file is gone), "missing-bindings" (all that was kept there is gone),
    "lost-queue" (a queue with messages that the bindings do not tell of),
    "cut" (a file shorter than it was made), "bad-header" (both copies of a file's header), "missing-file" (one that the
    inventory names).
    """

    file: Path
    offset: int
    length: int
    kind: str
    detail: str
    #: Where the damaged bytes were copied to, None when nothing was worth keeping.
    isolated: Path | None = None

    def __str__(self) -> str:
        kept = f" (bytes kept in {self.isolated})" if self.isolated else ""
        text = f"{self.file}:{self.offset}: {self.kind}: {self.detail}{kept}"
        # A name that is not UTF-8 must not keep a log, or an answer in JSON, from telling of it.
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class PreparedTransaction(Struct):
    """A transaction that was prepared (two-phase) and waits for its outcome."""

    tx: int
    xid: bytes
    #: (message id, queue id, priority) that commit would add.
    messages: list[tuple[int, int, int]] = field(default_factory=list)
    #: (queue id, message id) that commit would acknowledge; they are still in their queues.
    acknowledgements: list[tuple[int, int]] = field(default_factory=list)
    #: Key of the link by which it came from another node; empty: it was prepared here.
    origin: str = ""


class Recovered(Struct):
    """The state of the broker as its journal tells it. Messages stay on disk until read_messages."""

    #: (kind, key) -> value, everything ``Storage.put`` kept.
    bindings: dict[tuple[str, str], bytes] = field(default_factory=dict)
    #: queue id -> priority -> message ids (array "Q") in the order they were added.
    queues: dict[int, dict[int, array[int]]] = field(default_factory=dict)
    #: queue id -> value of its binding as the journal has it, of the durable queues that were not deleted.
    queue_records: dict[int, bytes] = field(default_factory=dict)
    #: (queue id, message id) -> failed deliveries.
    delivery_counts: dict[tuple[int, int], int] = field(default_factory=dict)
    #: (queue id, message id) -> milliseconds since the epoch; these are in ``queues`` too.
    schedules: dict[tuple[int, int], int] = field(default_factory=dict)
    #: address -> duplicate ids, oldest first.
    duplicates: dict[str, list[bytes]] = field(default_factory=dict)
    #: Key of a link -> (life of its sender, last number taken in), the newest life last.
    links: dict[str, list[tuple[bytes, int]]] = field(default_factory=dict)
    #: message id -> number of queues, only where it is more than one.
    references: dict[int, int] = field(default_factory=dict)
    #: message id -> id of its file, for the large messages some queue holds.
    large: dict[int, int] = field(default_factory=dict)
    prepared: list[PreparedTransaction] = field(default_factory=list)
    #: Distinct messages in the journal that some queue or prepared transaction holds.
    message_count: int = 0
    damage: list[Damage] = field(default_factory=list)
    #: Records replayed after the checkpoint, and the seconds all of it took.
    replayed_records: int = 0
    seconds: float = 0.0
    #: The checkpoint that was used, None when everything was replayed.
    checkpoint: Path | None = None

    def withhold(self, wanted: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Take (queue id, message id) out of the queues, not out of the journal; return those that were there."""
        by_queue: dict[int, set[int]] = {}
        for queue_id, message_id in wanted:
            by_queue.setdefault(queue_id, set()).add(message_id)
        found: list[tuple[int, int]] = []
        for queue_id, messages in by_queue.items():
            priorities = self.queues.get(queue_id, {})
            for priority, ids in list(priorities.items()):
                found += [(queue_id, one) for one in ids if one in messages]
                priorities[priority] = array("Q", [one for one in ids if one not in messages])
        return found

    def set_aside(self, messages: set[int]) -> dict[int, list[int]]:
        """Take messages out of the queues, not out of the journal; which, by queue."""
        taken: dict[int, list[int]] = {}
        if not messages:
            return taken
        for queue_id, priorities in self.queues.items():
            for priority, ids in list(priorities.items()):
                if gone := [one for one in ids if one in messages]:
                    taken.setdefault(queue_id, []).extend(gone)
                    priorities[priority] = array("Q", [one for one in ids if one not in messages])
        for numbers in (self.delivery_counts, self.schedules):
            for key in [key for key in numbers if key[1] in messages]:
                del numbers[key]
        self.message_count -= len({one for ids in taken.values() for one in ids})
        self.references = {one: count for one, count in self.references.items() if one not in messages}
        self.large = {one: file for one, file in self.large.items() if one not in messages}
        return taken


def lost_bodies(path: Callable[[int], Path], lost: Mapping[int, str], messages: Mapping[int, int]) -> list[Damage]:
    """Damage for files of large messages: ``lost`` says by file what is wrong, ``messages`` whose files they are."""
    owners = {file: message_id for message_id, file in messages.items()}
    return [
        Damage(path(file), 0, 0, "lost-body", f"message {owners.get(file, 'in a page')}: {words}")
        for file, words in lost.items()
    ]


def recovered_of(state: State, damage: list[Damage]) -> Recovered:
    """The result of a finished replay."""
    queues = state.finish()
    state.prune_numbers(queues)
    held = sum(len(ids) for priorities in queues.values() for ids in priorities.values())
    references = state.references or {}
    prepared = [
        PreparedTransaction(
            tx,
            pending.xid,
            [
                (message_id, queue_id, priority)
                for message_id, priority, queue_ids, *_ in pending.messages
                for queue_id in queue_ids
            ],
            [(queue_id, message_id) for queue_id, ids in pending.acknowledgements for message_id in ids],
            pending.links[0][0] if pending.links else "",
        )
        for tx, pending in state.pending.items()
        if pending.xid is not None
    ]
    return Recovered(
        queues=queues,
        queue_records=state.queue_records,
        delivery_counts=state.delivery_counts,
        schedules={key: deliver_at for key, deliver_at in state.schedules.items() if deliver_at},
        duplicates={address: list(kept) for address, kept in state.duplicates.items()},
        links={key: list(lives.items()) for key, lives in state.links.items()},
        references=references,
        large=state.large_messages(queues),
        prepared=prepared,
        message_count=held - sum(references.values()) + len(references) + sum(len(one.messages) for one in prepared),
        damage=damage,
    )
