"""Why a scenario failed, in one line or in some, read off what molecule printed. Pure.

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
#: What is told of a scenario has at most so many lines.
LINES = 25
#: Where the words of a task end.
_NEXT = re.compile(r"^(?:TASK |RUNNING HANDLER |PLAY |(?:INFO|WARNING|ERROR|CRITICAL) +\[)", re.MULTILINE)
_FAILURES = re.compile(r"^=+ FAILURES =+$(.*?)^=+ (?:short test summary|warnings summary)", re.MULTILINE | re.DOTALL)
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


def passage(output: str) -> list[str]:
    """The lines in which the task or the tests that failed last told it; the beginning and the end of many."""
    text = guard.plain(output)
    if failures := _FAILURES.findall(text):
        text = failures[-1]
    elif errors := list(_ERROR.finditer(text)):
        begin = max((found.start() for found in _TASK.finditer(text, 0, errors[-1].start())), default=0)
        end = _NEXT.search(text, errors[-1].end())
        text = text[begin : end.start() if end else len(text)]
    lines = text.strip().splitlines()
    return lines if len(lines) <= LINES else [*lines[: LINES // 3], "...", *lines[LINES // 3 - LINES + 1 :]]


def shorten(line: str) -> str:
    """The beginning and the end of a line that is longer than :data:`LENGTH`."""
    half = LENGTH // 2
    return line if len(line) <= LENGTH else f"{line[:half]} ... {line[-half:]}"
