"""The backups of a replicated live: which members are refused because of how broker.xml pairs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.ha.copies import replicas
from pollux.ha.replication import handover
from pollux.ha.replication.settings import Role

if TYPE_CHECKING:
    from pollux.ha.copies.live_side import LiveSide
    from pollux.ha.replication.settings import Settings

#: Why a member is refused that must not start: the code, and how the text begins.
TWO_LIVES, TWO_LIVES_TEXT = "two-lives", "both brokers are configured as the live"


class Replicas(replicas.Replicas):
    """A live's backups, which belong to its group."""

    _settings: Settings
    _codes = (TWO_LIVES_TEXT, TWO_LIVES)

    def _policys_problem(self, content: dict[str, Any]) -> str:
        group, ours = str(content.get("group", "")), self._settings.group
        if group != ours:
            return (
                f"its group-name is {group[:100]!r}, here it is {ours!r}:"
                " they are not a pair; give both the same group-name if they shall be"
            )
        right = self._member.right
        both_preferred = self._settings.role is Role.LIVE and replicas.role_heard(content.get("role", "")) == Role.LIVE
        if ours and both_preferred and right is not None:
            node_id = str(content.get("node_id", ""))
            return (
                f"{TWO_LIVES_TEXT} of the group {ours!r} (its data: node {node_id[:32] or 'none'},"
                f" here: {right.node_id.hex()}): make one of them a <backup> without data, or give it a group-name of"
                " its own"
            )
        return ""

    def heirs(self) -> list[LiveSide]:
        """Return who can take over: the preferred broker first."""
        return handover.heirs(self.backups())
