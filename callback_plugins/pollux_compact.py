"""Short output for people: a line for each play, what it is doing now, messages, and errors in full.

`ANSIBLE_STDOUT_CALLBACK=pollux_compact ansible-playbook ...`; `make demo` uses it. On a terminal the current task is
shown on one line that is written over; elsewhere a line tells from time to time that a long play goes on. What is left
out of the screen is in the file of ANSIBLE_LOG_PATH.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ansible import constants
from ansible.plugins.callback.default import CallbackModule as DefaultCallback

DOCUMENTATION = """
name: pollux_compact
type: stdout
short_description: Plays, messages and errors
description: Prints each play's name, messages of debug tasks, and failures in full; the rest goes to the log file only.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements: [set as stdout in configuration]
"""
#: Seconds between lines about a play that goes on, where there is no terminal.
LINE_EVERY = 10.0
CLEAR = "\r\x1b[K"
WIDTH = 100
_MESSAGES = ("debug", "ansible.builtin.debug")
#: Shows its own progress while it runs.
_TALKATIVE = ("pollux_drill",)


class CallbackModule(DefaultCallback):
    """Print plays, messages and errors."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "pollux_compact"

    def __init__(self) -> None:
        super().__init__()
        self._terminal = sys.stdout.isatty()
        self._shown = False
        self._play_name = ""
        self._started = self._told = time.monotonic()
        self._changed: dict[str, int] = {}

    # -- the line that is written over

    def _now(self, text: str) -> None:
        if self._terminal:
            sys.stdout.write(f"{CLEAR}    {text[:WIDTH]}")
            sys.stdout.flush()
            self._shown = True
        elif time.monotonic() - self._told > LINE_EVERY:
            self._print(f"    {time.monotonic() - self._started:.0f} s: {text}")
        self._display.display(text, log_only=True)

    def _clear(self) -> None:
        if self._shown:
            sys.stdout.write(CLEAR)
            sys.stdout.flush()
            self._shown = False

    def _print(self, text: str, color: str | None = None) -> None:
        self._clear()
        self._told = time.monotonic()
        self._display.display(text, color=color)

    # -- what happens

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Show the name of a play that begins."""
        self._play = play
        name = play.get_name().strip()
        if name != self._play_name:  # with serial, a play begins once for each batch
            self._print(f"  {name}")
        self._play_name = name

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        if prefix is not None:
            self._task_type_cache[task._uuid] = prefix  # noqa: SLF001  (what the default callback does)
        self._last_task_name = task.get_name().strip()
        if task.action in _TALKATIVE:
            self._print(f"    {self._last_task_name}")
        else:
            self._now(self._last_task_name)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Show messages, warnings and differences of a task that is done, and count changes."""
        said = result.result
        if result.task.action in _MESSAGES and not said.get("failed"):
            message = said.get("msg", "")
            for line in message if isinstance(message, list) else [message]:
                self._print(f"    {line}", color=constants.COLOR_OK)
            return
        host = result.host.get_name()
        if said.get("changed"):
            self._changed[host] = self._changed.get(host, 0) + 1
        self._display.display(f"{'changed' if said.get('changed') else 'ok'}: [{host}]", log_only=True)
        if said.get("warnings") or said.get("deprecations"):
            self._clear()
            self._handle_warnings_and_exception(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Show everything about a task that failed."""
        self._clear()
        super().v2_runner_on_failed(result, ignore_errors=ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Show everything about a host that does not answer."""
        self._clear()
        super().v2_runner_on_unreachable(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Show no items."""

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Show no items."""

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Show everything about an item that failed."""
        self._clear()
        super().v2_runner_item_on_failed(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Show no skipped tasks."""

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Show no included files."""

    def v2_on_file_diff(self, result: Any) -> None:
        """Show the difference, with --diff."""
        self._clear()
        super().v2_on_file_diff(result)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Show nothing: the failures before have said it."""

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Show one line for all hosts."""
        parts = []
        bad = False
        for host in sorted(stats.processed):
            counts = stats.summarize(host)
            trouble = [f"{counts[name]} {name}" for name in ("unreachable", "failures") if counts[name]]
            bad = bad or bool(trouble)
            parts.append(f"{host} {', '.join([f'{self._changed.get(host, 0)} changed', *trouble])}")
        took = time.monotonic() - self._started
        color = constants.COLOR_ERROR if bad else constants.COLOR_SKIP
        self._print(f"  {'; '.join(parts)} ({took:.0f} s)", color=color)
