"""The runbooks name playbooks, pages and variables that exist, and every operation has a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
SPECIFICATIONS = "\n".join(path.read_text() for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
#: Of the playbooks, those that an operator runs because something happened.
OPERATIONS = {"status.yml", "site.yml", "switchover.yml", "failback.yml", "drill.yml"}
OPERATIONS |= {"rolling_restart.yml", "rolling_upgrade.yml"}
OPERATIONS |= {"pipeline.yml", "recover_split_brain.yml", "restart_zookeeper.yml", "rebuild_backup.yml"}
OPERATIONS |= {"recover_no_primary.yml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    books = set(re.findall(r"([a-z_]+\.yml)\b", text))
    assert books, "a runbook names the playbook that does it"
    assert {book for book in books if not (ROOT / "playbooks" / book).exists()} == set()
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
    roles = "broker|shared_store|topology|pipeline|zookeeper|pacemaker|rgmanager|virtual_ip"
    variables = set(re.findall(rf"`((?:{roles})_[a-z_]+)", text))
    assert {name for name in variables if f"      {name}:" not in SPECIFICATIONS} == set()
    options = set(re.findall(r"-e ([a-z_]+)=", text))
    plays = "\n".join(path.read_text() for path in (ROOT / "playbooks").glob("*.yml"))
    assert {name for name in options if name not in plays} == set()


def test_every_page_is_in_the_table_and_every_operation_in_a_page() -> None:
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text()
    assert [page.name for page in PAGES if page.name != "README.md" and f"({page.name})" not in index] == []
    named = {book for page in PAGES for book in re.findall(r"([a-z_]+\.yml)\b", page.read_text())}
    assert named >= OPERATIONS
