"""The action that writes the users: derived once for all members, unchanged the second time, in clear text nowhere."""

from __future__ import annotations

import subprocess
import sys
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.modules import ROOT, load, results
from pollux.config.users import load_users

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: On a very busy machine a playbook takes long; only one that hangs takes this long.
pytestmark = pytest.mark.timeout(900)
PLUGIN = ROOT / "roles" / "broker" / "action_plugins" / "pollux_users.py"
SOURCES = ROOT / "broker" / "src"
KEY = "canary-of-the-users-key"
HOSTS = ("castor", "pollux", "helena")


def password(name: str) -> str:
    return f"canary-of-{name}-ß"


USERS = [{"name": name, "password": password(name), "roles": ["amq"]} for name in ("ada", "bob", "eve")]


class Site:
    """Brokers that are directories of this machine, and one playbook that writes their users."""

    def __init__(self, place: Path) -> None:
        #: What holds passwords and may: the inventory's part.
        self.inventory = place / "inventory"
        #: Everything else that Ansible writes, on the controller and on the hosts.
        self.written = place / "written"
        self.inventory.mkdir()
        for name in ("tmp", *HOSTS):
            (self.written / name).mkdir(parents=True)

    def file(self, host: str, name: str = "users") -> Path:
        return self.written / host / name

    def run(self, users: list[dict[str, Any]], *flags: str, hosts: str = "all") -> dict[str, dict[str, Any]]:
        """Write these users; returns the results by host, with all that was printed in ``printed``."""
        arguments = {
            "users": "{{ users }}",
            "key": KEY,
            "package": str(SOURCES),
            "users_file": f"{self.written}/{{{{ inventory_hostname }}}}/users",
            "roles_file": f"{self.written}/{{{{ inventory_hostname }}}}/roles",
            "note": f"{self.written}/{{{{ inventory_hostname }}}}/reload-needed",
        }
        play = {"hosts": hosts, "gather_facts": False, "tasks": [{"pollux_users": arguments, "no_log": False}]}
        (self.inventory / "play.yml").write_text(yaml.safe_dump([{**play, "vars": {"users": users}}]))
        command = ["ansible-playbook", "-i", f"{','.join(HOSTS)},", "-e", f"ansible_remote_tmp={self.written / 'tmp'}"]
        # Modules and their arguments are left behind as files, where they can be searched.
        kept = {"ANSIBLE_PIPELINING": "0", "ANSIBLE_KEEP_REMOTE_FILES": "1", "ANSIBLE_LOG_PATH": f"{self.written}/log"}
        return results(self.written / "ansible", *command, str(self.inventory / "play.yml"), *flags, **kept)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_verifier_is_derived_once_and_all_members_have_the_same(site: Site) -> None:
    tried = site.run(USERS, "--check", "--diff")
    assert all(result["changed"] and result["added"] == ["ada", "bob", "eve"] for result in tried.values())
    assert sum(result["derived"] for result in tried.values()) == 0
    assert not any(site.file(host).exists() for host in HOSTS)

    first = site.run(USERS)
    assert [result["failed"] for result in first.values()] == [False] * len(HOSTS)
    assert sum(result["derived"] for result in first.values()) == len(USERS)
    for name in ("users", "roles"):
        assert len({site.file(host, name).read_bytes() for host in HOSTS}) == 1
    loaded = load_users(site.file("castor"), site.file("castor", "roles"))
    assert all(loaded.verifiers[name].verify(password(name)) for name in ("ada", "bob", "eve"))
    assert not loaded.verifiers["ada"].verify(password("bob"))
    assert loaded.roles_of("ada") == {"amq"}

    written = {host: site.file(host).stat().st_mtime_ns for host in HOSTS}
    for host in HOSTS:
        site.file(host, "reload-needed").unlink()
    again = site.run(USERS)
    assert not any(result["changed"] or result["derived"] for result in again.values())
    assert {host: site.file(host).stat().st_mtime_ns for host in HOSTS} == written
    assert not any(site.file(host, "reload-needed").exists() for host in HOSTS)


def test_a_changed_password_changes_one_user_and_derives_one_verifier(site: Site) -> None:
    site.run(USERS)
    before = site.file("castor").read_text().splitlines()
    changed = [{**user, "password": "another-canary"} if user["name"] == "bob" else user for user in USERS]
    done = site.run(changed)
    assert {tuple(result["changed_users"]) for result in done.values()} == {("bob",)}
    assert {(*result["added"], *result["removed"]) for result in done.values()} == {()}
    assert sum(result["derived"] for result in done.values()) == 1
    after = site.file("castor").read_text().splitlines()
    users = [(old, new) for old, new in zip(before, after, strict=True) if old != new and not old.startswith("#")]
    assert [new.split(" = ")[0] for _, new in users] == ["bob"]
    assert len({site.file(host).read_bytes() for host in HOSTS}) == 1
    assert load_users(site.file("helena"), site.file("helena", "roles")).verifiers["bob"].verify("another-canary")


def test_what_somebody_else_wrote_is_undone_and_one_member_alone_gets_what_the_others_have(site: Site) -> None:
    site.run(USERS, hosts="castor:pollux")
    good = site.file("castor").read_text()
    # eve puts her keys beside bob's salt: the salt alone would look like bob's password.
    lines = good.splitlines()
    keys = next(line for line in lines if line.startswith("eve")).split("$")[2]
    forged = [f"{line.rpartition('$')[0]}${keys}" if line.startswith("bob") else line for line in lines]
    site.file("pollux").write_text("\n".join(forged) + "\n")
    done = site.run(USERS)
    assert not done["castor"]["changed"]
    assert (done["pollux"]["changed_users"], done["helena"]["added"]) == (["bob"], ["ada", "bob", "eve"])
    assert {site.file(host).read_text() for host in HOSTS} == {good}


def test_no_password_and_no_key_is_sent_printed_logged_or_left_behind(site: Site) -> None:
    first = site.run(USERS, "-vvvv", "--diff")
    second = site.run([{**USERS[0], "password": "canary-of-two"}, *USERS[1:]], "-vvvv", "--diff")
    for run in (first, second):
        printed = "".join(result["printed"] for result in run.values())
        assert "pollux_users_files" in printed  # it is that verbose
        assert "canary" not in printed
    files = [path for path in site.written.rglob("*") if path.is_file()]
    # What was sent to the hosts is among them: the module with its arguments, as a run's last call left it.
    sent = [path.read_bytes() for path in files if path.name.startswith("AnsiballZ_pollux_users_files")]
    assert [b"SCRAM-SHA-256" in each for each in sent] == [True] * 2 * len(HOSTS)
    assert [path for path in files if b"canary" in path.read_bytes()] == []
    assert not list(site.written.rglob("pollux-verifiers*"))
    assert {site.file(host).stat().st_mode & 0o777 for host in HOSTS} == {0o600}


def test_a_password_that_cannot_be_used_is_refused_with_the_users_name_only(site: Site) -> None:
    done = site.run([*USERS, {"name": "zoe", "password": "canary\u0007", "roles": ["amq"]}], hosts="castor")
    assert done["castor"]["failed"]
    assert "password of user 'zoe': a control character is not allowed" in done["castor"]["msg"]
    assert "canary" not in done["castor"]["printed"]
    assert not site.file("castor").exists()


def test_processes_of_one_run_share_what_they_derive(tmp_path: Path) -> None:
    action = load(PLUGIN)
    wanted = {f"{number:032x}": (f"user{number}", f"secret{number}") for number in range(20)}
    calls: list[str] = []
    results: list[Mapping[str, str]] = []

    def derive(salt: str, name: str, secret: str) -> str:
        calls.append(name)
        return f"verifier of {name}"

    def member(users: Mapping[str, tuple[str, str]]) -> None:
        results.append(action.derived_once(tmp_path, users, derive, []))

    some = dict(list(wanted.items())[:5])
    threads = [threading.Thread(target=member, args=(users,)) for users in (some, wanted, wanted, wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(calls) == sorted(name for name, _ in wanted.values())
    assert sorted(len(result) for result in results) == [5, 20, 20, 20]
    assert all(result[salt] == f"verifier of {wanted[salt][0]}" for result in results for salt in result)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_one_that_fails_leaves_nothing_half_done_for_the_others(tmp_path: Path) -> None:
    action = load(PLUGIN)
    wanted = {"00": ("ada", "a"), "01": ("bob", "b")}

    def derive(salt: str, name: str, secret: str) -> str:
        if name == "bob":
            raise ValueError("password of user 'bob': no")
        return name

    with pytest.raises(ValueError, match="bob"):
        action.derived_once(tmp_path, wanted, derive, [])
    assert action.derived_once(tmp_path, wanted, lambda *user: user[1], []) == {"00": "ada", "01": "bob"}


def test_the_brokers_code_is_used_without_what_the_broker_depends_on(tmp_path: Path) -> None:
    """From sources and from a wheel (a zip file), in a Python that has Ansible's stand-ins and nothing else."""
    wheel = tmp_path / "pollux_broker-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted((SOURCES / "pollux").rglob("*.py")):
            archive.write(path, str(path.relative_to(SOURCES)))
    for place in (SOURCES, wheel):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ALONE, str(PLUGIN), str(place)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.stdout.split() == ["ada", "SCRAM-SHA-256", "[]"], done.stderr


ALONE = """
import sys, types
for name in ("ansible", "ansible.constants", "ansible.errors", "ansible.plugins", "ansible.plugins.action"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["ansible"].constants = sys.modules["ansible.constants"]
sys.modules["ansible.errors"].AnsibleActionFail = RuntimeError
sys.modules["ansible.plugins.action"].ActionBase = object
action = types.ModuleType("action")
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), action.__dict__)
code = action.broker_code(sys.argv[2])
made = action.verifier(code, "00" * 16, "ada", "secret")
print(code.users_editor.check_user_name("ada"), made.split("$")[0], [name for name in sys.modules if "pollux" in name])
"""


def test_a_place_without_the_broker_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"tools/wheelhouse\.py") as caught:
        load(PLUGIN).broker_code(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert sys.modules["pollux.config.users"].load_users is load_users
