"""A plugin of Pollux: every message for some addresses says for which tenant it is, or is refused."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from pollux.plugins import Plugin, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pollux.plugins import BrokerInfo, SentMessage

logger = logging.getLogger(__name__)


class Tenants(Plugin):
    """Look at the property ``tenant`` of what is sent to ``addresses`` (how they begin); ``tenants`` are allowed."""

    api_version = 1

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.addresses = properties.get("addresses", "")
        self.tenants = frozenset(filter(None, properties.get("tenants", "").split(",")))
        self.sent: Counter[str] = Counter()
        self.failed_logins = 0

    @classmethod
    def problems(cls, properties: Mapping[str, str]) -> list[str]:
        """Name what a start refuses."""
        unknown = sorted(properties.keys() - {"addresses", "tenants"})
        return [f"unknown property {name!r}: use addresses or tenants" for name in unknown]

    def start(self, broker: BrokerInfo) -> None:
        """Say who is served."""
        logger.info("broker %s serves the tenants %s", broker.name, ", ".join(sorted(self.tenants)) or "of any name")

    def stop(self) -> None:
        """Say what was counted."""
        logger.info("messages by tenant: %s; failed log-ins: %d", dict(self.sent), self.failed_logins)

    def on_event(self, name: str, facts: Mapping[str, object]) -> None:
        """Count log-ins that failed."""
        if name == "login-failed" and facts.get("source"):
            self.failed_logins += 1

    def on_send(self, message: SentMessage) -> None:
        """Refuse what names no tenant, or an unknown one."""
        if not message.address.startswith(self.addresses):
            return
        tenant = message.properties.get("tenant")
        if not isinstance(tenant, str) or not tenant:
            raise RefusedError("give it the property 'tenant'")
        if self.tenants and tenant not in self.tenants:
            raise RefusedError(f"there is no tenant {tenant[:50]!r}")
        self.sent[tenant] += 1
        message.annotate("checked_by", "tenants")
