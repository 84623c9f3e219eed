"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import tables
from harness.spark_cluster import SHORT_LIVED, UNCOMPILED
from pollux_pipeline import spark_settings
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.session import build_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from pollux_pipeline.jobs.base import Result

HERE = Path(__file__).parent
#: As the command line sets it for little data; what the cluster writes is compared with what this session does.
SETTINGS = {
    **spark_settings.settings(0, local=True),
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    **UNCOMPILED,
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real local session with two workers."""
    scratch = tmp_path_factory.mktemp("spark")
    settings = SETTINGS | {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    session = build_session("local[2]", name="pollux-tests", memory="1g", settings=settings)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def documented_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever table a job writes in any test has the columns and types that docs/pipeline-tables.md says."""
    written: dict[Run, dict[str, dict[str, str]]] = {}
    write, write_rows, finish = Run.write, Run.write_rows, Run.finish

    def noted(run: Run, name: str, frame: DataFrame, **how: Any) -> DataFrame:
        written.setdefault(run, {})[name] = dict(frame.dtypes)
        return write(run, name, frame, **how)

    def noted_rows(run: Run, name: str, rows: Iterable[tuple[Any, ...]], columns: str) -> DataFrame:
        frame = write_rows(run, name, rows, columns)
        written.setdefault(run, {})[name] = dict(frame.dtypes)
        return frame

    def compared(run: Run, result: Result) -> Result:
        for name, found in written.pop(run, {}).items():
            assert found == tables.columns(result.job, name), f"{result.job}/{name}"
        return finish(run, result)

    monkeypatch.setattr(Run, "write", noted)
    monkeypatch.setattr(Run, "write_rows", noted_rows)
    monkeypatch.setattr(Run, "finish", compared)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Queries of Spark on a busy machine take long; a hang still ends."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(1800))
