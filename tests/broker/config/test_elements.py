"""Each element, attribute and URI parameter of the table: a valid value arrives typed, an invalid one is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lxml import etree

from pollux.config import loads
from pollux.config.acceptors import AcceptorSettings, ConnectorSettings
from pollux.config.active_passive import ActivePassive, Seconds
from pollux.config.bridges import Bridge
from pollux.config.clusters import GroupingHandler
from pollux.config.document import parse_document
from pollux.config.extensions import Extensions
from pollux.config.federation import AddressPolicy, Downstream, Upstream
from pollux.config.kinds import (
    Base,
    Boolean,
    Choices,
    Decimal,
    Directory,
    Enumeration,
    Files,
    Integer,
    Kind,
    Size,
    Text,
)
from pollux.config.model import Configuration
from pollux.config.reader import Reader
from pollux.config.report import Report
from pollux.config.schema import Entry, reachable, table_of
from pollux.config.uris import UriError, typed_settings

from .documents import document

if TYPE_CHECKING:
    from pollux.config.problems import Problem


def _entries(*roots: type[Any]) -> list[tuple[type[Any], Entry]]:
    return [
        (shape, entry)
        for root in roots
        for shape in reachable(root)
        for entry in table_of(shape).entries
        if entry.kind is not None
    ]


def valid(kind: Kind) -> str:
    """Some text this kind accepts, other than the usual default."""
    if isinstance(kind, Boolean):
        return "true"
    if isinstance(kind, Integer):
        return str(min(kind.maximum, kind.minimum + 7))
    if isinstance(kind, Decimal):
        return str(kind.maximum)
    if isinstance(kind, Seconds):
        return f"{kind.maximum:g}s"
    if isinstance(kind, Size):
        return f"{max(1, -(-kind.minimum // 1024))}K"
    if isinstance(kind, Enumeration):
        return next(iter(kind.values.__members__))
    if isinstance(kind, Choices):
        return ", ".join(kind.allowed)
    return "/a/b" if isinstance(kind, Directory | Files) else "word"


def invalid(kind: Kind) -> list[str]:
    """Texts this kind refuses."""
    if isinstance(kind, Boolean):
        return ["", "yes", "TRUE?", "2"]
    if isinstance(kind, Integer):
        wrong = ["", "1.5", "five", "1e3", "0x10", "9" * 30, str(kind.maximum + 1)]
        return [*wrong, str(kind.minimum - 100)]
    if isinstance(kind, Decimal):
        return ["", "nan", "inf", "much", str(kind.minimum - 1), str(kind.maximum * 2)]
    if isinstance(kind, Seconds):
        return ["", "nan", "-1", "1e3", "10m", str(kind.maximum * 2)]
    if isinstance(kind, Size):
        return ["", "1T", "K", "ten", "1.5M", "-5", "9" * 30 + "G"]
    if isinstance(kind, Enumeration):
        return ["", "nonsense", next(iter(kind.values.__members__)) + "X"]
    if isinstance(kind, Choices):
        return ["nonsense", kind.allowed[0] + ",x"]
    if isinstance(kind, Directory | Files):
        return ["", "  "]
    return [""] if isinstance(kind, Text) and kind.required else []


def _read(shape: type[Any], entry: Entry, text: str) -> tuple[dict[str, Any], list[str]]:
    """Read an element of ``shape`` in which this entry has this text; the values by field, and the errors."""
    root = etree.Element("thing")
    root.text = "word" if table_of(shape).content else None
    if entry.attribute:
        root.set(entry.name, text)
    elif entry.content:
        root.text = text
    else:
        child = etree.SubElement(root, entry.name)
        if entry.wrapped:
            child = etree.SubElement(child, entry.item)
        child.text = text
    document = parse_document("broker.xml", etree.tostring(root))
    report = Report(document.file, document.positions)
    bases = {Base.INSTANCE: Path("/instance"), Base.ETC: Path("/etc")}
    reader = Reader(report, {}, bases, lambda _entry, _found: None)
    parsed = reader.read(document.root, shape, "thing", frozenset({""}))
    errors = [problem.message for problem in report.errors if " needs the " not in problem.message]
    return parsed.values, errors


ELEMENTS = _entries(Configuration, Extensions)
PARAMETERS = _entries(AcceptorSettings, ConnectorSettings)


def _id(value: object) -> str:
    return value.name if isinstance(value, Entry) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("shape", "entry"), ELEMENTS, ids=_id)
def test_valid_values_arrive(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    text = entry.kind.render(entry.only.values[0]) if entry.only else valid(entry.kind)
    values, errors = _read(shape, entry, text)
    assert errors == []
    value = values[entry.field]
    expected = entry.kind.parse(text)
    assert value == ((expected,) if entry.item else expected)


@pytest.mark.parametrize(("shape", "entry"), ELEMENTS, ids=_id)
def test_invalid_values_are_named(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    for text in invalid(entry.kind):
        values, errors = _read(shape, entry, text)
        assert len(errors) == 1, (text, errors)
        name = entry.item or ("thing" if entry.content else entry.name)
        assert name in errors[0]
        assert not values.get(entry.field)


@pytest.mark.parametrize(("shape", "entry"), ELEMENTS, ids=_id)
def test_older_spellings_mean_the_same(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    for alias in entry.aliases:
        root = etree.Element("thing")
        etree.SubElement(root, alias).text = valid(entry.kind)
        document = parse_document("broker.xml", etree.tostring(root))
        report = Report(document.file, document.positions)
        reader = Reader(report, {}, {}, lambda _entry, _found: None)
        assert reader.read(document.root, shape, "thing", frozenset({""})).values == {
            entry.field: entry.kind.parse(valid(entry.kind))
        }


@pytest.mark.parametrize(("shape", "entry"), [found for found in ELEMENTS if found[1].only], ids=_id)
def test_values_that_are_not_provided_are_refused(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    assert entry.only is not None
    assert entry.default in entry.only.values
    (provided,) = entry.only.values
    other = entry.kind.render(not provided if isinstance(entry.kind, Boolean) else 17)
    _, errors = _read(shape, entry, other)
    what = f"attribute {entry.name!r} of <thing>" if entry.attribute else f"<{entry.name}>"
    assert errors == [f"{what}: {other} is not supported, only {entry.kind.render(provided)}: {entry.only.reason}"]


_OTHERS = ("17", "8192", "NIO", "false", "true", "REMOTE")
#: What a bridge stands in, and what it needs, on one line.
_BRIDGE = (
    "<cluster-password>ours</cluster-password><connectors><connector name='c'>tcp://a:1</connector></connectors>"
    "<bridges><bridge name='b'><queue-name>q</queue-name>{}<static-connectors><connector-ref>c</connector-ref>"
    "</static-connectors></bridge></bridges>"
)


_GROUPING = (
    "<cluster-password>ours</cluster-password><connectors><connector name='c'>tcp://a:1</connector></connectors>"
    "<cluster-connections><cluster-connection name='c'><connector-ref>c</connector-ref></cluster-connection>"
    "</cluster-connections><grouping-handler name='g'>{}</grouping-handler>"
)


_FEDERATION = (
    "<cluster-password>ours</cluster-password><connectors><connector name='c'>tcp://a:1</connector></connectors>"
    "<federations><federation name='f'><{kind} name='u'>{}<static-connectors><connector-ref>c</connector-ref>"
    "</static-connectors><policy ref='p'/></{kind}><address-policy name='p'{}/></federation></federations>"
)


def _within(shape: type[Any], entry: Entry, text: str) -> tuple[Any, tuple[Problem, ...]]:
    """Load an element or attribute in its place; return the record it is in, and the warnings."""
    element = f"<{entry.name}>{text}</{entry.name}>"
    if shape is Bridge:
        loaded = loads(document(_BRIDGE.format(element)), {})
        return loaded.bridges[0], loaded.warnings
    if shape is Upstream:
        loaded = loads(document(_FEDERATION.format(element, "", kind="upstream")), {})
        return loaded.federations[0].upstreams[0], loaded.warnings
    if shape is Downstream:
        back = "" if entry.field == "upstream_connector_ref" else "<upstream-connector-ref>c</upstream-connector-ref>"
        loaded = loads(document(_FEDERATION.format(element + back, "", kind="downstream")), {})
        return loaded.federations[0].downstreams[0], loaded.warnings
    if shape is GroupingHandler:
        kind = "" if entry.name == "type" else "<type>LOCAL</type>"
        loaded = loads(document(_GROUPING.format(f"{kind}{element}")), {})
        return loaded.grouping_handler, loaded.warnings
    if shape is AddressPolicy:
        loaded = loads(document(_FEDERATION.format("", f" {entry.name}='{text}'", kind="upstream")), {})
        return loaded.federations[0].address_policies[0], loaded.warnings
    if entry.field == "reject_empty_validated_user":
        element += "<populate-validated-user>true</populate-validated-user>"  # without it nobody would be let send
    loaded = loads(document(element), {})
    return loaded, loaded.warnings


@pytest.mark.parametrize(
    ("shape", "entry"),
    [(shape, entry) for shape, entry in ELEMENTS if entry.no_effect and shape is not ActivePassive],
    ids=_id,
)
def test_values_without_effect_are_warned_about(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    default = entry.kind.render(entry.default)
    other = next(text for text in _OTHERS if _is_other(entry, text))
    _, found = _within(shape, entry, other)
    what = f"attribute {entry.name!r} of <address-policy>" if entry.attribute else f"<{entry.name}>"
    assert [(warning.line, warning.message) for warning in found] == [(3, f"{what} has no effect: {entry.no_effect}")]
    if default:
        assert _within(shape, entry, default)[1] == ()


@pytest.mark.parametrize(("shape", "entry"), [found for found in ELEMENTS if found[1].by_design], ids=_id)
def test_what_is_kept_by_design_is_taken_without_a_word(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    other = next(text for text in _OTHERS if _is_other(entry, text))
    record, warnings = _within(shape, entry, other)
    assert warnings == ()
    assert getattr(record, entry.field) == entry.kind.parse(other)


def _is_other(entry: Entry, text: str) -> bool:
    assert entry.kind is not None
    try:
        return entry.kind.parse(text) != entry.default
    except ValueError:
        return False


@pytest.mark.parametrize(("shape", "entry"), PARAMETERS, ids=_id)
def test_uri_parameters(shape: type[Any], entry: Entry) -> None:
    assert entry.kind is not None
    kind = entry.kind
    for name in entry.names:
        values, needs, _ = typed_settings(shape, {name: valid(kind)}, lambda kind, text: kind.parse(text))
        assert values == {entry.field: kind.parse(valid(kind))}
        assert needs == ([entry.needs] if entry.needs else [])
        for text in invalid(kind):
            with pytest.raises(UriError, match=f"URI parameter '{name}': "):
                typed_settings(shape, {name: text}, lambda kind, text: kind.parse(text))


def test_special_values_outside_the_range() -> None:
    kind = Integer(minimum=1, maximum=5, unit="hours", special=((-1, "no limit"),))
    assert kind.parse("-1") == -1
    with pytest.raises(ValueError, match=r"^9 is out of range: allowed is 1 to 5, or -1 \(no limit\)$"):
        kind.parse("9")
    with pytest.raises(ValueError, match=r"^'x' is not an integer number of hours: allowed is 1 to 5"):
        kind.parse("x")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("-1", -1),
        ("100", 100),
        ("100B", 100),
        ("1K", 1024),
        ("1k", 1024),
        ("1KB", 1024),
        ("1KiB", 1024),
        ("10 MB", 10 * 1024**2),
        ("10MiB", 10 * 1024**2),
        ("10m", 10 * 1024**2),
        (" 2G ", 2 * 1024**3),
        ("2GB", 2 * 1024**3),
        ("2GiB", 2 * 1024**3),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert Size(special=((-1, "no limit"),)).parse(text) == size
