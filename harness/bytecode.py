"""Compiles once what Python is sent as source, and Ansible seldom looks for garbage.

Ansible sends each module as an archive of sources, which Python compiles whenever it runs: a quarter of its time on a
host that is a container, half on an emulated machine. Mitogen sends sources to each interpreter that it starts, one by
one. A module that each start of the interpreter loads keeps the result: on hosts of the lab beside the distribution's
own packages (brokers have environments of their own, and are not concerned), in tests of playbooks in a directory that
PYTHONPATH names.

Looking for garbage is a tenth of what a playbook costs, and a program that soon ends does not need it: neither modules,
which come through standard input, nor `ansible-playbook` itself do it as often as Python would.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Where the results are kept on a host. Only root writes there.
KEPT = "/var/cache/lab-bytecode"
_PACKAGES = "/usr/lib/python3/dist-packages"
_MODULE = '''\
"""Compile once what Python is sent as source, and have Ansible seldom look for garbage."""

import _frozen_importlib_external
import _sha1
import builtins
import gc
import marshal
import os
import sys

compile_anew = builtins.compile
MAGIC = _frozen_importlib_external.MAGIC_NUMBER.hex()
#: What `from __future__` asks for, in the flags of a code object (CPython's PyCF_MASK).
FUTURES = 0x1FE0000


def compile_once(source, filename, mode, flags=0, dont_inherit=False, optimize=-1, **more):
    if mode != "exec" or flags or not dont_inherit or optimize != -1 or more or not isinstance(source, (bytes, str)):
        if not dont_inherit:
            flags |= sys._getframe(1).f_code.co_flags & FUTURES
        return compile_anew(source, filename, mode, flags, True, optimize, **more)
    text = source if isinstance(source, bytes) else source.encode("utf-8", "surrogatepass")
    kept = f"@DIRECTORY@/{MAGIC}-{type(source).__name__}-{_sha1.sha1(text).hexdigest()}"
    try:
        with open(kept, "rb") as file:
            return marshal.load(file)
    except (OSError, EOFError, ValueError):
        code = compile_anew(source, filename, mode, flags, True, optimize)
    try:
        with open(f"{kept}.{os.getpid()}", "wb") as file:
            marshal.dump(code, file)
        os.rename(file.name, kept)
    except OSError:
        pass  # this user may not write there
    return code


builtins.compile = compile_once
if not sys.orig_argv[1:] or os.path.basename(sys.orig_argv[1]) == "ansible-playbook":
    gc.set_threshold(100_000, 50, 1000)
'''


def module(kept: str = KEPT) -> str:
    """The source of what does it; results are kept in the directory `kept`, by the hash of what was compiled."""
    return _MODULE.replace("@DIRECTORY@", kept)


def install(root: str = "") -> str:
    """One line of shell that puts it into the file system below `root` (a word of shell)."""
    text = base64.b64encode(module().encode()).decode()
    return (
        f"mkdir -p {root}{KEPT} && echo {text} | base64 -d > {root}{_PACKAGES}/lab_bytecode.py"
        f" && echo import lab_bytecode > {root}{_PACKAGES}/lab-bytecode.pth"
    )


def path_in(directory: Path) -> str:
    """A directory for PYTHONPATH with which Python does it, made below another one."""
    results = directory / "results"
    results.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f".sitecustomize.{os.getpid()}"
    unfinished.write_text(module(str(results)), encoding="utf-8")
    unfinished.replace(directory / "sitecustomize.py")
    return str(directory)
