"""The lab's command line: `.venv/bin/python molecule/lab up`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from lab import engine as engines
from lab import hypervisor, image, machines, wheels
from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """\
examples:
  python molecule/lab up                             engine, base image, wheelhouse; at once if all is there
  python molecule/lab test default                   one scenario, whole, judged by the guard
  python molecule/lab suite                          what `make test` runs of them, three at a time
  python molecule/lab molecule converge -s default   any molecule command, with the lab's settings
  python molecule/lab shell                          a shell that reaches the hosts' addresses, with DOCKER_HOST set
  python molecule/lab machines up shared_store_nfs   boot the virtual machines of a scenario (down: remove them)
  python molecule/lab machines run -- ssh nfs-castor a command that reaches them; their names are known to ssh
  python molecule/lab down                           stop the lab's own engine; --everything: remove its images too

exit codes: 0 done, 1 it could not be done or a scenario failed (the reason is on standard error), 2 wrong usage,
130 interrupted
"""


def _up(_: argparse.Namespace) -> int:
    engine = engines.ensure()
    sys.stdout.write(f"engine: {engine.host or 'the default one'}{' (the lab`s own)' if engine.own else ''}\n")
    sys.stdout.write(f"image: {image.ensure(engine)}\nwheelhouse: {wheels.ensure()}\n")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    _stop(everything=arguments.everything)
    return 0


def _stop(*, everything: bool = False) -> None:
    from lab.scenarios import forget, names

    if (found := engines.find()) is not None:
        for name in names():
            forget(name, found)
    engines.clean(everything=everything)
    if sys.platform == "linux" and os.geteuid() == 0:
        machines.clean(everything=everything)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _machines_up(arguments: argparse.Namespace) -> int:
    machines.up(arguments.scenario, _say)
    return 0


def _machines_down(arguments: argparse.Namespace) -> int:
    machines.down(arguments.scenario)
    return 0


def _machines_run(arguments: argparse.Namespace) -> int:
    words = [word for word in arguments.words if word != "--"] or [os.environ.get("SHELL", "/bin/sh")]
    if words[0] == "ssh":
        words[1:1] = ["-F", str(machines.ssh_config())]
    command = hypervisor.enter(words)
    os.execvpe(command[0], command, dict(os.environ))  # noqa: S606


def _test(arguments: argparse.Namespace) -> int:
    from lab import scenarios

    wanted: list[str] = arguments.scenario or scenarios.names()
    took: dict[str, float] = {}
    for name in wanted:
        took[name] = scenarios.run_whole(name, keep=arguments.keep)
        sys.stdout.write(f"scenario {name}: passed in {took[name]:.0f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(took)} scenarios passed in {sum(took.values()):.0f} s\n")
    return 0


def _table(arguments: argparse.Namespace) -> int:
    from lab import table
    from lab.places import PLACES, ROOT

    text = table.table(table.summaries(PLACES.reports))
    if arguments.write:
        table.write(ROOT / "docs" / "benchmarks.md", text)
    sys.stdout.write(text)
    return 0


def _suite(arguments: argparse.Namespace) -> int:
    from lab import suite

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends what we have started
    try:
        if arguments.prepare:
            suite.prepare(arguments.scenario)
            return 0
        return suite.run(arguments.scenario, as_json=arguments.json, lanes=arguments.lanes)
    finally:
        if arguments.down:
            _stop()


def _forget(arguments: argparse.Namespace) -> int:
    from lab.scenarios import forget

    if (found := engines.find()) is not None:
        forget(arguments.scenario, found)
    return 0


def _power(arguments: argparse.Namespace) -> int:
    from lab import power

    engine = engines.find()
    if engine is None:
        raise LabError("no Docker engine answers: .venv/bin/python molecule/lab up")
    if arguments.what == "up":
        sys.stdout.write(f"{power.up(arguments.scenario, arguments.address)}\n")
    elif arguments.what == "down":
        power.down(arguments.scenario)
    elif engine.own and not os.environ.get("POLLUX_LAB_INSIDE"):
        command = engines.enter(engine, [sys.executable, *sys.argv])
        os.execvpe(command[0], command, {**os.environ, **engine.environment, "POLLUX_LAB_INSIDE": "1"})  # noqa: S606
    else:
        power.serve(arguments.scenario, arguments.address, engine)
    return 0


def _raise(arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"{wheels.next_version(arguments.directory, broken=arguments.broken)}\n")
    return 0


def _molecule(arguments: argparse.Namespace) -> int:
    from lab import scenarios

    name = next((after for word, after in pairwise(arguments.words) if word in ("-s", "--scenario-name")), "default")
    ground = scenarios.ground_of(name)
    command = ground.enter(scenarios.molecule(arguments.words))
    os.execvpe(command[0], command, {**os.environ, **ground.settings()})  # noqa: S606


def _shell(arguments: argparse.Namespace) -> int:
    engine = engines.ensure()
    command = engines.enter(engine, arguments.words or [os.environ.get("SHELL", "/bin/sh")])
    os.execvpe(command[0], command, {**os.environ, **engine.environment})  # noqa: S606


def _inside() -> None:
    """Be where the hosts' addresses are reached."""
    if not os.environ.get("POLLUX_LAB_INSIDE"):
        engine = engines.find()
        if engine is None:
            raise LabError("no Docker engine answers: .venv/bin/python molecule/lab up")
        if engine.own:
            command = engines.enter(engine, [sys.executable, *sys.argv])
            environment = {**os.environ, **engine.environment, "POLLUX_LAB_INSIDE": "1"}
            os.execvpe(command[0], command, environment)  # noqa: S606


def _colocated(arguments: argparse.Namespace) -> int:
    _inside()
    from lab import colocated
    from lab.hosts import find_hosts

    password = arguments.password_file.read_text(encoding="utf-8").strip()
    colocated.run(arguments.what, find_hosts(arguments.host), arguments.user, password, arguments.report)
    return 0


def _drill(arguments: argparse.Namespace) -> int:
    _inside()
    from lab import drill, quiet
    from lab.hosts import find_hosts
    from pollux.drill.errors import DrillError

    steps = [drill.Step.parse(each) for each in json.loads(arguments.steps)]
    names = [member["name"] for member in json.loads(arguments.manifest.read_text(encoding="utf-8"))["members"]]
    # A fault may hit a host that is no member: the server of their store.
    names += sorted({host for step in steps for host in step.hosts} - set(names))
    quiet.wait()
    try:
        drill.run(arguments.manifest, steps, find_hosts(names), arguments.report, arguments.protocols.split(","))
    except DrillError as error:
        raise LabError(str(error)) from error
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="lab",
        description="Hosts to break, for the scenarios below molecule/.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start what scenarios need")
    up.set_defaults(call=_up)
    down = commands.add_parser("down", help="stop it, and clean up after a crash")
    down.add_argument("--everything", action="store_true", help="remove the own engine's images and containers too")
    down.set_defaults(call=_down)
    test = commands.add_parser("test", help="run scenarios whole")
    test.add_argument("scenario", nargs="*", help="all of them if none is named")
    test.add_argument("--keep", action="store_true", help="leave the hosts for looking at")
    test.set_defaults(call=_test)
    table = commands.add_parser("table", help="the recovery times of the last runs")
    table.add_argument("--write", action="store_true", help="also into docs/benchmarks.md")
    table.set_defaults(call=_table)
    suite = commands.add_parser("suite", help="run the scenarios that are part of `make test`")
    suite.add_argument("scenario", nargs="*", help="all of them if none is named")
    suite.add_argument("--lanes", type=int, default=3, help="so many at the same time (default: 3)")
    suite.add_argument("--prepare", action="store_true", help="make what they stand on, and run none of them")
    suite.add_argument("--down", action="store_true", help="stop the lab at the end, also when it is interrupted")
    suite.add_argument("--json", action="store_true", help="results for a program on standard output")
    suite.set_defaults(call=_suite)
    forget = commands.add_parser("forget", help="remove the containers of a scenario (used by playbooks)")
    forget.add_argument("scenario")
    forget.set_defaults(call=_forget)
    supply = commands.add_parser("power", help="the power supply that a fence agent asks (used by playbooks)")
    supply.add_argument("what", choices=("up", "down", "serve"))
    supply.add_argument("scenario")
    supply.add_argument("--address", default="127.0.0.1", help="of this machine in the hosts' network")
    supply.add_argument("--supply", default="", help=argparse.SUPPRESS)
    supply.set_defaults(call=_power)
    molecule = commands.add_parser("molecule", help="run molecule with the lab's settings")
    molecule.add_argument("words", nargs=argparse.REMAINDER)
    molecule.set_defaults(call=_molecule)
    raised = commands.add_parser("raise", help="make a wheelhouse of the next version (used by playbooks)")
    raised.add_argument("directory", type=Path)
    raised.add_argument("--broken", action="store_true", help="one after it, which does not become ready")
    raised.set_defaults(call=_raise)
    shell = commands.add_parser("shell", help="a shell, or a command, that reaches the hosts")
    shell.add_argument("words", nargs=argparse.REMAINDER)
    shell.set_defaults(call=_shell)
    virtual = commands.add_parser("machines", help="the virtual machines of a scenario").add_subparsers(required=True)
    for name, call, text in (
        ("up", _machines_up, "make and boot them, anew if they are there"),
        ("down", _machines_down, "remove them"),
    ):
        one = virtual.add_parser(name, help=text)
        one.add_argument("scenario")
        one.set_defaults(call=call)
    inside = virtual.add_parser("run", help="a shell, or a command, that reaches them")
    inside.add_argument("words", nargs=argparse.REMAINDER)
    inside.set_defaults(call=_machines_run)
    drill = commands.add_parser("drill", help="break a scenario's hosts under traffic (used by its playbooks)")
    drill.add_argument("--manifest", type=Path, required=True)
    drill.add_argument("--report", type=Path, required=True)
    drill.add_argument("--steps", required=True, help="JSON; molecule/lab/drill.py says what a step is")
    drill.add_argument("--protocols", default="amqp,stomp,mqtt")
    drill.set_defaults(call=_drill)
    hosted = commands.add_parser("colocated", help="break hosts that have each other's backups (used by playbooks)")
    hosted.add_argument("what", choices=("break", "remove"))
    hosted.add_argument("host", nargs="+")
    hosted.add_argument("--report", type=Path, required=True)
    hosted.add_argument("--user", required=True)
    hosted.add_argument("--password-file", type=Path, required=True)
    hosted.set_defaults(call=_colocated)
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run the program; see EXAMPLES for exit codes."""
    arguments = parser().parse_args(words)
    try:
        status: int = arguments.call(arguments)
    except LabError as error:
        sys.stderr.write(f"lab: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("lab: interrupted\n")
        return 130
    return status
