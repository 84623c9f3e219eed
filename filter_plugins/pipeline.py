"""The pipelines filter: adds to the topology model where the pipeline runs, on what, when, and all that is wrong there.

As pure as the topology filter, whose reading and judging of variables it uses: it sees variables, the roles' argument
specifications and the model of the brokers, opens nothing and changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.problems import Problem, merged
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.rules import check_installation
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.variables import ROLES, read, read_member

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.member import Member

#: Jobs that read journals and ledgers; archive reads the lake of an ingest job.
READING = ("ingest", "reconcile", "sizing")
#: Options of a job that other variables say.
DERIVED_OPTIONS = {
    **dict.fromkeys(("-i", "--input", "--lake"), "pipeline_inputs, or inputs of the job"),
    **dict.fromkeys(("-o", "--output"), "pipeline_output"),
    "--master": "pipeline_master",
    "--memory": "pipeline_memory",
    "--conf": "pipeline_conf",
}
_JOB_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|spark://[^\s/:]+:\d+(,[^\s/:]+:\d+)*|yarn|k8s://\S+")
_MEMORY = re.compile(r"[1-9]\d*[mg]")
_WORD = r"[0-9*,./~-]+"
_DAYS = r"((mon|tue|wed|thu|fri|sat|sun)[a-z]*([,.-]+|(?=\s)))+\s+"
#: What systemd.time(7) calls calendar events; its own words for the usual ones.
_CALENDAR = re.compile(
    rf"minutely|hourly|daily|weekly|monthly|yearly|annually|quarterly|semiannually"
    rf"|({_DAYS})?({_WORD}\s+)?{_WORD}:{_WORD}(:{_WORD})?(\s+[A-Za-z][\w/+-]*)?",
    re.IGNORECASE,
)


def pipelines(
    model: Mapping[str, Any],
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    specifications: Mapping[str, Mapping[str, Any]],
    exists: Callable[[str], bool],
) -> dict[str, Any]:
    """Return ``model`` with ``pipelines`` (by host) and more ``problems``; those of both are told at once."""
    problems: list[Any] = []
    found = {}
    brokers = _hosts(hostvars, groups, "topology_brokers", "brokers")
    for host in _hosts(hostvars, groups, "topology_pipeline", "pollux_pipeline"):
        # What is wrong with a broker's variables by themselves, these too, has been said.
        member = read_member(host, hostvars[host], specifications, [] if host in brokers else problems)
        broker = (model.get("brokers") or {}).get(host)
        refused = "brokers" not in model
        found[host] = _pipeline(member, broker, refused=refused)
        _check(member, found[host], broker, exists, problems, refused=refused)
    every = [*model["problems"], *(line for line in merged(problems) if line not in model["problems"])]
    return {"problems": every} if every else {**model, "pipelines": found}


def _hosts(
    hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]], variable: str, default: str
) -> Sequence[str]:
    """Return the hosts of the group that a variable names."""
    name = next((read(given, variable) for given in hostvars.values() if variable in given), None)
    return groups.get(str(name or default), ())


def _pipeline(member: Member, broker: Mapping[str, Any] | None, *, refused: bool) -> dict[str, Any]:
    """Return what is known of one host: ``jobs`` with all they need, and what was derived."""
    value = member.value
    derived = [broker["store"]] if broker is not None else []
    inputs = list(value["pipeline_inputs"]) or derived
    output = value["pipeline_output"]
    lakes = [job["name"] for job in value["pipeline_jobs"] if job["job"] == "ingest"]
    jobs = []
    for job in value["pipeline_jobs"]:
        reads = list(job.get("inputs") or inputs) if job["job"] in READING else []
        jobs.append(
            {
                "name": job["name"],
                "job": job["job"],
                "schedule": job.get("schedule") or "",
                "inputs": reads,
                "options": [str(word) for word in job.get("options") or []],
                "lake": f"{output}/{lakes[0]}/lake" if job["job"] == "archive" and lakes else "",
            }
        )
    return {
        "name": member.name,
        "jobs": jobs,
        "derived": bool(derived) and not value["pipeline_inputs"],
        "unknown": refused,
        "local": value["pipeline_master"].startswith("local"),
    }


def _check(
    member: Member,
    pipeline: Mapping[str, Any],
    broker: Mapping[str, Any] | None,
    exists: Callable[[str], bool],
    problems: list[Any],
    *,
    refused: bool,
) -> None:
    value = member.value

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(member.name, variable, what, remedy))

    _check_jobs(value["pipeline_jobs"], pipeline, add, refused=refused)
    if not _MASTER.fullmatch(value["pipeline_master"]):
        known = "local[*], local[N], spark://HOST:PORT, yarn or k8s://..."
        add("pipeline_master", f"{value['pipeline_master']!r} is no Spark master", f"write {known}")
    if not _MEMORY.fullmatch(value["pipeline_memory"]):
        add("pipeline_memory", f"{value['pipeline_memory']!r} is no amount of memory", "write it as 2g or 1500m")
    for name in value["pipeline_conf"]:
        if not name.startswith("spark."):
            add("pipeline_conf", f"{name!r} is no property of Spark", "their names begin with spark.")
    for variable, least in (("pipeline_keep", 1), ("pipeline_timeout", 60), ("pipeline_releases_kept", 0)):
        if value[variable] < least:
            add(variable, f"{value[variable]} is too small", f"give it {least} or more")
    for variable in ("pipeline_root", "pipeline_output", "pipeline_java_home"):
        if value[variable] and not value[variable].startswith("/"):
            add(variable, f"{value[variable]!r} is not an absolute path", "write the path from / on")
    reads = dict.fromkeys(place for job in pipeline["jobs"] for place in job["inputs"])
    for place in reads:
        if _within(value["pipeline_output"], place):
            add(
                "pipeline_output",
                f"{value['pipeline_output']} is inside of {place}, which the pipeline reads",
                "put it elsewhere: reports must not fill the brokers' store",
            )
    if value["pipeline_service_manager"] == "systemd":
        _check_user(member, broker, list(reads), add)
    check_installation(value, exists, add, "pipeline")
    if value["pipeline_source"] and not value["pipeline_wheelhouse"] and not value["pipeline_broker_source"]:
        add("pipeline_broker_source", "is needed with pipeline_source", "name it, or use pipeline_wheelhouse")


def _check_jobs(
    jobs: Sequence[Mapping[str, Any]], pipeline: Mapping[str, Any], add: Callable[..., None], *, refused: bool
) -> None:
    names = Counter(job["name"] for job in jobs)
    for name, count in names.items():
        if count > 1:
            add("pipeline_jobs", f"{name!r} is listed twice", "rename one")
        if not _JOB_NAME.fullmatch(name):
            add(
                f"pipeline_jobs[{name}]",
                "cannot be the name of a unit and a directory",
                "use a-z, 0-9 and -, at most 40 characters",
            )
    for job, known in zip(jobs, pipeline["jobs"], strict=True):
        where = f"pipeline_jobs[{job['name']}]"
        if known["schedule"] and not _CALENDAR.fullmatch(known["schedule"]):
            remedy = "write it as systemd.time(7) says: daily, or *-*-* 03:30, or Mon..Fri 22:00"
            add(f"{where}.schedule", f"{known['schedule']!r} is no calendar event", remedy)
        for word in known["options"]:
            said_by = DERIVED_OPTIONS.get(word.partition("=")[0])
            if said_by:
                add(f"{where}.options", f"{word.partition('=')[0]} is derived by this bundle", f"use {said_by}")
        if job["job"] == "archive" and not known["lake"]:
            add(where, "packs the lake of an ingest job, and there is none", "add a job with job: ingest")
        if job["job"] in READING and not known["inputs"] and not refused:
            what = f"is empty, {job['name']!r} reads it, and this host is no broker"
            add("pipeline_inputs", what, "name directories with journals")
        for place in known["inputs"]:
            if not place.startswith("/"):
                add(f"{where}.inputs", f"{place!r} is not an absolute path", "write the path from / on")


def _check_user(
    member: Member, broker: Mapping[str, Any] | None, reads: Sequence[str], add: Callable[[str, str, str], None]
) -> None:
    """Refuse a user of the pipeline that cannot read what it has to, or could read all."""
    value = member.value
    user = value["pipeline_system_user"]
    if user in ("", "root", "0"):
        add("pipeline_system_user", f"is {user!r}, so Spark would run as root", "name a user of its own")
    if broker is None:
        return
    if user == value["broker_system_user"]:
        add("pipeline_system_user", f"{user!r} is the broker's: the pipeline could change journals", "name another one")
    places = (broker["store"], broker["data"])
    if any(_within(read, place) for read in reads for place in places) and not value["broker_group_readable"]:
        add(
            "broker_group_readable",
            "is false, so the pipeline on this host could not read the broker's journal",
            "set it to true for the brokers, or take the host out of the pipeline's group",
        )


def _within(inner: str, outer: str) -> bool:
    """Tell whether a path is another one or below it."""
    return PurePosixPath(inner).is_relative_to(PurePosixPath(outer))


def timer(job: Mapping[str, Any], service: str) -> dict[str, Any]:
    """Return the timer of a job, as pollux_files writes it; ``service`` is the path of the template unit without @."""
    return {
        "path": f"{service}@{job['name']}.timer",
        "template": "job.timer.j2",
        "vars": {"job": job},
        "mode": "0644",
        "owner": "root",
        "group": "root",
    }


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pollux_pipelines": _filter, "pollux_timer": timer}


def _filter(
    model: Mapping[str, Any],
    hostvars: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    specifications: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    options = {role: specifications[role]["argument_specs"]["main"]["options"] for role in ROLES}
    return pipelines(model, hostvars, groups, options, lambda path: Path(path).expanduser().exists())
