"""The modules of the broker role, run by Ansible: all or nothing, nothing secret shown, nothing changed twice."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from harness.modules import ROOT, results

SECRET = "canary-of-the-cluster-password"


def call(tmp: Path, module: str, *flags: str, **arguments: Any) -> dict[str, Any]:
    """Run a module on this machine; returns its result, with what was printed in ``printed``."""
    command = ["ansible", "localhost", "-i", "localhost,", "-m", module, "-a", json.dumps(arguments), *flags]
    return results(tmp / "ansible", *command)["localhost"]


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """Arguments that write a directory, a link, a secret file made of two, a file that is checked, and one no more."""
    run = tmp_path / "broker" / "run"
    note = [{"path": str(run / "reload-needed"), "line": "broker.xml was changed"}]
    (tmp_path / "key").write_text(f"A='{SECRET}'\n")
    (tmp_path / "template").write_text("{{ inventory_hostname | length }}{{ added }}\n")
    key = [str(tmp_path / "key")]
    return {
        "directories": [{"path": str(run), "mode": "0750"}],
        "links": [{"path": str(tmp_path / "broker" / "current"), "target": "releases/1"}],
        "files": [
            {"path": str(run / "first"), "template": f"{tmp_path}/template", "vars": {"added": "!"}, "mode": "0755"},
            {
                "path": str(run / "broker.xml"),
                "content": "<good/>\n",
                "mode": "0640",
                "validate": "grep -q good %s",
                "notes": note,
            },
            {"path": str(run / "secrets.env"), "sources": key * 2, "secret": True, "mode": "0600"},
            {"path": str(run / "nothing"), "sources": ["/nowhere"], "wanted": False},
        ],
    }


def test_everything_is_written_once_with_its_mode_and_its_note(tmp_path: Path, place: dict[str, Any]) -> None:
    run = tmp_path / "broker" / "run"
    tried = call(tmp_path, "pollux_files", "--check", "--diff", **place)
    assert tried["changed"]
    assert not run.exists()
    done = call(tmp_path, "pollux_files", "--diff", **place)
    assert done["changed"]
    assert (run / "secrets.env").read_text() == f"A='{SECRET}'\n" * 2
    assert (run / "first").read_text() == "9!\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in run.iterdir()}
    assert modes == {"secrets.env": 0o600, "first": 0o755, "broker.xml": 0o640, "reload-needed": 0o640}
    assert run.stat().st_mode & 0o777 == 0o750
    assert (run / "reload-needed").read_text() == "broker.xml was changed\n"
    assert (tmp_path / "broker" / "current").readlink() == Path("releases/1")
    assert "<good/>" in json.dumps(done["diff"])
    for result in (tried, done):
        assert SECRET not in result["printed"]
    again = call(tmp_path, "pollux_files", "--diff", **place)
    assert not again["changed"]
    assert again["changed_paths"] == []


def test_one_file_that_is_refused_keeps_all_from_being_replaced(tmp_path: Path, place: dict[str, Any]) -> None:
    run = tmp_path / "broker" / "run"
    call(tmp_path, "pollux_files", **place)
    (run / "reload-needed").unlink()
    place["files"][0]["vars"]["added"] = "?"
    place["files"][1]["content"] = "<bad/>\n"
    (tmp_path / "key").write_text("A='another'\n")
    done = call(tmp_path, "pollux_files", **place)
    assert done["failed"]
    assert "broker.xml is refused, nothing was replaced" in done["msg"]
    assert (run / "first").read_text() == "9!\n"
    assert SECRET in (run / "secrets.env").read_text()
    assert not (run / "reload-needed").exists()


def test_wheels_for_another_python_are_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    done = call(
        tmp_path,
        "pollux_install",
        releases=str(tmp_path / "releases"),
        name="0.1.0-x",
        version="0.1.0",
        archive=str(tmp_path / "none.tar"),
        python=sys.executable,
        made_for="3.6",
        keep=1,
    )
    assert done["failed"]
    assert "the wheelhouse is for Python 3.6" in done["msg"]
    assert "tools/wheelhouse.py" in done["msg"]


#: What the wheels install: a program, what it imports, at once and later on, and what it does not.
INSTALLED = {
    "program/__init__.py": "",
    "program/__main__.py": "raise SystemExit('this starts it')",
    "program/part.py": "import early\ndef work():\n    import late\n    from nowhere import it\n    from . import part",
    "broken/__init__.py": "",
    "broken/part.py": "import library_that_is_not_there",
    **dict.fromkeys(("early.py", "late.py", "never.py"), ""),
}
#: Stands for PyPA's installer: says which wheels it was given, and that they are installed.
FAKE_INSTALLER = f"""
import pathlib, sys, sysconfig
for name, text in {INSTALLED!r}.items():
    path = pathlib.Path(sysconfig.get_path("purelib"), name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
program = pathlib.Path(sys.prefix) / "bin" / "proof"
program.write_text("#!/bin/sh\\nexit 0\\n# " + " ".join(pathlib.Path(given).name for given in sys.argv[1:]))
program.chmod(0o755)
"""
WHEELS = ("a-1-py3-none-any.whl", f"b-2-cp311-cp311-manylinux_2_17_{platform.machine()}.whl")


def archive_of(place: Path, *names: str, lock: tuple[str, ...] | None = None) -> Path:
    """A wheelhouse of empty wheels and the installer, packed; `lock`: what requirements.txt names, if not the same."""
    house = place / "house"
    house.mkdir()
    for name in {*names, *(lock or ())}:
        (house / name).write_text(name)
    with zipfile.ZipFile(house / "installer-1.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("installer/__init__.py", "")
        wheel.writestr("installer/__main__.py", FAKE_INSTALLER)
    tool = [] if lock is not None and not lock else ["installer-1.1.0-py3-none-any.whl"]
    named = [*(names if lock is None else lock), *tool]
    hashes = [hashlib.sha256((house / name).read_bytes()).hexdigest() for name in named]
    (house / "requirements.txt").write_text("".join(f"x==1 --hash=sha256:{each}\n" for each in hashes))
    with tarfile.open(place / "house.tar", "w") as archive:
        for name in [*names, *tool, "requirements.txt"]:
            archive.add(house / name, name)
    return place / "house.tar"


def install(place: Path, archive: Path, package: str = "") -> dict[str, Any]:
    """The module's answer for a release of this archive."""
    (place / "releases").mkdir()
    return call(
        place,
        "pollux_install",
        releases=str(place / "releases"),
        name="0.1.0-x",
        version="0.1.0",
        archive=str(archive),
        python=sys.executable,
        proof=["proof"],
        package=package,
        keep=1,
    )


def test_a_wheelhouse_is_installed_by_the_installer_that_it_holds_and_without_pip(tmp_path: Path) -> None:
    done = install(tmp_path, archive_of(tmp_path, *WHEELS))
    assert done["changed"], done
    release = tmp_path / "releases" / "0.1.0-x"
    told = (release / "bin" / "proof").read_text()
    assert told.endswith(f"# --compile-bytecode 0 --overwrite-existing {' '.join(WHEELS)}")
    assert (release / "complete").read_text() == "0.1.0\n"
    assert not (release / "bin" / "pip").exists()
    assert not (release / "dist").exists()


def test_of_a_release_is_compiled_what_its_program_imports_at_once_or_later(tmp_path: Path) -> None:
    done = install(tmp_path, archive_of(tmp_path, *WHEELS), "program")
    assert done["changed"], done
    release = tmp_path / "releases" / "0.1.0-x"
    assert "# --no-compile-bytecode --overwrite-existing " in (release / "bin" / "proof").read_text()
    compiled = {path.name.split(".")[0] for path in release.rglob("*.pyc")}
    assert compiled == {"__init__", "part", "early", "late"}


def test_a_release_of_which_a_module_cannot_be_imported_is_not_complete(tmp_path: Path) -> None:
    done = install(tmp_path, archive_of(tmp_path, *WHEELS), "broken")
    assert done["failed"]
    assert "0.1.0-x cannot be installed" in done["msg"]
    assert "No module named 'library_that_is_not_there'" in done["msg"]
    assert not (tmp_path / "releases" / "0.1.0-x" / "complete").exists()


@pytest.mark.parametrize(
    ("names", "lock", "said"),
    [
        ((*WHEELS, "c-1-py3-none-any.whl"), WHEELS, "c-1-py3-none-any.whl of the wheelhouse is not what"),
        (WHEELS[:1], WHEELS, "lacks 1 wheels"),
        (("b-2-cp311-cp311-manylinux_2_17_vax.whl",), None, "_vax.whl of the wheelhouse is not for this host"),
        ((), (), "has no installer"),
    ],
)
def test_a_wheelhouse_that_is_not_what_it_should_be_is_refused_before_anything_of_it_is_installed(
    tmp_path: Path, names: tuple[str, ...], lock: tuple[str, ...] | None, said: str
) -> None:
    done = install(tmp_path, archive_of(tmp_path, *names, lock=lock))
    assert done["failed"]
    assert said in done["msg"]
    assert "tools/wheelhouse.py" in done["msg"] or "make it anew" in done["msg"]
    assert not (tmp_path / "releases" / "0.1.0-x" / "complete").exists()


def test_users_are_written_once_and_a_member_that_has_them_writes_the_same(tmp_path: Path) -> None:
    def users(directory: str, password: str) -> dict[str, Any]:
        place = tmp_path / directory
        place.mkdir(exist_ok=True)
        return call(
            tmp_path,
            "pollux_users",
            users=[{"name": "ada", "password": password, "roles": ["amq", "admin"]}],
            key=SECRET,
            package=str(ROOT / "broker" / "src"),
            users_file=str(place / "users"),
            roles_file=str(place / "roles"),
            note=str(place / "reload-needed"),
        )

    first = users("a", "a-password-of-ada")
    assert (first["failed"], first["added"]) == (False, ["ada"])
    assert not users("a", "a-password-of-ada")["changed"]
    assert users("b", "a-password-of-ada")["changed"]
    assert (tmp_path / "a" / "users").read_text() == (tmp_path / "b" / "users").read_text()
    assert (tmp_path / "a" / "users").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a" / "reload-needed").read_text() == "the users were changed\n"
    again = users("a", "another-password-of-ada")
    assert again["changed_users"] == ["ada"]
    assert "another-password" not in again["printed"]


@pytest.fixture
def upgraded(tmp_path: Path) -> dict[str, Any]:
    """A broker with release 1 running, of which a copy is kept before it is upgraded to release 2."""
    root = tmp_path / "broker"
    for name in ("1", "2"):
        (root / "releases" / name).mkdir(parents=True)
        (root / "releases" / name / "complete").write_text(f"0.{name}\n")
    (root / "current").symlink_to("releases/1")
    (root / "broker.xml").write_text("<one/>")
    (root / "broker.xml").chmod(0o640)
    return {
        "directory": str(root / "rollback"),
        "link": str(root / "current"),
        "files": [str(root / "broker.xml"), str(root / "later")],
        "running": "1",
        "target": "2",
    }


def test_what_ran_before_an_upgrade_is_brought_back_with_its_modes(tmp_path: Path, upgraded: dict[str, Any]) -> None:
    root = tmp_path / "broker"
    tried = call(tmp_path, "pollux_rollback", "--check", state="saved", **upgraded)
    assert (tried["changed"], tried["kept"]) == (True, False)
    saved = call(tmp_path, "pollux_rollback", state="saved", **upgraded)
    assert (saved["changed"], saved["kept"], saved["release"]) == (True, True, "1")
    assert (root / "rollback").stat().st_mode & 0o777 == 0o700
    (root / "current").unlink()
    (root / "current").symlink_to("releases/2")
    (root / "broker.xml").write_text("<two/>")
    (root / "broker.xml").chmod(0o600)
    (root / "later").write_text("came with release 2")
    # The same upgrade again, after it was broken off here: what it has left half done is not what worked.
    again = call(tmp_path, "pollux_rollback", state="saved", **upgraded)
    assert (again["changed"], again["release"]) == (False, "1")
    call(tmp_path, "pollux_rollback", state="restored", **upgraded)
    assert (root / "current").readlink() == Path("releases/1")
    assert (root / "broker.xml").read_text() == "<one/>"
    assert (root / "broker.xml").stat().st_mode & 0o777 == 0o640
    assert not (root / "later").exists()
    gone = call(tmp_path, "pollux_rollback", state="forgotten", directory=upgraded["directory"])
    assert (gone["changed"], gone["kept"]) == (True, False)
    assert not (root / "rollback").exists()


def test_what_an_old_upgrade_left_is_not_what_the_next_one_goes_back_to(
    tmp_path: Path, upgraded: dict[str, Any]
) -> None:
    root = tmp_path / "broker"
    call(tmp_path, "pollux_rollback", state="saved", **upgraded)
    (root / "current").unlink()
    (root / "current").symlink_to("releases/2")
    (root / "broker.xml").write_text("<two/>")
    # It runs release 2 now, as its link says, and is upgraded to a third one.
    saved = call(tmp_path, "pollux_rollback", state="saved", **{**upgraded, "running": "2", "target": "3"})
    assert (saved["changed"], saved["release"]) == (True, "2")
    assert (root / "rollback" / "0").read_text() == "<two/>"


def test_nothing_is_brought_back_that_is_not_there(tmp_path: Path, upgraded: dict[str, Any]) -> None:
    root = tmp_path / "broker"
    nothing = call(tmp_path, "pollux_rollback", state="restored", **upgraded)
    assert nothing["failed"]
    assert "nothing was kept to go back to" in nothing["msg"]
    call(tmp_path, "pollux_rollback", state="saved", **upgraded)
    (root / "broker.xml").write_text("<two/>")
    (root / "releases" / "1" / "complete").unlink()
    gone = call(tmp_path, "pollux_rollback", state="restored", **upgraded)
    assert gone["failed"]
    assert "not installed any more" in gone["msg"]
    assert (root / "broker.xml").read_text() == "<two/>"


def test_a_broker_that_begins_to_join_is_waited_for(tmp_path: Path) -> None:
    """Breaks when an answer before the activation began counts as no process: the gate would give up at once."""
    answers = [
        {"name": "castor", "state": "joining", "activation": {"state": "stopped", "reason": "not started"}},
        {"name": "castor", "state": "live", "activation": {"state": "live", "role": "live"}},
    ]
    program = tmp_path / "pollux"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"asked = pathlib.Path({str(tmp_path / 'asked')!r})\n"
        "number = len(asked.read_text()) if asked.exists() else 0\n"
        "asked.write_text('.' * (number + 1))\n"
        f"print(json.dumps({answers!r}[min(number, 1)]))\n"
    )
    program.chmod(0o755)
    found = call(tmp_path, "pollux_info", program=str(program), expect=["live"], wait=60, give_up=True)
    assert found["state"] == "live", found
    (tmp_path / "asked").unlink()
    early = call(tmp_path, "pollux_info", program=str(program), expect=["stopped"])
    assert early["state"] == "joining", "who answers has a process"
    assert early["failed"]


def test_a_broker_gets_the_time_for_an_answer_that_the_inventory_gives_it(tmp_path: Path) -> None:
    """Breaks when a slow machine's broker counts as unreachable whatever its operator says."""
    program = tmp_path / "pollux"
    program.write_text(
        f"#!{sys.executable}\nimport json, time\ntime.sleep(3)\nprint(json.dumps({{'name': 'castor'}}))\n"
    )
    program.chmod(0o755)
    found = call(tmp_path, "pollux_info", program=str(program), answer=1)
    assert (found["state"], found["reason"]) == ("unreachable", "pollux status did not answer within 1 s")
    assert call(tmp_path, "pollux_info", program=str(program), answer=60)["running"]


def test_of_a_broker_that_answers_no_more_it_is_told_what_it_was_before(tmp_path: Path) -> None:
    """Breaks when the last question, which may have had a second only, is all that a gate's failure tells of."""
    asked = tmp_path / "asked"
    answer = {"name": "castor", "state": "joining", "activation": {"state": "waiting", "reason": "for the lock"}}
    program = tmp_path / "pollux"
    program.write_text(
        f"#!{sys.executable}\nimport json, pathlib, time\nasked = pathlib.Path({str(asked)!r})\n"
        f"if asked.exists():\n    time.sleep(60)\nasked.touch()\nprint(json.dumps({answer!r}))\n"
    )
    program.chmod(0o755)
    found = call(tmp_path, "pollux_info", program=str(program), expect=["live"], wait=1, answer=1)
    assert found["failed"]
    assert " is unreachable (pollux status did not answer within 1 s; " in found["msg"]
    assert found["msg"].endswith(" s ago it was waiting for the lock)")
    never = call(tmp_path, "pollux_info", program=str(program), expect=["live"], wait=1, answer=1)
    assert never["msg"].endswith("; it never answered before)")
