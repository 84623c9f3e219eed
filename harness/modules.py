"""Single filters, modules and actions of the bundle: loaded, or run by Ansible on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import bytecode

ROOT = Path(__file__).resolve().parents[1]


def load(path: str | Path) -> Any:
    """Return a new module from a file of this checkout."""
    name = f"of_tests_{Path(path).stem}"
    specification = importlib.util.spec_from_file_location(name, ROOT / path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def results(home: Path, program: str, *arguments: str, **environment: str) -> dict[str, dict[str, Any]]:
    """Run one of Ansible's programs for one task; returns what it returned by host, with all output in ``printed``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    kept |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(home), "LC_ALL": "C.UTF-8"}
    kept |= {"PYTHONPATH": bytecode.path_in(ROOT / ".pollux" / "bytecode")}
    callbacks = (ROOT / "tests" / "ansible" / "callbacks", ROOT / "molecule" / "lab" / "callback_plugins")
    kept |= {"ANSIBLE_CALLBACK_PLUGINS": ":".join(map(str, callbacks)), "ANSIBLE_CALLBACKS_ENABLED": "lab_thrift"}
    kept |= {"ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "ANSIBLE_STDOUT_CALLBACK": "json_line"}
    kept |= {"POLLUX_LAB_THRIFT": str(ROOT / ".pollux" / "thrift")}
    command = [str(Path(sys.executable).parent / program), "-c", "local", *arguments]
    command += ["-e", f"ansible_python_interpreter={sys.executable}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    lines = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout + done.stderr
    return {host: {**json.loads(text), "printed": done.stdout + done.stderr} for _, host, text in lines}
