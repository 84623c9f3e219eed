"""`archive`: retention of a lake that `ingest` wrote.

Days of journals and audit trails older than `keep_days` are packed: one file for each node, zstd, in `archive/journal`
and `archive/audit` beside them; then their place in the lake is deleted. Packed days older than `drop_days` are
deleted. Nothing is deleted before what replaces it is complete. Ledgers are kept by file, not by day, and stay.
"""

from __future__ import annotations

import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import delta
from pollux_pipeline.jobs.base import Result, Run
from pollux_pipeline.jobs.ingest import BY, in_lake
from pollux_pipeline.report import page, svg
from pollux_pipeline.schemas import AUDIT, journal_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The tables of a lake that are kept by day.
TABLES = ("journal", "audit")
_DAY = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


def archive(run: Run) -> Result:
    """Pack and delete. Options: `lake` (directory of `ingest`), `keep_days`, `drop_days` (0: never), `today`."""
    lake = Path(run.options["lake"])
    if not any((lake / table).is_dir() for table in TABLES):
        raise InputError(f"--lake {lake}: has neither journal/ nor audit/ in it; `pollux-pipeline ingest` makes lakes")
    today = run.options.get("today") or datetime.now(UTC).date()
    keep, drop = int(run.options["keep_days"]), int(run.options.get("drop_days") or 0)
    packed: list[dict[str, Any]] = []
    dropped: list[dict[str, object]] = []
    for table in TABLES:
        archived = lake / "archive" / table
        for target in _broken_off(archived):
            run.step(f"packing {table} of {target.name[5:]}, which was broken off")
            packed.append({"table": table, "day": target.name[5:], "records": _pack(run, target)})
        for day, place in _days(lake / table, today - timedelta(days=keep)):
            run.step(f"packing {table} of {day}")
            packed.append({"table": table, "day": str(day), "records": _pack(run, archived / place.name, place)})
        for day, place in _days(archived, today - timedelta(days=drop)) if drop else ():
            run.step(f"deleting {table} of {day}")
            shutil.rmtree(place)
            dropped.append({"table": table, "day": str(day)})
        if delta.has_log(lake / table):
            delta.publish(lake / table, in_lake(AUDIT if table == "audit" else journal_schema()), BY)
    result = Result("archive", run.output)
    result.facts = {"days_packed": len(packed), "days_deleted": len(dropped)}
    bars = [(f"{one['table']} {one['day']}", {"records": one["records"]}) for one in packed[-20:]]
    plot = svg.bars(bars, description="Records of each day that was packed") if bars else ""
    sections = [("Packed", plot + page.table(packed)), ("Deleted", page.table(dropped))]
    result.report = page.write(run.output / "report.html", result, sections, title="retention")
    return run.finish(result)


def _pack(run: Run, target: Path, place: Path | None = None) -> int:
    """Put one day's records into the archive, those it has of that day already included; how many it has then.

    The day's place in the lake is taken away in one step (`ingest` may make it anew) and deleted when what replaces it
    is complete. Without `place` a run that was broken off goes on where it ended.
    """
    names = ("taken", "packed", "unfinished")
    taken, packed, unfinished = (target.with_name(f"_{name}-{target.name}") for name in names)
    if place is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        place.rename(taken)
    if not packed.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
        records = run.spark.read.option("basePath", str(taken)).parquet(str(taken))
        if target.is_dir():  # packed before; records of that day came later
            records = records.unionByName(run.spark.read.parquet(str(target)), allowMissingColumns=True)
        writer = records.coalesce(1).write.mode("overwrite").option("compression", "zstd")
        writer.partitionBy("node").parquet(str(unfinished))
        before, after = records.count(), run.spark.read.parquet(str(unfinished)).count()
        if after != before:
            raise InputError(f"{taken}: {before} records became {after} while packing: does another job write there?")
        unfinished.rename(packed)
    shutil.rmtree(taken, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    packed.rename(target)
    return run.spark.read.parquet(str(target)).count()


def _broken_off(archived: Path) -> list[Path]:
    """The days that a run before took from the lake and did not finish."""
    found = [*archived.glob("_taken-date=*"), *archived.glob("_packed-date=*")]
    return sorted({path.with_name(path.name.partition("-")[2]) for path in found})


def _days(directory: Path, limit: date) -> Iterator[tuple[date, Path]]:
    """The days before `limit` that a directory holds."""
    for place in sorted(directory.glob("date=*")) if directory.is_dir() else ():
        match = _DAY.fullmatch(place.name)
        if match is not None and (day := date.fromisoformat(match[1])) < limit:
            yield day, place
