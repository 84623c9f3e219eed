"""The supervisor, as the process of a life has it: questions by a socket that it inherited, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The descriptor of the socket to the supervisor, and the supervisor's process id.
LINE_VARIABLE = "POLLUX_SUPERVISOR_LINE"
PARENT_VARIABLE = "POLLUX_SUPERVISOR"
_PR_SET_PDEATHSIG = 1
#: Seconds for an answer.
_PATIENCE = 10.0


class LineError(OSError):
    """The supervisor does not answer."""


def bind_to_supervisor(environment: Mapping[str, str] = os.environ) -> None:
    """Have this process killed when its supervisor is gone: a new one starts this life anew.

    Killed, not stopped: to the others it is a host that crashed, whose lives go on elsewhere.
    """
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(environment[PARENT_VARIABLE]):
        sys.exit(1)  # it was gone before that


class Line:
    """Questions to the supervisor. Everything is called in the loop's thread."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._descriptor = int(environment[LINE_VARIABLE])
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def open(self) -> None:
        """Listen to answers. Raises OSError."""
        # A process that begins another life executes itself anew, and needs the descriptor then.
        mine = socket.socket(fileno=os.dup(self._descriptor))
        reader, self._writer = await asyncio.open_connection(sock=mine, limit=1 << 20)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    async def ask(self, do: str, **content: object) -> dict[str, Any]:
        """Ask, and return the answer. Raises LineError."""
        if self._writer is None:
            raise LineError("there is no line to the supervisor")
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._writer.write(json.dumps({**content, "do": do, "id": number}).encode() + b"\n")
            async with asyncio.timeout(_PATIENCE):
                return await answer
        except TimeoutError:
            raise LineError(f"the supervisor does not answer within {_PATIENCE:g} s") from None
        finally:
            self._answers.pop(number, None)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                found = json.loads(line)
                answer = self._answers.get(found.pop("id", 0))
                if answer is not None and not answer.done():
                    answer.set_result(found)

    def close(self) -> None:
        """Ask nothing any more."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
