"""Shows a member of an active-passive cluster, and the others as it sees them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.ha.active_passive.levels import Kept
    from pollux.ha.active_passive.promotion import Answer, Record, Verdict
    from pollux.ha.active_passive.settings import Settings
    from pollux.ha.active_passive.statuses import Status


def own_view(  # noqa: PLR0917  (what a member is, in the order of the status)
    status: Status,
    record: Record | None,
    expected: Iterable[str],
    ready_left: float | None,
    grant_left_ms: int | None,
    now: float,
) -> dict[str, Any]:
    """Return what this member's status says. ``ready_left``: seconds; None: it serves. ``now``: by its own clock."""
    serves = ready_left is None
    return {
        "status": status.value,
        "number": str(record.number) if record is not None else None,
        "heirs": sorted(record.heirs) if record is not None else [],
        "expected": sorted(expected) if serves else [],
        "ready_left_ms": None if ready_left is None else int(ready_left * 1000),
        "grant_left_ms": grant_left_ms if serves else None,
        # What whoever grants the right to serve says it was asked for at.
        "clock_ms": int(now * 1000),
    }


def few_copies(wanted: int, found: int) -> str:
    """Return what is wrong with a primary that has so many backups in sync; empty: nothing."""
    if found < wanted:
        return f"fewer than min-in-sync ({wanted}) backups are in sync: nothing is confirmed"
    return "" if found else "no backup is in sync: messages are on this broker's disk only"


def cluster_view(
    settings: Settings, member_id: str, status: Status, record: Record | None, answers: Iterable[Answer]
) -> dict[str, Any]:
    """Return what this member and all others are; who does not answer has no status."""
    members = [_member(settings.me, status, record), *(_member(one.member, one.status, one.record) for one in answers)]
    return {
        "status": status.value,
        "id": member_id,
        "brokersUrl": settings.brokers_url,
        "publicUrl": settings.public_url,
        "replicate": settings.replicate,
        "members": sorted(members, key=lambda one: str(one["address"])),
    }


def _member(address: str, status: Status | None, record: Record | None) -> dict[str, Any]:
    return {
        "address": address,
        "status": status.value if status is not None else None,
        "number": str(record.number) if record is not None else None,
    }


def verdict_view(verdict: Verdict, status: Status, record: Record | None) -> dict[str, Any]:
    """Return what whoever asked for a promotion or a demotion is told: what came of it, and of this member's data."""
    return {
        "promoted": verdict.promoted,
        "why": verdict.why.value,
        "reason": verdict.reason,
        "status": status.value,
        "expected": sorted(verdict.expected),
        "unfenced": sorted(verdict.unfenced),
        "number": str(record.number) if record is not None else None,
    }


def kept_view(kept: Kept | None) -> dict[str, Any]:
    """Return what whoever asked for a promotion is told of the messages; None: nothing is served yet."""
    return {
        "kept": {"queues": kept.queues, "messages": kept.messages} if kept is not None else None,
        "dropped": [one._asdict() for one in kept.dropped] if kept is not None else [],
    }
