"""Add rules on broker.xml that need more than the configuration layer knows: selectors must parse.

Import it where a file is read for ``pollux check`` or a start; the rules add themselves. They do no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.rules import add_rule
from pollux.routing.selector import parse
from pollux.routing.selector.errors import SelectorError

if TYPE_CHECKING:
    from pollux.config.model import Configuration
    from pollux.config.report import Report


@add_rule
def selectors_parse(configuration: Configuration, report: Report) -> None:
    """Refuse the filter of a queue, divert or bridge that is no JMS selector."""
    filters = [
        (f"queue {queue.name!r}", queue.filter, queue.line)
        for address in configuration.addresses
        for queue in address.queues
    ]
    filters += [(f"divert {divert.name!r}", divert.filter, divert.line) for divert in configuration.diverts]
    filters += [(f"bridge {bridge.name!r}", bridge.filter, bridge.line) for bridge in configuration.bridges]
    for what, text, line in filters:
        if text is not None:
            try:
                parse(text)
            except SelectorError as error:
                report.error_at(line, f"{what}: {error}")
