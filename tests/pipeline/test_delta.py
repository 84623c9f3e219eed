"""The log beside a table's files: what was written and taken away becomes a version, and columns may be added."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.delta import check, has_log, publish
from pollux_pipeline.sources.inputs import Inputs

if TYPE_CHECKING:
    from pathlib import Path

FIRST = StructType().add("id", LongType()).add("node", StringType())


def write(place: Path, name: str, *ids: int, node: str | None = "n", **more: list[object]) -> None:
    """A file as Spark puts it into a table that is divided by `node`."""
    directory = place / f"node={'__HIVE_DEFAULT_PARTITION__' if node is None else node}"
    directory.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"id": pa.array(ids, pa.int64()), **more}), directory / f"{name}.parquet")


def rows(place: Path, version: int | None = None) -> list[tuple[int, str | None]]:
    table = DeltaTable(str(place), version=version).to_pyarrow_table()
    return sorted(
        zip(table.column("id").to_pylist(), table.column("node").to_pylist(), strict=True), key=lambda row: row[0]
    )


def test_each_run_is_a_version_with_what_is_there_then(tmp_path: Path) -> None:
    write(tmp_path, "a", 1, 2)
    write(tmp_path, "_unfinished", 9)
    assert not has_log(tmp_path)
    assert publish(tmp_path, FIRST, ("node",)) == 0
    assert has_log(tmp_path)
    write(tmp_path, "b", 3, node="with space")
    write(tmp_path, "c", 4, node=None)
    assert publish(tmp_path, FIRST, ("node",)) == 1
    assert rows(tmp_path) == [(1, "n"), (2, "n"), (3, "with space"), (4, None)]
    assert rows(tmp_path, 0) == [(1, "n"), (2, "n")], "who reads the version before has what it said"
    (tmp_path / "node=n" / "a.parquet").unlink()
    assert publish(tmp_path, FIRST, ("node",)) == 2
    assert rows(tmp_path) == [(3, "with space"), (4, None)]
    assert publish(tmp_path, FIRST, ("node",)) == 2, "nothing new is no version"


def test_columns_are_added(tmp_path: Path) -> None:
    write(tmp_path, "a", 1)
    publish(tmp_path, FIRST, ("node",))
    write(tmp_path, "b", 2, at=pa.array([5_000], pa.timestamp("us", "UTC")))
    publish(tmp_path, StructType([*FIRST.fields]).add("at", TimestampType()), ("node",))
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("id").column("at").to_pylist()
    assert found[0] is None
    assert found[1].microsecond == 5_000


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a", 1)
    publish(tmp_path, FIRST, ("node",))
    for file in (tmp_path / "_delta_log").iterdir():
        file.write_text("{")
    with pytest.raises(InputError, match="_delta_log: "):
        publish(tmp_path, FIRST, ("node",))


def test_without_the_package_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(InputError, match=r"--delta: .*: install pollux-pipeline\[delta\]"):
        check(tmp_path)
    with pytest.raises(InputError, match="--delta"):
        Run(None, Inputs((), ()), tmp_path / "out", {"delta": True})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
