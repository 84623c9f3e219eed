"""The table against the facts of Artemis's schema: nothing is missing, defaults and enumerations are the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pollux.config.kinds import Directory, Enumeration
from pollux.config.model import Configuration
from pollux.config.refused import refused_in_list
from pollux.config.schema import Entry, Table, places, reachable, table_of


@dataclass(frozen=True)
class Fact:
    path: str
    kind: str
    type: str
    default: str | None
    values: tuple[str, ...]
    use: str


def _facts() -> list[Fact]:
    facts = []
    for line in (Path(__file__).parent / "schema_facts.tsv").read_text().splitlines()[1:]:
        path, kind, type_, default, values, use, *_ = [*line.split("\t"), "", "", ""]
        facts.append(
            Fact(path, kind, type_, default[1:] if default else None, tuple(filter(None, values.split("|"))), use)
        )
    return facts


FACTS = _facts()

#: Where Pollux's default differs from the schema's text, and why.
OTHER_DEFAULTS = {
    # The schema's default of these is an empty text, which for a list or an optional value is "none".
    "core/network-check-list": "none",
    "core/network-check-URL-list": "none",
    "core/network-check-NIC": "none",
    "core/network-check-ping-command": "none",
    "core/network-check-ping6-command": "none",
    # false and absent mean the same: only what is written ENC(...) is masked.
    "core/mask-password": "absent",
    # Absent, so that it can be told from the newer message-load-balancing.
    "core/cluster-connections/cluster-connection/forward-when-no-consumers": "absent",
    # A page is in pieces here, not one value of the database: only what is written is a limit.
    "core/store/database-store/jdbc-max-page-size-bytes": "absent",
}


class RefusedError(Exception):
    """The path leads into something that is refused by name, or is another element's spelling."""


def _resolve(path: str) -> Entry | str:
    """Follow a path of the schema through the tables: the entry at its end, or "list" for a wrapper or a list item."""
    table: Table | None = table_of(Configuration)
    entry: Entry | None = None
    waiting_for_item = False
    for name in path.split("/")[1:]:
        if waiting_for_item and entry is not None:
            # A URI becomes the element that it stands for before it is read.
            if name == "cluster-connection-uri" or name in refused_in_list(entry.name):
                raise RefusedError(name)
            assert name == entry.item, f"{path}: {name} is not the item of {entry.name}"
            waiting_for_item = False
            table = table_of(entry.nested) if entry.nested else None
            continue
        assert table is not None, f"{path}: {name} stands in a value"
        # They become addresses before they are read.
        if path.startswith("core/queues"):
            raise RefusedError(name)
        if name in table.refused or name in table.ignored or path.endswith("/cluster-connection/@uri"):
            raise RefusedError(name)
        if name.startswith("@"):
            assert name[1:] in table.attributes, f"{path} is unknown"
            entry, table = table.attributes[name[1:]], None
            continue
        assert name in table.elements, f"{path} is unknown"
        entry = table.elements[name]
        if entry.wrapped:
            waiting_for_item = True
        table = table_of(entry.nested) if entry.nested else None
    assert entry is not None
    return entry


def test_every_element_and_attribute_of_the_schema_is_known() -> None:
    unknown = []
    for fact in FACTS:
        try:
            _resolve(fact.path)
        except RefusedError:
            continue
        except AssertionError as error:
            unknown.append(str(error))
    assert unknown == []


def test_facts_are_the_whole_schema() -> None:
    assert len(FACTS) > 1000
    assert {"core/name", "core/ha-policy/replication/backup/quorum-vote-wait", "core/bridges/bridge/@name"} <= {
        fact.path for fact in FACTS
    }


def _honoured() -> list[tuple[Fact, Entry]]:
    found = []
    for fact in FACTS:
        try:
            entry = _resolve(fact.path)
        except RefusedError:
            continue
        if isinstance(entry, Entry) and entry.kind is not None and fact.type != "complex":
            found.append((fact, entry))
    return found


@pytest.mark.parametrize(("fact", "entry"), _honoured(), ids=lambda value: getattr(value, "path", ""))
def test_defaults_and_enumerations_are_the_schemas(fact: Fact, entry: Entry) -> None:
    assert entry.kind is not None
    if fact.values:
        assert isinstance(entry.kind, Enumeration)
        assert set(entry.kind.values.__members__) == set(fact.values)
    if fact.default is None or fact.path in OTHER_DEFAULTS or entry.item:
        return
    if entry.required:
        pytest.fail("a value with a default must not be required")
    if isinstance(entry.default, bool) or not isinstance(entry.kind, Directory):
        assert entry.kind.parse(fact.default) == entry.default
    else:
        assert str(entry.default) == fact.default


@pytest.mark.parametrize(("fact", "entry"), _honoured(), ids=lambda value: getattr(value, "path", ""))
def test_integers_cover_the_schemas_type(fact: Fact, entry: Entry) -> None:
    """A boolean of the schema is one; a number of the schema is one (a size may have a suffix)."""
    assert entry.kind is not None
    if fact.type == "boolean":
        assert entry.kind.parse("true") is True
        with pytest.raises(ValueError, match="not a boolean"):
            entry.kind.parse("yes")
    elif fact.type in ("int", "long", "integer", "double"):
        with pytest.raises(ValueError, match=r"not an? "):
            entry.kind.parse("many")


def test_every_entry_says_what_it_is_for() -> None:
    for shape in reachable(Configuration):
        for entry in table_of(shape).entries:
            assert entry.doc, (shape, entry.field)
            assert entry.doc.endswith((".", "value")), (shape, entry.field)


def test_nothing_is_both_honoured_and_refused() -> None:
    shapes: list[type[Any]] = reachable(Configuration)
    for shape in shapes:
        table = table_of(shape)
        assert not set(table.elements) & {*table.refused, *table.ignored}
        assert not set(table.refused) & set(table.ignored)


def test_places_tells_where_an_element_belongs() -> None:
    assert set(places()["queue"]) == {"anycast", "multicast"}
    assert "core" in places()["acceptors"]
