"""Inputs are found whatever they are called, and however one gets there; nothing is left out silently."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from harness.histories import History
from harness.journals import JournalFile
from pollux.formats.ledger import HEADER, Confirmed, Entry, Received, Sent
from pollux_pipeline.errors import InputError
from pollux_pipeline.sources.files import directories, plan
from pollux_pipeline.sources.inputs import find
from pollux_pipeline.sources.ledger import read_ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

#: What Spark takes for patterns, what URIs escape, and what only looks as if it were escaped.
NAMES = ("a b", "a[x]y", "a%20b", "é ü", "q?*{z,w}", "back\\slash", "#;,&=@!$'()~+", "tab\tx", "no\u00a0break")


def journal(directory: Path) -> JournalFile:
    """A segment with one message."""
    made = JournalFile(directory)
    made.message("a", [7])
    made.close()
    return made


def test_ledgers_are_read_whatever_they_are_called_and_their_lines_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Breaks when a path is taken for a pattern or a URI, when a carriage return ends a line, or when the torn tail of
    one ledger takes a complete line of the same text with it, there or in another."""
    expected: list[tuple[str, str]] = []
    for number, name in enumerate(NAMES):
        path = tmp_path / name / f"{name}.ledger"
        path.parent.mkdir()
        torn = ("C\t2\tsame", "R\t3\t\xe9"[:-1] + "é", "")[number % 3]
        entries: list[Entry] = [Sent(1, f"{number}\rx", "p"), Confirmed(2, "same")]
        History(entries).write(path, torn=torn)
        if number % 3 == 0:  # a line that is complete, malformed, and what the tail says too
            path.write_bytes(HEADER.encode() + b"C\t2\tsame\n" + path.read_bytes().removeprefix(HEADER.encode()))
            expected.append((str(path), "C\t2\tsame"))
        with path.open("rb+") as stream:  # the tail ends within a character
            if torn.endswith("é"):
                stream.seek(-1, os.SEEK_END)
                stream.truncate()
        expected += [(str(path), f"S\t1\t{number}\rx\tp\t\t0"), (str(path), "C\t2\tsame\t\t\t")]
    inputs = find([str(tmp_path)])
    assert len(inputs.ledgers) == len(NAMES)
    lines = read_ledgers(spark, inputs.ledgers)
    assert sorted((row.file, row.line) for row in lines.collect()) == sorted(expected)
    alone = read_ledgers(spark, inputs.ledgers[:1]).select("file", "ledger").distinct().collect()
    assert alone == [(inputs.ledgers[0], 1)]


def test_a_name_that_spark_cannot_read_is_refused(tmp_path: Path) -> None:
    path = History().write(tmp_path / "at 12:00.ledger")
    with pytest.raises(InputError, match="colon in its name; give it another name"):
        find([str(path)])


@pytest.mark.parametrize("content", ["", HEADER[:4], HEADER])
def test_an_empty_ledger_is_one(tmp_path: Path, content: str) -> None:
    """Its writer was killed, or has written nothing yet."""
    for name in ("ledger.txt", "of-a-host.ledger", "notes.txt"):
        (tmp_path / name).write_text(content)
    named = {str(tmp_path / name) for name in ("ledger.txt", "of-a-host.ledger")}
    assert set(find([str(tmp_path)]).ledgers) == named | ({str(tmp_path / "notes.txt")} if content == HEADER else set())
    assert find([str(tmp_path / "notes.txt")]).ledgers == (str(tmp_path / "notes.txt"),)


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Breaks when whatever has the name of a ledger, a segment or a trail is opened to look at it."""
    segment = journal(tmp_path / "data")
    for name in ("ledger.txt", "x-1-1.audit", "data/pollux-00000001-0000000002.segment"):
        os.mkfifo(tmp_path / name)
    found = find([str(tmp_path)])
    assert (found.ledgers, found.journals) == ((), (str(tmp_path / "data"),))
    planned = plan([str(tmp_path)])
    assert [part.path for part in planned.parts] == [str(segment.path)]
    assert "is no regular file" in planned.problems[0].detail
    with pytest.raises(InputError, match="neither a file nor a directory"):
        find([str(tmp_path / "ledger.txt")])


def test_links_lead_to_what_is_there_and_once(tmp_path: Path) -> None:
    """Random trees of journals, ledgers and trails, some of them behind links, links to links, and links in circles.

    Breaks when a link is not followed (its messages would read as lost), or when what two paths lead to counts twice.
    """
    random = Random(20261126)  # noqa: S311
    for number in range(30):
        top, far = tmp_path / str(number) / "top", tmp_path / str(number) / "far"
        top.mkdir(parents=True)
        places = [top]
        expected: set[Path] = set()
        for each in range(random.randrange(1, 6)):
            name = f"{'abc'[random.randrange(3)]}{each}"
            place = random.choice([*places, far]) / name
            kind = random.choice(("journal", "ledger", "trail"))
            place.mkdir(parents=True)
            if kind == "journal":
                journal(place)
            elif kind == "ledger":
                History([Received(1, "m")]).write(place / "host.ledger")
            else:
                (place / "x-20261121T000000000Z-000001.audit").write_bytes(b"")
            if far in place.parents:
                for link in range(random.randrange(1, 3)):
                    (top / f"{random.choice('az')}{each}{link}").symlink_to(place)
            places.append(place)
            expected.add(place / "host.ledger" if kind == "ledger" else place)
        (random.choice(places) / "circle").symlink_to(top)
        found = find([str(top)])
        every = [*found.journals, *found.ledgers, *found.audits]
        assert len(every) == len(expected), number
        assert {os.path.realpath(one) for one in every} == {str(one) for one in expected}, number
        own = {str(one) for one in expected if top in one.parents}
        assert own <= set(every), "what lies below is there under its own path"
        assert find([str(top), str(top / "."), str(far.parent)]).journals == tuple(
            map(str, directories([str(far.parent)]))
        )


def test_a_pattern_finds_what_it_matches(tmp_path: Path) -> None:
    """Of what it matches counts what holds something; a path that is called so is no pattern."""
    for name in ("one/data", "two/deep/data", "[x]/data"):
        journal(tmp_path / name)
    History([Received(1, "m")]).write(tmp_path / "two" / "host.ledger")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").write_text("beside it")
    assert find([f"{tmp_path}/o*/data"]).journals == (f"{tmp_path}/one/data",)
    every = find([f"{tmp_path}/*"])
    assert set(every.journals) == {f"{tmp_path}/{name}" for name in ("[x]/data", "one/data", "two/deep/data")}
    assert every.ledgers == (f"{tmp_path}/two/host.ledger",)
    assert find([f"{tmp_path}/**/deep"]).journals == (f"{tmp_path}/two/deep/data",)
    assert find([f"{tmp_path}/[x]"]).journals == (f"{tmp_path}/[x]/data",)
    with pytest.raises(InputError, match="nothing that matches it as a pattern"):
        find([f"{tmp_path}/z*"])
    with pytest.raises(InputError, match=r"emp\*: holds neither a journal nor a ledger nor an audit trail"):
        find([f"{tmp_path}/emp*"])


def test_a_link_to_nothing_in_the_place_of_a_segment_is_told(tmp_path: Path) -> None:
    first = journal(tmp_path / "data")
    (tmp_path / "data" / "pollux-00000001-0000000002.segment").symlink_to(tmp_path / "gone")
    planned = plan([str(tmp_path)])
    assert [part.path for part in planned.parts] == [str(first.path)]
    assert [(one.damage, one.detail) for one in planned.problems] == [("missing-segment", "this name leads to no file")]
