"""The model that templates print: the groups and their members, with everything derived."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from .clusters import cluster_model, known
from .colocated import colocated_model
from .database import database_model, in_database
from .electorate import asks_zookeeper, votes
from .routers import pool_name, pooled, router_models
from .rules import is_network
from .scale_down import scaling_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .clusters import Groups
    from .member import Member


def netloc(address: str, port: int) -> str:
    """Return address and port as in a URI."""
    try:
        six = ipaddress.ip_address(address).version == 6
    except ValueError:
        six = False
    return f"[{address}]:{port}" if six else f"{address}:{port}"


def addresses(members: Sequence[Member]) -> list[str]:
    """Return the addresses of those that are known by address, not by name."""
    return [member.address for member in members if is_network(member.address)]


def connector_of(member: Member) -> dict[str, Any]:
    """Return how others reach a broker: its first acceptor."""
    first = member.acceptors[0] if member.acceptors else {"port": 0, "tls": False}
    query = "?sslEnabled=true" if first["tls"] else ""
    uri = f"tcp://{netloc(member.address, first['port'])}{query}"
    return {"name": member.name, "uri": uri, "uris": [uri], "tls": first["tls"]}


def _pool_connector(group: str, mates: Sequence[Member]) -> dict[str, Any]:
    """Return how whichever member of a group serves is reached."""
    connectors = [connector_of(mate) for mate in mates]
    uris = [connector["uri"] for connector in connectors]
    return {"name": pool_name(group), "uris": uris, "tls": any(connector["tls"] for connector in connectors)}


def group_model(group: str, mates: Sequence[Member]) -> dict[str, Any]:
    """Return one group, whose members are in the order of preference."""
    first = mates[0]
    value = first.value
    connectors = [connector_of(mate) for mate in mates]
    uris = ",".join(connector["uri"] for connector in connectors)
    return {
        "name": group,
        "policy": value["broker_ha_policy"],
        "votes": votes(first),
        "symmetric": len(mates) > 1 and not any(mate.preferred for mate in mates),
        "members": [mate.name for mate in mates],
        "live": next((mate.name for mate in mates if mate.preferred == "live"), ""),
        "connectors": connectors,
        "client_url": f"({uris})?reconnectAttempts=-1" if len(mates) > 1 else uris,
        "store": {
            "type": value["shared_store_type"],
            "mount": value["shared_store_path"],
            "path": f"{value['shared_store_path'].rstrip('/')}/{group}",
            "source": value["shared_store_source"],
            "options": ",".join(value["shared_store_options"]),
            "lease_ms": value["shared_store_lease_seconds"] * 1000 if value["shared_store_type"] == "nfs4" else 0,
        },
    }


def _management(member: Member, machine: str) -> str:
    """Return the HTTP address of a broker as seen from a machine; empty where it cannot be reached."""
    address = member.value["broker_management_address"]
    port = member.value["broker_management_port"] + member.value["broker_port_offset"]
    if address in ("0.0.0.0", "::"):  # noqa: S104  (compared, not bound)
        address = member.address
    elif member.machine != machine and (address == "localhost" or address.startswith("127.") or address == "::1"):
        return ""
    return f"http://{netloc(address, port)}"


def _protocols(acceptor: Mapping[str, Any], *, for_members: bool) -> list[str]:
    """Return what an acceptor serves, nothing for everything; ``for_members``: others connect to copy."""
    given = list(acceptor.get("protocols") or [])
    return [*given, "CORE"] if given and for_members and "CORE" not in given else given


def member_model(
    member: Member,
    by_group: Mapping[str, Sequence[Member]],
    clusters: Groups,
    voters: Sequence[Member],
    connect_string: str,
) -> dict[str, Any]:
    """Return one broker. ``by_group`` are all of the inventory; ``connect_string`` is the ensemble's.

    ``voters`` are all brokers of the inventory that vote: each of them connects to all others. ``clusters`` are the
    brokers of each cluster by group.
    """
    value = member.value
    mates = by_group[member.group]
    voting = votes(member)
    cluster = cluster_model(member, clusters)
    others = [*(voters if voting else ()), *known(member, clusters)]
    reached = list({one.name: one for one in (*mates, *others)}.values())
    pools = pooled(member, by_group)
    # Brokers whose routers choose from this one's group ask it, too.
    routed = [one for mates_of in by_group.values() for one in mates_of if member.group in pooled(one, by_group)]
    pooled_members = [one for one in (*routed, *(one for pool in pools.values() for one in pool)) if one not in reached]
    policy = value["broker_ha_policy"]
    shared, copied = policy in ("shared_store", "colocated"), policy in ("replication", "active_passive")
    shared = shared and not in_database(member)
    store = f"{value['shared_store_path'].rstrip('/')}/{member.group}" if shared else value["broker_data"]
    return {
        "name": member.name,
        "group": member.group,
        "policy": policy,
        "part": "backup" if member.preferred == "backup" else "primary",
        "preferred": member.preferred,
        "start_order": mates.index(member),
        "members": len(mates),
        # Brokers that a resource manager promotes know each other by ha-brokers-url, others by connectors.
        "connected": bool(cluster) or (len(mates) > 1 and policy != "active_passive"),
        "asks_others": bool(cluster or pools) or len(mates) > 1,
        "cluster": cluster,
        "colocated": colocated_model(member, clusters),
        "scale_down": scaling_model(member),
        "routers": router_models(member),
        "address": member.address,
        "machine": member.machine,
        "acceptors": [
            {
                "name": acceptor["name"],
                "port": acceptor["port"],
                "protocols": _protocols(
                    acceptor, for_members=(copied or bool(cluster or routed)) and acceptor is member.acceptors[0]
                ),
                "tls": acceptor["tls"],
                "parameters": dict(acceptor.get("parameters") or {}),
                "netloc": netloc(value["broker_bind_address"], acceptor["port"]),
            }
            for acceptor in member.acceptors
        ],
        "management": {
            "address": value["broker_management_address"],
            "port": value["broker_management_port"] + value["broker_port_offset"],
            "url": _management(member, member.machine),
        },
        "connector": connector_of(member),
        "connectors": [
            *(connector_of(one) for one in reached),
            *(_pool_connector(group, pool) for group, pool in pools.items()),
        ],
        "peers": [one.name for one in reached if one is not member],
        "known_members": addresses([member, *(one for one in reached if one is not member), *pooled_members]),
        "votes": len({voter.group for voter in voters}) if voting else 0,
        "peer_urls": [url for mate in mates if mate is not member and (url := _management(mate, member.machine))],
        "store": store,
        # Where it writes of what others see too; a colocated one also in the stores of those whose backups it has.
        "writes": value["shared_store_path"] if policy == "colocated" else store if shared else "",
        "shared": policy in ("shared_store", "colocated"),
        # Empty unless the store is in one.
        "database": database_model(member),
        "zookeeper": (value["broker_zookeeper"] or connect_string) if asks_zookeeper(member) else "",
        "zookeeper_tls": asks_zookeeper(member) and value["broker_zookeeper_tls"],
        "unit": value["broker_service_name"],
        "root": value["broker_root"],
        "etc": value["broker_etc"],
        "data": value["broker_data"],
        "run": value["broker_run"],
        "log": value["broker_log"],
    }
