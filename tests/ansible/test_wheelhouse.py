"""The wheelhouse holds exactly what a broker needs, each wheel with its hash."""

from __future__ import annotations

import json
import re
import tarfile
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

import wheelhouse
from machine import SetupError
from setup_environment import LOCK

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
# a heading
broker-needs==1.0 \\
    --hash=sha256:aa
    # via pollux-broker (broker/pyproject.toml)
both-need==2.0 ; python_full_version < '3.12' \\
    --hash=sha256:bb
    # via
    #   -r requirements-dev.in
    #   broker-needs
both-need==2.1 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
    # via
    #   -r requirements-dev.in
    #   broker-needs
python-qpid-proton==0.40.0 \\
    --hash=sha256:dd
    # via
    #   pollux-broker (broker/pyproject.toml)
    #   other
tests-need==3.0 \\
    --hash=sha256:ee
    # via -r requirements-dev.in
deeper==4.0 \\
    --hash=sha256:ff
    # via both-need
installer==5.0 \\
    --hash=sha256:a0
    # via -r requirements-dev.in
"""


def test_what_the_broker_needs_is_found_through_others_and_what_only_tests_need_is_not() -> None:
    found = wheelhouse.runtime_packages(TEXT)
    assert list(found) == ["both-need", "broker-needs", "deeper", "installer", "python-qpid-proton"]
    assert "2.0" in found["both-need"]
    assert "2.1" in found["both-need"]


def test_a_lock_without_the_broker_is_refused() -> None:
    with pytest.raises(SetupError, match="make lock"):
        wheelhouse.runtime_packages("other==1.0 \\\n    --hash=sha256:aa\n    # via -r requirements-dev.in\n")


def test_the_lock_of_this_checkout_names_every_package_that_the_installed_ones_ask_for() -> None:
    wanted, open_ = set(), ["pollux-broker"]
    while open_:
        for text in metadata.requires(open_.pop()) or ():
            requirement = Requirement(text)
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and name not in wanted:
                wanted.add(name)
                open_.append(name)
    assert wanted <= set(wheelhouse.runtime_packages(LOCK.read_text()))


def test_what_only_a_store_in_a_database_needs_is_there_where_it_was_asked_for() -> None:
    lock = LOCK.read_text()
    plain, more = wheelhouse.runtime_packages(lock), wheelhouse.runtime_packages(lock, database=True)
    assert plain.items() < more.items()
    assert set(more) - set(plain) >= {"psycopg", "psycopg-binary", "sqlalchemy"}
    assert wheelhouse.extra_packages() == {"psycopg", "sqlalchemy"}


def test_a_pipelines_wheelhouse_holds_what_the_pipeline_and_the_broker_ask_for() -> None:
    lock = LOCK.read_text()
    broker = wheelhouse.runtime_packages(lock)
    pipeline = wheelhouse.runtime_packages(lock, wheelhouse.PIPELINE_PRODUCT)
    assert pipeline.items() > broker.items()
    assert set(pipeline) - set(broker) >= {"numpy", "pandas", "py4j", "pyarrow", "pyspark"}
    assert "pytest" not in pipeline
    without = "".join(block for name, block in wheelhouse.blocks_of(lock).items() if name != "pyspark")
    with pytest.raises(SetupError, match="pyspark"):
        wheelhouse.runtime_packages(without, wheelhouse.PIPELINE_PRODUCT)


def test_requirements_name_each_wheel_with_its_hash() -> None:
    lines = wheelhouse.requirement_lines({"Some_Thing-1.2-py3-none-any.whl": "ab", "a-1-cp311-cp311-linux.whl": "cd"})
    assert lines.splitlines()[1:] == ["some-thing==1.2 --hash=sha256:ab", "a==1 --hash=sha256:cd"]


def test_a_wheel_that_was_changed_or_is_missing_is_noticed(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    wheel.write_bytes(b"content")
    wheels = {wheel.name: wheelhouse.sha256(wheel)}
    assert wheelhouse.intact(tmp_path, wheels)
    wheel.write_bytes(b"Content")
    assert not wheelhouse.intact(tmp_path, wheels)
    wheel.unlink()
    assert not wheelhouse.intact(tmp_path, wheels)


class Module:
    """As much of AnsibleModule as the release module uses."""

    def __init__(self, **params: Any) -> None:
        self.params = {"package": "pollux_broker", **params}
        self.check_mode = False

    def fail_json(self, msg: str) -> None:
        raise AssertionError(msg)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A directory that looks like a wheelhouse."""
    house = tmp_path / "house"
    house.mkdir()
    names = ["pollux_broker-0.1.0-py3-none-any.whl", "a-1-py3-none-any.whl"]
    for name in names:
        (house / name).write_text(name)
    wheels = {name: wheelhouse.sha256(house / name) for name in names}
    (house / "requirements.txt").write_text(wheelhouse.requirement_lines(wheels))
    (house / "wheelhouse.json").write_text(json.dumps({"python": "3.11"}))
    return house


def test_a_release_from_a_wheelhouse_is_packed_once_and_says_for_which_python_it_is(house: Path) -> None:
    release = wheelhouse.release_module()
    module = Module(cache=str(house.parent / "cache"))
    first = release.from_wheelhouse(module, house)
    assert (first["changed"], first["made_for"], first["version"]) == (True, "3.11", "0.1.0")
    with tarfile.open(first["archive"]) as archive:
        assert sorted(archive.getnames()) == sorted(path.name for path in house.iterdir() if path.suffix != ".json")
        assert {member.mtime for member in archive.getmembers()} == {0}
    second = release.from_wheelhouse(module, house)
    assert second == {**first, "changed": False}


def test_a_broker_that_requirements_do_not_name_is_refused(house: Path) -> None:
    (house / "pollux_broker-0.1.0-py3-none-any.whl").write_text("another")
    with pytest.raises(AssertionError, match="make it anew"):
        wheelhouse.release_module().from_wheelhouse(Module(cache=str(house.parent)), house)


def test_a_release_from_sources_and_one_from_a_wheelhouse_answer_alike(house: Path) -> None:
    release = wheelhouse.release_module()
    module = Module(cache=str(house.parent / "cache"), python=None)
    module.check_mode = True
    from_source = release.from_source(module, wheelhouse.BROKER)
    assert from_source.keys() == release.from_wheelhouse(module, house).keys()
