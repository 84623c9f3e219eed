"""Jobs that are run on a cluster and on this machine alike: a program of its own there, called by the test here.

As a program: the master, Spark's properties as JSON, the directory of the inputs and that of the outputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux_pipeline.jobs import base
from pollux_pipeline.jobs.pair import check_sides
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.jobs.split_brain import split_brain
from pollux_pipeline.session import build_session
from pollux_pipeline.sources.inputs import Inputs, find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pollux_pipeline.jobs.base import Result

#: Bytes that one task reads, and bytes of input for each file of a table: small inputs are divided as large ones are.
STRETCH = {"spark.sql.files.maxPartitionBytes": str(64 << 10)}
FILE_BYTES = 64 << 10


def run_jobs(spark: SparkSession, data: Path, output: Path) -> dict[str, Result]:
    """`reconcile` of what is in data/traffic and `split_brain` of data/a and data/b, each with an output of its own."""
    found = find([str(data / "traffic")])
    sides = check_sides(data / "a", data / "b")
    options: dict[str, Any] = {"sides": sides, "keep": "b"}
    return {
        "reconcile": reconcile(base.Run(spark, found, output / "reconcile")),
        "split_brain": split_brain(base.Run(spark, Inputs(tuple(sides.values()), ()), output / "split_brain", options)),
    }


if __name__ == "__main__":
    master, settings, inputs, outputs = sys.argv[1:]
    base._FILE_BYTES = FILE_BYTES
    session = build_session(master, memory="1g", settings={**json.loads(settings), **STRETCH})
    run_jobs(session, Path(inputs), Path(outputs))
    session.stop()
