"""Messages are appended, by whichever way, as :func:`pollux.formats.records.message_head` says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pollux.formats import records
from pollux.message import Encoding, Message, RoutingType
from pollux.store.appends import Appends
from pollux.store.large import LargeMessage

OWN: list[dict[str, Any]] = [
    {},
    {"priority": 7, "timestamp": 5, "expiration": 6},
    {"deliver_at": 5},
    {"duplicate_id": b""},
    {"group": "g", "group_sequence": 5},
    {"group_sequence": 5},
    {"last_value": "v"},
    {"user": "alice"},
    {"large": LargeMessage(7, 9, 5)},
    {"annotations": {"a": 1}},
    {"annotations": {}},
]


@pytest.mark.parametrize("queues", [(3,), (3, 4)], ids=["one queue", "two queues"])
@pytest.mark.parametrize("tx", [0, 9], ids=["alone", "transaction"])
@pytest.mark.parametrize("routing_type", [None, *RoutingType])
def test_every_message_is_recorded_as_its_head_says(
    queues: tuple[int, ...], tx: int, routing_type: RoutingType | None
) -> None:
    settings: Any = SimpleNamespace(
        persist_id_cache=True, journal_sync_non_transactional=True, journal_sync_transactional=True
    )
    appends = Appends(settings, salt=5, check_room=lambda: None)
    journal = appends.journal = SimpleNamespace(  # type: ignore[assignment]  # what an append needs of one
        parts=[], records=0, size=0, sync=False, scheduled=True, group_bytes=1 << 20
    )
    for own in OWN:
        annotations = own.get("annotations")
        fields = {name: value for name, value in own.items() if name != "annotations"}
        message = Message(Encoding.AMQP, "orders", b"data", routing_type=routing_type, **fields)
        message.annotations = annotations
        message.id = 11
        appends.message(message, queues, tx)
        _, head, data = journal.parts[-3:]
        assert (head, data) == (records.message_head(message, queues, tx, b"orders"), b"data")
    assert (journal.records, appends.tx_records.get(tx, 0)) == (len(OWN), len(OWN) if tx else 0)
    assert journal.sync is not bool(tx)
    assert journal.size == sum(map(len, journal.parts))


#: What differs of messages that are alike; of annotations the bytes of one are the usual case.
ALIKE: dict[str, list[dict[str, str | int | bytes] | None]] = {
    "none": [None] * 4,
    "empty": [{}, None, {}, {}],
    "bytes": [{"note": b"A"}, {"note": b"B"}, {"note": b""}, {"note": b"CC" * 200}],
    "other values": [{"note": b"A"}, {"note": "B"}, {"note": 7}, {"note": b"C"}],
    "text": [{"note": "A"}, {"note": "B"}, {"note": b"A"}, {"note": ""}],
    "several": [{"note": b"A", "other": number} for number in range(4)],
}


@pytest.mark.parametrize("annotations", ALIKE.values(), ids=list(ALIKE))
@pytest.mark.parametrize("queues", [(3,), (3, 4)], ids=["one queue", "two queues"])
@pytest.mark.parametrize("tx", [0, 9], ids=["alone", "transaction"])
@pytest.mark.parametrize("own", [{}, {"user": "alice", "priority": 7}, {"large": LargeMessage(7, 9, 0x41)}])
def test_messages_that_are_alike_are_recorded_as_each_alone(
    annotations: list[dict[str, str | int | bytes] | None], queues: tuple[int, ...], tx: int, own: dict[str, Any]
) -> None:
    """Groups that are too large are handed over between the same messages, and both are to be synced, or neither."""
    messages = []
    for number, each in enumerate(annotations):
        message = Message(Encoding.MQTT, "orders", b"data" * number, timestamp=7 * number, expiration=number, **own)
        message.id, message.annotations = 11 + number, each
        messages.append(message)
    (one_by_one, expected), (at_once, found) = recorded(), recorded()
    for message in messages:
        one_by_one.message(message, queues, tx)
    at_once.messages(messages, queues, tx)
    assert vars(found) == vars(expected)
    assert len(found.groups) > 1
    assert at_once.tx_records == one_by_one.tx_records


@pytest.mark.parametrize("queues", [(3,), (3, 4)], ids=["one queue", "two queues"])
@pytest.mark.parametrize("tx", [0, 9], ids=["alone", "transaction"])
@pytest.mark.parametrize("size", [1, 300])
def test_messages_whose_notes_are_given_are_recorded_as_each_alone(queues: tuple[int, ...], tx: int, size: int) -> None:
    """Breaks when a note gets to another message, or what is before it in the extension is not that of all."""
    notes = [bytes((65 + number,)) * size for number in range(4)]
    messages = []
    for number, note in enumerate(notes):
        message = Message(Encoding.MQTT, "orders", b"data" * number, timestamp=7 * number, user="alice")
        message.id, message.annotations = 11 + number, {"note": note}
        messages.append(message)
    (one_by_one, expected), (at_once, found) = recorded(), recorded()
    for message in messages:
        one_by_one.message(message, queues, tx)
    at_once.messages(messages, queues, tx, notes)
    assert vars(found) == vars(expected)


class Handed:
    """Stands for a journal, as far as an append needs one, and keeps what it was handed over."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.records = self.size = 0
        self.sync = self.scheduled = False
        self.group_bytes = 100
        self.groups: list[tuple[bytes, int, bool]] = []

    def hand_over(self) -> None:
        self.groups.append((b"".join(self.parts), self.records, self.sync))
        self.parts, self.records, self.size, self.sync = [], 0, 0, False

    def schedule(self) -> None:
        self.scheduled = True


def recorded() -> tuple[Appends, Handed]:
    settings: Any = SimpleNamespace(
        persist_id_cache=True, journal_sync_non_transactional=True, journal_sync_transactional=True
    )
    appends, journal = Appends(settings, salt=5, check_room=lambda: None), Handed()
    appends.journal = journal  # type: ignore[assignment]
    return appends, journal
