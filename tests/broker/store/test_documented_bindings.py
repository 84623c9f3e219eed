"""docs/journal-format.md names every field of what the bindings hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pollux.protocols.mqtt.state import SessionRecord, SubscriptionRecord, WillRecord
from pollux.routing.spec import QueueSpec

TEXT = (Path(__file__).parents[3] / "docs/journal-format.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("\n## Bindings\n")[2].partition("\n### Orphans\n")[0]
NAMED = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", SECTION))))


@pytest.mark.parametrize("record", [QueueSpec, SessionRecord, SubscriptionRecord, WillRecord])
def test_every_field_is_named(record: type) -> None:
    assert set(record.__struct_fields__) - NAMED == set()  # type: ignore[attr-defined]
