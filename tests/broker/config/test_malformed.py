"""Files that are no broker.xml, or a harmful one: refused in words, before anything is expanded or read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.config import ConfigError, check, load

from .documents import messages

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: there is no XML in it"),
        ("name: pollux", "is not XML: it does not begin with '<'"),
        (
            "<a>\n<b c='x&y=1'/></a>",
            "is not well-formed XML: an '&' must be written &amp; (in a URI ; separates parameters as well)",
        ),
        ("<a", "is not well-formed XML: unclosed token"),
        ("<a>\n<c/><d></a>", "is not well-formed XML: mismatched tag: <d> of line 2 is still open here"),
        ("<a>&undefined;</a>", "is not well-formed XML: undefined entity"),
        (
            "<!DOCTYPE a><a/>",
            "a document type (<!DOCTYPE>) is not allowed, and neither are the entities it could declare",
        ),
        ("<a>" * 40 + "</a>" * 40, "elements are nested more than 32 deep"),
        ("<a " + " ".join(f'a{n}=""' for n in range(100)) + "/>", "an element has more than 64 attributes"),
        (
            "<broker xmlns='http://activemq.org/schema'/>",
            (
                'the root element is <broker>: expected is <configuration xmlns="urn:activemq">;'
                " this seems to be Artemis's bootstrap.xml: give broker.xml"
            ),
        ),
        ("<server/>", 'the root element is <server>: expected is <configuration xmlns="urn:activemq">'),
        ('<configuration xmlns="urn:activemq"/>', '<configuration> needs the element <core xmlns="urn:activemq:core">'),
        ('<?xml version="1.0" encoding="klingon"?><a/>', "is not readable XML: unknown encoding: klingon"),
    ],
)
def test_files_that_are_not_a_configuration(text: str, message: str) -> None:
    assert messages(text) == [message]


def test_an_xml_bomb_is_refused_before_anything_is_expanded() -> None:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "ha" * 1000}">' for n in range(12))
    bomb = f"<!DOCTYPE configuration [{entities}]><configuration>&l11;</configuration>"
    assert messages(bomb)[0].startswith("a document type (<!DOCTYPE>) is not allowed")


def test_an_external_entity_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    text = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{secret}">]><a>&x;</a>'
    assert all("top secret" not in message for message in messages(text))


def test_the_size_is_bounded() -> None:
    assert messages("<a>" + " " * 5_000_000 + "</a>") == ["is larger than 4 MiB"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert [problem.render() for problem in check(tmp_path / "none.xml")] == [
        f"{tmp_path}/none.xml: there is no such file"
    ]
    assert [problem.message for problem in check(tmp_path)] == ["this is not a regular file"]
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "none.xml")
