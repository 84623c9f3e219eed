"""Settings of an acceptor, from URI parameters as broker.xml writes them."""

from __future__ import annotations

from pollux.config.acceptors import AcceptorSettings
from pollux.config.uris import typed_settings


def acceptor_settings(**parameters: str) -> AcceptorSettings:
    """Read as the loader reads them; UriError for what it would refuse."""
    values, _, _ = typed_settings(AcceptorSettings, parameters, lambda kind, text: kind.parse(text))
    return AcceptorSettings(**values)
