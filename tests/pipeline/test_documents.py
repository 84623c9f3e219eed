"""docs/pipeline.md names every column, job, finding and kind of damage, docs/pipeline-tables.md every table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import tables
from pollux.formats import ledger
from pollux_pipeline.cli import app
from pollux_pipeline.jobs.reconcile import KINDS
from pollux_pipeline.schemas import AUDIT, JOURNAL
from pollux_pipeline.sources import audit, journal

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")


def row_of(command: str) -> str:
    """The row of the table of jobs for a command, with its options or without any."""
    (row,) = re.findall(rf"^\| `{command}[ `].*", TEXT, re.MULTILINE)
    return str(row)


@pytest.mark.parametrize("field", [*JOURNAL.fields, *AUDIT.fields], ids=lambda field: field.name)
def test_every_column_is_described_with_its_type(field: StructField) -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and f"`{field.name}`" in line.split("|")[1]]
    kinds = [line.split("|")[2].strip() for line in rows]
    assert field.dataType.simpleString() in kinds


def test_every_job_and_finding_is_described() -> None:
    assert all(row_of(str(command.name)) for command in app.registered_commands)
    for kind in KINDS:
        assert f"| `{kind}` |" in TEXT


def test_every_kind_of_damage_is_described() -> None:
    sources = ROOT / "pipeline" / "src" / "pollux_pipeline" / "sources"
    code = "".join(path.read_text() for path in sources.glob("*.py"))
    words = r"corrupt|cut|torn-tail|late-writes|bad-header|unknown-version|foreign-node|missing-segment|vanished"
    for kind in set(re.findall(rf'"({words})"', code)):
        assert f"| `{kind}` |" in TEXT


def test_every_table_that_is_written_is_described_and_no_other() -> None:
    """That each has the columns which are described is judged wherever a test runs a job: see conftest.py."""
    jobs = ROOT / "pipeline" / "src" / "pollux_pipeline" / "jobs"
    call = re.compile(r'run\.write(?:_rows)?\(\s*"(\w+)"')
    written = {name for path in jobs.glob("*.py") for name in call.findall(path.read_text())}
    lake = {"journal", "audit", "ledger"}
    described = {name.partition("/")[2] for name in tables.documented()}
    assert described == written | lake
    for command in app.registered_commands:
        named = set(re.findall(r"`([a-z_]+)`", row_of(str(command.name)).rsplit("|", 2)[1]))
        assert named >= {name.partition("/")[2] for name in tables.documented() if name.startswith(f"{command.name}/")}


def test_the_example_of_a_ledger_is_one_to_the_byte() -> None:
    text = (ROOT / "docs" / "ledger-format.md").read_text(encoding="utf-8")
    example = text.split("```\n")[1]
    entries = list(ledger.decode(example))
    assert [type(entry).__name__ for entry in entries] == ["Sent", "Confirmed", "Fault", "Received"]
    assert ledger.HEADER + "".join(map(ledger.encode, entries)) == example
    fields = {one: len(fields) for one, *fields in (line.split("\t") for line in example.splitlines()[1:])}
    rows = [line.split("|")[1:-1] for line in text.splitlines() if re.match(r"\| \d \|", line)]
    described = {kind: sum(bool(row[n].strip()) for row in rows) for n, kind in enumerate("SCRF", start=1)}
    assert described == {kind: count + 1 for kind, count in fields.items()}


def test_every_option_of_the_sources_is_described() -> None:
    for name in (*journal.OPTIONS, *audit.OPTIONS):
        assert f"`{name}`" in TEXT
