"""The pipeline's role: what is refused, how its jobs are run and its outputs kept; what the recovery is told to do."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.bundle import ROOT, Site, prod_inventory, write_private
from harness.modules import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.deployment import Deployment

HOSTS = ("broker1b.example.com", "broker2b.example.com", "broker3b.example.com")


pipeline = load("filter_plugins/pipeline.py")
recovery = load("filter_plugins/recovery.py")
run_job = load("roles/pipeline/files/run_job.py")
OPTIONS = {
    role: yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"][
        "options"
    ]
    for role in pipeline.ROLES
}
BROKER = {"store": "/srv/pollux/pair1", "data": "/var/lib/pollux"}


def model(brokers: dict[str, Any] | None = None, **variables: Any) -> dict[str, Any]:
    """Return the filter's model of one host of the pipeline."""
    hostvars = {"h": {"inventory_dir": "/inventory", "pipeline_wheelhouse": "/wheels", **variables}}
    known = {"brokers": brokers or {}, "groups": {}, "problems": []}
    found: dict[str, Any] = pipeline.pipelines(known, hostvars, {"pollux_pipeline": ["h"]}, OPTIONS, lambda _: True)
    return found


def test_a_broker_reads_its_own_store_and_another_host_what_it_is_told() -> None:
    found = model({"h": BROKER}, broker_group_readable=True)
    assert found["problems"] == []
    assert [job["inputs"] for job in found["pipelines"]["h"]["jobs"]] == [[BROKER["store"]], [BROKER["store"]], []]
    assert found["pipelines"]["h"]["jobs"][2]["lake"] == "/var/lib/pollux-pipeline/lake/lake"
    assert model(pipeline_inputs=["/copies"])["pipelines"]["h"]["jobs"][0]["inputs"] == ["/copies"]
    assert model(pipeline_jobs=[])["pipelines"]["h"]["jobs"] == []


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "pipeline_inputs", "name directories"),
    ({"pipeline_master": "localhost:7077"}, "pipeline_master", "spark://HOST:PORT"),
    ({"pipeline_memory": "2 GB"}, "pipeline_memory", "2g"),
    ({"pipeline_conf": {"driver.memory": 1}}, "pipeline_conf", "spark."),
    ({"pipeline_keep": 0}, "pipeline_keep", "1 or more"),
    ({"pipeline_output": "reports"}, "pipeline_output", "from / on"),
    ({"pipeline_inputs": ["/var/lib"]}, "pipeline_output", "elsewhere"),
    ({"pipeline_system_user": "root"}, "pipeline_system_user", "of its own"),
    ({"pipeline_wheelhouse": ""}, "pipeline_wheelhouse", "tools/wheelhouse.py --pipeline"),
    (
        {"pipeline_wheelhouse": "", "pipeline_source": "/s", "pipeline_broker_source": "/b"},
        "pipeline_environment",
        "pipeline_wheelhouse",
    ),
    ({"pipeline_job": []}, "pipeline_job", "pipeline_jobs"),
    ({"pipeline_jobs": [{"name": "a", "job": "sizng"}]}, "pipeline_jobs[a].job", "'sizing'"),
    ({"pipeline_jobs": [{"name": "A/b", "job": "sizing"}]}, "pipeline_jobs[A/b]", "a-z"),
    ({"pipeline_jobs": [{"name": "a", "job": "sizing", "schedule": "at 3"}]}, "pipeline_jobs[a].schedule", "systemd."),
    ({"pipeline_jobs": [{"name": "a", "job": "sizing", "options": ["-o"]}]}, "pipeline_jobs[a].options", "_output"),
    ({"pipeline_jobs": [{"name": "a", "job": "archive"}]}, "pipeline_jobs[a]", "job: ingest"),
    ({"pipeline_jobs": [{"name": "a", "job": "sizing", "inputs": ["x"]}]}, "pipeline_jobs[a].inputs", "from / on"),
    ({"pipeline_jobs": [{"name": "a", "job": "sizing"}] * 2}, "pipeline_jobs", "rename"),
]


@pytest.mark.parametrize(("variables", "variable", "remedy"), WRONG, ids=[f"{one[1]}-{one[2]}" for one in WRONG])
def test_what_cannot_work_is_refused_with_the_remedy(variables: dict[str, Any], variable: str, remedy: str) -> None:
    problems = model(**({"pipeline_inputs": ["/c"], **variables} if variables else {}))["problems"]
    about = [problem for problem in problems if problem.startswith(f"h: {variable}: ")]
    assert any(remedy in problem.partition("Remedy: ")[2] for problem in about), problems
    assert len(problems) == len(about), problems


def test_on_a_brokers_host_the_journal_must_be_readable_and_the_user_another_one() -> None:
    assert "broker_group_readable" in model({"h": BROKER})["problems"][0]
    same = model({"h": BROKER}, broker_group_readable=True, pipeline_system_user="pollux")["problems"]
    assert [problem.split(": ")[1] for problem in same] == ["pipeline_system_user"]


@pytest.mark.parametrize(
    "schedule", ["daily", "*-*-* 03:10", "Sun *-*-* 04:10", "Mon..Fri 22:00:00", "*:0/15", "03:30 UTC"]
)
def test_calendar_events_of_systemd_are_taken(schedule: str) -> None:
    jobs = [{"name": "a", "job": "sizing", "schedule": schedule}]
    assert model(pipeline_inputs=["/c"], pipeline_jobs=jobs)["problems"] == []


# -- how a job is run

PROGRAM = """\
#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
output = pathlib.Path(words[words.index("--output") + 1])
output.mkdir(parents=True, exist_ok=True)
names = ("JAVA_HOME", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP")
(output / "said.json").write_text(json.dumps([words, {{name: os.environ.get(name) for name in names}}]))
if "--die" not in words:
    (output / "result.json").write_text("{{}}")
sys.exit(3 if "--findings" in words else 0)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a job of a pipeline that only notes what it was asked for; outputs are in tmp_path/out."""
    program = tmp_path / "pollux-pipeline"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    settings = {
        "program": str(program),
        "output": str(tmp_path / "out"),
        "keep": 2,
        "master": "local[2]",
        "memory": "1g",
        "conf": {"spark.a": True, "spark.b": 2},
        "java_home": "/java",
        "jobs": [
            {"name": "sizes", "job": "sizing", "schedule": "", "inputs": ["/journal"], "options": [], "lake": ""},
            {"name": "lake", "job": "ingest", "schedule": "", "inputs": ["/j"], "options": ["--live"], "lake": ""},
            {"name": "found", "job": "sizing", "schedule": "", "inputs": [], "options": ["--findings"], "lake": ""},
            {"name": "broken", "job": "sizing", "schedule": "", "inputs": [], "options": ["--die"], "lake": ""},
            {"name": "pack", "job": "archive", "schedule": "", "inputs": [], "options": [], "lake": "/l"},
        ],
    }
    (tmp_path / "jobs.json").write_text(json.dumps(settings))
    monkeypatch.setattr(run_job, "SETTINGS", tmp_path / "jobs.json")
    return lambda *words: int(run_job.main(words))


def said(output: Path) -> tuple[list[str], dict[str, str]]:
    words, environment = json.loads((output / "said.json").read_text())
    return words, environment


def test_a_job_is_given_what_the_bundle_says(jobs: Callable[..., int], tmp_path: Path) -> None:
    assert jobs("sizes") == 0
    latest = tmp_path / "out" / "sizes" / "latest"
    words, environment = said(latest)
    spark = ["--master", "local[2]", "--memory", "1g", "--conf", "spark.a=true", "--conf", "spark.b=2"]
    assert words == ["sizing", *spark, "--input", "/journal", "--output", str(latest.resolve())]
    assert environment["JAVA_HOME"] == "/java"
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert environment["SPARK_LOCAL_DIRS"] == str(tmp_path / "out" / "sizes" / ".work")
    assert jobs("sizes", "--input", "/copy/a", "--input", "/copy/b") == 0
    assert [word for word in said(latest)[0] if word.startswith(("/copy", "/journal"))] == ["/copy/a", "/copy/b"]
    assert jobs("pack") == 0
    assert "--lake" in said(tmp_path / "out" / "pack" / "latest")[0]


def test_the_newest_outputs_are_kept_and_unfinished_ones_are_removed(jobs: Callable[..., int], tmp_path: Path) -> None:
    directory = tmp_path / "out" / "sizes"
    for name in ("20250101T000000Z", "20250102T000000Z", "20250103T000000Z", "mine"):
        (directory / name).mkdir(parents=True)
        (directory / name / "result.json").touch()
    (directory / "20250104T000000Z").mkdir()
    (directory / ".work").mkdir()
    assert jobs("sizes") == 0
    kept = sorted(path.name for path in directory.iterdir())
    assert kept == ["20250103T000000Z", (directory / "latest").resolve().name, "latest", "mine"]


def test_findings_are_an_output_and_a_job_that_dies_leaves_none(jobs: Callable[..., int], tmp_path: Path) -> None:
    assert jobs("found") == 3
    assert (tmp_path / "out" / "found" / "latest" / "result.json").exists()
    assert jobs("broken") == 0
    assert list((tmp_path / "out" / "broken").iterdir()) == []


def test_a_lake_is_added_to_in_its_place(jobs: Callable[..., int], tmp_path: Path) -> None:
    for _ in range(2):
        assert jobs("lake") == 0
    assert [path.name for path in (tmp_path / "out" / "lake").iterdir()] == ["lake"]
    assert "--live" in said(tmp_path / "out" / "lake" / "lake")[0]


def test_a_job_that_runs_is_not_run_twice_and_an_unknown_one_is_named(
    jobs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "sizes").mkdir(parents=True)
    descriptor = os.open(tmp_path / "out" / "sizes", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert jobs("sizes") == 1
    os.close(descriptor)
    assert "sizes is running already" in capsys.readouterr().err
    assert jobs("size") == 2
    assert "there are sizes, lake" in capsys.readouterr().err


# -- what is rendered

RENDER = [
    {"name": "Model", "hosts": "brokers", "gather_facts": False, "roles": [{"role": "topology"}]},
    {
        "name": "Render",
        "hosts": "pollux_pipeline",
        "gather_facts": False,
        "vars": {"__pipeline_release": {"name": "1.0-abc"}},
        "tasks": [
            {
                "name": "Load the role",
                "ansible.builtin.include_role": {
                    "name": "pipeline",
                    "tasks_from": "run.yml",
                    "public": True,
                    "apply": {"when": False},
                },
            },
            {
                "name": "Write",
                "pollux_rendered": {"files": "{{ __pipeline_files }}", "out": "{{ out }}/{{ inventory_hostname }}"},
            },
        ],
    },
]
VAULT = {
    "vault_cluster_password": "cluster-password-0815",
    "vault_users_key": "users-key-0815-0815",
    "vault_passwords": {name: f"password-of-{name}" for name in ("orders-service", "operator", "prometheus")},
}


@pytest.mark.timeout(900)
def test_the_example_site_gets_a_sandboxed_unit_and_a_timer_for_each_scheduled_job(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.strategy = {}  # as in harness.renderer
    site.inventory = prod_inventory(tmp_path / "prod")
    write_private(site.inventory / "group_vars" / "brokers" / "vault.yml", yaml.safe_dump(VAULT))
    book = tmp_path / "render" / "render.yml"
    book.parent.mkdir()
    (book.parent / "templates").symlink_to(ROOT / "roles" / "pipeline" / "templates")
    (book.parent / "action_plugins").symlink_to(ROOT / "tests" / "ansible" / "action_plugins")
    (book.parent / "files").symlink_to(ROOT / "roles" / "pipeline" / "files")
    book.write_text(yaml.safe_dump(RENDER, sort_keys=False))
    out = tmp_path / "out"
    out.mkdir()
    here = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "broker_machine": "{{ inventory_hostname }}",
        "out": str(out),
    }
    site.run(str(book), extra=here).succeeded()
    assert sorted(path.name for path in out.iterdir()) == list(HOSTS)
    files = {one["path"]: one["content"] for one in json.loads((out / HOSTS[0]).read_text())}
    units = "/etc/systemd/system/pollux-pipeline@"
    assert sorted(files) == [
        *(f"{units}{name}" for name in (".service", "lake.timer", "retention.timer", "sizing.timer")),
        "/opt/pollux-pipeline/bin/run-job",
        "/opt/pollux-pipeline/etc/jobs.json",
    ]
    assert "\nOnCalendar=Sun *-*-* 04:10\n" in files[f"{units}retention.timer"]
    assert files[f"{units}lake.timer"].startswith("# Made by the Pollux bundle.\n[Unit]\n")
    service = files[f"{units}.service"].splitlines()
    assert {
        "User=pollux-pipeline",
        "ProtectSystem=strict",
        "ReadWritePaths=/var/lib/pollux-pipeline",
        "InaccessiblePaths=-/opt/pollux/etc -/opt/pollux/run",
        "PrivateNetwork=true",
        "NoNewPrivileges=true",
        "CapabilityBoundingSet=",
    } <= set(service)
    known = json.loads(files["/opt/pollux-pipeline/etc/jobs.json"])
    assert [job["name"] for job in known["jobs"]] == ["lake", "sizing", "retention", "reconcile"]
    assert known["jobs"][0]["inputs"] == ["/srv/pollux/pair1"]
    assert files["/opt/pollux-pipeline/bin/run-job"].startswith("#!/opt/pollux-pipeline/current/bin/python\n")


@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_without_java_one_line_says_what_to_install(
    pair: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    extra = {"pipeline_java_install": False}
    refused = pair.site.run("pipeline.yml", extra=extra)
    assert refused.code != 0
    [failure] = refused.failures
    [line] = failure.message
    assert "apt-get install openjdk-17-jre-headless" in line
    told = pair.site.run("pipeline.yml", extra={**extra, "run_optional": True}).succeeded()
    assert line in " ".join(told.output.split()), "long lines are wrapped"
    assert told.changed == []


# -- recovering

MEMBERS = {
    host: {"store": f"/data/{host}", "machine": host, "name": host, "group": "twins"} for host in ("castor", "pollux")
}
GROUP = {
    "name": "twins",
    "members": ["castor", "pollux"],
    "live": "castor",
    "store": {"type": "local", "path": "/data"},
}


def recover(group: dict[str, Any] | None = None, brokers: dict[str, Any] | None = None, **asked: Any) -> dict[str, Any]:
    topology = {"groups": {"twins": {**GROUP, **(group or {})}}, "brokers": brokers or MEMBERS}
    given = {"confirm": "twins", "sides": {}, "keep": "auto", **asked}
    found: dict[str, Any] = recovery.recovery(topology, given, ["castor"])
    return found


def test_members_with_a_store_each_are_the_two_sides() -> None:
    found = recover(keep="pollux")
    assert found["problems"] == []
    assert found["sides"]["castor"] == {"name": "a", "directory": "/data/castor"}
    assert (found["keep"], found["shared"], found["hosts"]) == ("b", False, {"a": "castor", "b": "pollux"})


def test_what_cannot_be_recovered_is_refused() -> None:
    one = {host: {**broker, "store": "/data/twins", "machine": "m"} for host, broker in MEMBERS.items()}
    sides = {"castor": "/a", "pollux": "/b"}
    assert "recover_confirm is not set" in recover(confirm="")["problems"][0]
    assert "'twin' is no group" in recover(confirm="twin")["problems"][0]
    assert "one side only" in recover(brokers=one)["problems"][0]
    assert recover(brokers=one, sides=sides)["problems"] == []
    assert recover(brokers=one, sides=sides)["shared"] is True
    assert "same directory" in recover(brokers=one, sides={"castor": "/a", "pollux": "/a"})["problems"][0]
    assert "absolute" in recover(sides={"castor": "a", "pollux": "/b"})["problems"][0]
    assert "no member" in recover(sides={"helena": "/a", "pollux": "/b"})["problems"][0]
    assert "is none of" in recover(keep="helena")["problems"][0]
    topology = {"groups": {"twins": GROUP}, "brokers": MEMBERS}
    told = recovery.recovery(topology, {"confirm": "twins", "sides": {}, "keep": "auto"}, [])["problems"]
    assert "pollux_pipeline has no host" in told[0]


def test_a_run_that_leaves_out_a_member_is_refused() -> None:
    topology = {"groups": {"twins": GROUP}, "brokers": MEMBERS}
    asked = {"confirm": "twins", "sides": {}, "keep": "auto"}
    assert recovery.refusal(topology, asked, ["castor"], ["castor", "pollux"]) == []
    told = ["Nothing was changed.", "--limit leaves out pollux, which must be stopped too"]
    assert recovery.refusal(topology, asked, ["castor"], ["castor"]) == told
    assert "is no group" in recovery.refusal(topology, {**asked, "confirm": "x"}, ["castor"], ["castor"])[1]


def test_the_plan_is_replayed_by_who_is_live_already() -> None:
    said = {"castor": {"answer": {"state": "ready"}}, "pollux": {"answer": {"state": "live"}}}
    found = recover()
    assert recovery.replays(found, "castor", said, "answer", ["castor", "pollux"]) == "pollux"
    assert recovery.replays(found, "castor", said, "answer", ["castor"]) == "castor"
    assert recovery.replays(found, "castor", {}, "answer", ["castor", "pollux"]) == "castor"


def test_a_lock_that_somebody_holds_is_seen(tmp_path: Path) -> None:
    side = load("roles/broker/library/pollux_side.py")
    free, held = tmp_path / "free", tmp_path / "held"
    free.touch()
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        locks = Path("/proc/locks").read_text()
        assert side.holders([free, held], locks) == [(os.getpid(), held)]
    with held.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert side.holders([free, held], Path("/proc/locks").read_text()) == [(os.getpid(), held)]
    assert side.holders([free, held], Path("/proc/locks").read_text()) == []


def test_a_packed_side_has_everything_but_the_token(tmp_path: Path) -> None:
    side = load("roles/broker/library/pollux_side.py")
    (tmp_path / "data" / "journal").mkdir(parents=True)
    for name in ("one.segment", "pollux.token"):
        (tmp_path / "data" / "journal" / name).write_text("x")
    before = side.digest_of(side.files_of(tmp_path / "data"), tmp_path / "data")
    side.pack(tmp_path / "data", tmp_path / "a.tar.gz")
    assert (tmp_path / "a.tar.gz").stat().st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert sorted(archive.getnames()) == [".", "./journal", "./journal/one.segment"]
    assert side.digest_of(side.files_of(tmp_path / "data"), tmp_path / "data") == before
    (tmp_path / "data" / "journal" / "one.segment").write_text("xy")
    assert side.digest_of(side.files_of(tmp_path / "data"), tmp_path / "data") != before


def test_a_plan_is_summed_up_without_its_messages(tmp_path: Path) -> None:
    plan = load("roles/broker/library/pollux_plan.py")
    send = {"op": "send", "queue": "orders", "data": "c2VjcmV0"}
    lines = [
        {"pollux_merge_plan": 1, "node_id": "n", "keep": "b"},
        send,
        {**send, "file": "/large"},
        {**send, "data": None},
        {"op": "remove", "queue": "news", "message_id": 1},
    ]
    path = tmp_path / "plan.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = plan.summary(path)
    assert {name: found[name] for name in ("keep", "send", "remove", "large", "left_out")} == {
        "keep": "b",
        "send": 3,
        "remove": 1,
        "large": 1,
        "left_out": 1,
    }
    assert found["lines"] == ["news: 0 to send, 1 to remove", "orders: 3 to send, 0 to remove"]
    assert "c2VjcmV0" not in json.dumps(found)
    path.write_text('{"other": 1}\n')
    with pytest.raises(ValueError, match="no merge plan"):
        plan.summary(path)
