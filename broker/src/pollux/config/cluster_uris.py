"""Cluster connections written as URIs: ``<cluster-connection-uri name= address=>`` becomes the element it stands for.

``static://(tcp://a:61616,tcp://b:61616)?connectorRef=me;maxHops=1`` or ``multicast://GROUP?...`` with the name of a
discovery group. Parameters have the elements' names in camel case. So all that is checked of an element is of these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pollux.config.clusters import ClusterConnection
from pollux.config.nearest import did_you_mean
from pollux.config.reader import split_tag
from pollux.config.schema import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml import etree

    from pollux.config.report import Report

_FORM = re.compile(r"(?P<scheme>static|multicast)://(?P<place>\(.*\)|[^?]*)(?:\?(?P<query>.*))?", re.ASCII | re.DOTALL)
_OTHER_NAMES = {"message-load-balancing-type": "message-load-balancing", "clientid": "client-id"}
#: What the URI says itself.
_PLACES = ("static-connectors", "discovery-group-ref")
_DIRECT = "allow-direct-connections-only"


def expand(core: etree._Element, report: Report) -> None:
    """Replace every cluster connection of ``core`` that is a URI."""
    for wrapper in [child for child in core if split_tag(child)[1] == "cluster-connections"]:
        for element in list(wrapper):
            name = split_tag(element)[1]
            if name == "cluster-connection-uri":
                _replace(core, wrapper, element, element.get("address"), report)
            elif name == "cluster-connection" and element.get("uri") is not None:
                _replace(core, wrapper, element, element.get("uri"), report)


def _replace(
    core: etree._Element, wrapper: etree._Element, element: etree._Element, uri: str | None, report: Report
) -> None:
    namespace = split_tag(element)[0]

    def make(parent: etree._Element, tag: str, text: str | None = None, **attributes: str) -> etree._Element:
        made = parent.makeelement(f"{{{namespace}}}{tag}" if namespace else tag, attributes)
        made.text = text
        parent.append(made)
        report.positions[made] = report.positions[element]
        return made

    name = element.get("name")
    wrapper.remove(element)
    if name is None or uri is None:
        report.error(element, f"<{split_tag(element)[1]}> needs the attributes 'name' and 'address'")
        return
    found = _FORM.fullmatch(uri.strip())
    if found is None:
        report.error(
            element,
            f"cluster-connection {name!r}: {uri.partition('?')[0][:80]!r} is not of the form"
            " static://(tcp://host:port,...)?name=value;name=value or multicast://discovery-group?name=value",
        )
        return
    connection = make(wrapper, "cluster-connection", name=name)
    direct = {}
    for parameter, value in _parameters(element, name, found["query"] or "", report):
        if parameter == _DIRECT:
            direct[_DIRECT] = value
        else:
            make(connection, parameter, value)
    if found["scheme"] == "multicast":
        make(connection, "discovery-group-ref", **{"discovery-group-name": found["place"]})
        return
    connectors = next((child for child in core if split_tag(child)[1] == "connectors"), None)
    if connectors is None:
        connectors = make(core, "connectors")
    members = make(connection, "static-connectors", **direct)
    uris = re.split(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)", found["place"].removeprefix("(").removesuffix(")"))
    for number, one in enumerate(uris, start=1):
        reference = f"{name} {number}"
        make(connectors, "connector", one.strip(), name=reference)
        make(members, "connector-ref", reference)


def _camel(name: str) -> str:
    first, *more = name.split("-")
    return first + "".join(each.capitalize() for each in more)


def _parameters(element: etree._Element, name: str, query: str, report: Report) -> Iterator[tuple[str, str]]:
    known = [each for each in table_of(ClusterConnection).element_names() if each not in _PLACES] + [_DIRECT]
    for part in re.split(r"[;&]", query):
        parameter, _, value = part.partition("=")
        if not part.strip():
            continue
        tag = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", parameter.strip()).lower()
        tag = _OTHER_NAMES.get(tag, tag)
        if tag in known:
            yield tag, unquote(value.strip())
        else:
            near = did_you_mean(parameter.strip(), [_camel(each) for each in known])
            report.error(
                element, f"cluster-connection {name!r}: unknown URI parameter {parameter.strip()[:60]!r}{near}"
            )
