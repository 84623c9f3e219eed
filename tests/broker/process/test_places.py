"""Where a broker writes: what `pollux check` says of it, and that a start refuses the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from broker.config.documents import document
from harness import forked
from harness.broker import POLLUX
from pollux.cli.app import app
from pollux.process import places
from pollux.process.exits import EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path

NO_PORT = "<px:management><px:enabled>false</px:enabled></px:management>"
CORE = '<acceptors><acceptor name="a">tcp://127.0.0.1:0</acceptor></acceptors>'


def log_to(name: str) -> str:
    return f"<px:logging><px:file>{name}</px:file></px:logging>"


def database(url: str, driver: str) -> str:
    names = ("message", "bindings", "large-message", "page-store", "node-manager-store")
    tables = "".join(f"<{name}-table-name>{name.replace('-', '_')}</{name}-table-name>" for name in names)
    return (
        f"<store><database-store><jdbc-driver-class-name>{driver}</jdbc-driver-class-name>"
        f"<jdbc-connection-url>{url}</jdbc-connection-url>{tables}</database-store></store>"
    )


#: What the file says in core and beside it, and what of the problem is told.
CASES = {
    "journal": (
        "<journal-directory>taken</journal-directory>",
        "",
        "journal-directory {}/taken: {}/taken is no directory",
    ),
    "below": (
        "<bindings-directory>taken/x/y</bindings-directory>",
        "",
        "bindings-directory {}/taken/x/y: {}/taken is no",
    ),
    "paging": ("<paging-directory>taken</paging-directory>", "", "paging-directory {}/taken"),
    "large": ("<large-messages-directory>taken</large-messages-directory>", "", "large-messages-directory {}/taken"),
    "lock": ("<node-manager-lock-directory>taken</node-manager-lock-directory>", "", "node-manager-lock-directory {}"),
    "sqlite": (database("jdbc:sqlite:/no/such/x.db", "org.sqlite.JDBC"), "", "/no/such is no directory: make it"),
    "log": ("", log_to("directory"), "px:logging: file {}/directory: is a directory: name a file"),
    "log below": ("", log_to("taken/log"), "px:logging: file {}/taken/log: {}/taken is no directory"),
}


def check(file: Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", str(file)])
    return done.exit_code, done.output


@pytest.mark.parametrize("name", CASES)
def test_check_refuses_what_a_start_would(name: str, tmp_path: Path) -> None:
    core, px, said = CASES[name]
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "directory").mkdir()
    file = tmp_path / "broker.xml"
    file.write_text(document(CORE + core, NO_PORT + px))
    code, output = check(file)
    assert code == EXIT_USAGE
    assert said.replace("{}", str(tmp_path)) in output
    done = forked.run([POLLUX, "run", str(file)], cwd=tmp_path)
    assert done.returncode not in (EXIT_OK, None)
    assert "Traceback" not in done.stdout + done.stderr


def test_who_may_not_write_there_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.xml"
    file.write_text(document(CORE, NO_PORT + log_to("log")))
    (tmp_path / "log").touch()
    assert check(file)[0] == EXIT_OK
    monkeypatch.setattr(os, "access", lambda _, mode, **__: not mode & os.W_OK)
    code, output = check(file)
    assert code == EXIT_USAGE
    assert output.count(f"cannot write to {tmp_path}: check as the broker's user") == 5


@pytest.mark.parametrize("what", ["<persistence-enabled>false</persistence-enabled>", ""])
def test_what_is_not_written_to_is_not_looked_at(what: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    file = tmp_path / "broker.xml"
    file.write_text(document(CORE + what, NO_PORT))
    assert check(file)[0] == (EXIT_OK if what else EXIT_USAGE)


def test_a_database_whose_packages_are_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.xml"
    file.write_text(document(CORE + database("jdbc:postgresql://127.0.0.1/x", "org.postgresql.Driver"), NO_PORT))
    assert check(file)[0] == EXIT_OK
    monkeypatch.setattr(places, "find_spec", lambda _: None)
    code, output = check(file)
    assert code == EXIT_USAGE
    assert "the package sqlalchemy is missing: install pollux-broker[database]" in output
