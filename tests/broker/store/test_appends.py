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
