"""`pollux activation` of a member of a cluster that votes: there is no coordination service to ask."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pollux.cli import locate
from pollux.cli.sequence import app
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.replication import settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a broker that was outvoted."""
    configuration = SimpleNamespace(name="castor", journal_directory=tmp_path)
    monkeypatch.setattr(locate, "find_configuration", lambda _: configuration)
    monkeypatch.setattr(settings, "settings_of", lambda _: SimpleNamespace(manager=None))
    local.write(tmp_path, LocalState("0b" * 16, 4, 4, complete=True, replica=False, outvoted=True))
    return tmp_path


def test_what_is_beside_the_journal_can_be_seen(journal: Path) -> None:
    answer = CliRunner().invoke(app, ["list", "--local", "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.output)["local"]["sequence"] == 4
    assert "with a <manager>" in str(CliRunner().invoke(app, ["list"]).exception), "nobody else knows"


def test_an_operator_can_make_it_forget_that_it_was_outvoted(journal: Path) -> None:
    assert CliRunner().invoke(app, ["set", "--local", "4"]).exit_code == 0
    state = local.read(journal)
    assert state is not None
    assert (state.sequence, state.outvoted) == (4, False)
