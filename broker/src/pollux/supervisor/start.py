"""Starts ``pollux run`` as a supervisor, or as one of its lives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pollux.ha.colocated.life import LIFE_VARIABLE, decode
from pollux.supervisor.line import LINE_VARIABLE, bind_to_supervisor

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.config.colocated_ports import Colocated
    from pollux.config.model import Configuration


def supervise(configuration: Configuration, colocated: Colocated) -> int:
    """Run the host of a configuration with this policy; returns the exit code."""
    from pollux.supervisor.supervisor import supervise as run

    return run(configuration, colocated)


def become_life() -> bool:
    """Be bound to the supervisor that started this process. Returns whether one did."""
    if LIFE_VARIABLE not in os.environ or LINE_VARIABLE not in os.environ:
        return False
    bind_to_supervisor()
    return True


def life_name() -> str:
    """Return what log lines of this life say of it."""
    life = decode(os.environ[LIFE_VARIABLE])
    return f"backup-of-{life.name}" if life.slot else "live"


def ports_file_of(given: Path | None) -> Path | None:
    """Return the file for a life's ports: that of a hosted backup has its node id in its name."""
    life = decode(os.environ[LIFE_VARIABLE])
    return given.with_name(f"{given.name}.{life.node}") if given is not None and life.slot else given


def agent(broker: Any) -> Any:
    """Return the component by which a life talks with its supervisor and other hosts."""
    from pollux.supervisor.agent import Agent

    return Agent(broker, decode(os.environ[LIFE_VARIABLE]))
