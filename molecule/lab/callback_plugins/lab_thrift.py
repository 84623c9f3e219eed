"""Keeps for the next playbook what one has worked out about modules and templates.

A scenario, or a test of playbooks, runs `ansible-playbook` again and again with the same sources. Each run, and with
templates and filters each of its workers (there is one for every task of every host), works out anew:

* which parts of Ansible a module needs, and the archive of them: a tenth of a run. Ansible keeps archives for as long
  as it runs; here the directory of them outlives it, one for each state of the sources they are made of;
* the code that Jinja makes of a template: another tenth. It is kept by the text and by what it was compiled for;
* all filters and tests, at the first template with one of them. They are loaded before workers are started.

And it takes from Mitogen, where a playbook runs through it, the choice of processors: of two it gives one to the
process that speaks with hosts, which has little to do, and the other one to all workers, to the modules of hosts that
are containers, and to every program they start.

Environment: POLLUX_LAB_THRIFT names the directory where this is kept; without it nothing is.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from pathlib import Path
from typing import Any

from ansible import constants
from ansible._internal._templating import _jinja_bits
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import filter_loader, test_loader
from ansible.release import __version__

DOCUMENTATION = """
name: lab_thrift
type: aggregate
short_description: Keeps what playbooks work out about modules and templates
description: For playbooks that are run again and again with the same sources.
"""
VARIABLE = "POLLUX_LAB_THRIFT"
ROOT = Path(__file__).resolve().parents[3]
#: Where modules come from that are not of a locked package.
SOURCES = ("roles/*/library/*.py", "roles/*/module_utils/*.py", "molecule/lab/action_plugins/*.py")
#: What decides how Jinja reads a template's text.
_FIELDS = _jinja_bits._TEMPLATE_OVERRIDE_FIELD_NAMES  # noqa: SLF001
_Environment = _jinja_bits.AnsibleEnvironment
_compile_anew = _Environment.compile


def fingerprint() -> str:
    """Return what archives of modules are made of, in one word: the installed packages and the bundle's own modules."""
    parts = [sys.version, str(Path(sys.prefix).resolve()), __version__]
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            status = path.stat()
            parts.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def keep_archives(directory: Path) -> None:
    """Let Ansible put its archives of modules where the next run finds them. It removes the link with its own files."""
    archives = directory / f"modules-{fingerprint()}"
    archives.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(archives)


def key(environment: Any, source: str, name: str | None, filename: str | None) -> str:
    """Everything that decides what Jinja makes of a template."""
    compiling = _jinja_bits._TemplateCompileContext.current(optional=True)  # noqa: SLF001  (it reads the one of its caller)
    said = (
        *(sys.version, __version__, source, name, filename, compiling and compiling.escape_backslashes),
        *(getattr(environment, field) for field in _FIELDS),
        *(type(environment).__qualname__, sorted(environment.extensions), environment.sandboxed),
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()


def keep_templates(directory: Path) -> None:
    """Let Jinja ask for what it once made of a template. What does not compile is told by Jinja as ever."""
    kept = directory / "templates"
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)

    def compile_once(self: Any, source: Any, name: Any = None, filename: Any = None, **more: Any) -> Any:
        if not isinstance(source, str) or more:
            return _compile_anew(self, source, name, filename, **more)
        path = kept / key(self, source, name, filename)
        try:
            return marshal.loads(path.read_bytes())  # noqa: S302  (a directory of ours)
        except (OSError, EOFError, ValueError, TypeError):
            code = _compile_anew(self, source, name, filename)
        unfinished = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk, say: a template is worth compiling again
            unfinished.write_bytes(marshal.dumps(code))
            unfinished.replace(path)
        return code

    _Environment.compile = compile_once


def free_processors() -> None:
    """Let the system choose processors, also for what Mitogen starts."""
    from ansible_mitogen import affinity  # costs what it imports, and only scenarios and tests have it

    affinity.policy = affinity.Policy()


class CallbackModule(CallbackBase):
    """Hold what Ansible loads."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "lab_thrift"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        if place := os.environ.get(VARIABLE):
            keep_archives(Path(place))
            keep_templates(Path(place))
            if constants.DEFAULT_STRATEGY.startswith("mitogen"):
                free_processors()
        else:
            self.disabled = True

    def v2_playbook_on_play_start(self, play: Any) -> None:  # noqa: ARG002
        """A play may bring plugins of its own, so they are loaded when it begins."""
        filter_loader.get("default")
        test_loader.get("defined")
