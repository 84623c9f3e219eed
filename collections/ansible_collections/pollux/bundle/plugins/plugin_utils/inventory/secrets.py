"""The rules about passwords. No value of a secret is repeated in a message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .database import in_database
from .electorate import asks_zookeeper
from .passive import with_pacemaker
from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Exists, Member

#: Passwords that everybody tries first.
DEFAULT_PASSWORDS = frozenset(
    {
        *("admin", "password", "passw0rd", "changeme", "change me!!", "change_me", "artemis", "activemq", "amq"),
        *("guest", "secret", "root", "pollux", "test", "demo", "letmein", "cluster", "12345678", "123456789012"),
        *("adminadminadmin", "passwordpassword", "changemechangeme", "changeme12345", "password1234"),
    }
)


def check_secrets(member: Member, secrets: Mapping[str, Any], exists: Exists, problems: list[Problem]) -> None:
    """Refuse passwords that are missing and not to be generated, or that everybody tries first."""
    value = member.value
    minimum = value["topology_minimum_password_length"]
    stored_users: Mapping[str, Any] = secrets.get("users") or {}
    found: list[tuple[str, str, str]] = [
        ("broker_cluster_password", value["broker_cluster_user"], _cluster_password(value, secrets))
    ]
    # What the inventory gives but nobody can evaluate was said already.
    missing = [] if found[0][2] or "broker_cluster_password" in member.given else ["cluster_password"]
    if asks_zookeeper(member):
        password = str(value["broker_zookeeper_password"] or secrets.get("coordination_password") or "")
        found.append(("broker_zookeeper_password", value["broker_zookeeper_user"], password))
        if not password and "broker_zookeeper_password" not in member.given:
            missing.append("coordination_password")
    _database_password(member, secrets, found, missing)
    if with_pacemaker(member) and not secrets.get("manager_key"):
        missing.append("manager_key")
    if not (value["broker_users_key"] or "broker_users_key" in member.given or secrets.get("users_key")):
        missing.append("users_key")
    for user in value["broker_users"]:
        password = str(user.get("password") or stored_users.get(user["name"]) or "")
        found.append((f"broker_users[{user['name']}].password", user["name"], password))
        if not password:
            missing.append(f"users.{user['name']}")
    for variable, user, password in found:
        if not password:
            continue
        if password.lower() in DEFAULT_PASSWORDS or password.lower() == user.lower():
            what = "is a default password that everybody tries first"
        elif len(password) < minimum:
            what = f"has fewer than {minimum} characters"
        elif "'" in password or any(ord(character) < 32 for character in password):
            what = "holds a quotation mark (') or a control character, which environment files cannot carry"
        else:
            continue
        remedy = "remove it to have one generated, or set a long random one in the vault"
        problems.append(Problem(member.name, variable, what, remedy))
    names = [user["name"] for user in value["broker_users"]]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    problems += [
        Problem(member.name, "broker_users", f"{name!r} is listed twice", "merge the entries") for name in twice
    ]
    if value["broker_secrets_generate"]:
        return
    if not exists(value["broker_secrets_file"]) and missing:
        problems.append(
            Problem(
                member.name,
                "broker_secrets_file",
                f"there is no file {value['broker_secrets_file']} with the secrets {', '.join(missing[:5])}",
                "create it with ansible-vault create, or set broker_secrets_generate: true",
            )
        )
    elif missing:
        problems.append(
            Problem(
                member.name,
                "broker_secrets_file",
                f"{value['broker_secrets_file']} lacks {', '.join(missing[:5])}",
                "add them with ansible-vault edit, or set broker_secrets_generate: true",
            )
        )


def _database_password(
    member: Member, secrets: Mapping[str, Any], found: list[tuple[str, str, str]], missing: list[str]
) -> None:
    """Add the password of a store in a database to those to judge, and to those that are missing."""
    if in_database(member):
        value = member.value
        password = str(value["database_store_password"] or secrets.get("database_password") or "")
        found.append(("database_store_password", value["database_store_user"], password))
        if not password and "database_store_password" not in member.given:
            missing.append("database_password")


def _cluster_password(value: Mapping[str, Any], secrets: Mapping[str, Any]) -> str:
    return str(value["broker_cluster_password"] or secrets.get("cluster_password") or "")


def secrets_needed(members: Sequence[Member], nodes: Sequence[Member]) -> dict[str, Any]:
    """Return what has to be known or generated, and in which file it is; ``nodes`` are those of ZooKeeper."""
    users = {user["name"] for member in members for user in member.value["broker_users"] if not user.get("password")}
    names = [
        name
        for name in ("cluster_password", "users_key")
        if any(not member.value[f"broker_{name}"] for member in members)
    ]
    replicated = [member for member in members if asks_zookeeper(member)]
    if any(not member.value["broker_zookeeper_password"] for member in replicated):
        names.append("coordination_password")
    if any(in_database(member) and not member.value["database_store_password"] for member in members):
        names.append("database_password")
    if any(with_pacemaker(member) for member in members):
        names.append("manager_key")
    if any(not node.value["zookeeper_quorum_password"] for node in nodes):
        names.append("ensemble_password")
    return {
        "file": members[0].value["broker_secrets_file"] if members else "",
        "generate": all(member.value["broker_secrets_generate"] for member in members),
        "users": sorted(users),
        "names": names,
    }
