"""Imports only go downwards between the broker's layers, and the pure layers stay pure.

The order is that of docs/architecture.md; the leaves (`pollux.message`, `pollux.errors` and so on) are below all. An
import under `if TYPE_CHECKING:` never runs, but whoever reads it has to know what it names: it counts as any other.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pollux

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(pollux.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "docs/architecture.md"
PIPELINE = Path(__file__).parents[2] / "pipeline/src/pollux_pipeline"
#: Other packages, whose cycles of imports are looked for too.
OTHERS = (PIPELINE, ARCHITECTURE.parents[1] / "harness", ARCHITECTURE.parents[1] / "molecule/lab")
LAYERS = (
    *("cli", "management", "supervisor", "process", "node", "ha", "cluster", "protocols", "engine"),
    *("routing", "store", "audit", "formats", "wire", "config", "logs"),
)
LEAVES = ("message", "errors", "plugins", "multicast", "caches", "checksum", "redacted", "transitions", "version")
#: The client library stands beside the broker: it may use the codecs, the formats and what is below them.
CLIENT_MAY_USE = ("client", "formats", "wire", "config", "logs", *LEAVES)
#: The one part of the broker that is a client of other brokers.
IS_A_CLIENT = ("cluster", "amqp")
#: The drill is a program that uses the client; only the command line knows it.
DRILL_MAY_USE = ("drill", *CLIENT_MAY_USE)
#: What the files are made of: the formats give their readers what these need of it.
FORMATS_MAY_USE = ("formats", "message", "errors", "checksum")
#: Who reads the broker's files without the broker.
PIPELINE_MAY_USE = ("formats",)
#: Policies are packages of ha: none knows another one, and what they share knows none.
POLICIES = ("shared_store", "replication", "active_passive", "colocated")
#: Packages of ha that are no policy: what several have in common.
SHARED = ("copies",)
#: (file, module), with a reason: who may name what is above it. There is none.
EXCEPTIONS: set[tuple[str, str]] = set()

#: Files of the largest cycle of imports, types included, by package: whoever reads one has to read all. No other has
#: one. The numbers only fall.
LARGEST_CYCLES = {"client": 3, "config": 2, "ha": 2, "process": 3, "protocols": 2, "store": 3}

#: What was looked for by name alone when the layers were made, and was mostly not where a newcomer guessed.
BEHAVIOURS = (
    *("a dead letter is decided", "the lock is taken", "an MQTT will is published", "the journal is folded"),
    *("an upgrade has to wait at its gate", "a replica applies changes", "the sequence is raised", "votes are counted"),
    *("paging begins", "a failback is decided", "a discovery datagram is sent", "a permission is checked"),
)

SOCKETS_AND_LOOPS = {"asyncio", "uvloop", "socket", "socketserver", "select", "selectors", "ssl", "threading", "queue"}
INPUT_OUTPUT = SOCKETS_AND_LOOPS | {
    *("os", "io", "pathlib", "shutil", "tempfile", "subprocess", "mmap", "fcntl", "signal", "multiprocessing"),
    *("concurrent", "http", "urllib", "aiohttp", "sqlite3", "logging", "time", "random"),
}
#: In formats a path is a name, in what is found and in the words of errors.
FORBIDDEN = {"wire": SOCKETS_AND_LOOPS, "routing": INPUT_OUTPUT, "formats": INPUT_OUTPUT - {"pathlib"}}


def imports_of(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each import, at any depth; relative ones are resolved against `package`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
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
    if layer == "formats":
        return FORMATS_MAY_USE
    if layer == "pipeline":
        return PIPELINE_MAY_USE
    if layer == "cli":
        return (*LAYERS, *LEAVES, "client", "drill")
    return (*LAYERS[LAYERS.index(layer) :], *LEAVES)


def violations(source: str, package: tuple[str, ...], file: str = "module.py") -> list[str]:
    """Return what is wrong with the imports of one source text in `package`, as `line: what`."""
    found = []
    known = {*LAYERS, *LEAVES, "client", "drill"}
    layer = package[1] if len(package) > 1 else file.removesuffix(".py")
    beside = ("client",) if package[1:3] == IS_A_CLIENT else ()
    own_policy = package[2] if package[1:2] == ("ha",) and len(package) > 2 else ""
    for line, module in imports_of(ast.parse(source), package):
        parts = module.split(".")
        if any(file == name and f"{module}.".startswith(f"{above}.") for name, above in EXCEPTIONS):
            continue
        if (
            parts[0] == "pollux"
            and len(parts) > 1
            and parts[1] in known
            and parts[1] not in (*allowed_for(layer), *beside)
        ):
            found.append(f"{line}: {layer} imports {module}, which is above it")
        if layer == "ha" and parts[:2] == ["pollux", "ha"] and {*parts[2:3]} & {*POLICIES} - {own_policy}:
            found.append(f"{line}: {'.'.join(package[1:])} imports {module}, a policy that it must not know")
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
        name = str(path.relative_to(PACKAGE))
        package = ("pollux", *path.relative_to(PACKAGE).parts[:-1])
        found += [f"{name}:{what}" for what in violations(path.read_text(), package, name)]
    assert not found, "\n".join(found)


def test_the_pipeline_imports_the_formats_and_no_more_of_the_broker() -> None:
    sources = {path.relative_to(PIPELINE): path.read_text() for path in PIPELINE.rglob("*.py")}
    assert any("pollux.formats" in source for source in sources.values())
    # It stands beside the broker and is looked at as if it were a layer.
    found = [f"{path}:{what}" for path, text in sources.items() for what in violations(text, ("pollux", "pipeline"))]
    assert not found, "\n".join(found)


def import_graph(root: Path = PACKAGE) -> dict[str, set[str]]:
    """Return module -> modules of the same package that it names."""
    files = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in files.items():
        package = path.relative_to(root.parent).parts[:-1]
        named = {*imports_of(ast.parse(path.read_text()), package)}
        # `from pollux.store import ids` names the module, and its package only because of how it is written.
        named -= {(line, module.rpartition(".")[0]) for line, module in named if module in files}
        graph[name] = {module for _, module in named if module in files} - {name}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the largest sets of modules of which each leads to each other one."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        found, ahead = {start}, [start]
        while ahead:
            new = graph[ahead.pop()] - found
            found |= new
            ahead += new
        reached[start] = found
    together = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return [{*each} for each in together if len(each) > 1]


def test_no_cycle_of_imports_is_larger_than_it_was() -> None:
    for cycle in cycles(import_graph()):
        packages = {name.split(".")[1] for name in cycle}
        allowed = max(LARGEST_CYCLES.get(package, 1) for package in packages)
        assert len(cycle) <= allowed <= 3, f"{len(cycle)} files name one another, {allowed} may: {sorted(cycle)}"


@pytest.mark.parametrize("root", OTHERS, ids=lambda root: root.name)
def test_no_cycle_of_imports_beside_the_broker_has_more_than_three_files(root: Path) -> None:
    graph = import_graph(root)
    assert any(graph.values())
    assert [sorted(cycle) for cycle in cycles(graph) if len(cycle) > 3] == []


def test_the_search_for_cycles_finds_them() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, cycles(graph))) == [["a", "b", "c"], ["d", "e"]]
    assert "pollux.process.connection" in import_graph()["pollux.process.acceptor"]


def test_no_exception_is_left_over() -> None:
    for file, above in EXCEPTIONS:
        imported = {module for _, module in imports_of(ast.parse((PACKAGE / file).read_text()), ("pollux",))}
        assert above in imported, f"{file} does not import {above} any more: no exception is needed"


def test_the_policies_are_those_there_are() -> None:
    assert {path.parent.name for path in (PACKAGE / "ha").glob("*/__init__.py")} == {*POLICIES, *SHARED}


def test_the_architecture_shows_these_layers_and_files_that_exist() -> None:
    text = ARCHITECTURE.read_text()
    shown = re.findall(r"^        (\w+)  +", text, re.MULTILINE)
    assert shown == [*LAYERS, "leaves"]
    leaves = re.search(r"^        leaves +([\w, ]+)$", text, re.MULTILINE)
    assert leaves is not None
    assert {*leaves[1].split(", ")} == {*LEAVES}
    named = {*re.findall(r"(?<![\w/<>])[a-z_]+(?:/[a-z_]+)+\.(?:py|yml)", text)}
    assert len(named) > 40
    roots = (PACKAGE, ARCHITECTURE.parent.parent)
    assert not {name for name in named if not any((root / name).is_file() for root in roots)}


def test_the_architecture_names_every_package() -> None:
    text = ARCHITECTURE.read_text()
    packages = [path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/*/__init__.py")]
    assert len(packages) > 20
    missing = {str(name) for name in packages if f"`{name}`" not in text}
    assert not missing


def test_the_architecture_says_where_each_behaviour_is() -> None:
    """Of each a newcomer has to find the file by this table alone."""
    table = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", ARCHITECTURE.read_text(), re.MULTILINE)
    places = dict(table)
    missing = {name for name in BEHAVIOURS if not re.search(r"`[\w/]+\.(?:py|yml)`", places.get(name, ""))}
    assert not missing


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("wire", "import asyncio"),
        ("wire", "def f():\n    from asyncio import sleep"),
        ("wire", "from pollux.routing.queue import Queue"),
        ("wire", "from pollux import protocols"),
        ("store", "from ..protocols import base"),
        ("routing", "import os.path"),
        ("routing", "import time"),
        ("", "import pollux.wire.content"),
        ("config", "if 1:\n    import pollux.store"),
        ("wire", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pollux.process.broker import Broker"),
        ("engine", "from pollux.protocols.base import Session"),
        ("cluster", "import pollux.ha.machine"),
        ("ha", "from pollux.ha.replication import member"),
        ("ha.shared_store", "from pollux.ha.replication.member import Member"),
        ("formats", "from pollux.config.model import Configuration"),
        ("formats", "import mmap"),
        ("pipeline", "from pollux.store import recovery"),
        ("pipeline", "import pollux.redacted"),
        ("pipeline", "from pollux.message import Encoding"),
        ("pipeline", "from pollux import errors"),
        ("client", "import pollux.process"),
        ("cluster.bridges", "import pollux.client"),
        ("client", "import pollux.drill"),
        ("process", "import pollux.drill"),
        ("drill", "import pollux.store.journal"),
    ],
)
def test_the_check_finds(package: str, source: str) -> None:
    assert violations(source, ("pollux", *filter(None, package.split("."))), "errors.py"), source


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("engine", "from pollux.routing.queue import Queue\nimport asyncio"),
        ("wire", "from pollux.message import Message\nfrom .sniff import sniff"),
        ("cli", "import pollux.management, pollux.config, pollux.errors"),
        ("ha.replication", "from pollux.ha.replication import sequence_steps\nfrom pollux.ha.machine import Machine"),
        ("formats", "from pollux.checksum import crc32c"),
        ("pipeline", "import pyarrow\nfrom pollux.formats import Encoding, lives\nimport pollux.formats.names"),
        ("client", "from pollux.wire import amqp"),
        ("cluster.amqp", "from pollux.client.links import Link"),
        ("drill", "from pollux.client.traffic import publisher"),
        ("cli", "import pollux.drill"),
        ("", "from pollux.errors import PolluxError"),
    ],
)
def test_the_check_accepts(package: str, source: str) -> None:
    assert violations(source, ("pollux", *filter(None, package.split("."))), "errors.py") == []
