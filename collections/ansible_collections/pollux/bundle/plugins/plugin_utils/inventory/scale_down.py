"""Brokers that hand over what they have when they are stopped: whether there is somebody who may have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clusters import neighbours
from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .clusters import Groups
    from .member import Member


def scaling_model(member: Member) -> dict[str, Any]:
    """Return what broker.xml says of it; nothing of a broker that neither hands over nor is of a group of those."""
    enabled, group = member.value["broker_scale_down"], member.value["broker_scale_down_group"]
    return {"enabled": enabled, "group": group} if enabled or group else {}


def check_scaling(members: Sequence[Member], clusters: Groups, problems: list[Problem]) -> None:
    """Refuse those that would have nobody to hand over to, which only their stop would tell."""
    for member in members:
        found = scaling_model(member)
        if not found:
            continue
        variable = "broker_scale_down" if found["enabled"] else "broker_scale_down_group"
        name, policy = member.value["broker_cluster"], member.value["broker_ha_policy"]
        if policy != "none":
            what = f"is set, but broker_ha_policy is {policy}: such a live hands over to its backup"
            problems.append(Problem(member.name, variable, what, "remove it; scale_in.yml takes such a group out, too"))
            continue
        if not name:
            what = "is set, but broker_cluster is not, so there is nobody to hand over to"
            problems.append(Problem(member.name, variable, what, "set broker_cluster for this broker and others"))
            continue
        groups = clusters[name]
        linked = [mate for group in neighbours(groups)[member.group] for mate in groups[group]]
        if found["enabled"] and not linked:
            what = f"is set, but no other group is linked to in the cluster {name!r}"
            problems.append(Problem(member.name, variable, what, "add a group, or remove it"))
        elif found["enabled"] and found["group"] and not any(_group(mate) == found["group"] for mate in linked):
            what = f"{found['group']!r} is of no other broker that this one is linked to in the cluster {name!r}"
            remedy = "set it for those that are to have the messages, or leave it empty for all"
            problems.append(Problem(member.name, "broker_scale_down_group", what, remedy))


def _group(member: Member) -> str:
    return str(member.value["broker_scale_down_group"])
