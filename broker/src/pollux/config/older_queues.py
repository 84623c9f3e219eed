"""Queues as older versions of Artemis wrote them, which it reads still: each becomes the address that it stands for.

``<queues>`` has queues that name their address; they are MULTICAST, as in Artemis. ``<jms>`` beside ``<core>`` has
``<queue>``, an ANYCAST queue with its address, and ``<topic>``, a MULTICAST address. So all that is checked of
``<addresses>`` is of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.reader import split_tag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lxml import etree

    from pollux.config.report import Report


def expand(core: etree._Element, jms: list[etree._Element], report: Report) -> None:
    """Move what ``<queues>`` of ``core`` and the ``jms`` elements hold to its ``<addresses>``."""
    older = [child for child in core if split_tag(child)[1] == "queues"]
    if older or jms:
        expansion = _Expansion(core, report)
        for element in older:
            expansion.queues(element)
        for element in jms:
            expansion.jms(element)


class _Expansion:
    """Adds to the addresses of one ``core``."""

    def __init__(self, core: etree._Element, report: Report) -> None:
        self._core = core
        self._report = report
        self._namespace = split_tag(core)[0]

    def queues(self, element: etree._Element) -> None:
        """Take in ``<queues>``."""
        self._core.remove(element)
        for queue in self._known(element, ("queue",)):
            name = queue.get("name")
            if name is None:
                self._report.error(queue, "<queue> needs the attribute 'name'")
                continue
            address = name
            for child in list(queue):
                if split_tag(child)[1] == "address":
                    address = (child.text or "").strip() or name
                    queue.remove(child)
            self._routing(address, "multicast", queue).append(queue)

    def jms(self, element: etree._Element) -> None:
        """Take in ``<jms>``."""
        for each in self._known(element, ("queue", "topic", "jmx-domain")):
            kind, name = split_tag(each)[1], each.get("name")
            if kind == "jmx-domain":
                self._report.warning(each, "<jmx-domain> has no effect: there is no JMX; management is HTTP")
            elif name is None:
                self._report.error(each, f"<{kind}> needs the attribute 'name'")
            elif kind == "topic":
                self._routing(name, "multicast", each)
            else:
                queue = self._make(self._routing(name, "anycast", each), "queue", each)
                for attribute, value in each.attrib.items():
                    queue.set(attribute, value)
                for child in list(each):
                    tag = split_tag(child)[1]
                    copy = self._make(queue, "filter" if tag == "selector" else tag, child)
                    copy.text = child.text
                    for attribute, value in child.attrib.items():
                        copy.set(attribute, value)

    def _known(self, element: etree._Element, names: tuple[str, ...]) -> Iterator[etree._Element]:
        """Yield what may stand in an element; all else is an error."""
        for child in list(element):
            name = split_tag(child)[1]
            if name in names:
                yield child
            else:
                inside = split_tag(element)[1]
                allowed = ", ".join(f"<{each}>" for each in names)
                self._report.error(child, f"unknown element <{name[:60]}> in <{inside}>: allowed is {allowed}")

    def _routing(self, address: str, kind: str, element: etree._Element) -> etree._Element:
        """Return the ``<anycast>`` or ``<multicast>`` of an address, made as at ``element`` where it is not there."""
        addresses = self._child(self._core, "addresses", element)
        for each in addresses:
            if each.get("name") == address:
                return self._child(each, kind, element)
        made = self._make(addresses, "address", element)
        made.set("name", address)
        return self._make(made, kind, element)

    def _child(self, parent: etree._Element, name: str, element: etree._Element) -> etree._Element:
        found = next((child for child in parent if split_tag(child)[1] == name), None)
        return found if found is not None else self._make(parent, name, element)

    def _make(self, parent: etree._Element, name: str, element: etree._Element) -> etree._Element:
        made = parent.makeelement(f"{{{self._namespace}}}{name}" if self._namespace else name, {})
        parent.append(made)
        self._report.positions[made] = self._report.positions[element]
        return made
