"""Imports only go downwards between the broker's layers, and the pure layers stay pure.

The order is that of docs and README: cli > management > process > node > ha > cluster > protocols > engine >
routing > store > audit > formats > wire > config > logs; `pollux.message`, `pollux.errors` and others are leaves. An
import under `if TYPE_CHECKING:` never runs and is exempt.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pollux

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(pollux.__file__).parent
LAYERS = (
    *("cli", "management", "process", "node", "ha", "cluster", "protocols", "engine"),
    *("routing", "store", "audit", "formats", "wire", "config", "logs"),
)
LEAVES = ("message", "errors", "multicast", "checksum", "discreet", "duties", "version")
#: The client library stands beside the broker: it may use the codecs, the formats and what is below them.
CLIENT_MAY_USE = ("client", "formats", "wire", "config", "logs", *LEAVES)
#: The drill is a program that uses the client; only the command line knows it.
DRILL_MAY_USE = ("drill", *CLIENT_MAY_USE)

SOCKETS_AND_LOOPS = {"asyncio", "uvloop", "socket", "socketserver", "select", "selectors", "ssl", "threading", "queue"}
INPUT_OUTPUT = SOCKETS_AND_LOOPS | {
    *("os", "io", "pathlib", "shutil", "tempfile", "subprocess", "mmap", "fcntl", "signal", "multiprocessing"),
    *("concurrent", "http", "urllib", "aiohttp", "sqlite3", "logging", "time", "random"),
}
FORBIDDEN = {"wire": SOCKETS_AND_LOOPS, "routing": INPUT_OUTPUT}


def is_type_checking(test: ast.expr) -> bool:
    """Tell whether an if statement's condition is TYPE_CHECKING."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_of(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each import that runs, at any depth; relative ones resolved against `package`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and is_type_checking(node.test):
            for alternative in node.orelse:
                yield from imports_of(ast.Module([alternative], []), package)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield node.lineno, module
            for alias in node.names:  # `from pollux import wire` names a layer too
                yield node.lineno, f"{module}.{alias.name}"
        else:
            yield from imports_of(node, package)


def allowed_for(layer: str) -> tuple[str, ...]:
    """Return the parts of the package that a layer may import."""
    if layer in LEAVES:
        return LEAVES
    if layer == "client":
        return CLIENT_MAY_USE
    if layer == "drill":
        return DRILL_MAY_USE
    if layer == "cli":
        return (*LAYERS, *LEAVES, "client", "drill")
    return (*LAYERS[LAYERS.index(layer) :], *LEAVES)


def violations(layer: str, source: str, package: tuple[str, ...]) -> list[str]:
    """Return what is wrong with the imports of one source text, as `line: what`."""
    found = []
    known = {*LAYERS, *LEAVES, "client", "drill"}
    for line, module in imports_of(ast.parse(source), package):
        parts = module.split(".")
        if parts[0] == "pollux" and len(parts) > 1 and parts[1] in known and parts[1] not in allowed_for(layer):
            found.append(f"{line}: {layer} imports {module}, which is above it")
        if parts[0] in FORBIDDEN.get(layer, set()):
            found.append(f"{line}: {layer} imports {module}; it must do no input or output")
    return sorted(set(found))


def modules() -> list[tuple[str, Path]]:
    """Return (layer, file) for every module of the broker."""
    files = sorted(PACKAGE.rglob("*.py"))
    layers = [path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in files]
    return [(layer, path) for layer, path in zip(layers, files, strict=True) if layer != "__init__"]


def test_every_module_belongs_to_a_layer() -> None:
    strangers = {layer for layer, _ in modules()} - {*LAYERS, *LEAVES, "client", "drill", "__main__"}
    assert not strangers, f"not in the list of layers: {sorted(strangers)}"


def test_imports_go_downwards_and_pure_layers_stay_pure() -> None:
    found = []
    for layer, path in modules():
        if layer == "__main__":
            continue
        package = ("pollux", *path.relative_to(PACKAGE).parts[:-1])
        found += [f"{path.relative_to(PACKAGE)}:{what}" for what in violations(layer, path.read_text(), package)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("wire", "import asyncio"),
        ("wire", "def f():\n    from asyncio import sleep"),
        ("wire", "from pollux.routing.queue import Queue"),
        ("wire", "from pollux import protocols"),
        ("store", "from ..protocols import base"),
        ("routing", "import os.path"),
        ("routing", "import time"),
        ("message", "import pollux.wire.content"),
        ("config", "if 1:\n    import pollux.store"),
        ("wire", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import asyncio"),
        ("client", "import pollux.process"),
        ("client", "import pollux.drill"),
        ("process", "import pollux.drill"),
        ("drill", "import pollux.store.journal"),
    ],
)
def test_the_check_finds(layer: str, source: str) -> None:
    assert violations(layer, source, ("pollux", layer)), source


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("engine", "from pollux.routing.queue import Queue\nimport asyncio"),
        ("wire", "from pollux.message import Message\nfrom .sniff import sniff"),
        ("wire", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pollux.process.broker import Broker"),
        ("cli", "import pollux.management, pollux.config, pollux.errors"),
        ("client", "from pollux.wire import amqp"),
        ("drill", "from pollux.client.traffic import Publisher"),
        ("cli", "import pollux.drill"),
    ],
)
def test_the_check_accepts(layer: str, source: str) -> None:
    assert violations(layer, source, ("pollux", layer)) == []
