"""Whom a step of a drill hits: decided right before the blow, because each step changes who is live and who leads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lab.host import Host

#: What a step calls the live of the moment before, and the first member that is not live.
LIVE, BACKUP = "live", "backup"
#: The node that coordinates a cluster under pacemaker.
COORDINATOR = "coordinator"


def first(host: str, live: str, members: Iterable[str]) -> str:
    """The name of the host that `host` means: the live (also if it is empty), a member that is not live, or itself.

    Raises LabError when all members are live.
    """
    if host in ("", LIVE):
        return live
    if host != BACKUP:
        return host
    waiting = [name for name in members if name != live]
    if not waiting:
        raise LabError(f"{live} has no backup")
    return waiting[0]


def who_coordinates(hosts: Mapping[str, Host]) -> str:
    """The node that coordinates, as the first host that knows says. Raises LabError when none does."""
    for host in hosts.values():
        told = host.run("crmadmin", "--dc_lookup", check=False) if host.powered() else ""
        found = re.search(r"Designated Controller is: (\S+)", told)
        if found is not None and found[1] in hosts:
            return found[1]
    raise LabError(f"none of {', '.join(hosts)} knows of a node that coordinates")


def only_one(listening: Collection[str], port: int, among: Sequence[str]) -> str:
    """The one host that listens on a port. Raises LabError when none does, or several do: then it shows nothing."""
    if len(listening) != 1:
        raise LabError(f"{len(listening)} of {', '.join(among)} listen on {port}, not one: {', '.join(listening)}")
    return next(iter(listening))


def who_listens(port: int, among: Sequence[str], hosts: Mapping[str, Host]) -> str:
    """The one of these hosts that listens on a TCP port. Of ZooKeeper's nodes only the leader does on the peer port.

    Raises LabError as :func:`only_one` does.
    """
    found = [name for name in among if hosts[name].run("ss", "-Hltn", f"sport = :{port}").strip()]
    return only_one(found, port, among)
