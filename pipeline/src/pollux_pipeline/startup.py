"""An archive of the classes that Spark's JVM loads, which it maps in the place of loading and checking each anew.

This is Java's class data sharing. An archive is of one Java and one set of jars: the JVM itself leaves it alone where
these have changed since.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pollux.formats.ledger import HEADER, Confirmed, Fault, Received, Sent, encode
from pollux_pipeline import ends, spark_settings
from pollux_pipeline.errors import InputError

#: Where the archive is kept, in the place of the Python environment that this program is in.
ENVIRONMENT = "POLLUX_PIPELINE_CLASSES"
#: The JVM would say on standard output that it leaves an archive alone.
_QUIET = "-Xlog:cds*=off"
#: Messages of the history that Spark's classes are loaded for, and seconds that the JVM gets to write them.
_MESSAGES, _WRITES = 2000, 600


def archive() -> Path:
    """The file; it goes with the Python environment, as Spark's jars do."""
    return Path(os.environ.get(ENVIRONMENT) or Path(sys.prefix, "share", "pollux-pipeline", "spark-classes.jsa"))


def options(place: Path) -> str:
    """The JVM's options for an archive, which it need not be able to use; none where there is no file."""
    return f'{_QUIET} "-XX:SharedArchiveFile={place}"' if place.is_file() else ""


def prepare() -> None:
    """Run a job of some messages in a JVM that writes all classes it has loaded, and take its file for the archive.

    Raises InputError where there is no Java or it wrote none, OSError where the place cannot be written.
    """
    from pyspark import SparkContext

    from pollux_pipeline.jobs.base import Run
    from pollux_pipeline.jobs.reconcile import reconcile
    from pollux_pipeline.session import build_session
    from pollux_pipeline.sources.inputs import find

    place = archive()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prepare-", dir=place.parent) as scratch:
        made, ledger = Path(scratch, place.name), Path(scratch, "ledger.txt")
        ledger.write_text(_history(), encoding="utf-8")
        size = ledger.stat().st_size
        java = "spark.driver.extraJavaOptions"
        dumping = f'{spark_settings.settings(size, local=True)[java]} {_QUIET} "-XX:ArchiveClassesAtExit={made}"'
        try:
            session = build_session("local[2]", settings={java: dumping}, size=size)
            ends.take_back()
            gateway: Any = session.sparkContext._gateway  # noqa: SLF001
            reconcile(Run(session, find([str(ledger)]), Path(scratch, "out")))
            session.stop()
            gateway.proc.stdin.close()  # the JVM ends with it
            gateway.proc.wait(_WRITES)
        except InputError:
            raise  # it did not start
        except BaseException:
            ends.end_spark(SparkContext, at_once=True)
            raise
        if not made.is_file():
            raise InputError("this Java writes no archive of classes; without it everything works, and starts slower")
        made.replace(place)


def _history() -> str:
    """Return a ledger in which most things happen that `reconcile` has code for."""
    lines = [HEADER, encode(Fault(_MESSAGES / 2, "kill castor"))]
    for number in range(_MESSAGES):
        name, at = f"message-{number}", float(number)
        broker, epoch = ("castor", 1) if number < _MESSAGES / 2 else ("pollux", 2)
        lines.append(encode(Sent(at, name, f"p{number % 5}", f"group-{number % 7}", number)))
        lines.append(encode(Confirmed(at + 1, name, "node", broker, epoch)))
        late = 50.0 * (number % 100 == 50)  # behind others of its group
        received = encode(Received(at + 2 + late, name, "queue", False, "consumer", broker, epoch))
        lines.append(received * {0: 0, 1: 2}.get(number % 90, 1))  # some are lost, some doubled
    return "".join(lines)
