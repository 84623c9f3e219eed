"""A program that works on the hosts while traffic flows, and what is expected of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: A playbook never takes longer than this unless it hangs (seconds); an upgrade of five brokers has taken more than 600
#: on slow processors that had much else to do.
TIMEOUT = 1200.0


class ProgramError(Exception):
    """A program cannot be run as it was described, or did not do what was expected of it."""


@dataclass(frozen=True)
class Program:
    """A command, how it has to end, and what it has to say."""

    command: tuple[str, ...]
    #: Whether it has to end with 0 or with something else.
    succeeds: bool = True
    #: Texts its output must hold.
    says: tuple[str, ...] = ()
    #: Kill it (SIGKILL, with all it started here) as soon as its output holds this text: a controller that broke down.
    kill_at: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Program:
        """From JSON; raises ProgramError for what it does not know."""
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(given) - known):
            raise ProgramError(f"a program has no {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
        if not given.get("command"):
            raise ProgramError("a program needs a command")
        tuples = {name: tuple(given[name]) for name in ("command", "says") if name in given}
        return cls(**{**given, **tuples})

    async def run(self, log: Path) -> str:
        """Run it with its output in `log`, each line with the second it came in; what happened, in words.

        Raises ProgramError when that is not what is expected.
        """
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        said: list[str] = []
        kept: list[str] = []
        killed = False
        began = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT):
                while process.stdout is not None and (line := await process.stdout.readline()):
                    said.append(line.decode(errors="replace"))
                    kept.append(f"{time.monotonic() - began:7.1f} {said[-1]}")
                    if self.kill_at and self.kill_at in said[-1] and not killed:
                        killed = True
                        os.killpg(process.pid, signal.SIGKILL)
                status = await process.wait()
        except TimeoutError:
            raise ProgramError(f"{self.command[0]}: no end after {TIMEOUT:g} s; output: {log}") from None
        finally:
            if process.returncode is None:  # also when the drill itself is interrupted
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            text = "".join(said)
            await asyncio.to_thread(log.write_text, "".join(kept))
        name = " ".join(self.command[:1])
        if self.kill_at:
            if not killed:
                raise ProgramError(f"{name} ended with {status} before it said {self.kill_at!r}; output: {log}")
            return f"killed at {self.kill_at!r}"
        if (status == 0) != self.succeeds:
            raise ProgramError(f"{name} ended with {status}; output: {log}\n{text[-1500:]}")
        missing = [each for each in self.says if each not in " ".join(text.split())]
        if missing:
            raise ProgramError(f"{name} did not say {missing}; output: {log}")
        return f"ended with {status}, as expected"
