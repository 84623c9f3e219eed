"""Filters that show an inventory and what its brokers said (results of pollux_info) to people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def plan(topology: Mapping[str, Any]) -> list[str]:
    """Return a line for each group and each of its members: what an inventory means."""
    lines = []
    for name, group in topology["groups"].items():
        store = group["store"]
        place = f" on {store['source']}" if store["source"] else ""
        kept = f", journal in {store['path']}{place}" if group["policy"] == "shared_store" else ""
        lines.append(
            f"group {name} ({group['policy']}{', symmetric' if group['symmetric'] else ''}"
            f"{', votes' if group['votes'] else ''}){kept}"
        )
        lines.append(f"  clients: {group['client_url']}")
        lines += [f"  {line}" for line in group["cluster"].get("plan", [])]
        for host in group["members"]:
            broker = topology["brokers"][host]
            ports = ", ".join(f"{acceptor['name']} {acceptor['netloc']}" for acceptor in broker["acceptors"])
            lines.append(
                f"  {host}: {broker['preferred'] or 'equal'}, {ports}, management {broker['management']['url']}"
            )
    return lines


def report(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str) -> list[str]:
    """Return a line for each group and each of its members; ``variable`` holds a member's answer."""
    lines = []
    for name, group in topology["groups"].items():
        lines.append(f"group {name}: {group['client_url']}")
        for host in group["members"]:
            said = said_by(hostvars, host, variable)
            if not said:
                lines.append(f"  {host}: not asked")
                continue
            parts = [str(said.get("state"))]
            if said.get("epoch"):
                parts.append(f"epoch {said['epoch']}")
            if said.get("messages") is not None:
                parts.append(f"{said['messages']} messages")
            if said.get("version"):
                parts.append(f"version {said['version']}")
            if said.get("reason") and said.get("state") not in ("live", "ready"):
                parts.append(str(said["reason"]))
            parts += [f"needs a restart: {reason}" for reason in said.get("restart_reasons") or ()]
            lines.append(f"  {host}: {', '.join(parts)}")
    return lines


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_plan": plan,
            "pollux_report": report,
        }
