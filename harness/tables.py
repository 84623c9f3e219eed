"""Reads the columns and types of jobs' tables out of docs/pipeline-tables.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pollux_pipeline.schemas import AUDIT, journal_schema

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "pipeline-tables.md").read_text(encoding="utf-8")
_ROW = re.compile(r"\| `(\w+)` \| `([^`]+)` \| ([^|]*) \| ([^|]+) \|")
#: Tables of the lake that have the columns of a data source too, which docs/pipeline.md describes.
_SOURCES = {"ingest/journal": journal_schema(), "ingest/audit": AUDIT}


@cache
def documented() -> dict[str, dict[str, str]]:
    """JOB/TABLE: its columns with Spark's names of their types."""
    found: dict[str, dict[str, str]] = {}
    for section in TEXT.split("\n### ")[1:]:
        name, _, rest = section.partition("\n")
        rows = rest.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
        matches = [_ROW.fullmatch(row) for row in rows]
        assert all(matches), [row for row, match in zip(rows, matches, strict=True) if match is None]
        found[name] = {match[1]: match[2] for match in matches if match}
        if name in _SOURCES:
            found[name] |= {field.name: field.dataType.simpleString() for field in _SOURCES[name].fields}
    return found


def columns(job: str, table: str) -> dict[str, str]:
    """The documented columns of one table; fails when there is none of it."""
    return documented()[f"{job}/{table}"]
