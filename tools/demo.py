"""`make demo`: deploy a live/backup pair here, kill the live under traffic, fail back, and count what was lost.

Runs the bundle's own playbooks on `inventories/local`, as an operator would, in a directory of its own (.pollux/demo)
and on ports that nobody uses. Root is not needed. Whatever happens, also Ctrl-C, the two brokers are stopped at the
end, by their process ids; the report and the logs stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))

from harness.local_inventory import MEMBERS, PORTS  # noqa: E402
from harness.ports import is_free  # noqa: E402
from harness.process_sessions import end_session  # noqa: E402

STATE = ROOT / ".pollux"
#: What is counted, and must be nothing.
COUNTS = ("lost", "phantom", "duplicated", "two_lives", "order_violations")
#: A playbook may take this long on a slow machine (seconds).
PLAYBOOK_LIMIT = 1200.0
EXAMPLES = """\
examples:
  make demo                        about two minutes
  tools/demo.py --seconds 60       longer traffic
  tools/demo.py --keep             leave the brokers running; the last lines say how to go on
  tools/demo.py --json             the report for a program, nothing else on standard output

exit codes: 0 nothing was lost, 1 something was or a step failed, 2 wrong usage, 130 interrupted
"""


class DemoError(Exception):
    """A step failed; the text says which, and where to look."""


class Demo:
    """One run."""

    def __init__(self, console: Console, directory: Path, report: Path, seconds: int, *, quiet: bool) -> None:
        self.console = console
        self.directory = directory
        self.report = report
        self.seconds = seconds
        self.quiet = quiet
        self.log = directory / "ansible.log"
        self.playbook: subprocess.Popen[bytes] | None = None
        self.offset = 0
        self.took: dict[str, float] = {}

    # -- steps

    def run(self) -> dict[str, Any]:
        """Deploy, drill, fail back; returns what the report says. Raises DemoError."""
        self.stop()  # what a run that was killed has left
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        self.offset = free_offset(PORTS)
        self.step("Deploy two brokers on a shared store", "site.yml")
        self.step(
            f"Kill the live with SIGKILL under AMQP, STOMP and MQTT traffic ({self.seconds} s)",
            "drill.yml",
            f"drill_directory={self.report}",
            f"drill_seconds={self.seconds}",
            may_fail=True,
        )
        try:
            found: dict[str, Any] = json.loads((self.report / "report.json").read_text())
        except (OSError, ValueError) as error:
            raise DemoError(f"the drill wrote no report ({error}); its output is above and in {self.log}") from error
        self.step("Fail back to the preferred live", "failback.yml")
        return found

    def reconcile(self) -> None:
        """Have the pipeline judge the drill's ledger and the stopped brokers' journals, and show its verdict.

        Without Java one line says what to install; the demo's own verdict does not depend on it.
        """
        shared = self.directory / "shared"
        inputs = [self.report / "ledger.txt", *([shared] if any(shared.rglob("*.segment")) else [])]
        asked = {"run_jobs": ["reconcile"], "run_inputs": [str(path) for path in inputs], "run_optional": True}
        self.step("Reconcile ledger and journals with Spark", "pipeline.yml", json.dumps(asked), may_fail=True)

    def step(self, title: str, playbook: str, *variables: str, may_fail: bool = False) -> None:
        """Run a playbook; its output is the user's unless ``quiet``."""
        command = [str(Path(sys.executable).parent / "ansible-playbook"), f"playbooks/{playbook}"]
        command += ["-i", "inventories/local"]
        for variable in variables:
            command += ["-e", variable]
        self.console.print(f"\n[bold]{title}[/]")
        self.console.print(f"$ {shlex.join(['ansible-playbook', *command[1:]])}", style="dim", markup=False)
        began = time.monotonic()
        output = subprocess.DEVNULL if self.quiet else None
        # A session of its own: Ctrl-C reaches it through us, after which nothing of it is left to start a broker.
        self.playbook = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            start_new_session=True,
        )
        try:
            code = self.playbook.wait(PLAYBOOK_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{playbook} takes longer than {PLAYBOOK_LIMIT:.0f} s; see {self.log}") from error
        self.playbook = None
        self.took[playbook] = time.monotonic() - began
        if code != 0 and not may_fail:
            raise DemoError(f"{playbook} ended with exit code {code}; the whole output is in {self.log}")

    def environment(self) -> dict[str, str]:
        """The environment of a playbook: this machine's, and nothing of a user's Ansible settings gets in the way."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        home = self.directory / "ansible"
        return {
            **kept,
            "LC_ALL": "C.UTF-8",
            "POLLUX_LOCAL": str(self.directory),
            "POLLUX_LOCAL_PORT_OFFSET": str(self.offset),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_REMOTE_TEMP": str(home / "tmp"),
            "ANSIBLE_STDOUT_CALLBACK": "pollux_compact",
            "ANSIBLE_LOG_PATH": str(self.log),
            **({"ANSIBLE_FORCE_COLOR": "1"} if self.console.is_terminal else {}),
        }

    # -- the end

    def stop(self) -> list[str]:
        """End the playbook and the brokers that run; returns the brokers' names."""
        if self.playbook is not None:
            end_session(self.playbook)
            self.playbook = None
        stopped = []
        for name in reversed(MEMBERS):  # the backup first, so that nobody takes over
            program = self.directory / name / "bin" / "stop"
            if not program.exists():
                continue
            done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120)
            if done.stdout.strip() == "stopped":
                stopped.append(name)
            if done.returncode != 0:
                self.console.print(f"[red]{program} failed:[/] {done.stderr.strip()}")
        return stopped


def free_offset(ports: Sequence[int]) -> int:
    """The first offset with which nobody listens on any of the ports; raises DemoError when there is none."""
    for offset in range(0, 3000, 10):
        if all(is_free(port + offset) for port in ports):
            return offset
    raise DemoError(f"no free ports near {', '.join(str(port) for port in ports)}: stop what uses them")


def summary(found: Mapping[str, Any], took: Mapping[str, float]) -> Table:
    """Return what the drill found, for people."""
    table = Table(title="What happened", title_justify="left", show_header=False)
    rows = found["per_protocol"]
    for name, row in rows.items():
        rto = row["rto_ms"]
        recovered = "RTO none" if rto is None else f"RTO {rto:.0f} ms"
        table.add_row(name.upper(), f"{row['confirmed']:,} confirmed, {row['received']:,} received, {recovered}")
    for name in COUNTS:
        bad = found[name] != 0
        table.add_row(name.replace("_", " "), f"[{'bold red' if bad else 'bold green'}]{found[name]}[/]")
    overall = found["rto_ms_overall"]
    table.add_row(
        "RTO", "[bold red]none[/]" if overall is None else f"[bold]{overall:.0f} ms[/] until the first confirm"
    )
    table.add_row("playbooks", ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items()))
    return table


def verdict(found: Mapping[str, Any]) -> str:
    """Return what is wrong with the drill; empty when it is clean."""
    wrong = [f"{found[name]} {name.replace('_', ' ')}" for name in COUNTS if found[name] != 0]
    wrong += [str(problem) for problem in found["problems"]]
    if found["result"] != "clean" and not wrong:
        wrong.append(f"the drill says {found['result']}")
    return "; ".join(wrong)


def interrupted(number: int, _frame: object) -> NoReturn:
    """A signal that ends the demo: like Ctrl-C, so that what was started is stopped."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=int, default=20, help="seconds of traffic (20)")
    parser.add_argument("--directory", type=Path, default=STATE / "demo", help="where the brokers are (.pollux/demo)")
    parser.add_argument("--report", type=Path, default=STATE / "drill", help="where the report goes (.pollux/drill)")
    parser.add_argument("--keep", action="store_true", help="leave the brokers running")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; everything else is not shown")
    arguments = parser.parse_args()
    if not 5 <= arguments.seconds <= 3600:
        parser.error("--seconds: 5 to 3600")
    return arguments


def main() -> int:
    """Run the demo; see EXAMPLES for exit codes."""
    arguments = parse()
    console = Console(highlight=False, soft_wrap=True, quiet=arguments.json)
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    directory, report = arguments.directory.resolve(), arguments.report.resolve()
    demo = Demo(console, directory, report, arguments.seconds, quiet=arguments.json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    code, keep = 1, False
    try:
        found = demo.run()
        wrong = verdict(found)
        code, keep = (1 if wrong else 0), arguments.keep
        console.print()
        console.print(summary(found, demo.took))
        if arguments.json:
            sys.stdout.write(json.dumps({**found, "playbook_seconds": demo.took}) + "\n")
        if wrong:
            errors.print(f"[bold red]demo: {wrong}[/]")
        else:
            console.print("[bold green]Nothing that was confirmed is lost.[/]")
        console.print(f"report: {report / 'report.json'} and {report / 'report.html'} (open it in a browser)")
        if not keep and not arguments.json:
            if stopped := demo.stop():
                console.print(f"stopped: {', '.join(stopped)}")
            demo.reconcile()
    except KeyboardInterrupt:
        errors.print("\ndemo: interrupted; stopping what was started")
        code = 130
    except (DemoError, OSError) as error:
        errors.print(f"[bold red]demo: {error}[/]")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # stopping takes seconds, and is not left half done
        if keep:
            variables = f"POLLUX_LOCAL={directory} POLLUX_LOCAL_PORT_OFFSET={demo.offset}"
            console.print(f"The brokers go on running. To play with them: export {variables}")
            console.print(f"To stop them: {' && '.join(str(directory / name / 'bin/stop') for name in MEMBERS)}")
        elif stopped := demo.stop():
            console.print(f"stopped: {', '.join(stopped)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
