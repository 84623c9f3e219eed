"""Members that are broken by commands, because their processes are on other machines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pollux.drill.errors import InputError, UnavailableError
from pollux.drill.faults import Fault, Injector, refusal
from pollux.drill.manifest import Manifest, Member, parse
from pollux.drill.members import Members

AWAY: dict[str, Any] = {
    "name": "a",
    "url": "tcp://127.0.0.1:1",
    "management": "http://127.0.0.1:1",
    "start": "start",
    "stop": "stop",
}


def members(**more: Any) -> tuple[Member, ...]:
    """One member on another machine."""
    return parse({"members": [AWAY | more]}, Path("manifest.json")).members


def test_who_has_no_process_here_needs_a_command_to_stop() -> None:
    assert members()[0].pid_file is None
    without = {name: value for name, value in AWAY.items() if name != "stop"}
    with pytest.raises(InputError, match="'pid_file' is missing"):
        parse({"members": [without]}, Path("manifest.json"))
    with pytest.raises(InputError, match="'kill' is not a command"):
        members(kill=7)
    with pytest.raises(InputError, match="'pid_file' is missing or not text"):
        members(pid_file="")


@pytest.mark.parametrize("fault", list(Fault))
def test_what_only_a_process_of_this_machine_can_suffer_is_refused(fault: Fault) -> None:
    said = refusal(fault, members())
    assert bool(said) == (fault in (Fault.KILL, Fault.PAUSE))
    assert bool(refusal(fault, members(kill="kill"))) == (fault is Fault.PAUSE)
    assert refusal(fault, members(pid_file="pid")) == ""


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.STOP, Fault.SWITCHOVER])
def test_its_commands_break_it_and_start_it_again(tmp_path: Path, fault: Fault) -> None:
    done = tmp_path / "done"
    commands = {name: ["/bin/sh", "-c", f"echo {name} >>{done}"] for name in ("start", "stop", "kill", "switchover")}
    (away,) = members(**commands)
    found = Members(Manifest((away, replace(away, name="b"))), None, None)

    async def live(*_: object, **__: object) -> Member:
        return away

    async def served() -> None:
        with done.open("a") as file:
            file.write("served\n")

    found.wait_for_live = live  # type: ignore[method-assign]
    marks: list[str] = []
    injector = Injector(found, mark=marks.append, note=lambda _: None, served=served, pause_seconds=1, limit=1)
    asyncio.run(injector.run(fault))
    after = ["served"] if fault is Fault.SWITCHOVER else ["served", "start"]
    assert done.read_text().split() == [fault, *after]
    assert len(marks) == 1


def test_a_command_that_fails_is_no_fault() -> None:
    (away,) = members(switchover=["/bin/false"])
    with pytest.raises(UnavailableError, match="switchover command /bin/false ended with 1"):
        asyncio.run(Members(Manifest((away,)), None, None).switchover(away))
