"""cluster.conf of cman and rgmanager: what is wrong with one by rgmanager's own rules, and its order. Pure.

rgmanager starts the resources of a service by their types, whatever their order in the file: an ``ip`` before a
``script``, so a virtual address beside the script of the primary is up before the promotion. Inside of the script it
comes after it. The rules are those of rgmanager 3.0.12; what they are for is in docs/active-passive.md.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Element = ET.Element

#: In which order types start and stop inside of a service (its agent's metadata); others come last, and stop first.
STARTS = ("lvm", "fs", "clusterfs", "netfs", "nfsexport", "nfsclient", "ip", "smb", "script")
STOPS = ("script", "ip", "smb", "nfsclient", "nfsexport", "netfs", "clusterfs", "fs", "lvm")
#: cman's limit.
LONGEST_NAME = 15
#: By what a resource of a type is referred to.
_NAMES = {"ip": "address", "script": "name"}
_PRIMARY = "qpidd-primary"


class Conf:
    """Hold a parsed cluster.conf."""

    def __init__(self, text: str) -> None:
        """Raises ET.ParseError."""
        self.root = ET.fromstring(text)  # noqa: S314
        self.version = int(self.root.get("config_version") or 0)
        manager = self.root.find("rm")
        self.manager = manager if manager is not None else ET.Element("rm")
        self.nodes = list(self.root.iterfind("clusternodes/clusternode"))
        self.services = list(self.manager.iterfind("service"))
        self.resources = {(one.tag, _name(one)): one for one in self.manager.iterfind("resources/*")}
        self.domains = {str(one.get("name")): one for one in self.manager.iterfind("failoverdomains/failoverdomain")}

    def without_version(self) -> str:
        """Return the file's meaning as text, by which two files are compared."""
        version = self.root.attrib.pop("config_version", "")
        try:
            return ET.canonicalize(ET.tostring(self.root, encoding="unicode"), strip_text=True)
        finally:
            self.root.set("config_version", version)


def _name(element: Element) -> str:
    return str(element.get("ref") or element.get(_NAMES.get(element.tag, "name")) or "")


def _label(element: Element) -> str:
    return f"{element.tag} {_name(element)}"


def _ordered(parent: Element, types: tuple[str, ...]) -> list[Element]:
    """Return the children by type, those of one type in the file's order."""
    children = [child for child in parent if child.tag != "action"]
    return sorted(children, key=lambda child: types.index(child.tag) if child.tag in types else len(types))


def starts(parent: Element) -> Iterator[str]:
    """Yield what a service starts, in this order: children follow their parents."""
    for child in _ordered(parent, STARTS):
        yield _label(child)
        yield from starts(child)


def stops(parent: Element) -> Iterator[str]:
    """Yield what a service stops, in this order: children go before their parents."""
    for child in _ordered(parent, STOPS):
        yield from stops(child)
        yield _label(child)


def cluster_conf_problems(text: str, before: str = "") -> list[str]:
    """Return what is wrong with a cluster.conf, or with it in the place of ``before``; empty when nothing."""
    try:
        conf = Conf(text)
    except (ET.ParseError, ValueError) as error:
        return [f"cluster.conf cannot be read: {error}"]
    return [*_cluster(conf), *_fencing(conf), *_services(conf), *_resources(conf), *_change(conf, before)]


def _cluster(conf: Conf) -> Iterator[str]:
    name = str(conf.root.get("name") or "")
    if not 0 < len(name) <= LONGEST_NAME:
        yield f"cluster name {name!r}: has to have 1 to {LONGEST_NAME} characters; set pacemaker_cluster_name"
    for attribute in ("name", "nodeid"):
        found = [str(node.get(attribute)) for node in conf.nodes]
        for double in sorted({one for one in found if found.count(one) > 1}):
            yield f"clusternode: two have the {attribute} {double}"
    if len(conf.nodes) < 3:
        yield f"clusternodes: {len(conf.nodes)} have no majority when one is lost; make it three or more"


def _fencing(conf: Conf) -> Iterator[str]:
    devices = {device.get("name") for device in conf.root.iterfind("fencedevices/fencedevice")}
    for node in conf.nodes:
        used = [device.get("name") for device in node.iterfind("fence/method/device")]
        if not used:
            yield f"clusternode {node.get('name')}: has no fence device, so nothing would be recovered after it is lost"
        for name in used:
            if name not in devices:
                yield f"clusternode {node.get('name')}: there is no fencedevice {name}"


def _services(conf: Conf) -> Iterator[str]:
    names = {str(node.get("name")) for node in conf.nodes}
    for domain in conf.domains.values():
        for node in domain.iterfind("failoverdomainnode"):
            if node.get("name") not in names:
                yield f"failoverdomain {domain.get('name')}: there is no clusternode {node.get('name')}"
    places: list[str] = []
    for service in conf.services:
        label = f"service {service.get('name')}"
        domain = conf.domains.get(str(service.get("domain"))) if service.get("domain") else None
        if service.get("domain") and domain is None:
            yield f"{label}: there is no failoverdomain {service.get('domain')}"
        if service.get("exclusive") not in (None, "0"):
            yield f"{label}: exclusive has to be 0: each node runs a service already, so it could run nowhere"
        scripts = [_name(one) for one in service.iter("script")]
        if _PRIMARY in scripts:
            yield from _primary(service, label, domain)
        elif "qpidd" in scripts:
            members = (
                [str(node.get("name")) for node in domain.iterfind("failoverdomainnode")] if domain is not None else []
            )
            places += members
            if domain is None or domain.get("restricted") != "1" or len(members) != 1:
                yield f"{label}: needs a restricted failoverdomain of one node, or a node would have two brokers"
            if service.get("recovery", "restart") != "restart":
                yield f"{label}: recovery has to be restart: there is no other place for it"
    for name in sorted(names - set(places)):
        yield f"clusternode {name}: no service has its broker"
    primaries = sum(_PRIMARY in [_name(one) for one in service.iter("script")] for service in conf.services)
    if primaries != 1:
        yield f"rm: {primaries} services have the script {_PRIMARY}; there has to be one"


def _primary(service: Element, label: str, domain: Element | None) -> Iterator[str]:
    if service.get("recovery") != "relocate":
        yield f"{label}: recovery has to be relocate: a broker that failed is not the one to promote"
    if domain is not None and domain.get("restricted") == "1" and len(list(domain)) < 2:
        yield f"{label}: its failoverdomain has one node, so the primary could not move"
    order = list(starts(service))
    script = order.index(f"script {_PRIMARY}")
    for address in (one for one in order[:script] if one.startswith("ip ")):
        yield (
            f"{label}: {address} is started before the promotion, whatever the order in the file: put it inside of the"
            f" script {_PRIMARY}"
        )


def _resources(conf: Conf) -> Iterator[str]:
    used: dict[tuple[str, str], int] = {}
    for service in conf.services:
        for one in service.iter():
            if one.tag not in _NAMES:
                continue
            key = (one.tag, _name(one))
            used[key] = used.get(key, 0) + 1
            if one.get("ref") and key not in conf.resources:
                yield f"service {service.get('name')}: there is no {one.tag} {one.get('ref')} in resources"
            defined = conf.resources.get(key, one)
            status = [action for action in defined.iterfind("action") if action.get("name") == "status"]
            if not status:
                slow = {"ip": 20, "script": 30}[one.tag]
                yield (
                    f"{one.tag} {_name(one)}: is looked at every {slow} s, whatever status_poll_interval says: give it"
                    ' <action name="status" depth="*" interval="2"/>'
                )
            if one.tag == "ip" and defined.get("sleeptime") != "0":
                yield f"ip {_name(one)}: waits 10 s after its removal: give it sleeptime=0"
    for (tag, name), count in used.items():
        if tag == "ip" and count > 1:
            yield f"ip {name}: is in {count} places, and an address can be in one"


def _change(conf: Conf, before: str) -> Iterator[str]:
    if not before.strip():
        return
    try:
        old = Conf(before)
    except (ET.ParseError, ValueError) as error:
        yield f"the cluster.conf that is there cannot be read ({error}): see what happened to it, and move it away"
        return
    if conf.without_version() != old.without_version() and conf.version <= old.version:
        yield (
            f"cluster.conf would change, or was edited by hand, and its version {conf.version} is not above"
            f" {old.version}, which the nodes have: they would not take it. Compare both, then set"
            f" rgmanager_config_version to {old.version + 1}"
        )
    elif conf.version < old.version:
        yield f"version {conf.version} is below {old.version}, which the nodes have: raise rgmanager_config_version"


def cluster_conf_plan(text: str, before: str = "") -> dict[str, Any]:
    """Return in which order each service starts and stops what it has, and which services are new, other or gone."""
    conf = Conf(text)
    old = Conf(before) if before.strip() else None

    def services(one: Conf | None) -> dict[str, str]:
        found = one.services if one is not None else []
        return {str(each.get("name")): ET.canonicalize(ET.tostring(each, encoding="unicode")) for each in found}

    now, then = services(conf), services(old)
    return {
        "version": conf.version,
        "order": [
            f"{service.get('name')}: starts {', '.join(starts(service))}; stops {', '.join(stops(service))}"
            for service in conf.services
        ],
        "new": sorted(now.keys() - then.keys()),
        "changed": sorted(name for name in now.keys() & then.keys() if now[name] != then[name]),
        "gone": sorted(then.keys() - now.keys()),
    }


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pollux_cluster_conf_problems": cluster_conf_problems, "pollux_cluster_conf_plan": cluster_conf_plan}
