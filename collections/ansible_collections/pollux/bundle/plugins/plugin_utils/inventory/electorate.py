"""Replicated groups without ZooKeeper: their lives vote on who may serve, so all of them are one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .member import Member

#: Fewer pairs have no majority when one is lost.
LEAST = 3
#: What all who vote must agree about.
_SAME = ("broker_cluster_user", "broker_cluster_password", "broker_session_ms")


def votes(member: Member) -> bool:
    """Tell whether other groups vote on this broker's right to serve."""
    return bool(member.value["broker_ha_policy"] == "replication" and member.value["broker_coordination"] == "votes")


def asks_zookeeper(member: Member) -> bool:
    """Tell whether ZooKeeper says if this broker may serve."""
    return bool(member.value["broker_ha_policy"] == "replication" and member.value["broker_coordination"] != "votes")


def check_electorate(members: Sequence[Member], problems: list[Problem]) -> None:
    """Refuse too few groups that vote, and groups without a preferred live or with settings of their own."""
    voters = [member for member in members if votes(member)]
    if not voters:
        return
    first = voters[0]
    groups = sorted({member.group for member in voters})
    if len(groups) < LEAST and not any(member.value["topology_few_pairs_reason"].strip() for member in voters):
        problems.append(
            Problem(
                first.name,
                "broker_coordination",
                f"{len(groups)} replicated groups vote, too few to tell a dead live from one that is cut off",
                f"have {LEAST} groups or more, use zookeeper, or say in topology_few_pairs_reason why two lives may be",
            )
        )
    for group in groups:
        mates = [member for member in voters if member.group == group]
        if not any(mate.preferred == "live" for mate in mates):
            problems.append(
                Problem(
                    mates[0].name,
                    "broker_preferred",
                    f"group {group!r} votes and has no preferred live: without ZooKeeper members cannot be equals",
                    "set broker_preferred: live on one member and backup on the others",
                )
            )
        problems += [
            Problem(mate.name, "broker_preferred", "is empty, but its group votes", "set broker_preferred: backup")
            for mate in mates
            if not mate.preferred and any(other.preferred == "live" for other in mates)
        ]
    for member in voters:
        if member.value["broker_zookeeper"]:
            problems.append(
                Problem(
                    member.name,
                    "broker_zookeeper",
                    "is set, but broker_coordination is votes, which need none",
                    "remove it, or set broker_coordination: zookeeper",
                )
            )
        if member.value["broker_session_ms"] < 1000:
            problems.append(
                Problem(
                    member.name,
                    "broker_session_ms",
                    f"{member.value['broker_session_ms']} is a silence that a busy network has by itself",
                    "give it at least 1000",
                )
            )
        voting_s = member.value["broker_vote_retries"] * member.value["broker_vote_retry_wait_ms"] / 1000
        start_s = member.value["broker_start_timeout"]
        if start_s <= voting_s:
            problems.append(
                Problem(
                    member.name,
                    "broker_start_timeout",
                    f"{start_s} s are over before the votes of a start are ({voting_s:g} s)",
                    "raise it, or lower broker_vote_retries or broker_vote_retry_wait_ms",
                )
            )
        problems += [
            Problem(
                member.name,
                name,
                f"differs from that of {first.name}, and both vote",
                "set it for all brokers whose broker_coordination is votes",
            )
            for name in _SAME
            if member.value[name] != first.value[name]
        ]
