"""Talks to QEMU through its QMP socket: JSON, one command a connection."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

from lab.places import LabError

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT = 30.0


def ask(path: Path, command: str) -> Any:
    """Carry out a command; its result. Raises LabError when the machine is off or QEMU refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(str(path))
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # the greeting
                _execute(stream, "qmp_capabilities")
                return _execute(stream, command)
    except OSError as error:
        raise LabError(f"{path}: the machine does not answer: {error}") from error


def _execute(stream: Any, command: str) -> Any:
    stream.write(json.dumps({"execute": command}) + "\n")
    stream.flush()
    for line in stream:
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
        if "error" in answer:
            raise LabError(f"QEMU refuses {command}: {answer['error'].get('desc', answer)}")
    raise LabError(f"QEMU went away during {command}")
