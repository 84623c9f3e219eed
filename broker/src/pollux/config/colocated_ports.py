"""The ports of backups that a host has beside its own broker: ``backup-port-offset`` times the slot. Pure.

Slot 0 is the host's own broker; its backups have the slots from 1 to ``max-backups``. Acceptors are shifted, and all
connectors but those in ``excludes``, which lead to other hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.clusters import ReplicationColocated, SharedStoreColocated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.config.model import Configuration

Colocated = ReplicationColocated | SharedStoreColocated
LAST_PORT = 65535
#: The connector of a life to the other lives of its own host.
OWN_HOST = "px:own-host"


def colocated_of(configuration: Configuration) -> Colocated | None:
    """Return the colocated policy of a broker; None: it has none."""
    policy = configuration.ha_policy
    if policy is None:
        return None
    if policy.shared_store is not None:
        return policy.shared_store.colocated
    return policy.replication.colocated if policy.replication is not None else None


def lives_of(configuration: Configuration) -> int:
    """Return how many lives a broker's machine may have at once, which share its memory."""
    colocated = colocated_of(configuration)
    return 1 + colocated.max_backups if colocated is not None else 1


def group_of(part: object) -> str:
    """Return the group-name that an embedded policy of replication gives; empty: none."""
    return str(getattr(part, "group_name", None) or "")


def colocated_slots(configuration: Configuration) -> list[int]:
    """Return what is added to the ports of a host for each of its slots; nothing without the policy."""
    colocated = colocated_of(configuration)
    if colocated is None:
        return []
    return [slot * colocated.backup_port_offset for slot in range(1, colocated.max_backups + 1)]


def own_ports(configuration: Configuration) -> dict[int, str]:
    """Return what the broker itself listens on, by port: acceptors, and the management port. Port 0 is any free one."""
    found = {acceptor.port: f"acceptor {acceptor.name!r}" for acceptor in configuration.acceptors if acceptor.port}
    if configuration.management.enabled and configuration.management.port:
        found[configuration.management.port] = "px:management"
    return found


def collisions(ports: dict[int, str], offset: int, slots: int) -> Iterator[str]:
    """Say which ports of the slots up to ``slots`` cannot be: beyond the last one, or somebody else's.

    ``ports`` are those of the host's own broker. At most one line for each slot and one for each reason.
    """
    taken = {port: f"{what} of the broker itself" for port, what in ports.items()}
    for slot in range(1, slots + 1):
        for port, what in ports.items():
            shifted = port + slot * offset
            if shifted > LAST_PORT:
                yield (
                    f"backup {slot} of max-backups {slots} would have {what} on port {shifted}, beyond {LAST_PORT}:"
                    " lower max-backups or backup-port-offset"
                )
                return
            if shifted in taken:
                yield (
                    f"backup {slot} would have {what} on port {shifted}, which is {taken[shifted]}: choose another"
                    " backup-port-offset"
                )
                return
        taken.update({port + slot * offset: f"{what} of backup {slot}" for port, what in ports.items()})
