"""The Spark session every job runs in, and the check that there is a Java to run it with."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pollux_pipeline import spark_settings, startup
from pollux_pipeline.errors import InputError, text_of
from pollux_pipeline.spark_settings import STRETCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
#: For the JVM that only puts together the command line of the one that Spark runs in.
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_REMEDY = "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
#: What the JVM of the driver may take; jobs bring it a row for each life or segment at most, never one for a message.
DRIVER_MEMORY = "2g"
#: Seconds within which a standalone master must take a connection.
_ANSWERS = 5.0
_MASTER = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|k8s://\S+"
    r"|spark://(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d+(,(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d+)*"
)


def find_java() -> Path:
    """The program that Spark will run, links followed. Raises InputError where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java in PATH"
        raise InputError(f"Spark needs Java {OLDEST_JAVA} or newer and {where}: {_REMEDY}")
    return Path(java).resolve()


def check_java() -> None:
    """Raise InputError, in one line that says what to install, when Spark would not find a Java it can use."""
    java = find_java()
    told = _told_by_release(java) or _told_by(java)
    match = re.search(r'(?i)version *[= ]"(?:1\.)?(\d+)', told)
    if match is None:
        raise InputError(f"Spark needs Java {OLDEST_JAVA} or newer and {java} does not run: {_REMEDY}")
    if int(match[1]) < OLDEST_JAVA:
        raise InputError(f"Spark needs Java {OLDEST_JAVA} or newer, {java} is version {match[1]}: {_REMEDY}")


def _told_by_release(java: Path) -> str:
    """Return what a Java's own file says of its version: to ask the program would start a JVM just for that."""
    try:
        return (java.parent.parent / "release").read_text()
    except OSError:
        return ""


def _told_by(java: Path) -> str:
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    return "" if done.returncode else done.stderr + done.stdout


def check_master(master: str) -> None:
    """Raise InputError where Spark could not start on a master: what it says itself does not tell why, or late."""
    if not _MASTER.fullmatch(master):
        known = "local[N], spark://HOST:PORT[,HOST:PORT], yarn, k8s://URL"
        raise InputError(f"--master {master}: is none of {known}")
    if not master.startswith("spark://"):
        return
    reasons = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _ANSWERS):
                return
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    raise InputError(f"--master {master}: no master answers ({'; '.join(reasons)}): is it running there?")


def build_session(
    master: str = "local[*]",
    *,
    name: str = "pollux-pipeline",
    memory: str = DRIVER_MEMORY,
    settings: dict[str, str] | None = None,
    size: int | None = None,
) -> SparkSession:
    """A session on `master` with our data sources registered. Raises InputError when Java or the master is not there.

    `settings`: Spark properties that win over ours. `size`: bytes of input it is for; None: not known.
    """
    check_java()
    check_master(master)
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER)
    local = master.startswith("local")
    values = {
        "spark.app.name": name,
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.adaptive.skewJoin.enabled": "true",
        # One task for each stretch of a file, of a size that does not depend on how many cores there are: entries of
        # a ledger are numbered within their stretch, and what is written is the same wherever it is computed.
        "spark.sql.files.maxPartitionBytes": str(STRETCH),
        "spark.sql.files.openCostInBytes": str(STRETCH),
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The type that other programs know: Spark's own default is one that only old ones write.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.metricsEnabled": "false",
        # Where in our code a column is made: told to the JVM for each of thousands, for texts that nobody is shown.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.python.worker.reuse": "true",
        # What is collected of a key is put together from rows that are sorted by it already, in bounded memory. Spark's
        # other way sorts them for itself, twice, as soon as there are more than some hundred keys.
        "spark.sql.execution.useObjectHashAggregateExec": "false",
    }
    if local:
        values["spark.driver.host"] = "127.0.0.1"
        values["spark.driver.bindAddress"] = "127.0.0.1"
        values["spark.sql.shuffle.partitions"] = "32"
    values |= spark_settings.settings(size, local=local)
    if local:
        values["spark.driver.extraJavaOptions"] += f" {startup.options(startup.archive())}"
    builder = SparkSession.builder.master(master)
    for key, value in (values | (settings or {})).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # py4j raises many types; none of them says more than its text
        raise InputError(f"--master {master}: Spark did not start: {_first_line(error)}") from error
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Make our formats known to a session."""
    from pollux_pipeline.sources.audit import AuditSource
    from pollux_pipeline.sources.journal import JournalSource

    session.dataSource.register(JournalSource)
    session.dataSource.register(AuditSource)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
