"""The rules about a store in a database, and what templates print of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .problems import Add, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Exists, Member

#: A server, with its port or without; an address of IPv6 is in brackets.
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?")
#: What PostgreSQL takes as a name, however it is written.
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
#: What tools/wheelhouse.py leaves where it was asked for the packages of a database.
MARK = "with-database"


def in_database(member: Member) -> bool:
    """Tell whether the store of a broker is in a database."""
    return bool(member.value["broker_ha_policy"] == "shared_store" and member.value["shared_store_type"] == "database")


def database_of(member: Member) -> str:
    """Return the name of its database."""
    given = str(member.value["database_store_name"])
    return given or "pollux_" + re.sub(r"[^a-z0-9_]", "_", member.group.lower())


def database_model(member: Member) -> dict[str, Any]:
    """Return what broker.xml says of the database; nothing for a broker that has none."""
    if not in_database(member):
        return {}
    value = member.value
    mode = value["database_store_sslmode"]
    query = f"sslmode={mode}"
    if mode != "disable":
        query += f"&sslrootcert={value['broker_etc']}/tls/database.pem"
    hosts = ",".join(value["database_store_hosts"])
    return {
        "name": database_of(member),
        "url": f"jdbc:postgresql://{hosts}/{database_of(member)}?{query}",
        "user": value["database_store_user"],
        "verified": mode != "disable",
        "lock_expiration": value["database_store_lock_expiration_ms"],
        "network_timeout": value["database_store_network_timeout_ms"],
    }


def databases(members: Sequence[Member]) -> list[dict[str, str]]:
    """Return the databases of an inventory, each with one of its brokers."""
    found: dict[str, dict[str, str]] = {}
    for member in members:
        if in_database(member):
            user = str(member.value["database_store_user"])
            found.setdefault(member.group, {"name": database_of(member), "user": user, "broker": member.name})
    return list(found.values())


def check_databases(members: Sequence[Member], exists: Exists, problems: list[Problem]) -> None:
    """Apply the rules about databases."""
    taken: dict[tuple[frozenset[str], str], Member] = {}
    for member in members:

        def add(variable: str, what: str, remedy: str, member: Member = member) -> None:
            problems.append(Problem(member.name, variable, what, remedy))

        value = member.value
        if not in_database(member):
            if value["database_store_hosts"]:
                what = "is set, but the store is not in a database"
                add(
                    "database_store_hosts", what, "set shared_store_type: database (and broker_ha_policy: shared_store)"
                )
            continue
        _check(member, exists, add)
        place = (frozenset(value["database_store_hosts"]), database_of(member))
        other = taken.setdefault(place, member)
        if other.group != member.group:
            what = f"{place[1]!r} is also that of {other.name} of the group {other.group!r}"
            add("database_store_name", what, "give each group a database of its own")


def _check(member: Member, exists: Exists, add: Add) -> None:
    value: Mapping[str, Any] = member.value
    if not value["database_store_hosts"]:
        add(
            "database_store_hosts",
            "is empty, so there is no database",
            "name the servers, for instance [db1.example.com]",
        )
    for host in value["database_store_hosts"]:
        found = _HOST.fullmatch(host)
        if found is None or not 0 < int((found[3] or ":5432")[1:]) < 65536:
            add("database_store_hosts", f"{host!r} is not HOST or HOST:PORT", "write it as db1.example.com:5432")
    for variable, name in (
        ("database_store_name", database_of(member)),
        ("database_store_user", value["database_store_user"]),
    ):
        if not _NAME.fullmatch(name):
            add(variable, f"{name!r} is no name that needs no quotation marks", "use small letters, digits and _")
    if value["database_store_user"] == "postgres":
        add("database_store_user", "is the server's administrator", "name a user that may do nothing else")
    _check_tls(value, exists, add)
    needed = value["broker_lease_guard_ms"] + value["broker_lease_margin_ms"]
    if value["database_store_lock_expiration_ms"] < needed:
        add(
            "database_store_lock_expiration_ms",
            f"{value['database_store_lock_expiration_ms']} ms is shorter than broker_lease_guard_ms and"
            f" broker_lease_margin_ms together ({needed} ms): the lock would be given away before its holder stops",
            "raise it, or lower the guard",
        )
    if value["database_store_network_timeout_ms"] < 1000:
        add("database_store_network_timeout_ms", "leaves no time to connect", "give it at least 1000")
    wheelhouse = value["broker_wheelhouse"]
    if wheelhouse and exists(str(Path(wheelhouse) / "requirements.txt")) and not exists(str(Path(wheelhouse) / MARK)):
        add(
            "broker_wheelhouse",
            f"{wheelhouse} has no packages for a database",
            "make it with tools/wheelhouse.py --database",
        )


def _check_tls(value: Mapping[str, Any], exists: Exists, add: Add) -> None:
    authorities = value["database_store_authorities"]
    if value["database_store_sslmode"] == "disable":
        if not value["database_store_plain_reason"].strip():
            add(
                "database_store_sslmode",
                "disable sends every message in clear to whoever answers",
                "use verify-full, or say why it is right here in database_store_plain_reason",
            )
    elif not authorities:
        add("database_store_authorities", "is not set, so no server can be verified", "name a PEM file")
    elif not exists(authorities):
        what = f"there is no file {authorities} on the controller"
        add("database_store_authorities", what, "correct the path or create the file")
