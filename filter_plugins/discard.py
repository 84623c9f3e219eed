"""For an active-passive group without a primary: whose data may be given up, by what its brokers say. Pure.

``variable`` names the variable of each host that holds its broker's answer (of pollux_info); ``asked`` are names of
hosts, separated by commas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def names(asked: str) -> list[str]:
    """Return the names in ``asked``."""
    return [name.strip() for name in asked.split(",") if name.strip()]


def group_of(topology: Mapping[str, Any], asked: str) -> Mapping[str, Any]:
    """Return the group of the brokers in ``asked``, which :func:`refusal` has nothing against."""
    group: Mapping[str, Any] = topology["groups"][topology["brokers"][names(asked)[0]]["group"]]
    return group


def refusal(topology: Mapping[str, Any], asked: str) -> str:
    """Return why nobody's data can be given up, by the inventory alone; empty when it may, or nobody is named."""
    unknown = [name for name in names(asked) if name not in topology["brokers"]]
    if unknown:
        return f"discard_confirm names {', '.join(unknown)}; the brokers are {', '.join(topology['brokers'])}"
    groups = {topology["brokers"][name]["group"] for name in names(asked)}
    if len(groups) > 1:
        return f"discard_confirm names brokers of the groups {', '.join(sorted(groups))}: one group at a time"
    for group in groups:
        if topology["groups"][group]["cluster"].get("manager") != "pacemaker":
            return f"group {group} is not under pacemaker, so nobody is promoted there: see docs/runbooks/both-down.md"
        if set(topology["groups"][group]["members"]) <= set(names(asked)):
            return f"discard_confirm names every member of {group}: then nothing would be left"
    return ""


def number(said: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return how new the data of a broker is (epoch, sequence); None when it has none, or does not answer."""
    activation = (said.get("status") or {}).get("activation") or {}
    text = (activation.get("active_passive") or {}).get("number")
    return tuple(int(part) for part in str(text).split(":")) if text else None


def report(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str) -> list[str]:
    """Return a line for each broker of an active-passive group: what it is, and how new its data is."""
    lines = []
    for name, group in topology["groups"].items():
        if not group["cluster"]:
            continue
        lines.append(f"group {name}")
        for host in group["members"]:
            said = said_by(hostvars, host, variable)
            found = number(said)
            data = f"data {':'.join(map(str, found))}" if found else "no data that it tells of"
            lines.append(f"  {host}: {said.get('state', 'not asked')}, {data}")
    return lines


def problems(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str, asked: str) -> list[str]:
    """Return why the data of those in ``asked`` must not be given up; empty when it may."""
    if not names(asked):
        return []
    group = group_of(topology, asked)
    lines = []
    answers = {host: said_by(hostvars, host, variable) for host in group["members"]}
    lines += [
        f"{host} of group {group['name']} serves: nothing has to be given up"
        for host, said in answers.items()
        if said.get("state") in ("live", "activating")
    ]
    left = [found for host, said in answers.items() if host not in names(asked) and (found := number(said))]
    if not left:
        lines.append("none of the others answers and has data: start them first")
    lines += [
        f"{host} answers, and has newer data than all others: it can be promoted as it is"
        for host in names(asked)
        if (found := number(answers[host])) is not None and left and found >= max(left)
    ]
    return lines


def addresses(topology: Mapping[str, Any], asked: str) -> str:
    """Return the addresses of those in ``asked``, as ``--discard`` takes them."""
    if not names(asked):
        return ""
    nodes = {node["name"]: node["broker"] for node in group_of(topology, asked)["cluster"]["nodes"]}
    return ",".join(nodes[name] for name in names(asked))


def speaker(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str, asked: str) -> str:
    """Return the host that tells the resource manager: one that stays, and answers."""
    if not names(asked):
        return ""
    members = group_of(topology, asked)["members"]
    return next(
        (host for host in members if host not in names(asked) and number(said_by(hostvars, host, variable))), ""
    )


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_discard_refusal": refusal,
            "pollux_discard_report": report,
            "pollux_discard_problems": problems,
            "pollux_discard_addresses": addresses,
            "pollux_discard_speaker": speaker,
        }
