"""xi:include in broker.xml: what comes of it, where problems are, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pollux.config import Problem, examine, load
from pollux.process.reload import stamps

from .documents import document

XI = 'xmlns:xi="http://www.w3.org/2001/XInclude"'
CORE = 'xmlns="urn:activemq:core"'


def written(directory: Path, core: str, **files: str) -> Path:
    """Write broker.xml with this core (on line 3), and other files by name without .xml."""
    for name, text in files.items():
        (directory / f"{name}.xml").write_text(text)
    (directory / "broker.xml").write_text(document(core))
    return directory / "broker.xml"


def problems(file: Path) -> list[Problem]:
    return examine(file, {})[1]


def test_what_is_included_stands_there(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one.xml").write_text(f'<address {CORE} name="one"><anycast/></address>')
    file = written(
        tmp_path,
        f'<name>a</name>\n<xi:include {XI} href="addresses.xml"/>\n<xi:include {XI} href="${{which:limits}}.xml"/>',
        addresses=f'<addresses {CORE} {XI}><address name="two"/><xi:include href="more/one.xml"/></addresses>',
        limits="<max-disk-usage>80</max-disk-usage>",
    )
    loaded = load(file, {})
    assert ([address.name for address in loaded.addresses], loaded.max_disk_usage) == (["two", "one"], 80)
    assert loaded.included == tuple(tmp_path / each for each in ("addresses.xml", "more/one.xml", "limits.xml"))


def test_a_change_of_an_included_file_is_noticed(tmp_path: Path) -> None:
    file = written(tmp_path, f'<xi:include {XI} href="name.xml"/>', name="<name>a</name>")
    loaded = load(file, {})
    before = stamps(loaded)
    os.utime(tmp_path / "name.xml", ns=(1, 1))
    assert stamps(loaded) != before


def test_problems_name_the_file_and_the_line(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f'<name>a</name>\n<xi:include {XI} href="addresses.xml"/>',
        addresses=f'<addresses {CORE}>\n<addres name="x"/>\n<address name="y"/>\n<address name="y"/></addresses>',
    )
    typing, twice = problems(file)
    assert (Path(typing.file), typing.line) == (tmp_path / "addresses.xml", 2)
    # What is found when all was read knows only where the file was included.
    assert (Path(twice.file), twice.line, twice.message) == (file, 4, "address 'y' is defined twice; first on line 4")


@pytest.mark.parametrize(
    ("href", "message"),
    [
        ("nowhere.xml", "xi:include of {0}/nowhere.xml: there is no such file"),
        ("broker.xml", "xi:include of {0}/broker.xml: the file includes itself"),
        ("file://other.host/x.xml", "xi:include of 'file://other.host/x.xml': only files of this machine are included"),
        ("${nobody.says}.xml", "xi:include: property 'nobody.says' is not defined"),
        ("", "xi:include of '': only files of this machine are included"),
        ("text.xml", "is not XML: it does not begin with '<'"),
        ("entity.xml", "a document type (<!DOCTYPE>) is not allowed, and neither are the entities it could declare"),
        ("round.xml", "xi:include of {0}/round.xml: the file includes itself"),
        ("deep0.xml", "xi:include: more than 64 files, or more than 8 deep"),
    ],
)
def test_what_cannot_be_included_is_refused(tmp_path: Path, href: str, message: str) -> None:
    file = written(
        tmp_path,
        f'<xi:include {XI} href="{href}"/>',
        text="secret",
        entity='<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        round=f'<addresses {CORE} {XI}><xi:include href="round.xml"/></addresses>',
        **{
            f"deep{at}": f'<addresses {CORE} {XI}><xi:include href="deep{at + 1}.xml"/></addresses>' for at in range(20)
        },
    )
    (problem,) = problems(file)
    assert problem.message.startswith(message.format(tmp_path))
    assert problem.line
