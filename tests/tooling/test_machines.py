"""Virtual machines of the lab without booting one: what they are made of, how they are reached and known."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from lab import disks, hypervisor, image, machines, scenarios
from lab.machines import Specification
from lab.places import LabError, Places
from lab.processes import is_ours

if TYPE_CHECKING:
    from pathlib import Path

GIVEN: dict[str, Any] = {"name": "castor", "groups": ["brokers"], "address": "10.9.8.11"}


def specification(**more: Any) -> Specification:
    return Specification.parse("scenario", {**GIVEN, **more})


def test_a_machine_is_in_its_network_with_this_machine_as_the_first_address() -> None:
    assert specification().bridge_address == "10.9.8.1/24"
    assert specification(prefix=28).bridge_address == "10.9.8.1/28"


@pytest.mark.parametrize(("key", "value"), [("memory", 512), ("image", "debian")])
def test_what_a_machine_does_not_have_is_refused(key: str, value: object) -> None:
    with pytest.raises(LabError, match=f"has no {key}"):
        specification(**{key: value})


def test_a_machine_needs_an_address() -> None:
    with pytest.raises(LabError, match="castor: address"):
        specification(address="castor")


def test_machines_of_one_network_have_different_hardware_addresses() -> None:
    found = {hypervisor.hardware_address(f"10.9.8.{last}") for last in range(1, 255)}
    assert len(found) == 254
    assert hypervisor.hardware_address("10.9.8.11") == "52:54:00:09:08:0b"


def test_the_seed_holds_name_address_and_keys_that_only_root_reads() -> None:
    text = machines.seed(specification(), {"etc/ssh/ssh_host_ed25519_key": b"secret", "etc/hosts": b"names"})
    with tarfile.open(fileobj=io.BytesIO(text)) as archive:
        members = {member.name: member for member in archive.getmembers()}
        network = archive.extractfile("etc/lab-network")
        assert network is not None
        assert b"ip address replace 10.9.8.11/24 dev eth0\n" in network.read()
    assert members["etc/ssh/ssh_host_ed25519_key"].mode == 0o600
    assert members["etc/hosts"].mode == 0o644
    # Directories would change the modes of those that are there.
    assert all(member.isfile() for member in members.values())
    assert len(text) % 512 == 0, "a disk ends with a whole sector"


def test_ssh_believes_only_the_keys_that_the_lab_made(tmp_path: Path) -> None:
    text = machines.ssh_settings([specification()], Places(tmp_path))
    assert "Host castor 10.9.8.11" in text
    assert "StrictHostKeyChecking yes" in text
    assert f"UserKnownHostsFile {tmp_path}/.pollux/lab/machines/known_hosts" in text
    assert "GlobalKnownHostsFile /dev/null" in text


def test_the_disk_is_made_again_when_its_inputs_change_and_not_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = disks.tag()
    assert disks.tag() == before
    for module, name, value in (
        (disks, "PACKAGES", (*disks.PACKAGES, "vim")),
        (disks, "MASKED", ()),
        (disks, "DRIVERS", ()),
        (image, "SUITE", "trixie"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(module, name, value)
            assert disks.tag() != before, name


def test_two_checkouts_have_two_networks(tmp_path: Path) -> None:
    first, second = Places(tmp_path / "a"), Places(tmp_path / "b")
    assert first.machines_namespace != second.machines_namespace
    assert first.machines_namespace != first.namespace, "the engine's clean-up must not end machines"


def test_a_scenario_is_on_machines_or_on_containers() -> None:
    assert machines.on_machines("shared_store_nfs")
    assert not machines.on_machines("default")
    assert not machines.on_machines("validation"), "it has no hosts at all"
    assert {one.name for one in machines.specified("shared_store_nfs")} == {"nfs-server", "nfs-castor", "nfs-pollux"}
    with pytest.raises(LabError, match="containers"):
        machines.specified("default")
    with pytest.raises(LabError, match="no scenario 'nothing'"):
        scenarios.ground_of("nothing")


def test_a_power_cut_ends_only_the_process_that_was_started_with_this_file(tmp_path: Path) -> None:
    mine, other = tmp_path / "castor.pid", tmp_path / "pollux.pid"
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen([*program, str(mine)], stdin=subprocess.PIPE) as process:
        try:
            mine.write_text(str(process.pid))
            other.write_text(str(process.pid))  # an id that was given to another process
            wait_for_command_line(process.pid, str(mine))
            assert hypervisor.running(other) is None
            hypervisor.cut(other)
            assert hypervisor.running(mine) == process.pid
            at = hypervisor.cut(mine)
            assert at > 0
            assert process.wait(timeout=30) == -9
        finally:
            process.kill()
    assert hypervisor.running(mine) is None


def wait_for_command_line(pid: int, argument: str) -> None:
    """A process has its command line once it has become its program."""
    while not is_ours(pid, argument):
        os.sched_yield()


def test_what_the_machines_lack_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program: None if program.startswith("qemu") else program)
    with pytest.raises(LabError, match=r"qemu-system-x86, qemu-utils: run"):
        disks.needs()


def test_elsewhere_the_scenarios_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(LabError, match="need Linux on x86-64, and root"):
        disks.needs()
