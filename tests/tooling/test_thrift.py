"""Work of one playbook about modules and templates serves the next one, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.bundle import MITOGEN

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{ lookup('env', 'PYTHON') }}"
    names: [b, a]
  tasks:
    - ansible.builtin.command: echo {{ names | sort | join(GLUE) }}
      register: told
    - ansible.builtin.debug:
        msg: said {{ told.stdout }}
"""


class Playbooks:
    """Runs a playbook with what earlier runs kept."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kept = directory / "kept"

    def run(self, glue: str = "'-'", text: str = PLAYBOOK, **environment: str) -> str:
        """Run it, and return its words."""
        playbook = self.directory / "playbook.yml"
        playbook.write_text(text.replace("GLUE", glue))
        plain = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        ours = {
            "PYTHON": sys.executable,
            "ANSIBLE_HOME": str(self.directory / "ansible"),
            "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "molecule" / "lab" / "callback_plugins"),
            "ANSIBLE_CALLBACKS_ENABLED": "lab_thrift",
            "ANSIBLE_NOCOLOR": "1",
            "POLLUX_LAB_THRIFT": str(self.kept),
            "LC_ALL": "C.UTF-8",
        }
        program = str(Path(sys.executable).parent / "ansible-playbook")
        done = subprocess.run(
            [program, "-i", "localhost,", str(playbook)],
            env=plain | ours | environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stderr, done.stderr
        return done.stdout

    def files(self) -> dict[str, int]:
        """Return all that is kept, and when each was written."""
        files = (path for path in self.kept.rglob("*") if path.is_file())
        return {str(path.relative_to(self.kept)): path.stat().st_mtime_ns for path in files}


@pytest.fixture
def playbooks(tmp_path: Path) -> Playbooks:
    return Playbooks(tmp_path)


def test_a_second_run_makes_nothing_anew_and_says_the_same(playbooks: Playbooks) -> None:
    """Breaks when something of a run (a path, a process id) gets into what is kept, or decides where it is."""
    first = playbooks.run()
    assert "said a-b" in first
    kept = playbooks.files()
    (archives,) = playbooks.kept.glob("modules-*")
    assert (archives / "ansible.modules.command-ZIP_DEFLATED-none").is_file()
    assert any(name.startswith("templates/") for name in kept)
    assert playbooks.run() == first
    assert playbooks.files() == kept


def test_another_template_is_another_one(playbooks: Playbooks) -> None:
    assert "said a-b" in playbooks.run()
    assert "said a+b" in playbooks.run(glue="'+'")


def test_what_is_kept_of_a_template_is_used(playbooks: Playbooks) -> None:
    assert "said aGLUEDb" in playbooks.run(glue="'GLUED'")
    (path,) = (each for each in (playbooks.kept / "templates").iterdir() if b"GLUED" in each.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"GLUED", b"-KEPT"))
    assert "said a-KEPTb" in playbooks.run(glue="'GLUED'")


def test_what_cannot_be_read_is_made_anew(playbooks: Playbooks) -> None:
    first = playbooks.run()
    for path in (playbooks.kept / "templates").iterdir():
        path.write_bytes(path.read_bytes()[:10])
    assert playbooks.run() == first


def test_without_a_place_nothing_is_kept(playbooks: Playbooks) -> None:
    assert "said a-b" in playbooks.run(POLLUX_LAB_THRIFT="")
    assert not playbooks.kept.exists()


def test_through_mitogen_a_program_may_use_every_processor(playbooks: Playbooks) -> None:
    """Breaks when Mitogen's own choice is left: what playbooks start (brokers, drills) would have one of two."""
    text = PLAYBOOK.replace("echo {{ names | sort | join(GLUE) }}", "nproc")
    assert f"said {len(os.sched_getaffinity(0))}\n" in playbooks.run(
        text=text, ANSIBLE_DEPRECATION_WARNINGS="0", **MITOGEN
    ).replace('"', "")
