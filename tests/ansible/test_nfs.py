"""The NFS half of the bundle: what is rendered and refused, and what the lock probe finds out; no NFS, no root."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from typing import IO, TYPE_CHECKING, Any

import jinja2
import pytest
import yaml

from harness.bundle import ROOT, Site
from harness.modules import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
PROBE = ROOT / "roles" / "shared_store" / "files" / "lock_probe.py"


mounts = load("filter_plugins/mounts.py")
lock_probe = load(PROBE)
mount_at, mount_problems, unit_name = mounts.mount_at, mounts.mount_problems, mounts.unit_name
OPTIONS = "rw,sync,vers=4.1,rsize=262144,soft,noac,proto=tcp,timeo=20,retrans=2,sec=sys,lookupcache=none,addr=10.0.0.9"
MOUNTINFO = f"""\
22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw
31 22 0:40 / /srv/pollux rw,relatime shared:2 - nfs4 nfs1:/srv/export {OPTIONS}
32 22 0:41 / /home rw,relatime shared:3 - nfs4 nfs1:/home rw,vers=4.2,hard,addr=10.0.0.9
33 22 0:42 / /srv/with\\040blank rw,relatime - tmpfs tmpfs rw
"""
WANTED = ["vers=4.1", "proto=tcp", "soft", "timeo=20", "retrans=2", "noac", "lookupcache=none", "sync"]


# -- what is mounted


def test_a_mount_is_found_with_source_and_options() -> None:
    found = mount_at(MOUNTINFO, "/srv/pollux/")
    assert found is not None
    assert (found["type"], found["source"]) == ("nfs4", "nfs1:/srv/export")
    assert mount_problems(found, "nfs1:/srv/export/", WANTED) == []


def test_a_directory_on_the_root_file_system_is_no_mount() -> None:
    assert mount_at(MOUNTINFO, "/srv") is None
    assert mount_problems(mount_at(MOUNTINFO, "/srv"), "nfs1:/srv/export", WANTED) == ["nothing is mounted there"]


def test_of_two_mounts_on_one_point_the_later_one_counts() -> None:
    found = mount_at(MOUNTINFO + "40 31 0:50 / /srv/pollux rw - tmpfs tmpfs rw\n", "/srv/pollux")
    assert found is not None
    assert found["type"] == "tmpfs"


def test_blanks_in_names_are_read_as_the_kernel_writes_them() -> None:
    assert mount_at(MOUNTINFO, "/srv/with blank") is not None


@pytest.mark.parametrize(
    ("source", "options", "problem"),
    [
        ("nfs2:/srv/export", WANTED, "it is nfs1:/srv/export, not nfs2:/srv/export"),
        ("nfs1:/srv/export", [*WANTED, "hard"], "its options lack hard"),
        ("nfs1:/srv/export", ["vers=4.2"], "its options lack vers=4.2"),
    ],
)
def test_another_export_and_options_that_the_kernel_did_not_take_are_problems(
    source: str, options: list[str], problem: str
) -> None:
    found = mount_problems(mount_at(MOUNTINFO, "/srv/pollux"), source, options)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_version_4_without_a_minor_number_is_whichever_4_the_kernel_shows() -> None:
    assert mount_problems(mount_at(MOUNTINFO, "/srv/pollux"), "nfs1:/srv/export", ["vers=4"]) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [("/srv/pollux", "srv-pollux"), ("/srv/my-store/", r"srv-my\x2dstore"), ("/", "-"), ("/.a/b.c", r"\x2ea-b.c")],
)
def test_mount_units_have_the_names_that_systemd_gives_them(path: str, name: str) -> None:
    assert unit_name(path) == name


# -- what is rendered


def settings(role: str) -> dict[str, Any]:
    defaults: dict[str, Any] = yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text())
    return defaults


def render(tmp_path: Path, role: str, variables: dict[str, Any], what: dict[str, str]) -> dict[str, Any]:
    """Evaluate expressions (`what`) with the role's variables as Ansible does it."""
    site = Site(tmp_path)
    out = tmp_path / "out.json"
    book = tmp_path / "render" / "render.yml"
    book.parent.mkdir()
    if (templates := ROOT / "roles" / role / "templates").is_dir():
        (book.parent / "templates").symlink_to(templates)
    facts = {"ansible_facts": {"os_family": "Debian"}}
    play = {
        "name": "Render",
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles" / role / "vars" / "main.yml")],
        "vars": {**settings(role), **facts, **variables, "found": what},
        "tasks": [
            {
                "name": "Write",
                "ansible.builtin.copy": {"content": "{{ found | to_json }}", "dest": str(out), "mode": "0600"},
            }
        ],
    }
    book.write_text(yaml.safe_dump([play], sort_keys=False))
    extra = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    site.run(str(book), extra=extra).succeeded()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_the_server_offers_version_4_only_with_a_short_lease_to_the_brokers_alone(tmp_path: Path) -> None:
    exports = [{"path": "/srv/export", "clients": ["10.0.0.1", "10.0.1.0/24", "fd00::/64"], "owner": 901}]
    templates = ("nfs.conf", "exports", "firewall.nft", "firewall.service")
    what = {name: f"{{{{ lookup('ansible.builtin.template', '{name}.j2') }}}}" for name in templates}
    what |= {"refused": "{{ __nfs_server_refused }}", "wanted": "{{ __nfs_server_wanted }}"}
    what |= {"filters": "{{ __nfs_server_filters }}"}
    variables = {"nfs_server_exports": exports, "nfs_server_lease_seconds": 12, "nfs_server_grace_seconds": 15}
    found = render(tmp_path, "nfs_server", variables, what)
    assert found["refused"] == []
    lines = found["nfs.conf"].splitlines()
    for line in ("vers3=n", "vers4.0=n", "vers4.1=y", "vers4.2=y", "lease-time=12", "grace-time=15", "udp=n"):
        assert line in lines
    assert found["wanted"] == ["lease=12", "grace=15", "-3", "+4", "-4.0", "+4.1", "+4.2"]
    options = "(rw,sync,no_subtree_check,root_squash)"
    assert f"/srv/export 10.0.0.1{options} 10.0.1.0/24{options} fd00::/64{options}\n" in found["exports"]
    rules = found["firewall.nft"]
    assert "tcp dport 2049 ip saddr { 10.0.0.1, 10.0.1.0/24 } accept" in rules
    assert "tcp dport 2049 ip6 saddr { fd00::/64 } accept" in rules
    assert rules.index("accept\n    tcp dport 2049 drop") > 0
    assert "Before=network-pre.target nfs-server.service" in found["firewall.service"]
    assert found["filters"] in (True, "True")


def test_the_server_refuses_what_no_failover_survives_and_filters_no_names(tmp_path: Path) -> None:
    variables = {
        "nfs_server_exports": [
            {"path": "/srv/export", "clients": ["broker1.example.com"], "options": ["rw", "async"]},
            {"path": "srv", "clients": []},
        ],
        "nfs_server_lease_seconds": 30,
        "nfs_server_versions": ["3", "4.2"],
    }
    what = {"refused": "{{ __nfs_server_refused }}", "filters": "{{ __nfs_server_filters }}"}
    found = render(tmp_path, "nfs_server", variables, what)
    said = "\n".join(found["refused"])
    assert len(found["refused"]) == 4
    for part in ("/srv/export: async is refused", "srv: a path is absolute", "10 is shorter than the lease of 30 s"):
        assert part in said
    assert "nfs_server_versions: 3 is refused" in said
    assert found["filters"] in (False, "False")


def test_a_mount_has_the_seeds_options_and_waits_for_its_server_at_boot(tmp_path: Path) -> None:
    given = ["vers=4.1,proto=tcp", "soft", "intr", "timeo=20", "retrans=2", "noac", "lookupcache=none", "sync"]
    what = {
        "default": "{{ shared_store_options }}",
        "fstab": "{{ given_options | map('split', ',') | flatten }}",
        "live": "{{ __shared_store_live }}",
        "boot": "{{ __shared_store_fstab }}",
        "server": "{{ __shared_store_server }}",
    }
    variables = {"shared_store_options": given, "given_options": given, "shared_store_source": "[fd00::9]:/srv/export"}
    found = render(tmp_path, "shared_store", variables, what)
    assert found["live"] == ["vers=4.1", "proto=tcp", *given[1:2], *given[3:]], "the kernel does not show intr"
    assert {"intr", "_netdev", "nofail", "x-systemd.mount-timeout=infinity", "retry=10000"} <= set(found["boot"])
    assert found["server"] == "fd00::9"
    assert set(WANTED) <= set(settings("shared_store")["shared_store_options"])


@pytest.mark.parametrize(("kind", "asserted"), [("nfs4", True), ("local", False)])
def test_a_broker_does_not_start_in_the_place_of_a_mount_that_is_missing(kind: str, asserted: bool) -> None:
    source = (ROOT / "roles" / "broker" / "templates" / "pollux.service.j2").read_text()
    me = {"name": "a", "group": "g", "shared": True, "writes": "", "database": {}, "colocated": {}}
    environment = jinja2.Environment(autoescape=False)  # noqa: S701  (a unit, not HTML)
    text = environment.from_string(source).render(
        __broker_me=me,
        __topology={"groups": {"g": {"store": {"type": kind, "mount": "/srv/pollux"}}}},
        broker_watchdog_seconds=0,
    )
    assert "RequiresMountsFor=/srv/pollux\n" in text
    assert ("AssertPathIsMountPoint=/srv/pollux\n" in text) is asserted


# -- the lock probe, with two processes in the place of two machines


class Holder:
    """`hold`, until it is told to end."""

    def __init__(self, file: Path, report: Path, told: str) -> None:
        command = [sys.executable, str(PROBE), "hold", str(file), "--line", "castor", "--report", str(report)]
        self.process = subprocess.Popen(
            [*command, "--seconds", "300"], stdout=subprocess.PIPE, text=True, env={**os.environ, "NOTIFY_SOCKET": told}
        )

    def end(self) -> str:
        self.process.terminate()
        said: IO[str] | None = self.process.stdout
        assert said is not None
        return self.process.communicate(timeout=60)[0]


def probe(*words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(PROBE), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    # It tells when it holds the lock, as it tells systemd: whoever tries the lock to find out may be the one it meets.
    name = f"@pollux-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"\0{name[1:]}")
        told.settimeout(60)
        found = Holder(tmp_path / "lock", tmp_path / "report", name)
        try:
            assert told.recv(64) == b"READY=1"
            yield found
        finally:
            found.process.kill()
            found.process.communicate()


def test_the_probe_sees_a_lock_and_its_holders_line_and_gets_it_when_it_is_released(
    tmp_path: Path, holder: Holder
) -> None:
    file = str(tmp_path / "lock")
    assert probe("try", file) == (0, {"free": False, "line": "castor"})
    status, waited = probe("wait", file, "--seconds", "0.5")
    assert (status, waited["free"]) == (0, False)
    assert json.loads(holder.end()) == {"held": True, "cut": False}
    assert json.loads((tmp_path / "report").read_text()) == {"held": True, "cut": False}
    assert probe("wait", file, "--seconds", "60")[1]["free"] is True


class Clock:
    """Stand in for the module `time`; a pause takes as long as the next of `pauses` says, without one as asked for."""

    def __init__(self, *pauses: float) -> None:
        self._pauses, self._now = list(pauses), 1000.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += self._pauses.pop(0) if self._pauses else seconds


@pytest.mark.parametrize(
    ("clock", "free_at", "expected"),
    [
        (Clock(), 3, {"free": True, "seconds": 0.5, "asked": 3, "longest": 0.2}),
        pytest.param(Clock(9.0), 3, {"free": True, "seconds": 9.2, "asked": 3, "longest": 9.0}, id="it-stood-still"),
        pytest.param(Clock(), 99, {"free": False, "seconds": 4.8, "asked": 20, "longest": 0.2}, id="never-free"),
        pytest.param(
            Clock(*[3.0] * 9), 99, {"free": False, "seconds": 12.0, "asked": 5, "longest": 3.0}, id="too-slow"
        ),
    ],
)
def test_a_machine_that_stood_still_does_not_give_up_before_it_asked_again(
    clock: Clock, free_at: int, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the clock alone says when it is over: the server may have stood still for as long."""
    answers = iter(range(1, 100))
    monkeypatch.setattr(lock_probe, "time", clock)
    monkeypatch.setattr(lock_probe, "try_lock", lambda _: next(answers) >= free_at)
    assert lock_probe.wait(tmp_path / "lock", "", 5.0) == expected


def test_a_second_holder_is_refused_with_the_first_ones_line(tmp_path: Path, holder: Holder) -> None:
    status, found = probe("hold", str(tmp_path / "lock"), "--seconds", "1")
    assert status == 1
    assert "somebody holds the lock already: castor" in found["error"]
    assert holder.process.poll() is None


def test_a_lock_file_that_cannot_be_opened_is_an_error_with_its_name(tmp_path: Path) -> None:
    status, found = probe("try", str(tmp_path / "missing" / "lock"))
    assert status == 1
    assert "missing/lock" in found["error"]


def test_a_machine_with_other_mounts_of_the_server_is_not_cut_off() -> None:
    others = lock_probe.other_mounts
    assert others(MOUNTINFO, "10.0.0.9", "/srv/pollux/twins/.lock-probe") == ["/home"]
    assert others(MOUNTINFO, "10.0.0.8", "/srv/pollux/twins/.lock-probe") == []


def test_who_uses_the_store_is_told_without_looking_at_its_path(tmp_path: Path, holder: Holder) -> None:
    """Root is nobody for an NFS server: breaks when the directory, which only the broker's user may see, is asked."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    descriptor = lock_probe.open_file(hidden / "lock", "")
    try:
        (hidden / "lock").rename(tmp_path / "elsewhere")
        hidden.rmdir()
        found = lock_probe.users_of(descriptor)
    finally:
        os.close(descriptor)
    assert [each for each in found if each.endswith(f" ({holder.process.pid})")]
    assert not [each for each in found if each.endswith(f" ({os.getpid()})")]


def test_a_cut_drops_both_directions_of_the_one_port_and_ends_by_itself() -> None:
    rules = lock_probe.rules
    text = rules("10.0.0.9", 30)
    assert "elements = { 10.0.0.9 timeout 30s }" in text
    assert "ip daddr @server tcp dport 2049 drop" in text
    assert "ip saddr @server tcp sport 2049 drop" in text
    assert "ip6 daddr @server" in rules("fd00::9", 30)
    with pytest.raises(ValueError, match="does not appear"):
        rules("10.0.0.9 } ; flush ruleset", 30)
