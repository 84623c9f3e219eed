"""Why a scenario failed, in one line, read off what molecule printed. Pure.

A run prints some thousand lines, and where it ran on another machine only its end may be left to read: so the reason
is said last. It is the last task that failed and its message, or the tests of testinfra that did.
"""

from __future__ import annotations

import re

from lab import guard

#: A reason has at most so many characters; of a longer one the beginning and the end are kept.
LENGTH = 700
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?P<name>.*)\] \**$", re.MULTILINE)
#: What Ansible says of a task: at the beginning of a line; what is quoted in a task's output is indented.
_ERROR = re.compile(
    r"^(?:\[ERROR\]: (?P<said>.*?)(?=^Origin: |^fatal: |^\S+ \[|\Z)"
    r"|fatal: \[(?P<host>\S+)\]: UNREACHABLE! => ?(?P<how>.*?)(?=^\S|\Z))",
    re.MULTILINE | re.DOTALL,
)
_TEST = re.compile(r"^(?:FAILED|ERROR) \S+\.py\b.*$", re.MULTILINE)


def reason(output: str) -> str:
    """The task or the tests that failed, and what was said of them; empty when the output names none."""
    text = guard.plain(output)
    parts = []
    if errors := list(_ERROR.finditer(text)):
        last = errors[-1]
        tasks = [found["name"] for found in _TASK.finditer(text, 0, last.start())]
        said = last["said"] or f"{last['host']} is unreachable: {last['how']}"
        parts.append(f"task [{tasks[-1] if tasks else '?'}]: {said}")
    parts += _TEST.findall(text)
    return shorten(" ".join("; ".join(parts).split()))


def shorten(line: str) -> str:
    """The beginning and the end of a line that is longer than :data:`LENGTH`."""
    half = LENGTH // 2
    return line if len(line) <= LENGTH else f"{line[:half]} ... {line[-half:]}"
