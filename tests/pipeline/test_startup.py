"""`pollux-pipeline prepare` keeps Spark's classes, the JVM starts with them, and one that cannot says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from pollux_pipeline.startup import ENVIRONMENT, archive, options

if TYPE_CHECKING:
    from pathlib import Path

#: Whether the JVM of a session has a file in its memory.
STARTED = """
import sys
from pathlib import Path
from pollux_pipeline.cli import quiet_spark
from pollux_pipeline.session import build_session

quiet_spark()
session = build_session("local[1]", memory="512m", size=1000)
pid = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print(sys.argv[1] in Path(f"/proc/{pid}/maps").read_text())
session.stop()
"""


def run(place: Path, *words: str) -> str:
    """Return what a command says on standard output with this archive."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        env={**os.environ, ENVIRONMENT: str(place)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spark_starts_with_the_classes_that_were_kept(tmp_path: Path) -> None:
    """Breaks when the JVM is not told of the archive, or is set so that it cannot use it."""
    place = tmp_path / "of a user" / "classes.jsa"
    assert run(place, "-m", "pollux_pipeline.cli", "prepare") == f"prepare: {place}\n"
    assert [path.name for path in place.parent.iterdir()] == ["classes.jsa"], "nothing is left beside it"
    assert run(place, "-c", STARTED, str(place)) == "True\n"
    with place.open("r+b") as stream:  # as one of another Java, or of other jars: left alone, without a word
        stream.write(bytes(4096))
    assert run(place, "-c", STARTED, str(place)) == "False\n"


def test_where_nothing_was_kept_the_jvm_is_told_of_nothing(tmp_path: Path) -> None:
    assert options(tmp_path / "classes.jsa") == ""
    assert archive().is_relative_to(sys.prefix), "it goes with the environment that Spark's jars are in"
