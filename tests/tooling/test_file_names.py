"""Files are named by what they hold, in nouns: a gerund says what is done, and who looks for the thing passes it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Where programs are that others read.
PLACES = ("broker/src", "pipeline/src", "collections", "harness")
#: Nouns and adjectives that end like gerunds, and a job's own name.
NOUNS = {
    "crossing": "a copy that meets its original",
    "incoming": "of links and bridges",
    "meeting": "where brokers find each other",
    "outgoing": "of links and messages",
    "paging": "the field's term",
    "pending": "of transactions",
    "sizing": "pollux-pipeline sizing",
}


def test_no_file_is_named_by_a_gerund() -> None:
    found = [path for place in PLACES for path in (ROOT / place).rglob("*ing.py") if path.stem not in NOUNS]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_each_exception_is_one() -> None:
    there = {path.stem for place in PLACES for path in (ROOT / place).rglob("*ing.py")}
    assert there == set(NOUNS)
