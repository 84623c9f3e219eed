"""How Spark is set for an input of a given size: what a run costs is mostly decided before it reads the first byte.

Adaptive execution is off: it makes a job of every shuffle, dozens a run, to find out sizes that are known here. The
number of tasks depends on the input alone, never on the cores, so that what is written is the same everywhere.
"""

from __future__ import annotations

#: Bytes of input that one task takes on: of a text or Parquet file that it reads, of the keys that it groups.
STRETCH = 16 << 20
#: Tasks behind a shuffle at most: each costs some milliseconds.
_MOST = 4096
#: Up to here a run is over before the JVM's optimizing compiler has earned what it takes: of the processor time of a
#: million entries it took half. Up to here, too, moving the rows of a join costs less than a job that makes one of its
#: sides known to all tasks.
SMALL = 64 << 20
#: The collector stops for longer and takes less in all; nobody waits for single answers. Spark makes one method of what
#: is done with a row, and of methods above 8,000 bytes of code the JVM compiles none unless it is told to: that of
#: `reconcile` was interpreted for every line, a quarter of all that its tasks did. Spark's classes have room from the
#: beginning: to make more, the JVM collects the whole heap.
JVM = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods -XX:MetaspaceSize=256m"
_QUICK = f"-XX:TieredStopAtLevel=1 {JVM}"
_WITHOUT_BROADCASTS = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.optimizer.disableHints": "true"}


def stretches(size: int) -> int:
    """How many parts `size` bytes of input are computed in."""
    return min(max(1, size // STRETCH), _MOST)


def settings(size: int | None, *, local: bool) -> dict[str, str]:
    """Spark's properties for `size` bytes of input. None: not known, so that Spark has to find out."""
    options = {"spark.driver.extraJavaOptions": JVM} if local else {}
    if size is None:
        return {"spark.sql.adaptive.enabled": "true", **options}
    found = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": str(stretches(size)), **options}
    if size <= SMALL:
        found |= _WITHOUT_BROADCASTS
        if local:
            found["spark.driver.extraJavaOptions"] = _QUICK
    return found
