"""A program of a user's own: what docs/pipeline.md shows is run by Spark's own spark-submit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyspark

from harness.journals import JournalFile
from harness.spark_cluster import SHORT_LIVED, UNCOMPILED, without_spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline.md"


def test_the_program_of_the_documents_is_run_by_spark_submit(tmp_path: Path) -> None:
    """Breaks when `register` needs more than a session, or when the example is not one."""
    journal = JournalFile(tmp_path / "data" / "journal")
    for number in range(5):
        journal.message("orders" if number else "other", [7])
    journal.close()
    (program,) = re.findall(r"```python\n# by_address\.py\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "by_address.py").write_text(program)
    submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    confs = {"spark.driver.extraJavaOptions": SHORT_LIVED, "spark.ui.enabled": "false", **UNCOMPILED}
    words = [str(submit), "--master", "local[2]", "--driver-memory", "1g"]
    words += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [*words, str(tmp_path / "by_address.py"), str(tmp_path / "data"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=tmp_path,
        env={**without_spark(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    written = "".join(path.read_text() for path in sorted((tmp_path / "out").glob("part-*.csv")))
    assert sorted(written.split()) == ["orders,4", "other,1"]
