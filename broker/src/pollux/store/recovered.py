"""What recovery found: plain values for the post office and for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    from pollux.store.state import State


#: Kinds of damage that are normal after a crash or a takeover.
NORMAL_DAMAGE = ("torn-tail", "late-writes")


class Damage(Struct):
    """A range of a file that holds no valid record where one was expected.

    ``kind``: "torn-tail" (the last, unconfirmed write; normal after a crash), "corrupt" (bytes that changed
    after they were confirmed), "missing-segment", "late-writes" (bytes a fenced predecessor added),
    "lost-body" (a live message whose record is gone), "missing-bindings" (all that was kept there is gone).
    """

    file: Path
    offset: int
    length: int
    kind: str
    detail: str
    #: Where the damaged bytes were copied to, None when nothing was worth keeping.
    isolated: Path | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.offset}"
        kept = f" (bytes kept in {self.isolated})" if self.isolated else ""
        return f"{where}: {self.kind}: {self.detail}{kept}"


class PreparedTransaction(Struct):
    """A transaction that was prepared (two-phase) and waits for its outcome."""

    tx: int
    xid: bytes
    #: (message id, queue id, priority) that commit would add.
    messages: list[tuple[int, int, int]] = field(default_factory=list)
    #: (queue id, message id) that commit would acknowledge; they are still in their queues.
    acknowledgements: list[tuple[int, int]] = field(default_factory=list)


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
        references=references,
        large=state.large_messages(queues),
        prepared=prepared,
        message_count=held - sum(references.values()) + len(references) + sum(len(one.messages) for one in prepared),
        damage=damage,
    )
