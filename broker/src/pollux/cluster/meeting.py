"""How this broker announces itself and finds others: by multicast, or as the JGroups file of a group says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster import discovery, exchange
from pollux.cluster.discovery import Announcer, Discovered, DiscoveryError
from pollux.cluster.exchange import ExchangeAnnouncer, ExchangeDiscovered
from pollux.config.jgroups import JGroupsError, finding_of

if TYPE_CHECKING:
    from pollux.cluster.exchange import Exchange
    from pollux.config.acceptors import ConnectorSettings
    from pollux.config.clusters import BroadcastGroup, DiscoveryGroup
    from pollux.config.model import Configuration
    from pollux.wire.core import ClusterKey


class Meeting:
    """Groups of one broker. ``member`` names it in announcements. Groups of one channel share what they exchange by."""

    def __init__(self, configuration: Configuration, key: ClusterKey, member: str) -> None:
        self._configuration = configuration
        self._key = key
        self._member = member
        self._exchanges: dict[tuple[str, str], Exchange] = {}

    def announcers(self) -> list[Announcer]:
        """Return one for each broadcast group. Raises DiscoveryError."""
        connectors = {connector.name: connector.endpoints for connector in self._configuration.connectors}
        found: list[Announcer] = []
        for group in self._configuration.broadcast_groups:
            endpoints = [one for name in group.connector_refs for one in connectors[name]]
            if group.jgroups_file is None:
                found.append(Announcer(group, endpoints, self._key, member=self._member))
            else:
                made = ExchangeAnnouncer(group, endpoints, self._key, member=self._member)
                made.exchange = self._exchange(group)
                found.append(made)
        return found

    def others(self, group: DiscoveryGroup, template: ConnectorSettings) -> Discovered:
        """Return who finds the others of a discovery group. Raises DiscoveryError."""
        period = discovery.period(self._configuration)
        if group.jgroups_file is None:
            return Discovered(group, self._key, template, member=self._member, period=period)
        made = ExchangeDiscovered(group, self._key, template, member=self._member, period=period)
        made.exchange = self._exchange(group)
        return made

    def _exchange(self, group: BroadcastGroup | DiscoveryGroup) -> Exchange:
        file, channel = group.jgroups_file or "", group.jgroups_channel or ""
        known = self._exchanges.get((file, channel))
        if known is None:
            try:
                found = finding_of(self._configuration, file)
            except JGroupsError as error:
                raise DiscoveryError(str(error)) from error
            known = self._exchanges[file, channel] = exchange.make(found, channel)
        return known
