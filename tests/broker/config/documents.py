"""Builds small broker.xml texts for the tests."""

from __future__ import annotations

from pollux.config import ConfigError, Configuration, Problem, check, examine, loads

HEAD = '<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">\n<core xmlns="urn:activemq:core">\n'
TAIL = "\n</core>\n</configuration>\n"

SECURITY = '<security-settings><security-setting match="#"/></security-settings>'
ACCEPTOR = '<acceptors><acceptor name="a">tcp://127.0.0.1:61616</acceptor></acceptors>'
#: What keeps the warnings about a broker nobody can use away.
QUIET = SECURITY + ACCEPTOR


def document(core: str = "", px: str = "", *, quiet: bool = True) -> str:
    """The core's content starts on line 3, on a line of its own."""
    text = HEAD + core + TAIL
    if quiet:
        text = text.replace("</core>", (QUIET if "<acceptors" not in core else SECURITY) + "</core>", 1)
        if "<security-settings" in core:
            text = text.replace(SECURITY + ACCEPTOR, ACCEPTOR).replace(SECURITY + "</core>", "</core>")
    return text.replace("</configuration>", px + "</configuration>")


def problems_of(text: str | bytes, properties: dict[str, str] | None = None) -> list[Problem]:
    """Everything ``check`` would report, without a file."""
    data = text.encode() if isinstance(text, str) else text
    return examine("broker.xml", properties or {}, data=data)[1]


def messages(text: str, properties: dict[str, str] | None = None) -> list[str]:
    """The problems' texts without the place."""
    return [problem.message for problem in problems_of(text, properties)]


def configuration(core: str = "", px: str = "", **properties: str) -> Configuration:
    """Load a document with this core."""
    return loads(document(core, px), properties)


__all__ = ["ConfigError", "check", "configuration", "document", "messages", "problems_of"]
