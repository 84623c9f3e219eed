"""The ZooKeeper ensemble: which hosts are its nodes, what it must not be, and where brokers find it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .electorate import asks_zookeeper
from .model import addresses, netloc
from .place import locate, ports
from .problems import Problem
from .rules import is_network
from .variables import read, read_member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Exists, Member, Variables

PORTS = ("zookeeper_client_port", "zookeeper_peer_port", "zookeeper_election_port")
HIGHEST_ID = 255
#: Milliseconds; the nodes grant none that is shorter, however short their ticks are: zoo.cfg.j2.
_SHORTEST_SESSION = 1000
NODE_FILES = ("zookeeper_tls_certificate", "zookeeper_tls_key", "zookeeper_tls_authorities")
BROKER_KEY_FILES = ("broker_zookeeper_tls_certificate", "broker_zookeeper_tls_key")
BROKER_FILES = (*BROKER_KEY_FILES, "broker_zookeeper_tls_authorities")


def read_nodes(
    hostvars: Mapping[str, Variables],
    groups: Mapping[str, Sequence[str]],
    specifications: Mapping[str, Mapping[str, Any]],
    problems: list[Problem],
) -> list[Member]:
    """Return the nodes in the inventory's order; one without an id of its own has its position, from 1."""
    name = next((read(given, "topology_zookeeper") for given in hostvars.values() if "topology_zookeeper" in given), "")
    nodes = []
    for position, host in enumerate(groups.get(str(name or "zookeeper"), ()), 1):
        node = read_member(host, hostvars[host], specifications, problems)
        locate(node, problems)
        node.address = node.value["zookeeper_address"] or node.address
        node.value["zookeeper_id"] = node.value["zookeeper_id"] or position
        nodes.append(node)
    return nodes


def connect_string_of(nodes: Sequence[Member]) -> str:
    """Return where clients find the ensemble; empty without one."""
    return ",".join(netloc(node.address, node.value["zookeeper_client_port"]) for node in nodes)


def check_ensemble(nodes: Sequence[Member], brokers: Sequence[Member], exists: Exists, problems: list[Problem]) -> None:
    """Refuse an even number of nodes, nodes that fail together, and ids or ports that two have."""
    if nodes and (len(nodes) < 3 or len(nodes) % 2 == 0):
        reason = "no majority is left when one fails" if len(nodes) < 3 else "no more may fail than with one less"
        problems.append(
            Problem("inventory", "topology_zookeeper", f"{len(nodes)} ZooKeeper nodes: {reason}", "make it 3 or 5")
        )
    taken = {
        (broker.machine, port): f"{variable} of {broker.name}" for broker in brokers for port, variable in ports(broker)
    }
    for index, node in enumerate(nodes):
        _check_node(node, nodes[:index], taken, problems)
        if node.value["zookeeper_tls"] != "none":
            _check_files(node, "zookeeper_tls", NODE_FILES, exists, problems)
    problems += [
        Problem(nodes[0].name, name, "differs between the nodes", "set it for the whole ensemble")
        for name in ("zookeeper_tick_ms", "zookeeper_session_most_ms", "zookeeper_service_manager", "zookeeper_tls")
        if len({node.value[name] for node in nodes}) > 1
    ]


def check_filter(nodes: Sequence[Member], brokers: Sequence[Member], problems: list[Problem]) -> None:
    """Refuse a packet filter that keeps somebody out who needs the ensemble."""
    clients = [broker for broker in brokers if asks_zookeeper(broker) and not broker.value["broker_zookeeper"]]
    for node in nodes:
        if not node.value["zookeeper_firewall"]:
            continue
        for variable, needed in (("zookeeper_firewall_clients", clients), ("zookeeper_firewall_nodes", nodes)):
            networks = node.value[variable]
            problems += [
                Problem(node.name, variable, f"{network!r} is not a network", "write it as 10.0.0.0/8 or 2001:db8::/32")
                for network in networks
                if not is_network(network)
            ]
            names = ", ".join([one.name for one in needed if one is not node and not is_network(one.address)][:5])
            if names and not networks:
                problems.append(
                    Problem(
                        node.name,
                        variable,
                        f"is empty, and not known by address: {names}; the packet filter would keep them out",
                        "name their networks, or give them addresses",
                    )
                )


def _check_files(member: Member, switch: str, needed: Sequence[str], exists: Exists, problems: list[Problem]) -> None:
    """Refuse files of the controller that ``switch`` needs and that are not named or not there."""
    for name in needed:
        path = member.value[name]
        if not path:
            problems.append(Problem(member.name, name, f"is not set, but {switch} needs it", "name the PEM file"))
        elif not exists(path):
            problems.append(
                Problem(
                    member.name,
                    name,
                    f"there is no file {path} on the controller",
                    "correct the path or create the file",
                )
            )


def _check_node(
    node: Member, earlier: Sequence[Member], taken: dict[tuple[str, int], str], problems: list[Problem]
) -> None:
    """Apply the rules about one node. ``taken``: who has which port of which machine; this node's are added."""
    value = node.value

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(node.name, variable, what, remedy))

    number = value["zookeeper_id"]
    if not 1 <= number <= HIGHEST_ID:
        add("zookeeper_id", f"{number} is outside of 1 to {HIGHEST_ID}", "choose another")
    for variable in PORTS:
        port = value[variable]
        if not 0 < port < 65536:
            add(variable, f"port {port} is outside of 1 to 65535", "choose another port")
        mine = f"{variable} of {node.name}"
        whose = taken.setdefault((node.machine, port), mine)
        if whose != mine:
            add(variable, f"port {port} is taken by {whose} on the same machine", "choose another port")
    for other in earlier:
        if other.value["zookeeper_id"] == number:
            add("zookeeper_id", f"{number} is also that of {other.name}", "give every node an id of its own")
        if other.machine == node.machine and not value["topology_single_machine_reason"].strip():
            add(
                "ansible_host",
                f"is on the same machine ({node.machine}) as the ZooKeeper node {other.name}",
                "move it to another machine, or say why one is enough in topology_single_machine_reason",
            )
    if value["zookeeper_tick_ms"] < 100:
        add("zookeeper_tick_ms", f"{value['zookeeper_tick_ms']} is too short", "give it at least 100")
    if value["zookeeper_heap_mb"] < 64:
        add("zookeeper_heap_mb", f"{value['zookeeper_heap_mb']} is too little", "give it at least 64")
    for name in ("zookeeper_root", "zookeeper_data"):
        if not value[name].startswith("/"):
            add(name, f"{value[name]!r} is not an absolute path", "write the path from / on")


def check_coordination(broker: Member, nodes: Sequence[Member], exists: Exists, problems: list[Problem]) -> None:
    """Refuse a replicated broker that knows no ZooKeeper, or asks for sessions that it does not grant."""
    value = broker.value
    if not asks_zookeeper(broker):
        return
    if value["broker_zookeeper_tls"]:
        # Our own nodes want to see a certificate; what others want is not known, but half a key is no use.
        ours = bool(nodes) and not value["broker_zookeeper"]
        shows = any(value[name] for name in BROKER_KEY_FILES)
        needed = {name for name in BROKER_FILES if ours or value[name] or (shows and name in BROKER_KEY_FILES)}
        _check_files(broker, "broker_zookeeper_tls", sorted(needed), exists, problems)
    if value["broker_zookeeper"]:
        return
    if not nodes:
        problems.append(
            Problem(
                broker.name,
                "broker_zookeeper",
                "is not set, and the inventory has no ZooKeeper, so nobody can say which member may serve",
                "add the group zookeeper with 3 or 5 hosts, or name an ensemble that is there",
            )
        )
        return
    session = value["broker_session_ms"]
    least = max(2 * nodes[0].value["zookeeper_tick_ms"], _SHORTEST_SESSION)
    most = nodes[0].value["zookeeper_session_most_ms"]
    if not least <= session <= most:
        problems.append(
            Problem(
                broker.name,
                "broker_session_ms",
                f"{session} is outside of what the ensemble grants ({least} to {most})",
                "change it, or zookeeper_tick_ms (two ticks are the least, and a second) or zookeeper_session_most_ms",
            )
        )

    tls, taken = value["broker_zookeeper_tls"], nodes[0].value["zookeeper_tls"]
    if tls != (taken == "required") and taken in {"none", "required"}:
        problems.append(
            Problem(
                broker.name,
                "broker_zookeeper_tls",
                f"is {str(tls).lower()}, but zookeeper_tls is {taken}: no broker would reach the ensemble",
                "change one of them; an ensemble that serves goes over accepted and used",
            )
        )


def node_model(node: Member, nodes: Sequence[Member], brokers: Sequence[Member]) -> dict[str, Any]:
    """Return one node, and all of them as each must know them; ``brokers`` may be its clients."""
    value = node.value
    return {
        "name": node.name,
        "id": value["zookeeper_id"],
        "address": node.address,
        "client_port": value["zookeeper_client_port"],
        "peer_port": value["zookeeper_peer_port"],
        "election_port": value["zookeeper_election_port"],
        "known_clients": addresses([broker for broker in brokers if asks_zookeeper(broker)]),
        "known_nodes": addresses(nodes),
        "servers": [
            {
                "id": each.value["zookeeper_id"],
                "address": each.address,
                "peer_port": each.value["zookeeper_peer_port"],
                "election_port": each.value["zookeeper_election_port"],
            }
            for each in nodes
        ],
        "others": [each.name for each in nodes if each is not node],
    }
