"""Files in an output directory that are not ours stay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.manifest import NAME, Manifest
from pollux_pipeline.sources.inputs import Inputs

if TYPE_CHECKING:
    from pathlib import Path


def make_run(output: Path) -> Run:
    return Run(Mock(), Inputs((), ()), output)


def test_a_directory_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "mail").write_text("mine")
    run = make_run(tmp_path)
    with pytest.raises(InputError, match=r"messages: is there, and pollux-pipeline did not write it: give another"):
        run.write("messages", Mock(columns=[], dtypes=[]))
    assert (tmp_path / "messages" / "mail").read_text() == "mine"


@pytest.mark.parametrize("name", ["report.html", "result.json"])
def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match=f"{name}: is there, and pollux-pipeline did not write it"):
        make_run(tmp_path)
    assert (tmp_path / name).read_text() == "{}"


def test_a_run_replaces_what_one_before_wrote_even_if_that_was_killed(tmp_path: Path) -> None:
    make_run(tmp_path).manifest.claim("messages")
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "part-0").touch()
    (tmp_path / "report.html").touch()
    make_run(tmp_path).manifest.claim("messages")


def test_an_empty_directory_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    make_run(tmp_path).manifest.claim("messages")
    assert json.loads((tmp_path / NAME).read_text())["wrote"] == ["messages", "report.html", "result.json"]


def test_what_0_1_0_wrote_without_a_manifest_is_replaced_and_nothing_beside_it(tmp_path: Path) -> None:
    told = {"format": 1, "job": "reconcile", "result": "clean", "findings": {}, "facts": {}}
    (tmp_path / "result.json").write_text(json.dumps(told))
    for name in ("messages", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "messages" / "_SUCCESS").touch()
    manifest = Manifest(tmp_path)
    manifest.claim("messages")
    with pytest.raises(InputError, match="mine: is there"):
        manifest.claim("mine")


def test_a_manifest_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[]")
    with pytest.raises(InputError, match="is not a manifest of pollux-pipeline"):
        Manifest(tmp_path)
