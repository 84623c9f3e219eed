"""How long each step of a scenario took, read off what molecule says while it runs. Pure but for the clock."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from lab import guard

if TYPE_CHECKING:
    from collections.abc import Callable

_STEP = re.compile(r"\[(?P<scenario>[\w-]+) > (?P<step>\w+)\] (?:Executing$|Executed: (?P<how>.+))")


class Steps:
    """The clock of one scenario's run; give it every line of the output."""

    def __init__(self, scenario: guard.Scenario, clock: Callable[[], float] = time.monotonic) -> None:
        self._scenario = scenario
        self._clock = clock
        self._to_come = list(scenario.sequence)
        self._began = clock()
        self._step = ""
        #: The first step that failed, as the sequence has it; empty when none did.
        self.failed = ""

    def read(self, line: str) -> str:
        """Return what ended with this line: step, how, and its seconds, in words; empty when none did."""
        found = _STEP.search(guard.plain(line).rstrip())
        if found is None or found["scenario"] != self._scenario.name:
            return ""
        if found["how"] is None:
            self._began, self._step = self._clock(), self._named(found["step"])
            return ""
        seconds, how = self._clock() - self._began, found["how"].split()[0].lower()
        if how == "failed":
            self.failed = self.failed or self._step
        return f"{self._scenario.name}: {self._step}: {how} after {seconds:.1f} s"

    def _named(self, step: str) -> str:
        """The step as the sequence has it, with the file it names; molecule says its first word only."""
        if self._to_come and self._to_come[0].split()[0] == step:
            return self._to_come.pop(0)
        return step  # after a failure molecule cleans up, whatever was to come
