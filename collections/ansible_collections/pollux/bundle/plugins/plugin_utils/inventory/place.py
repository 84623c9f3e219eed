"""The place of a broker in an inventory: its machine, its group and its ports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .colocated import slot_ports
from .problems import Problem
from .variables import UnreadableError, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .member import Member

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def locate(member: Member, problems: list[Problem]) -> None:
    """Find where a host is: its address for others, and which machine it is."""
    value, given = member.value, member.given
    connection: dict[str, Any] = {}
    for name in ("ansible_host", "ansible_connection"):
        try:
            connection[name] = read(given, name) if name in given else ""
        except UnreadableError as error:
            problems.append(Problem(member.name, name, f"cannot be evaluated: {error}", "define what it refers to"))
            connection[name] = ""
    host = str(connection["ansible_host"] or member.name)
    member.address = value["broker_address"] or host
    local = connection["ansible_connection"] == "local"
    member.machine = value["broker_machine"] or ("the controller" if local else host)


def place(member: Member, problems: list[Problem]) -> None:
    """Find where a broker is, its group, and which ports it has."""
    value = member.value
    member.group = value["broker_group"] or member.name
    locate(member, problems)
    for variable, text in (("broker_group", member.group), ("inventory_hostname", member.name)):
        if not _NAME.fullmatch(text):
            problems.append(
                Problem(
                    member.name, variable, f"{text!r} cannot be the name of a directory", "use letters, digits, . _ -"
                )
            )
    offset = value["broker_port_offset"]
    for acceptor in value["broker_acceptors"]:
        member.acceptors.append({**acceptor, "tls": acceptor.get("tls", False), "port": acceptor["port"] + offset})
    if not member.acceptors:
        problems.append(
            Problem(member.name, "broker_acceptors", "is empty, so no client can connect", "add an acceptor")
        )


def ports(member: Member) -> Iterable[tuple[int, str]]:
    """Return every port of a broker, and of the backups that its host may have, with the variable that says it."""
    own = [(acceptor["port"], f"broker_acceptors[{acceptor['name']}]") for acceptor in member.acceptors]
    own.append((member.value["broker_management_port"] + member.value["broker_port_offset"], "broker_management_port"))
    return [*own, *slot_ports(member, own)]
