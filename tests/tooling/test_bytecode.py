"""Source that Python is sent is compiled once, and never taken for something else."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from harness import bytecode

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def value(tmp_path: Path, source: str) -> str:
    """Return a value of an archive's module in a process of its own."""
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("sent.py", source)
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'archive.zip')!r}); import sent; print(sent.VALUE)"
    environment = {**os.environ, "PYTHONPATH": bytecode.path_in(tmp_path / "compiled")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_it_is_compiled_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    """Breaks when nothing is kept (each task compiles again), or when what is kept is given to another source."""
    assert value(tmp_path, "VALUE = 1") == "1"
    (kept,) = (tmp_path / "compiled" / "results").iterdir()
    kept.write_bytes(marshal.dumps(compile("VALUE = 'kept'", "sent.py", "exec")))
    assert value(tmp_path, "VALUE = 1") == "kept"
    assert value(tmp_path, "VALUE = 2") == "2"


def test_what_cannot_be_read_is_compiled(tmp_path: Path) -> None:
    assert value(tmp_path, "VALUE = 1") == "1"
    (kept,) = (tmp_path / "compiled" / "results").iterdir()
    kept.write_bytes(kept.read_bytes()[:20])
    assert value(tmp_path, "VALUE = 1") == "1"


def test_what_is_compiled_in_other_ways_is_what_it_would_be_without(tmp_path: Path) -> None:
    """Breaks when a caller's `from __future__` is lost, or lines that are no module are taken for one."""
    environment = {**os.environ, "PYTHONPATH": bytecode.path_in(tmp_path / "compiled")}
    program = (
        "from __future__ import annotations\nimport ast\n"
        "space = {}\nexec(compile('def f(x: nowhere): pass', '', 'exec'), space)\n"
        "print(space['f'].__annotations__, eval(compile('1 + 1', '', 'eval')), type(ast.parse('x')).__name__)\n"
        "try:\n    exec(compile('def f(x: nowhere): pass', '', 'exec', dont_inherit=True))\n"
        "except NameError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["{'x': 'nowhere'} 2 Module", "name 'nowhere' is not defined"]


def test_only_programs_that_soon_end_keep_their_garbage(tmp_path: Path) -> None:
    """Modules (a script on standard input) and ansible-playbook; breaks when a broker or a test would grow, too."""
    environment = {**os.environ, "PYTHONPATH": bytecode.path_in(tmp_path / "compiled")}
    script = "import gc; print(gc.get_threshold() == (700, 10, 10))"
    playbook, other = tmp_path / "ansible-playbook", tmp_path / "broker"
    said = {}
    for path in (playbook, other):
        path.write_text(script)
    for name, words in (("module", []), ("playbook", [playbook]), ("other", [other]), ("-c", ["-c", script])):
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env=environment,
            input="" if words else script,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        said[name] = done.stdout.strip()
    assert said == {"module": "False", "playbook": "False", "other": "True", "-c": "True"}
