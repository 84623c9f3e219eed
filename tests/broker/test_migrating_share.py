"""How much of what users of Artemis write starts after `pollux migrate`: counted, and docs/migrating.md says it.

Counted are the files of the corpus, written by us after the features that real ones use, whatever becomes of them. What
Artemis refuses as well is left out (broken XML, contradictions, typing errors, missing files), and what is not its own.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from broker.config.test_schema import FACTS
from broker.test_broker_xml import FILES, stores  # noqa: F401  (a fixture)
from pollux.cli.app import app
from pollux.config.model import Configuration
from pollux.config.refused import refused_in_list
from pollux.config.schema import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs/migrating.md"
#: Broken for Artemis too, or not its own. `bad-scale-down` starts there, and gives its messages to nobody at its end.
LEFT_OUT = {
    "bad-scale-down",
    *("bad-acceptors-one-port", "bad-activemq-classic", "bad-bomb", "bad-bootstrap", "bad-bridges", "bad-cut"),
    *("bad-deep", "bad-delays", "bad-diverts", "bad-doctype", "bad-encoding", "bad-federations", "bad-masked-password"),
    *("bad-match", "bad-paging", "bad-permissions", "bad-property", "bad-px-plugins", "bad-queue-filter"),
    *("bad-tls-files", "bad-tls-incomplete", "bad-tls-jks", "bad-typing-errors", "bad-unknown", "bad-tls-management"),
    *("bad-addresses-older", "bad-acceptor-protocol-typos", "bad-address-settings-typos", "bad-journal-min-files"),
    *("bad-routers", "bad-amqp-connections", "bad-acceptor-twice-security", "bad-tls-connector", "bad-network-check"),
}
#: The least share of the corpus that starts, percent.
LEAST = 90


def migrated(path: Path, directory: Path, keys: Path) -> bool:
    """Whether a broker starts on what becomes of a file, without anybody's decision."""
    instance = directory / path.stem
    shutil.copytree(keys, instance / "etc")
    shutil.copy(path, instance / "etc/broker.xml")
    (instance / "etc/login.config").write_text("activemq { };")
    done = CliRunner().invoke(app, ["migrate", str(instance), "--check"])
    assert done.exit_code in (0, 1), done.output
    return done.exit_code == 0


def test_the_page_says_how_much_of_the_corpus_starts(
    tmp_path: Path,
    stores: Path,  # noqa: F811  (a fixture)
) -> None:
    assert {path.stem for path in FILES} >= LEFT_OUT
    files = [path for path in FILES if path.stem not in LEFT_OUT]
    fail = {path.stem for path in files if not migrated(path, tmp_path, stores)}
    share = 100 * (len(files) - len(fail)) // len(files)
    assert share >= LEAST
    said = f"{len(files) - len(fail)} of {len(files)} files ({share} %)"
    assert said in PAGE.read_text(), f"docs/migrating.md has to say: {said}; not: {sorted(fail)}"


def fates(path: str) -> Iterator[str]:
    """Yield what becomes of each step of a path of the schema."""
    table = table_of(Configuration)
    wrapper = ""
    for name in path.split("/")[1:]:
        if wrapper:
            if name in refused_in_list(wrapper):
                yield "refused"
                return
            wrapper = ""
            continue
        if name in table.refused or name in table.ignored:
            yield "refused" if name in table.refused else "no effect"
            return
        entry = table.attributes.get(name[1:]) if name.startswith("@") else table.elements.get(name)
        if entry is None:
            return
        if entry.no_effect:
            yield "no effect"
        wrapper = entry.name if entry.wrapped else ""
        if wrapper and any(each.startswith("@") for each in refused_in_list(wrapper)):
            continue
        table = table_of(entry.nested) if entry.nested is not None else table


def test_the_page_says_how_much_of_the_schema_is_served() -> None:
    counted = Counter(next(fates(fact.path), "served") for fact in FACTS)
    total = sum(counted.values())
    said = (
        f"{counted['served']} of {total} elements and attributes ({100 * counted['served'] // total} %) are served,"
        f" {counted['no effect']} have no effect and are warned about, {counted['refused']} are refused by name"
    )
    text = re.sub(r"\s+", " ", PAGE.read_text())
    assert said in text, f"docs/migrating.md has to say: {said}"


@pytest.mark.parametrize(("path", "fate"), [("core/name", ""), ("core/bridges/bridge/transformer", "refused")])
def test_what_a_fate_is(path: str, fate: str) -> None:
    assert next(fates(path), "") == fate
