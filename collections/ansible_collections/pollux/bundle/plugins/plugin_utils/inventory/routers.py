"""Connection routers: which group of the inventory serves a client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Member

#: A policy that chooses nobody: the key becomes a number, for local_target_filter.
MODULO = "CONSISTENT_HASH_MODULO"


def pool_name(group: str) -> str:
    """Return the name of the connector that leads to whichever member of a group serves."""
    return f"pool-{group}"


def _chooses(router: Mapping[str, Any]) -> bool:
    return bool(router["policy"]) and router["policy"] != MODULO


def router_models(member: Member) -> list[dict[str, Any]]:
    """Return the routers of a broker as the template prints them."""
    return [
        {
            **router,
            "groups": [group for group in router["groups"] if group != member.group],
            # The broker itself is one to choose where its group is named, or none is: all of the cluster then.
            "local": not router["groups"] or member.group in router["groups"],
            "pool": _chooses(router),
            "cluster": member.value["broker_cluster"] if _chooses(router) and not router["groups"] else "",
        }
        for router in member.value["broker_connection_routers"]
    ]


def pooled(member: Member, by_group: Mapping[str, Sequence[Member]]) -> dict[str, Sequence[Member]]:
    """Return the groups, with their members, that routers of a broker choose from by name."""
    names = [
        name for router in member.value["broker_connection_routers"] if _chooses(router) for name in router["groups"]
    ]
    return {name: by_group[name] for name in dict.fromkeys(names) if name in by_group and name != member.group}


def check_routers(members: Sequence[Member], by_group: Mapping[str, Sequence[Member]], problems: list[Problem]) -> None:
    """Refuse routers that would choose nobody, and acceptors that name none of them."""
    for member in members:
        routers = member.value["broker_connection_routers"]
        names = [router["name"] for router in routers]
        for name in sorted({name for name in names if names.count(name) > 1}):
            what = f"there are two routers called {name!r}"
            problems.append(Problem(member.name, "broker_connection_routers", what, "rename one"))
        for acceptor in member.acceptors:
            asked = str((acceptor.get("parameters") or {}).get("router", ""))
            if asked and asked not in names:
                variable = f"broker_acceptors[{acceptor['name']}].parameters.router"
                known = ", ".join(names) or "none"
                what = f"there is no router {asked!r} in broker_connection_routers; there are: {known}"
                problems.append(Problem(member.name, variable, what, "correct the name, or add the router"))
        for router in routers:
            _check(member, router, by_group, problems)


def _check(
    member: Member, router: Mapping[str, Any], by_group: Mapping[str, Sequence[Member]], problems: list[Problem]
) -> None:
    where = f"broker_connection_routers[{router['name']}]"

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(member.name, f"{where}{variable}", what, remedy))

    for name in ("key_filter", "local_target_filter"):
        try:
            re.compile(router[name])
        except (re.error, OverflowError, RecursionError) as error:
            add(f".{name}", f"is no regular expression: {error}", "correct it")
    if not _chooses(router):
        if not router["local_target_filter"]:
            add("", "has no policy and no local_target_filter, so it chooses nobody", "give it one of them")
        if router["groups"]:
            add(".groups", "is given, but nobody is chosen from them without a policy", "set policy, or remove it")
        if router["policy"] == MODULO and router["modulo"] < 1:
            add(".modulo", f"is needed by {MODULO}: into how many parts keys are divided", "give a number from 1")
        return
    unknown = [group for group in router["groups"] if group not in by_group]
    for group in unknown:
        add(".groups", f"there is no group {group!r}; there are: {', '.join(by_group)}", "correct the name")
    if router["groups"] and not unknown and set(router["groups"]) == {member.group}:
        add(".groups", "only this broker's own group is named, so there is nobody to choose", "name other groups")
    if not router["groups"] and not member.value["broker_cluster"]:
        add(".groups", "is empty, but there is no cluster to choose from", "name groups, or set broker_cluster")
    most = len(set(router["groups"]))
    if router["groups"] and router["quorum_size"] > most:
        what = f"{router['quorum_size']} is more than the {most} groups there can be"
        add(".quorum_size", what, "lower it, or name more groups")
