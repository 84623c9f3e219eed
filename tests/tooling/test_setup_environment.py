"""Set-up takes some packages from the machine's Python, and leaves others for it to compile."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import machine
import setup_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PIP = "pip-23.0.1-py3-none-any.whl"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that set-up would run, with what it adds to their environment."""
    said: list[tuple[list[str], dict[str, str]]] = []

    def run(command: Sequence[object], *, environment: Mapping[str, str] | None = None, **_: Any) -> str:
        said.append(([str(word) for word in command], dict(environment or {})))
        return ""

    monkeypatch.setattr(setup_environment, "run", run)
    return said


def python_with(monkeypatch: pytest.MonkeyPatch, distribution: Path | None, ensurepip: Path | None) -> None:
    """Have Python look for its pip in these directories."""
    specification = None
    if ensurepip is not None:
        specification = importlib.util.spec_from_file_location("ensurepip", ensurepip / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: specification)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: distribution and str(distribution))


@pytest.mark.parametrize("where", ["distribution", "ensurepip/_bundled"])
def test_the_pip_of_a_distribution_or_of_pythons_own_installs_the_locked_one(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[tuple[list[str], dict[str, str]]]
) -> None:
    """Breaks when pip is installed twice (half of the time of the step), or from anywhere but the lock."""
    (tmp_path / where).mkdir(parents=True)
    (tmp_path / where / PIP).touch()
    python_with(monkeypatch, tmp_path / "distribution", tmp_path / "ensurepip")
    setup_environment.make_environment(tmp_path / "made")
    (venv, _), (install, environment) = commands
    assert venv == [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "made")]
    assert environment["PYTHONPATH"] == str(tmp_path / where / PIP)
    assert "--require-hashes" in install
    assert install[-1] == str(setup_environment.BUILD_LOCK)


def test_two_jars_are_taken_out_of_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[tuple[list[str], dict[str, str]]]
) -> None:
    """Fetched once for all clones, and by its hash."""
    package = tmp_path / "package"
    package.mkdir()
    for name in ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar", "aws-java-sdk-s3-1.12.262.jar", "a.py"):
        (package / name).write_text(name)

    def pip(_: Path, *words: str | Path) -> None:
        commands.append(([str(word) for word in words], {}))
        to = Path(words[words.index("--dest") + 1])
        with tarfile.open(to / "sagemaker_pyspark-1.4.5.tar.gz", "w:gz") as archive:
            archive.add(package, "sagemaker_pyspark-1.4.5/deps/jars")

    monkeypatch.setattr(setup_environment, "pip", pip)
    monkeypatch.setattr(setup_environment, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(setup_environment, "STATE", tmp_path / "state")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "s3-jars").symlink_to(tmp_path / "of a lock before")
    for _ in range(2):
        setup_environment.ensure_jars(Path(sys.executable))
    found = {path.name: path.read_text() for path in (tmp_path / "state" / "s3-jars").iterdir()}
    assert found == {name: name for name in ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")}
    ((words, _),) = commands
    assert {"--require-hashes", "--no-deps"} <= set(words)
    assert words[-1] == str(setup_environment.JARS_LOCK)


def test_without_one_venv_says_what_is_missing_or_has_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: list[tuple[list[str], dict[str, str]]]
) -> None:
    """Breaks when a Debian without python3-venv gets an environment without pip in the place of a message."""
    for ensurepip in (None, tmp_path / "empty"):
        commands.clear()
        python_with(monkeypatch, None, ensurepip)
        setup_environment.make_environment(tmp_path / "made")
        (venv, _), (_, environment) = commands
        assert venv == [sys.executable, "-m", "venv", str(tmp_path / "made")]
        assert "PYTHONPATH" not in environment


def test_the_lock_is_enforced() -> None:
    assert "--require-hashes" in setup_environment.LOCKED_INSTALL
    assert "--no-deps" in setup_environment.LOCAL_INSTALL


CONFIGURED = """\
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
:env:.find-links='/opt/wheels /opt/more'
install.cert='/etc/ca.pem'
global.timeout='60'
"""


@pytest.mark.parametrize("fails", [False, True])
def test_uv_gets_packages_from_where_pip_does_and_where_it_cannot_pip_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Breaks when a site that tells pip of its mirror has to tell somebody else, or uv's failure is set-up's."""
    said: list[tuple[list[str], Mapping[str, str]]] = []

    def run(command: Sequence[object], *, environment: Mapping[str, str] | None = None, **_: Any) -> str:
        words = [str(word) for word in command]
        if words[-2:] == ["config", "list"]:
            return CONFIGURED
        said.append((words, environment or {}))
        if fails and words[0].endswith("/uv"):
            raise machine.SetupError("it reaches no index")
        return ""

    monkeypatch.setattr(setup_environment, "run", run)
    monkeypatch.setattr(setup_environment, "cache_directory", lambda: tmp_path)
    for name in ("UV_INDEX", "UV_FIND_LINKS", "SSL_CERT_FILE", "UV_CACHE_DIR", "UV_INDEX_STRATEGY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_INDEX", "https://the.users/own")
    setup_environment.install(tmp_path / "bin" / "python", *setup_environment.LOCKED_INSTALL, "-r", "lock")
    (uv, told), *more = said
    assert uv[:3] == [str(tmp_path / "bin" / "uv"), "pip", "install"]
    assert "--require-hashes" in uv
    assert told == {
        "UV_FIND_LINKS": "/opt/wheels,/opt/more",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert [words[1:3] for words, _ in more] == ([["-m", "pip"]] if fails else [])


def test_what_people_start_by_hand_is_compiled_and_there() -> None:
    """Breaks when a package was renamed: each ansible-playbook of a shell that keeps no bytecode then compiles it."""
    missing = [name for name in setup_environment.COMPILED if importlib.util.find_spec(name) is None]
    assert missing == []


def test_spark_is_kept_uncompressed_and_its_end_leaves_the_others_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when one package's end removes the compiler that the other still uses: both are built side by side."""
    compiler = tmp_path / "compiler"
    compiler.mkdir()
    monkeypatch.setattr(setup_environment, "STATE", tmp_path)
    monkeypatch.setattr(setup_environment, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(setup_environment, "find_compiler", lambda _: setup_environment.Compiler("cc"))
    settings: list[str] = []

    def run(command: Sequence[object], *, environment: Mapping[str, str] | None = None, **_: Any) -> str:
        words = [str(word) for word in command]
        built = Path(words[words.index("--wheel-dir") + 1])
        built.mkdir()
        (built / "a-1-py3-none-any.whl").touch()
        named = (environment or {}).get("DIST_EXTRA_CONFIG")
        settings.append(Path(named).read_text() if named else "")
        return ""

    monkeypatch.setattr(setup_environment, "run", run)
    setup_environment.source_only_wheel(tmp_path / "python", setup_environment.SPARK)
    assert compiler.exists()
    setup_environment.source_only_wheel(tmp_path / "python", setup_environment.SOURCE_ONLY)
    assert not compiler.exists()
    assert settings == [setup_environment.UNCOMPRESSED, ""]
