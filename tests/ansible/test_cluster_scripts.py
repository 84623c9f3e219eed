"""The OCF agent of active-passive clusters: every action, and every exit code, without a cluster.

The program `pollux` is a stand-in (stand_in.sh) that says what the test has written; its process is a real one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lxml import etree

from harness.failover import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = Path(__file__).parents[2] / "roles/broker/files"
AGENT = FILES / "ocf/broker"
TELL = FILES / "tell-manager"
QPIDD, PRIMARY = FILES / "lsb/qpidd", FILES / "lsb/qpidd-primary"
STAND_IN = Path(__file__).parent / "stand_in.sh"


class Machine:
    """A directory with a stand-in and a broker.xml, and the scripts on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pollux = directory / "pollux"
        shutil.copy(STAND_IN, self.pollux)
        self.config = directory / "broker.xml"
        self.config.write_text("<configuration/>")
        self.pidfile = directory / "pid"
        self.said = ""
        self.environment = {
            **os.environ,
            "POLLUX_AGENT_STEP": "0.02",
            "OCF_RESKEY_binary": str(self.pollux),
            "OCF_RESKEY_config": str(self.config),
            "OCF_RESKEY_pidfile": str(self.pidfile),
            "OCF_RESKEY_log": str(directory / "log"),
            "OCF_RESKEY_CRM_meta_timeout": "30000",
            "POLLUX": str(self.pollux),
            "POLLUX_CONFIG": str(self.config),
            "POLLUX_PIDFILE": str(self.pidfile),
            "POLLUX_LOG": str(directory / "log"),
            "POLLUX_SYSCONFIG": str(directory / "none"),
            "POLLUX_QPIDD_CONF": str(directory / "none"),
        }

    def __call__(self, script: Path, action: str, **environment: str) -> int:
        """Run an action; its exit code."""
        done = subprocess.run(
            [script, action],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.said = done.stdout + done.stderr
        return done.returncode

    def flag(self, name: str, *, on: bool = True) -> None:
        """Have the stand-in do something, or not."""
        (self.directory / name).touch() if on else (self.directory / name).unlink()

    def becomes(self, status: str, number: str = "") -> None:
        """Have the broker say this."""
        (self.directory / "number").write_text(number)
        (self.directory / "status").write_text(f"{status}\n")

    @property
    def number(self) -> int:
        """The process id."""
        return int(self.pidfile.read_text())

    def kill(self) -> None:
        """Kill the process, and wait until it is gone."""
        watched = os.pidfd_open(self.number)
        try:
            os.killpg(self.number, signal.SIGKILL)
            assert select.select([watched], [], [], 30.0)[0]
        finally:
            os.close(watched)

    def runs(self) -> bool:
        """Whether the process is there."""
        try:
            return str(self.config).encode() in Path(f"/proc/{self.number}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    if found.runs():
        found.kill()


def test_the_metadata_is_what_a_cluster_reads(machine: Machine) -> None:
    """As any user, with nothing installed or configured."""
    assert machine(AGENT, "meta-data", OCF_RESKEY_binary="/none", OCF_RESKEY_config="/none") == 0
    root = etree.fromstring(machine.said.encode(), etree.XMLParser(load_dtd=False, no_network=True))
    assert (root.get("name"), root.findtext("version")) == ("broker", "1.1")
    for parameter in root.iter("parameter"):
        assert {"unique", "required"} <= set(parameter.attrib)
        assert parameter.xpath("content/@default")
        assert parameter.findtext("shortdesc")
    monitors = [one for one in root.iter("action") if one.get("name") == "monitor"]
    assert len({one.get("interval") for one in monitors}) == len(monitors) == 2
    assert all(one.get("timeout") for one in root.iter("action"))


def test_validation_tells_what_is_wrong_where(machine: Machine) -> None:
    assert machine(AGENT, "validate-all") == 0
    assert machine(AGENT, "validate-all", OCF_RESKEY_binary="/none") == 5
    assert "/none is not there" in machine.said
    for parameter in ("config", "qpidd_conf", "user"):
        assert machine(AGENT, "validate-all", **{f"OCF_RESKEY_{parameter}": "/none"}) == 2
        assert machine.said.startswith(f"ocf:pollux:broker: {parameter}:")
        assert machine(AGENT, "start", **{f"OCF_RESKEY_{parameter}": "/none"}) == 2
    assert machine(AGENT, "start", OCF_RESKEY_binary="/none") == 5


#: What ocf-tester does, in its order, and what it takes for right; molecule/active_passive runs the program itself.
#: `probe`: a monitor that is not repeated; `bare`: one of a machine on which nothing is installed.
OCF_TESTER = (
    *(("meta-data", 0), ("validate-all", 0), ("monitor", 7), ("bare", 7)),
    *(("start", 0), ("monitor", 0), ("probe", 0), ("notify", 0), ("demote", 0), ("promote", 0)),
    *(("demote", 0), ("promote", 0), ("demote", 0), ("demote", 0), ("promote", 0), ("promote", 0), ("demote", 0)),
    *(("stop", 0), ("monitor", 7), ("start", 0), ("monitor", 0), ("start", 0), ("monitor", 0)),
    *(("stop", 0), ("monitor", 7), ("stop", 0), ("monitor", 7), ("migrate_to", 3), ("reload", 3)),
)


def test_the_sequence_of_ocf_tester(machine: Machine) -> None:
    variants = {"probe": {"OCF_RESKEY_CRM_meta_interval": "0"}, "bare": {"OCF_RESKEY_binary": "/none"}}
    found = []
    for action, _ in OCF_TESTER:
        more = {"OCF_RESKEY_CRM_meta_interval": "20000", **variants.get(action, {})}
        found.append((action, machine(AGENT, "monitor" if action in variants else action, **more)))
    assert tuple(found) == OCF_TESTER
    assert [machine(AGENT, one) for one in ("promote", "demote", "")] == [7, 0, 3], "of one that is stopped"


@pytest.mark.parametrize(
    ("status", "code"), [("joining", 0), ("catchup", 0), ("ready", 0), ("recovering", 8), ("active", 8)]
)
def test_each_status_is_a_role(machine: Machine, status: str, code: int) -> None:
    """A broker that does not answer is a failed one of the role it had."""
    assert machine(AGENT, "start") == 0
    machine.becomes(status)
    assert machine(AGENT, "monitor") == code
    machine.flag("hung")
    assert machine(AGENT, "monitor") == (9 if code == 8 else 1)
    assert machine(AGENT, "stop") == 0
    assert machine(AGENT, "monitor") == 7


def test_a_backup_is_failed_when_two_looks_in_a_row_get_no_answer(machine: Machine) -> None:
    """One late answer costs it its score and no more, until it has answered again; of the primary, one is enough."""
    under_pacemaker(machine, ("a", "true", "false"))
    again = {"OCF_RESKEY_CRM_meta_interval": "5000"}
    assert machine(AGENT, "start") == 0
    machine.becomes("ready", number="5:11")
    assert machine(AGENT, "monitor", **again) == 0
    for _ in range(2):
        machine.flag("hung")
        assert machine(AGENT, "monitor", **again) == 0
        assert scores(machine)[-2:] == [111, -1]
        machine.flag("hung", on=False)
        assert machine(AGENT, "monitor", **again) == 0
        assert scores(machine)[-1] == 111
    machine.flag("hung")
    assert [machine(AGENT, "monitor", **again) for _ in range(3)] == [0, 1, 1]
    machine.flag("hung", on=False)
    assert machine(AGENT, "monitor", **again) == 0
    os.killpg(machine.number, signal.SIGSTOP)
    assert machine(AGENT, "monitor", **again) == 1, "who is stopped is not late"
    os.killpg(machine.number, signal.SIGCONT)
    machine.becomes("active")
    assert machine(AGENT, "monitor", **again) == 8
    machine.flag("hung")
    assert machine(AGENT, "monitor", **again) == 9


def test_a_refused_promotion_is_an_error_and_says_why(machine: Machine) -> None:
    assert machine(AGENT, "start") == 0
    machine.flag("refuse")
    assert machine(AGENT, "promote") == 1
    assert "Refused: still catching up" in machine.said
    assert machine(AGENT, "monitor") == 0
    machine.becomes("active")
    assert machine(AGENT, "demote") == 1


#: Stand-ins of pacemaker's programs: what they are asked is in `asked`, what they answer in files of their names.
PACEMAKER = {
    "crm_attribute": """#!/bin/sh
echo "$*" >>{directory}/asked
case "$*" in *pollux-discard*) cat {directory}/discard 2>/dev/null || exit 6 ;; esac
""",
    "crm_mon": """#!/bin/sh
cat {directory}/mon
# What it knows comes later: the next question is answered otherwise.
[ -e {directory}/mon.next ] && mv {directory}/mon.next {directory}/mon
exit 0
""",
    "crm_node": "#!/bin/sh\ncat {directory}/quorum 2>/dev/null || echo 1\n",
    "corosync-quorumtool": "#!/bin/sh\ncat {directory}/quorate 2>/dev/null || echo 'Quorate:          Yes'\n",
}
NODE = '<node name="{}" id="1" online="{}" standby="false" pending="false" unclean="{}" feature_set="3"/>'


def under_pacemaker(machine: Machine, *nodes: tuple[str, str, str], fencing: bool = True) -> str:
    """Put the stand-ins into PATH, as if called by a cluster of these nodes; what crm_mon says."""
    for name, text in PACEMAKER.items():
        path = machine.directory / name
        path.write_text(text.format(directory=machine.directory))
        path.chmod(0o755)
    said = "\n".join(
        [f'<cluster_options a="b" stonith-enabled="{str(fencing).lower()}"/>', *(NODE.format(*node) for node in nodes)]
    )
    (machine.directory / "mon").write_text(said)
    machine.environment |= {
        "PATH": f"{machine.directory}:{machine.environment['PATH']}",
        "HA_RSCTMP": str(machine.directory),
        "OCF_RESOURCE_INSTANCE": "pollux",
        "OCF_RESKEY_CRM_meta_on_node": "a",
        "OCF_RESKEY_members": "a=10.0.0.1:1 b=10.0.0.2:1 c=10.0.0.3:1",
    }
    return said


def scores(machine: Machine) -> list[int]:
    """The promotion scores that the cluster was told, in this order."""
    path = machine.directory / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[-1]) for line in lines if "--promotion" in line]


def test_the_cluster_is_told_who_is_the_one_to_promote_and_only_when_that_changes(machine: Machine) -> None:
    under_pacemaker(machine, ("a", "true", "false"))
    assert machine(AGENT, "start") == 0
    assert scores(machine) == [-1], "who joins and cannot ask the others is not promoted"
    for status in ("catchup", "ready", "ready", "active", "active", "recovering"):
        machine.becomes(status)
        machine(AGENT, "monitor")
    assert scores(machine) == [-1, 100, 900_000]
    machine.becomes("ready", number="5:11")
    assert machine(AGENT, "monitor") == 0
    assert scores(machine)[-1] == 111, "of ready backups the one with the newest data"
    machine.flag("refuse")
    assert machine(AGENT, "promote") == 1
    assert scores(machine)[-3:] == [111, 900_000, -1], "who was refused is not asked again at once"
    machine.flag("refuse", on=False)
    assert machine(AGENT, "promote") == 0
    assert scores(machine)[-1] == 900_000
    told = len(scores(machine))
    assert machine(AGENT, "promote") == 0, "it is one already"
    assert machine(AGENT, "monitor") == 8
    assert len(scores(machine)) == told


#: Of a, b and c: who answers with which number; None: not at all.
OUTAGES = [
    ({"a": "3:7", "b": "3:7", "c": "3:7"}, "", 10),
    ({"a": "3:7", "b": "3:8", "c": "3:7"}, "", -1),
    ({"a": "3:7", "b": "3:8", "c": "3:7"}, "b", 10),
    ({"a": "3:7", "b": "3:7", "c": None}, "", -1),
    ({"a": "3:7", "b": "3:7", "c": None}, "c", 10),
    ({"a": "3:7", "b": None, "c": "3:7"}, "", -1),
    ({"a": None, "b": None, "c": None}, "", -1),
]


@pytest.mark.parametrize(("numbers", "lost", "score"), OUTAGES)
def test_after_an_outage_of_all_the_newest_is_promoted_once_all_answer_who_may_have_more(
    machine: Machine, numbers: dict[str, str | None], lost: str, score: int
) -> None:
    """a looks: b is its heir, c was the last primary. What an operator gives up is nobody's to wait for."""
    under_pacemaker(machine, ("a", "true", "false"))
    addresses = {name: f"10.0.0.{place}:1" for place, name in enumerate("abc", 1)}
    members = [
        {"address": addresses[name], "status": "joining" if number else None, "number": number}
        for name, number in numbers.items()
    ]
    (machine.directory / "members").write_text(json.dumps({"members": members}))
    history = [{"epoch": 2, "from": None, "to": "b"}, {"epoch": 3, "from": "b", "to": "c"}]
    (machine.directory / "history").write_text(json.dumps(history))
    (machine.directory / "more").write_text(f', "heirs": ["{addresses["b"]}"]')
    if lost:
        (machine.directory / "discard").write_text(addresses[lost])
    assert machine(AGENT, "start") == 0
    machine.becomes("joining", number=numbers["a"] or "")
    assert machine(AGENT, "monitor") == 0
    assert scores(machine)[-1] == score


def test_of_brokers_without_data_one_is_promoted_once_all_answer(machine: Machine) -> None:
    under_pacemaker(machine, ("a", "true", "false"))
    for last, score in (("joining", 10), (None, -1)):
        members = [{"address": f"10.0.0.{place}:1", "status": "joining", "number": None} for place in (1, 2)]
        members.append({"address": "10.0.0.3:1", "status": last, "number": None})
        (machine.directory / "members").write_text(json.dumps({"members": members}))
        assert machine(AGENT, "start") == 0
        assert scores(machine)[-1] == score
        assert machine(AGENT, "stop") == 0


@pytest.mark.parametrize("fencing", [True, False])
def test_whose_node_is_known_to_be_off_is_vouched_for_and_nobody_else(machine: Machine, *, fencing: bool) -> None:
    """Once the fencing is over, which this node hears of a moment later; without fencing nothing is known."""
    after = under_pacemaker(
        machine, ("a", "true", "false"), ("b", "false", "false"), ("c", "true", "false"), fencing=fencing
    )
    (machine.directory / "mon.next").write_text(after)
    if fencing:
        line = NODE.format("b", "false", "false")
        (machine.directory / "mon").write_text(after.replace(line, NODE.format("b", "false", "true")))
    assert machine(AGENT, "start") == 0
    machine.becomes("ready")
    assert machine(AGENT, "promote") == 0
    given = (machine.directory / "promoted").read_text().split()
    assert given == (["--fenced", "10.0.0.2:1"] if fencing else [])


def test_whose_data_an_operator_gives_up_is_passed_on_when_that_is_in_the_way(machine: Machine) -> None:
    under_pacemaker(machine, ("a", "true", "false"))
    (machine.directory / "discard").write_text("10.0.0.3:1\n")
    assert machine(AGENT, "start") == 0
    assert machine(AGENT, "promote") == 0
    assert (machine.directory / "promoted").read_text().split() == [], "nothing is given up for nothing"
    machine.becomes("joining")
    machine.flag("suspects")
    assert machine(AGENT, "promote") == 0
    assert (machine.directory / "promoted").read_text().split() == ["--discard", "10.0.0.3:1"]


def recovered(machine: Machine, fault: str = "killed") -> int:
    """Recover as a cluster does when its primary has ended or stands still; the exit code of the start."""
    assert machine(AGENT, "start") == 0
    assert machine(AGENT, "promote") == 0
    if fault == "killed":
        machine.kill()
        assert machine(AGENT, "monitor") == 7
    else:
        os.killpg(machine.number, signal.SIGSTOP)
        assert machine(AGENT, "monitor") == 9
    assert [machine(AGENT, action) for action in ("demote", "stop")] == [0, 0]
    machine.flag("hung")
    return machine(AGENT, "start")


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_the_promotion_of_another_one_does_not_wait_for_a_primary_that_failed(machine: Machine, fault: str) -> None:
    """It is begun, and looked at later: it has a minute to answer, and is a backup that nobody promotes until then."""
    under_pacemaker(machine, ("a", "true", "false"))
    short = {"OCF_RESKEY_answer": "1"}
    assert recovered(machine, fault) == 0
    assert scores(machine)[-1] == -1, "the cluster does not promote it again"
    assert machine.runs()
    assert machine(AGENT, "monitor") == 0
    machine.flag("hung", on=False)
    machine.becomes("standalone")
    assert machine(AGENT, "monitor") == 0, "it answers before it has joined"
    assert scores(machine)[-1] == -1
    machine.flag("hung")
    assert machine(AGENT, "monitor") == 0
    machine.flag("hung", on=False)
    machine.becomes("ready", number="5:11")
    # Who was just begun gets a second for its answer, which a busy machine may not have: a cluster looks again.
    wait_until(lambda: machine(AGENT, "monitor") == 0 and scores(machine)[-1] == 111, "its answer has come")
    machine.flag("hung")
    assert machine(AGENT, "monitor", **short) == 1, "it has answered before"
    # The next start, whenever that is, waits.
    machine.flag("hung", on=False)
    assert machine(AGENT, "stop") == 0
    machine.flag("broken")
    assert machine(AGENT, "start") == 1


def test_a_broker_that_was_not_waited_for_and_does_not_come_up_is_a_failed_one(machine: Machine) -> None:
    assert recovered(machine) == 0
    begun = machine.pidfile.with_name("pid.begun")
    os.utime(begun, (time.time() - 61,) * 2)
    assert machine(AGENT, "monitor") == 1
    machine.kill()
    begun.touch()
    assert machine(AGENT, "monitor") == 7, "its process has ended"


def test_the_broker_itself_is_asked_to_serve_where_it_can_be(machine: Machine) -> None:
    """In a tenth of the time of the program pollux; a refusal says why."""
    under_pacemaker(machine, ("a", "true", "false"), ("b", "false", "false"))
    said: list[tuple[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"activation": {"active_passive": {"status": "ready", "number": "5:11"}}})

        def do_POST(self) -> None:
            said.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.answer(409, {"error": {"code": "refused", "message": "still catching up"}})

        def answer(self, status: int, content: object) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    assert machine(AGENT, "start") == 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = {"host": "0.0.0.0", "port": server.server_address[1], "tls": False}  # noqa: S104  (as it is listened on)
        (machine.directory / "pollux.status.json").write_text(json.dumps({"management": port}))
        (machine.directory / "pollux.token").write_text("secret\n")
        assert machine(AGENT, "promote", OCF_RESKEY_run=str(machine.directory)) == 1
        server.shutdown()
    assert said == [("/api/v1/activation/promote", {"fenced": ["10.0.0.2:1"], "discarded": []})]
    assert "Refused: still catching up" in machine.said
    assert not (machine.directory / "promoted").exists()


def test_the_end_of_a_process_is_told_unless_it_was_asked_for(machine: Machine) -> None:
    for name, text in (("crm_node", "echo a"), ("crm_resource", f'echo "$*" >>{machine.directory}/asked')):
        path = machine.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    machine.environment |= {"PATH": f"{machine.directory}:{os.environ['PATH']}", "HA_RSCTMP": str(machine.directory)}
    asked = machine.directory / "asked"
    assert machine(TELL, "", SERVICE_RESULT="success") == 0
    machine.flag("pollux-stopping")
    assert machine(TELL, "", SERVICE_RESULT="signal") == 0
    assert not asked.exists()
    machine.flag("pollux-stopping", on=False)
    assert machine(TELL, "", SERVICE_RESULT="signal") == 0
    assert asked.read_text() == "--fail --resource pollux --node a\n"


def test_a_broker_that_ends_at_once_was_not_started(machine: Machine) -> None:
    machine.flag("broken")
    assert machine(AGENT, "start") == 1
    assert machine(QPIDD, "start") == 1
    assert "it ended" in machine.said
    assert machine(PRIMARY, "start") == 1, "who does not start is not promoted"
    machine.flag("broken", on=False)
    machine.flag("hung")
    assert machine(QPIDD, "start", POLLUX_START_SECONDS="0") == 1
    assert "no answer in 0 s" in machine.said


def test_a_broker_that_does_not_end_is_killed_within_the_time(machine: Machine) -> None:
    """A stop that fails is a fencing."""
    machine.flag("deaf")
    for script, more in ((AGENT, {"OCF_RESKEY_CRM_meta_timeout": "1500"}), (QPIDD, {"POLLUX_STOP_SECONDS": "1"})):
        assert machine(script, "start") == 0
        assert machine.runs()
        assert machine(script, "stop", **more) == 0
        assert not machine.runs()


def test_a_process_with_the_number_of_another_one_is_not_ours(machine: Machine) -> None:
    """The machine was started anew, and the number is somebody else's now: that one is left alone."""
    machine.pidfile.write_text(f"{os.getpid()}\n")
    assert machine(AGENT, "monitor") == 7
    assert machine(AGENT, "stop") == 0
    machine.pidfile.write_text(f"{os.getpid()}\n")
    assert machine(QPIDD, "status") == 1
    assert machine(QPIDD, "stop") == 0
